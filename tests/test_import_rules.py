"""Which room of the package may import which, what no room may import at all, and what stays unloaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sidecar

ROOT = Path(sidecar.__file__).parent

CORE = {
    "wire": {"errors"},
    "model": {"errors", "wire", "materialize.mrope.families", "model_fields", "model_resolver"},
    "model_fields": {"errors"},
    "admission": {"errors", "wire", "model"},
    "materialize": {"errors", "wire", "model"},
    "outcome": {"errors", "wire", "admission.memory"},
    "context": {"errors", "wire", "model", "admission", "materialize", "settings"},
    "dialects": {"errors", "wire", "model", "admission", "materialize", "outcome", "context"},
    "pipeline": {"errors", "wire", "model", "admission", "materialize", "outcome", "context", "dialects"},
    "errors": set(),
}
"""The pure core: each room and what it may import of the package, besides itself."""

SHELL = {
    "transport": {"errors", "settings", "wire"},
    "recording": {"errors", "wire"},
    "settings": {"errors", "admission.control", "transport.endpoints"},
}
"""Rooms of the shell that keep a rule of their own."""

IMPURE = {
    "zmq",
    "asyncio",
    "uvloop",
    "socket",
    "time",
    "threading",
    "select",
    "selectors",
    "multiprocessing",
    "subprocess",
}


def modules(room: str) -> Iterator[Path]:
    """The files of a room, which is a module or a package."""
    single = ROOT / f"{room}.py"
    if single.exists():
        yield single
    else:
        yield from sorted((ROOT / room).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """The dotted names of everything that a file imports, anywhere in it."""
    package = ("sidecar", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = ".".join(package[: len(package) - node.level + 1])
                module = f"{base}.{node.module}" if node.module else base
            else:
                module = node.module or ""
            if module == "sidecar":
                yield from (f"sidecar.{alias.name}" for alias in node.names)
            else:
                yield module


def allowed(name: str, room: str, rooms: set[str]) -> bool:
    """Whether a room may import a dotted name of the package."""
    inner = name.removeprefix("sidecar.")
    return any(inner == other or inner.startswith(f"{other}.") for other in {room, *rooms})


@pytest.mark.parametrize(("room", "rooms"), {**CORE, **SHELL}.items())
def test_rooms_import_only_what_they_may(room: str, rooms: set[str]) -> None:
    files = list(modules(room))
    assert files
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imports(path)
        if name.startswith("sidecar.") and not allowed(name, room, rooms)
    }
    assert wrong == set()


@pytest.mark.parametrize("room", CORE)
def test_the_core_knows_no_socket_no_clock_and_no_event_loop(room: str) -> None:
    used = {f"{path.name}: {name}" for path in modules(room) for name in imports(path) if name.split(".")[0] in IMPURE}
    assert used == set()


def test_nobody_imports_pickle() -> None:
    banned = {"pickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
    files = list(ROOT.rglob("*.py"))
    used = {f"{path.relative_to(ROOT)}: {name}" for path in files for name in imports(path) if name in banned}
    assert used == set()
    text = [path for path in files if "multiprocessing.shared_memory" in path.read_text()]
    assert text == []


@pytest.mark.parametrize(
    "code",
    [
        "import sidecar.pipeline",
        "import sidecar.cli",
        "import sidecar.cli; sys.argv = ['sidecar', '--help']\ntry: sidecar.cli.main()\nexcept SystemExit: pass",
    ],
)
def test_what_stays_unloaded(code: str) -> None:
    heavy = "sorted({'torch', 'transformers'} & set(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint({heavy}, file=sys.stderr)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stderr.strip().endswith("[]")
