#!/usr/bin/env bash
# Rewrites the lock files beside it from the requirements in pyproject.toml: every package that these need, with the hashes of
# all its files on PyPI, for Python 3.11 and newer on Linux and macOS. What is locked stays at its version as far as the
# pins allow; `--upgrade` takes the newest of all that is not pinned.
#
#   requirements/renew.sh [--upgrade]
#
#   run.txt    what the jobs need         dev.txt   the tests and the site too: the same versions, and more
#   build.txt  pip, and what makes a package of pyspark's source, of which PyPI has no wheel
#   uv.txt     what writes these files, checked by its hashes like the rest
#   ../examples/airflow/requirements.txt    Airflow, in an environment of its own; from its own pins alone
set -euo pipefail

here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
root="$(dirname -- "$here")"
work="$(mktemp -d)"
trap 'rm -rf -- "$work"' EXIT

"${LASTKEY_PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes \
  --requirement "$here/uv.txt"

# Paths are relative and no index is named: the files say the same wherever they were made
lock() {
  local out="$1"
  shift
  (cd -- "$root" && UV_CUSTOM_COMPILE_COMMAND=requirements/renew.sh "$work/venv/bin/uv" pip compile "$@" --quiet --universal \
    --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --output-file "$out" \
    >/dev/null)
}

lock requirements/dev.txt pyproject.toml --all-extras --group dev --group docs "$@"
lock requirements/run.txt pyproject.toml --constraint requirements/dev.txt "$@"
lock requirements/build.txt --group build "$@"
lock requirements/uv.txt --group lock "$@"
lock examples/airflow/requirements.txt examples/airflow/requirements.in "$@"
