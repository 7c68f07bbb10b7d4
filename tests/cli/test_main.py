"""The command itself: what it knows, what it loads, and how it ends."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar import __version__
from sidecar.cli import COMMANDS, main
from sidecar.errors import ConfigError, TransportError, UsageError

DATA = Path(__file__).parent.parent / "data/recordings"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n    {name}" in text for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: sidecar {name}")


@pytest.mark.parametrize("name", ["sink", "record", "replay", "diff", "synth", "report"])
def test_help_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([name, "--help"])
    assert f"examples:\n  sidecar {name}" in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sidecar {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["sink"],
        ["diff", "one"],
        ["replay"],
        ["report", "x", "--format", "pdf"],
        ["sink", "--bind", "x", "--connect", "y"],
    ],
)
def test_a_wrong_command_line_is_exit_code_3(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 3
    assert capsys.readouterr().err.startswith("usage: sidecar")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("what is wrong"), 3),
        (ConfigError("what is wrong"), 3),
        (TransportError("what is wrong"), 4),
        (KeyboardInterrupt(), 130),
        (FileNotFoundError(2, "No such file or directory", "what is wrong"), 3),
    ],
)
def test_errors_are_a_line_and_an_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: object) -> int:
        raise error

    monkeypatch.setattr(importlib.import_module("sidecar.cli.diff"), "run", fail)
    assert main(["diff", "a", "b"]) == code
    said = capsys.readouterr().err
    assert said.count("\n") == (0 if code == 130 else 1)
    assert code == 130 or "what is wrong" in said


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from sidecar.cli import main\n"
        "for name in ('', 'sink', 'record', 'replay', 'diff', 'synth', 'report'):\n"
        "    main([*filter(None, [name]), '--help'])\n"
        "heavy = {'torch', 'transformers', 'zmq', 'pydantic', 'numpy', 'rich'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_reader_that_leaves_is_no_error_message() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", "diff", str(DATA / "canonical.rec"), str(DATA / "tokenspeed.rec")],
        stdout=writing, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == b""
