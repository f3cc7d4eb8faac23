#!/usr/bin/env bash
# Installs the locked packages and this project into a virtual environment. Usage: setup.sh FOLDER [PYTHON]
# The next run finishes an interrupted one; pip's own settings (PIP_FIND_LINKS, PIP_NO_INDEX ...) are honoured.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$1
chosen=${2:-}

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate
    if [ -n "$chosen" ]; then
        recent "$chosen" || fail "PYTHON must be a Python 3.11 or newer, not '$chosen'"
        echo "$chosen"
        return
    fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if recent "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is missing. Debian, Ubuntu: apt install python3 python3-venv. Fedora: dnf install python3." \
        "Or name one: make PYTHON=/path/to/python3"
}

# If the interpreter of the folder does not start, the folder was moved or its Python was removed: create it again.
if ! recent "$venv/bin/python"; then
    python=$(find_python)
    echo "setup: creating $venv with $("$python" --version)" >&2
    "$python" -m venv --clear "$venv" ||
        fail "'$python -m venv' failed; on Debian and Ubuntu the module is in a separate package: apt install python3-venv"
fi

echo "setup: installing the locked packages into $venv" >&2
pip=("$venv/bin/python" -m pip --disable-pip-version-check install)
# One line for each package shows progress.
"${pip[@]}" --progress-bar off --require-hashes --no-compile -r requirements.lock |
    sed -un 's/^Collecting \([^ ]*\).*/setup:   \1/p; s/^Installing collected packages.*/setup: unpacking them/p' >&2 ||
    fail "the packages of requirements.lock could not be installed (see above). Without a network, name a folder with" \
        "the wheels: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER make ..."
"${pip[@]}" --quiet --no-deps --no-build-isolation --no-index -e .
