#!/usr/bin/env bash
# The tests of what is written in C, and the mutation runner, with the address and the undefined-behaviour
# sanitizer, on a copy of the tree. PYTHON: an interpreter with the package's dependencies.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$(realpath --no-symlinks "${PYTHON:-.venv/bin/python}")
tree=$(mktemp --directory)
trap 'rm -rf "$tree"' EXIT

cp --recursive sidecar tests benchmarks config pyproject.toml README.md docs scripts "$tree"
rm -f "$tree"/sidecar/*/_*.so
read -r include suffix < <("$python" -c 'import sysconfig as s; print(s.get_path("include"), s.get_config_var("EXT_SUFFIX"))')
for module in wire/_scan admission/_recent_keys; do
  cc -O1 -g -Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers -fsanitize=address,undefined \
    -fno-sanitize-recover=all -fno-omit-frame-pointer -shared -fPIC -I"$include" \
    "sidecar/$module.c" -o "$tree/sidecar/$module$suffix"
done

cd "$tree"
# Python's own allocator would put objects side by side, where no reading beyond one is seen.
export LD_PRELOAD PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0
LD_PRELOAD=$(cc -print-file-name=libasan.so)
"$python" -c 'from sidecar.wire import _scan; from sidecar.admission import _recent_keys as keys; print(_scan, keys)'
"$python" -m pytest -p no:cacheprovider tests/wire tests/admission/test_recent_keys.py
"$python" -m tests.fuzz --messages "${MESSAGES:-20000}"
