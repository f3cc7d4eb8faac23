#!/usr/bin/env bash
# Resolves the dependencies of pyproject.toml and pins them, with hashes, in requirements.lock.
# The lock does not name an index: pip reads it from its own settings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
"${PYTHON:-python3}" -m venv "$tool"
"$tool/bin/pip" install --quiet 'pip-tools~=7.6'
CUSTOM_COMPILE_COMMAND="make lock" "$tool/bin/pip-compile" --quiet --upgrade --extra fpga,test,dev,docs \
    --build-deps-for editable --output-file requirements.lock pyproject.toml
