"""Run everything that needs a CUDA device: the tests marked `cuda`, then the M-RoPE benchmark on it.

    python scripts/cuda_check.py [--json FILE]

Needs the package with its test extra, and torch with CUDA. It ends with the prompt length from which
the device is faster than numpy, the value for `materialize.device_min_tokens` on this machine.

Exit status: 0 fine, 1 a failed test, 2 a missed ratio of the benchmark, 3 no CUDA device.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from timeit import repeat

ROOT = Path(__file__).resolve().parents[1]
LENGTHS = [1 << k for k in range(10, 21)]


def crossover(device: str) -> int | None:
    """The shortest prompt of `LENGTHS`, one image in eight tokens of text each, that is faster on the device."""
    import numpy as np

    from sidecar.materialize.mrope import MediaItem, bind, fill_numpy, fill_torch
    from sidecar.wire.tokenspeed import Modality

    planner = bind("qwen3_5", {"vision_config": {"spatial_merge_size": 2}})
    found = None
    print(f"{'tokens':>9}{'numpy':>10}{'device':>10}   (microseconds, images of unequal sizes)")
    for n in LENGTHS:
        items, cursor = [], 8
        while True:
            height, width = 30 - len(items) % 9, 30
            end = cursor + height * width - 1
            if end >= n:
                break
            items.append(MediaItem(len(items), Modality.IMAGE, ((cursor, end),), ((1, height * 2, width * 2),)))
            cursor = end + 9
        plan = planner.plan(n, items, lambda: np.empty(0, np.int64))
        times = [
            min(repeat(fill, number=10, repeat=7)) / 10 * 1e6
            for fill in (lambda p=plan: fill_numpy(p), lambda p=plan: fill_torch(p, device))
        ]
        print(f"{n:9}{times[0]:10.1f}{times[1]:10.1f}")
        found = (found or n) if times[1] < times[0] else None
    return found


def main() -> int:
    """Tests, benchmark, crossover."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the benchmark's rows to this file")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    import torch

    if not torch.cuda.is_available():
        print("torch sees no CUDA device here", file=sys.stderr)
        return 3
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    tests = subprocess.run([sys.executable, "-m", "pytest", "-m", "cuda", "-v"], cwd=ROOT, check=False)
    if tests.returncode:
        return 1
    from benchmarks import mrope

    missed = mrope.main(["--json", str(options.json)] if options.json else [])
    shortest = crossover("cuda")
    if shortest is None:
        print('numpy is faster at every length; set materialize.device = "cpu"')
    else:
        print(f"materialize.device_min_tokens = {shortest}")
    return 2 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
