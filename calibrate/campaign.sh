#!/usr/bin/env bash
# A campaign on a card that is at hand for minutes: bash calibrate/campaign.sh OUT [options of python -m calibrate.campaign]
#
# Needs python3 with torch. What else capplan imports and the machine lacks is taken from the folder wheels/, which
# `make wheels` fills beforehand, on a machine with a network (WHEELS_PYTHON=3.12 for another Python than that of the card).
set -euo pipefail
out=${1:?usage: bash calibrate/campaign.sh OUT [--minutes N] [--device cuda:0] [--models NAME ...]}
shift
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
missing=$("$python" - <<'PY'
from importlib.util import find_spec
needed = {"pydantic": "pydantic", "yaml": "pyyaml", "scipy": "scipy", "typer": "typer", "rich": "rich",
          "huggingface_hub": "huggingface-hub"}
print(" ".join(package for module, package in needed.items() if find_spec(module) is None))
PY
)
if [ -n "$missing" ]; then
    if "$python" -m pip --version > /dev/null 2>&1; then
        # shellcheck disable=SC2086
        "$python" -m pip install --quiet --no-index --find-links "$root/wheels" --target "$site" $missing
    else  # wheels are archives
        for wheel in "$root"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$site"; done
    fi
fi
# what the machine has comes first: a second numpy beside torch's would be another one
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
if [ -n "$missing" ]; then
    rm -rf "$site"/numpy "$site"/numpy-* "$site"/numpy.libs "$site"/pandas "$site"/pandas-* "$site"/pandas.libs
    export PYTHONPATH="$PYTHONPATH:$site"
fi
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$root"
status=0
"$python" -m calibrate.campaign "$out" "$@" || status=$?
echo "everything is in $out"
exit $status
