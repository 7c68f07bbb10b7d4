"""docs/shield.md is what scripts/shield.py writes, and no engine ends behind the sidecar."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_file_is_up_to_date(tmp_path: Path) -> None:
    out = tmp_path / "shield.md"
    subprocess.run([sys.executable, "scripts/shield.py", str(out)], cwd=ROOT, check=True, timeout=300)
    written, kept = out.read_text(), (ROOT / "docs" / "shield.md").read_text()
    assert written == kept
    rows = [line for line in written.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) > 100
    assert not [row for row in rows if re.search("ends", row.rsplit("|", 2)[1])]
