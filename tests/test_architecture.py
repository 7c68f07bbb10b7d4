"""The rooms of docs/architecture.md: who may import whom, and which rooms know no socket, clock or event loop."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Final

import pytest

from tests.docs import ROOT

PACKAGE: Final = ROOT / "sidecar"

CORE: Final = {
    "errors", "native", "wire", "model", "admission", "materialize", "outcome", "context", "dialects", "pipeline"
}  # fmt: skip
MAY_IMPORT: Final[Mapping[str, set[str]]] = {
    "errors": set(),
    "native": set(),
    "wire": {"errors", "native"},
    "model_fields": {"errors"},
    "model_resolver": {"errors"},
    "model_child": set(),
    "model": {"errors", "wire", "materialize.mrope.families", "model_fields", "model_resolver"},
    "tokenizer": {"model", "model_resolver", "materialize"},
    "admission": {"errors", "native", "wire", "model"},
    "materialize": {"errors", "wire", "model"},
    "settings": {"errors", "admission.control", "transport.endpoints"},
    "outcome": {"errors", "wire", "admission.memory"},
    "context": {"errors", "wire", "model", "admission", "materialize", "settings"},
    "dialects": CORE - {"pipeline"},
    "pipeline": CORE,
    "recording": {"errors", "wire"},
    "replay": {"errors", "wire", "recording", "settings", "transport"},
    "observability": {"errors", "model", "settings"},
    "transport": {"errors", "wire", "settings"},
    "service": CORE | {"settings", "recording", "observability", "transport", "cli"},
    "inspection": CORE | {"settings", "recording", "replay"},
    "demo": {"errors", "wire", "recording", "replay", "inspection"},
}
"""Room → the rooms, or modules of rooms, that it may import. `cli` may import all, `__main__` the commands."""

PURE: Final = CORE | {"model_fields"}
IMPURE_MODULES: Final = {
    "zmq", "asyncio", "time", "socket", "threading", "uvloop", "select", "selectors", "subprocess"
}  # fmt: skip

ONLY_IN: Final[Mapping[str, Set[str]]] = {
    "transformers": {"model_child.py"},
    "torch": {"materialize/mrope/torch_fill.py", "materialize/mrope/device.py"},
    **dict.fromkeys(["pickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"], frozenset()),
    "multiprocessing": frozenset(),
}
"""Modules that few may name: torch and transformers take seconds to import, pickle and its like run what they
read, and attaching to shared memory through multiprocessing unlinks it at exit."""


def imports(path: Path) -> Iterator[str]:
    """The full names of all modules that a file imports, wherever in it."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from (f"{module}.{alias.name}" for alias in node.names) if module == "sidecar" else (module,)


def room_of(path: Path) -> str:
    """The room of a file: its folder in the package, or its own name."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def files(room: str) -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if room_of(path) == room]


ROOMS: Final = sorted({room_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__", "cli"})


def test_every_room_has_its_rules() -> None:
    assert sorted(MAY_IMPORT) == ROOMS


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    allowed = MAY_IMPORT[room] | {room, "__version__"}
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in files(room)
        for name in imports(path)
        if name.startswith("sidecar.") and not any(f"{name}.".startswith(f"sidecar.{other}.") for other in allowed)
    }
    assert found == set()


@pytest.mark.parametrize("room", sorted(PURE))
def test_the_core_knows_no_socket_clock_or_event_loop(room: str) -> None:
    assert files(room)
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in files(room)
        for name in imports(path)
        if name.split(".")[0] in IMPURE_MODULES
    }
    assert found == set()


@pytest.mark.parametrize("module", sorted(ONLY_IN))
def test_what_only_few_may_import(module: str) -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(name.split(".")[0] == module for name in imports(path))
    }
    assert found <= ONLY_IN[module]


def test_modules_are_one_idea() -> None:
    """No module grows beyond 450 lines: that much is two ideas."""
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in PACKAGE.rglob("*.py")}
    assert {name: count for name, count in lines.items() if count > 450} == {}


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
