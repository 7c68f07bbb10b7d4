"""The sidecar against what it takes the place of: the engine's own decode, materialize and encode.

The engine's package has an environment of its own, so both sides run there, in one process, in turn:
`benchmarks.engine_process`. Where that environment is missing, nothing is measured.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

from benchmarks.lines import ROOT
from benchmarks.measure import geometric_mean
from benchmarks.report import Section, Table, at_least, ms

HOME_VARIABLE: Final = "INTEROP_HOME"


def python() -> Path:
    """The Python of the engine's environment, which scripts/interop-venvs.sh makes."""
    home = Path(os.environ.get(HOME_VARIABLE, ROOT / ".interop"))
    return home / "engine" / "bin" / "python"


def benchmark(quick: bool) -> Section:
    """Every case of both sides."""
    section = Section("engine")
    if not python().exists():
        section.remark = "engine: skipped, the engine's package is not here; scripts/interop-venvs.sh installs it"
        return section
    command = [python(), "-m", "benchmarks.engine_process", *(["--quick"] if quick else [])]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    output = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout
    section.data = json.loads(output.splitlines()[-1])
    evaluate(section)
    return section


def evaluate(section: Section) -> None:
    """Tables and goals from the numbers."""
    rows: list[dict[str, Any]] = section.data["requests"]
    table = Table("Against the engine's own path, ms", ("request", "engine", "sidecar", "ratio"))
    for row in rows:
        table.rows.append((row["name"], ms(row["engine_s"]), ms(row["sidecar_s"]), f"{ratio(row):.2f}x"))
    media = {row["name"]: ratio(row) for row in rows if not row["name"].startswith("text")}
    mean = geometric_mean(list(media.values()))
    table.rows.append(("geometric mean of media", "", "", f"{mean:.2f}x"))
    hashes = section.data["hash"]
    table.rows.append(
        ("hash of 12.6 MB alone", ms(hashes["engine_s"]), ms(hashes["sidecar_s"]), f"{ratio(hashes):.2f}x")
    )
    table.note = f"engine: {section.data['engine']}. ratio: how often the engine's time holds the sidecar's"
    section.tables.append(table)
    slowest = min(media, key=lambda name: media[name])
    section.goals += [
        at_least("media against the engine, geometric mean", 4, mean),
        at_least(f"media against the engine, the slowest ({slowest})", 1, media[slowest]),
        *(
            at_least(f"{row['name']}, against the engine", 2 if "trusted" in row["name"] else 0.7, ratio(row))
            for row in rows
            if row["name"].startswith("text")
        ),
        at_least("content hash against the engine's blake2b", 3, ratio(hashes)),
    ]


def ratio(row: dict[str, Any]) -> float:
    """How much faster the sidecar is."""
    return float(row["engine_s"] / row["sidecar_s"])
