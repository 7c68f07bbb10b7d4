#!/usr/bin/env bash
# Make the virtual environments of the interop tests, one for each list in tests/interop/venvs/:
#   .interop/smg-*, .interop/tokenspeed-smg-*   the gateway builds; they share a module name
#   .interop/engine                             the engine's Python package
# The engine's environment also sees what is installed in .venv (torch, numpy, pyzmq, transformers):
# a second torch would take minutes and gigabytes. A finished environment is kept until its list changes.
set -euo pipefail
cd "$(dirname "$0")/.."

home=${INTEROP_HOME:-.interop}
project=${VENV:-.venv}/bin/python
lists=tests/interop/venvs

make_venv() { # NAME LIST...
  local venv=$home/$1 sum
  shift
  sum=$(cat "$@" "$0" | sha256sum)
  [ "$(cat "$venv/.installed" 2>/dev/null)" = "$sum" ] && return
  echo "making $venv"
  rm -rf "$venv"
  "$project" -m venv "$venv"
  if [ $# -gt 1 ]; then
    "$project" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
      >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
  fi
  install "$venv" --requirement "$1"
  [ $# -eq 1 ] || install "$venv" --no-deps --requirement "$2"
  echo "$sum" >"$venv/.installed"
}

install() { # VENV ARGUMENT...
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"
}

for list in "$lists"/*smg-*.txt; do
  make_venv "$(basename "$list" .txt)" "$list"
done
make_venv engine "$lists/engine.txt" "$lists/engine-packages.txt"
