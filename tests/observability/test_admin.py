"""The admin server over real sockets: routes, refusals, and clients that misbehave."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from itertools import count

import pytest

from sidecar.errors import TransportError
from sidecar.observability import admin
from sidecar.observability.admin import AdminServer
from sidecar.observability.metrics import Metrics
from sidecar.observability.status import Health, Status


class Site:
    """A running server and the state behind it."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.health = Health()
        self.server = AdminServer("127.0.0.1:0", Status(self.metrics, lambda: self.health))

    def request(self, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection(*self.server.address, timeout=5)
        try:
            connection.request(method, path, headers=headers or {})
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.server.address, timeout=5)


@pytest.fixture(scope="module")
def running() -> Iterator[Site]:
    made = Site()
    made.server.start()
    yield made
    made.server.close()


@pytest.fixture
def site(running) -> Site:
    """The running server with its state as at the start."""
    running.health = Health()
    running.metrics.inflight_bytes = 0
    return running


def test_metrics_are_prometheus_text_and_show_what_was_counted(site):
    site.metrics.received["abort"] += 4
    response, body = site.request("GET", "/metrics")
    assert (response.status, response.getheader("Content-Type")) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b'\nsidecar_messages_received_total{kind="abort"} 4.0\n' in body


@pytest.mark.parametrize("path", ["/readyz", "/healthz"])
def test_probes_answer_by_status_code(site, path):
    response, body = site.request("GET", path)
    assert (response.status, json.loads(body)["reasons"]) == (200, [])
    site.health = Health(live=False, ready=False, reasons=("the engine is not connected",))
    response, body = site.request("GET", path)
    assert (response.status, json.loads(body)["reasons"]) == (503, ["the engine is not connected"])


def test_the_page_needs_nothing_from_outside(site):
    response, body = site.request("GET", "/")
    page = body.decode()
    assert response.status == 200
    assert "default-src 'none'" in str(response.getheader("Content-Security-Policy"))
    assert not re.search(r"""(src|href)=["'](?!data:)|https?://(?!www\.w3\.org/2000/svg)|@import|url\(""", page)
    for fetched in re.findall(r'fetch\("([^"]+)"', page):
        assert site.request("GET", f"/{fetched}")[0].status == 200


def test_the_page_writes_text_never_markup(site):
    page = site.request("GET", "/")[1].decode()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/metrics", 405),
        ("GET", "/tap", 405),
        ("DELETE", "/tap", 405),
        ("DELETE", "/", 405),
        ("PATCH", "/", 501),
        ("POST", "/x", 404),
    ],
)
def test_what_is_not_there_is_said(site, method, path, status):
    site.server.on_post("/tap", lambda query: (200, query))
    assert site.request(method, path)[0].status == status


def test_head_has_the_headers_and_no_body(site):
    response, body = site.request("HEAD", "/metrics")
    assert (response.status, body) == (200, b"")
    assert int(response.getheader("Content-Length")) > 1000


def test_a_post_reaches_its_handler_with_the_query(site):
    seen = []

    def tap(query):
        seen.append(query)
        return 202, {"tap": query["to"]}

    site.server.on_post("/tap", tap)
    response, body = site.request("POST", "/tap?direction=ingress&to=ipc:///tmp/tap.sock")
    assert (response.status, json.loads(body)) == (202, {"tap": "ipc:///tmp/tap.sock"})
    assert seen == [{"direction": "ingress", "to": "ipc:///tmp/tap.sock"}]


def test_a_delete_reaches_its_own_handler_under_the_same_conditions(site):
    site.server.on_post("/thing", lambda query: (200, {"did": "post"}))
    site.server.on_delete("/thing", lambda query: (200, {"did": "delete", **query}))
    assert json.loads(site.request("DELETE", "/thing?to=x")[1]) == {"did": "delete", "to": "x"}
    assert site.request("DELETE", "/thing", {"Origin": "null"})[0].status == 403


def test_a_web_page_may_not_post(site):
    calls = count()
    site.server.on_post("/tap", lambda query: (200, {"n": next(calls)}))
    response, _ = site.request("POST", "/tap", {"Origin": "http://127.0.0.1:9464"})
    assert response.status == 403
    assert next(calls) == 0


@pytest.mark.parametrize(("peer", "status"), [("10.1.2.3", 403), ("fe80::1", 403), ("127.0.0.1", 200), ("::1", 200)])
def test_only_this_host_may_post(site, peer, status):
    site.server.on_post("/tap", lambda query: (200, {}))
    assert site.server.answer("POST", "/tap", peer, None).status == status


def test_a_handler_that_fails_is_a_500_and_a_log_line(site, caplog):
    site.metrics.inflight_bytes = lambda: 1 // 0
    response, body = site.request("GET", "/metrics")
    assert response.status == 500
    assert b"ZeroDivisionError" not in body
    assert caplog.records[0].getMessage() == "GET /metrics failed"
    assert site.request("GET", "/healthz")[0].status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\r\n",
        b"GET",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET /" + b"a" * 70_000,
        b"G" * 100 + b"\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_do_no_harm(site, sent):
    with site.connect() as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
    assert site.request("GET", "/healthz")[0].status == 200


def test_there_are_only_so_many_connections_at_once(site):
    held = [site.connect() for _ in range(admin.MAX_CONNECTIONS)]
    with site.connect() as one_more:
        assert one_more.recv(100).startswith(b"HTTP/1.0 503 ")
    for connection in held:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.0 200 ")
        connection.close()


def test_a_silent_connection_ends_at_its_deadline(site, monkeypatch):
    monkeypatch.setattr(admin, "DEADLINE_S", 0.3)
    with site.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n")
        assert connection.recv(100) == b""


def test_connections_close_after_one_response(site):
    with site.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nConnection: keep-alive\r\n\r\n")
        received = b""
        while chunk := connection.recv(4096):
            received += chunk
    assert received.count(b"HTTP/1.0 200") == 1


def test_a_port_in_use_is_a_transport_error_with_key_and_remedy(site):
    host, port = site.server.address
    with pytest.raises(TransportError) as raised:
        AdminServer(f"{host}:{port}", Status(Metrics(), Health))
    assert raised.value.exit_code == 4
    assert f'admin.bind = "127.0.0.1:{port}"' in str(raised.value)
    assert "free port" in str(raised.value)


def test_an_address_of_another_host_is_a_transport_error():
    with pytest.raises(TransportError, match=r"admin\.bind"):
        AdminServer("192.0.2.1:0", Status(Metrics(), Health))


def test_ipv6_and_closing_without_a_start():
    server = AdminServer("[::1]:0", Status(Metrics(), Health))
    assert re.fullmatch(r"http://\[::1\]:\d+/", server.url)
    server.close()
    server.close()


def test_the_port_is_free_again_after_closing():
    own = Site()
    own.server.start()
    host, port = own.server.address
    own.request("GET", "/healthz")
    own.server.close()
    again = AdminServer(f"{host}:{port}", Status(Metrics(), Health))
    again.close()
