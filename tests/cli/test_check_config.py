"""`sidecar check-config`: everything that is wrong, in one run, with its remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.cli import main
from tests.build import QWEN_CONFIG

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_CONFIG))
    return f"--set=model.path={tmp_path}"


def sockets(folder: Path) -> list[str]:
    return [f"--set=ingress.bind=ipc://{folder}/in.sock", f"--set=egress.bind=ipc://{folder}/out.sock"]


def test_a_good_configuration(model: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(["check-config", model, *sockets(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "M-RoPE as qwen3_5" in out
    assert "image 248056" in out
    assert out.endswith("the configuration is good\n")
    assert not (tmp_path / "run").exists()


def test_quiet(model: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(["check-config", "--quiet", model, *sockets(tmp_path)]) == 0
    assert capsys.readouterr().out == ""


def test_three_typos_are_three_errors_with_suggestions(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "sidecar.toml"
    file.write_text('[ingres]\nhwm = 3\n[admission]\nduplicat_window_s = 3\n[materialize]\nhosit_bytes = "1 KiB"\n')
    assert main(["check-config", "--config", str(file)]) == 3
    err = capsys.readouterr().err
    assert "3 errors in the configuration" in err
    for typo, known in (
        ("ingres.hwm", "ingress.hwm"),
        ("admission.duplicat_window_s", "admission.duplicate_window_s"),
        ("materialize.hosit_bytes", "materialize.hoist_bytes"),
    ):
        (line,) = (line for line in err.splitlines() if line.strip().startswith(f"- {typo} "))
        assert f"the nearest known one is {known}" in line


def test_a_model_that_is_not_there(tmp_path: Path, capsys: Capture) -> None:
    assert main(["check-config", "--set=model.path=/nowhere/at/all", *sockets(tmp_path)]) == 3
    assert 'model.path = "/nowhere/at/all"' in capsys.readouterr().err


def test_a_config_that_contradicts_itself(model: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**QWEN_CONFIG, "image_token_id": 999_999}))
    assert main(["check-config", model, *sockets(tmp_path)]) == 3
    assert "image_token_id = 999999" in capsys.readouterr().err


def test_places_on_this_host(model: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "in.sock").write_text("precious")
    (tmp_path / "file").write_text("")
    key = tmp_path / "curve.key"
    key.write_text("x")
    key.chmod(0o644)
    more = [f"--set=quarantine.dir={tmp_path}/file/below", f"--set=security.secret_key_file={key}"]
    assert main(["check-config", model, *sockets(tmp_path), *more]) == 3
    err = capsys.readouterr().err
    assert "3 errors" in err
    assert "ingress.bind" in err
    assert "no socket lies there" in err
    assert f"quarantine.dir: {tmp_path}/file is no folder" in err
    assert f"chmod 600 {key}" in err
    assert (tmp_path / "in.sock").read_text() == "precious"


def test_a_key_file_that_is_not_there(model: str, tmp_path: Path, capsys: Capture) -> None:
    missing = f"--set=security.secret_key_file={tmp_path}/none"
    assert main(["check-config", model, *sockets(tmp_path), missing]) == 3
    assert "sidecar keygen" in capsys.readouterr().err


def test_a_model_that_the_engine_cannot_be_served_with(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "kimi_k3",
                "architectures": ["KimiK3ForConditionalGeneration"],
                "media_placeholder_token_id": 163605,
                "text_config": {"vocab_size": 163840},
                "vision_config": {"merge_kernel_size": [2, 2]},
            }
        )
    )
    sets = [f"--set=model.path={tmp_path}", "--set=engine.kind=vllm"]
    assert main(["check-config", *sets, *sockets(tmp_path)]) == 3
    assert "model.image_placeholder_ids" in capsys.readouterr().err
