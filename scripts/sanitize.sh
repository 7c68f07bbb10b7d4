#!/usr/bin/env bash
# The tests of the wire and the mutation runner over sidecar/wire/_scan.c with the address and the
# undefined-behaviour sanitizer, on a copy of the tree. PYTHON: an interpreter with the package's dependencies.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$(realpath --no-symlinks "${PYTHON:-.venv/bin/python}")
tree=$(mktemp --directory)
trap 'rm -rf "$tree"' EXIT

cp --recursive sidecar tests benchmarks config pyproject.toml README.md docs scripts "$tree"
rm -f "$tree"/sidecar/wire/_scan.*.so
read -r include suffix < <("$python" -c 'import sysconfig as s; print(s.get_path("include"), s.get_config_var("EXT_SUFFIX"))')
cc -O1 -g -Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers -fsanitize=address,undefined \
  -fno-sanitize-recover=all -fno-omit-frame-pointer -shared -fPIC -I"$include" \
  sidecar/wire/_scan.c -o "$tree/sidecar/wire/_scan$suffix"

cd "$tree"
# Python's own allocator would put objects side by side, where no reading beyond one is seen.
export LD_PRELOAD PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0
LD_PRELOAD=$(cc -print-file-name=libasan.so)
"$python" -c 'from sidecar.wire import _scan; print(_scan.__file__)'
"$python" -m pytest -p no:cacheprovider tests/wire
"$python" -m tests.fuzz --messages "${MESSAGES:-20000}"
