#!/usr/bin/env bash
# Runs one job: ./spark-submit.sh [spark options] JOB ARGS...      ./spark-submit.sh --help
# Runs the tests: ./spark-submit.sh test [pytest arguments]
#
# Makes a Python environment (.venv beside this file) when there is none, of the packages in requirements/: each file that
# pip takes must have one of the hashes there.
#   LASTKEY_VENV    an existing environment to use instead
#   LASTKEY_PYTHON  the Python 3.11+ to make .venv with
# Exit codes are the job's; 5 where Python, Java or a package is missing.
set -euo pipefail

here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
venv="${LASTKEY_VENV:-$here/.venv}"
dev='' # "dev": the packages of the tests too
[ "${1:-}" != test ] || dev=dev

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 5
}

find_python() {
  local candidate
  for candidate in ${LASTKEY_PYTHON:+"$LASTKEY_PYTHON"} python3 python3.14 python3.13 python3.12 python3.11 python; do
    if command -v "$candidate" >/dev/null 2>&1 &&
      "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  fail "Python 3.11 or newer with its venv module is needed and none was found; install it (Debian: apt install python3 python3-venv) or set LASTKEY_PYTHON"
}

check_java() {
  local java="${JAVA_HOME:+$JAVA_HOME/bin/}java" version
  command -v "$java" >/dev/null 2>&1 ||
    fail "Spark needs Java 17 or newer and found none (looked for $java); install a JDK or JRE (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME or PATH"
  version="$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\)\(\.\([0-9]*\)\)\{0,1\}.*/\1 \3/p' | head -n 1)"
  case "$version" in
    '1 '*) version="${version#1 }" ;; # Java 8 calls itself 1.8
    *) version="${version%% *}" ;;
  esac
  [ "${version:-0}" -ge 17 ] ||
    fail "Spark needs Java 17 or newer, found ${version:-an unknown version} at $(command -v "$java"); install one (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME or PATH"
}

make_venv() {
  local python mark="$venv/.lastkey-pins"
  exec 9<"$here/requirements/run.txt"
  flock 9 2>/dev/null || true # two first runs: the second waits. No flock (macOS): they had better not collide
  if up_to_date; then
    exec 9>&-
    return
  fi
  python="$(find_python)"
  check_java # before the long part
  printf 'making the Python environment in %s (once, a minute or two)\n' "$venv" >&2
  rm -f -- "$mark"
  "$python" -m venv --clear -- "$venv" >&2 || fail "the environment could not be made with $python; see above"
  install_packages "${dev:-run}"
  "$venv/bin/python" -m compileall -q "$here/jobs" "$here/logformat" "$here/udfs" >/dev/null 2>&1 || true
  printf 'preparing Spark (once, half a minute)\n' >&2
  (cd "$here" && PYTHONPATH="$here" "$venv/bin/python" -m jobs.prepare 9>&-) >&2 || true # only time depends on it
  pins_mark "$dev" >"$mark"
  exec 9>&-
}

# Nothing comes without a hash: not what pyspark's source is built with either, which pip would fetch by itself
install_packages() {
  local pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes)
  { "${pip[@]}" --only-binary :all: --requirement "$here/requirements/build.txt" &&
    "${pip[@]}" --no-build-isolation --requirement "$here/requirements/$1.txt"; } >&2 ||
    fail "the packages could not be installed; see above"
}

# A made environment to which the packages of the tests are added
add_dev() {
  printf 'adding the packages of the tests to %s (once)\n' "$venv" >&2
  install_packages dev
  pins_mark dev >"$venv/.lastkey-pins"
}

pins_mark() {
  printf '%s%s\n' "$(cat -- "$here"/requirements/{build,run,dev}.txt | cksum)" "${1:+ $1}"
}

# Whether the environment was made from the lock files as they are now; with "dev": with the packages of the tests too
up_to_date() {
  local mark="$venv/.lastkey-pins" found
  [ -x "$venv/bin/python" ] && [ -f "$mark" ] || return 1
  found="$(cat "$mark")"
  [ "$found" = "$(pins_mark dev)" ] || { [ -z "${1:-}" ] && [ "$found" = "$(pins_mark '')" ]; }
}

if [ -n "${LASTKEY_VENV:-}" ]; then
  [ -x "$venv/bin/python" ] || fail "LASTKEY_VENV=$venv holds no bin/python"
else
  up_to_date || make_venv
  [ -z "$dev" ] || up_to_date dev || add_dev
fi

# Executors of a cluster have their own Python: PYSPARK_PYTHON is theirs where it is set
export PYSPARK_PYTHON="${PYSPARK_PYTHON:-$venv/bin/python}"
export PYSPARK_DRIVER_PYTHON="$venv/bin/python"
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
if [ -n "$dev" ]; then
  cd -- "$here"
  unset PYTHONDONTWRITEBYTECODE # images of containers set it: each process would compile all the tests anew
  exec "$venv/bin/python" -m pytest "${@:2}"
fi
exec "$venv/bin/python" -m jobs "$@"
