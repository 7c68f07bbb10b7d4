"""The HTTP server for operators, on threads of its own, so that no scrape waits for a request or the reverse.

One response a connection, a few connections at once, each with a deadline: a client that trickles
or keeps its connection open costs a thread for ten seconds at most, and never a request its time.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from ipaddress import ip_address
from socketserver import TCPServer
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from sidecar.errors import TransportError
from sidecar.observability.collector import CONTENT_TYPE, make_registry, render
from sidecar.observability.status import Status

MAX_CONNECTIONS: Final = 8
DEADLINE_S: Final = 10.0
"""How long a connection may last, from its acceptance to the end of its response."""

Action = Callable[[Mapping[str, str]], tuple[int, Mapping[str, Any]]]
"""Takes the query's parameters, returns a status code and a JSON body. Called on a thread of the server."""

_HTML: Final = "text/html; charset=utf-8"
_JSON: Final = "application/json"
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_BUSY: Final = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"

_log = logging.getLogger(__name__)


class Response(NamedTuple):
    """What a route answers."""

    status: int
    content_type: str
    body: bytes


class AdminServer:
    """`/metrics`, `/healthz`, `/readyz`, the status page and the actions that the service adds.

    `bind` is `host:port`, `[ipv6]:port`; port 0 takes a free one, which `address` tells. The socket
    is open when the constructor returns, the answers begin with `start`. Raises `TransportError`.
    """

    def __init__(self, bind: str, status: Status) -> None:
        self._status = status
        self._registry = make_registry(status.metrics)
        self._page = resources.files("sidecar.observability").joinpath("status.html").read_bytes()
        self._actions: dict[tuple[str, str], Action] = {}
        self._gets: dict[str, Callable[[], Response]] = {
            "/": lambda: Response(200, _HTML, self._page),
            "/metrics": lambda: Response(200, CONTENT_TYPE, render(self._registry)),
            "/healthz": lambda: _json(*status.probe(ready=False)),
            "/readyz": lambda: _json(*status.probe(ready=True)),
            "/status.json": lambda: _json(200, status.snapshot()),
            "/config.json": lambda: _json(200, status.configuration()),
        }
        self._server = _listen(bind, self.answer)
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port that are bound."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """The address of the status page."""
        host, port = self.address
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def on_post(self, path: str, action: Action) -> None:
        """Let a path be posted to, from this host and by no web page."""
        self._actions["POST", path] = action

    def on_delete(self, path: str, action: Action) -> None:
        """Let a path be deleted, under the same conditions."""
        self._actions["DELETE", path] = action

    def start(self) -> None:
        """Answer from now on, on a daemon thread."""
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="admin", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port. Safe to call twice, and without `start`."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.server_close()

    def answer(self, method: str, target: str, peer: str, origin: str | None) -> Response:
        """The response to one request. `peer` is the client's IP address, `origin` a browser's header."""
        url = urlsplit(target)
        if method in ("GET", "HEAD") and url.path in self._gets:
            return self._gets[url.path]()
        action = self._actions.get((method, url.path))
        if action is not None:
            if origin is not None or not ip_address(peer).is_loopback:
                return _json(
                    403, {"error": "only programs on this host may do that; use curl there, or a port forward"}
                )
            return _json(*action(dict(parse_qsl(url.query, keep_blank_values=True))))
        paths = {"GET " + path for path in self._gets} | {f"{name} {path}" for name, path in self._actions}
        allowed = [known.partition(" ")[0] for known in sorted(paths) if known.endswith(f" {url.path}")]
        if allowed:
            return _json(405, {"error": f"{url.path} takes {' or '.join(allowed)}"})
        return _json(404, {"error": "no such path", "paths": sorted(paths)})


class _Server(ThreadingHTTPServer):
    """A thread a connection, at most `MAX_CONNECTIONS`, each ended at its deadline."""

    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, address: Any, answer: Callable[..., Response]) -> None:
        self.address_family = family
        self.answer = answer
        self._open: dict[Any, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without `HTTPServer`'s reverse lookup of the host's name, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the connection a thread, or refuse it where all are taken."""
        with self._lock:
            full = len(self._open) >= MAX_CONNECTIONS
            if not full:
                self._open[request] = time.monotonic() + DEADLINE_S
        if not full:
            super().process_request(request, client_address)
            return
        request.setblocking(False)
        try:
            request.send(_BUSY)
        except OSError:
            _log.debug("a connection that was refused had gone already")
        self.shutdown_request(request)

    def close_request(self, request: Any) -> None:
        """Forget the connection when it is closed."""
        with self._lock:
            self._open.pop(request, None)
        super().close_request(request)

    def service_actions(self) -> None:
        """End what is past its deadline: called between connections and a few times a second."""
        now = time.monotonic()
        with self._lock:
            late = [request for request, deadline in self._open.items() if deadline < now]
        for request in late:
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                _log.debug("a connection past its deadline had gone already")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no news."""
        _log.debug("connection of %s failed", client_address[0], exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server_version = "sidecar"
    sys_version = ""
    timeout = DEADLINE_S
    server: _Server

    def do_GET(self) -> None:
        self._respond("GET")

    def do_HEAD(self) -> None:
        self._respond("HEAD")

    def do_POST(self) -> None:
        self._respond("POST")

    def do_DELETE(self) -> None:
        self._respond("DELETE")

    def _respond(self, method: str) -> None:
        try:
            response = self.server.answer(method, self.path, self.client_address[0], self.headers.get("Origin"))
        except Exception:
            _log.exception("%s %s failed", method, urlsplit(self.path).path)
            response = _json(500, {"error": "failed here; the log says why"})
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", _POLICY)
        self.end_headers()
        if method != "HEAD":
            self.wfile.write(response.body)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s " + format, self.client_address[0], *args)


def _listen(bind: str, answer: Callable[..., Response]) -> _Server:
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _Server(family, address, answer)
    except OSError as error:
        raise TransportError(
            f'admin.bind = "{bind}": {error.strerror or error}; set it to an address of this host with a free port, '
            f"and look for another sidecar that still runs"
        ) from error


def _json(status: int, body: Mapping[str, Any]) -> Response:
    return Response(HTTPStatus(status), _JSON, json.dumps(body, separators=(",", ":")).encode() + b"\n")
