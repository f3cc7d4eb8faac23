#!/usr/bin/env bash
# Adds the packages of an extra of pyproject.toml to a virtual environment created by setup.sh.
# Usage: extra.sh FOLDER EXTRA. Versions pinned by the lock are kept; the extra itself is not locked.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$1
extra=$2

if ! grep -q "^$extra = \[" pyproject.toml; then
    echo "setup: EXTRAS must name an extra of pyproject.toml, not '$extra'" >&2
    exit 2
fi

pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
sed -n 's/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' requirements.lock > "$pins"

# PyTorch's own index has builds without CUDA, which are a tenth of the size.
if [[ $extra == torch && -z ${PIP_NO_INDEX:-} && -z ${PIP_EXTRA_INDEX_URL:-} ]]; then
    export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
fi

echo "setup: installing the extra $extra into $venv" >&2
"$venv/bin/python" -m pip --disable-pip-version-check install --progress-bar off --no-compile --no-build-isolation \
    --constraint "$pins" -e ".[$extra]" |
    sed -un 's/^Collecting \([^ ]*\).*/setup:   \1/p; s/^Installing collected packages.*/setup: unpacking them/p' >&2 || {
    printf 'setup: the packages of the extra %s could not be installed (see above). Without a network, name a folder %s\n' \
        "$extra" "with the wheels: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER make setup EXTRAS=$extra" >&2
    exit 1
}
