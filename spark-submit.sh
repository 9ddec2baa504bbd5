#!/usr/bin/env bash
# Runs one job: ./spark-submit.sh [spark options] JOB ARGS...      ./spark-submit.sh --help
# Runs the tests: ./spark-submit.sh test [pytest arguments]
#
# Makes a Python environment beside this file when there is none: .venv for the jobs, of the packages in
# requirements/run.txt, and .venv-test for the tests, of those in requirements/dev.txt. Each file that pip takes must have
# one of the hashes there.
#   LASTKEY_VENV    an existing environment to use instead of either; for the tests it needs their packages too
#   LASTKEY_PYTHON  the Python 3.11+ to make them with
# Exit codes are the job's; 5 where Python, Java or a package is missing.
set -euo pipefail

here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
venv="$here/.venv" packages=run # requirements/run.txt
if [ "${1:-}" = test ]; then
  venv="$here/.venv-test" packages=dev
fi
venv="${LASTKEY_VENV:-$venv}"

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
  install_packages
  printf 'compiling, and preparing Spark (once, a minute or two)\n' >&2
  (cd "$here" && PYTHONPATH="$here" "$venv/bin/python" -m lastkey.jobs.prepare 9>&-) >&2 || true # only time depends on it
  pins_mark >"$mark"
  exec 9>&-
}

# Nothing comes without a hash: not what pyspark's source is built with either, which pip would fetch by itself.
# pyspark is the last: its package is made on one core, and meanwhile the other one compiles kernels that need no Spark
install_packages() {
  local pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-compile)
  local lock="$here/requirements/$packages.txt" others kernels
  others="$(sed '/^\(pyspark\|delta-spark\)==/,/[^\\]$/d' "$lock")"
  { "${pip[@]}" --only-binary :all: --requirement "$here/requirements/build.txt" &&
    "${pip[@]}" --no-build-isolation --requirement <(printf '%s\n' "$others"); } >&2 ||
    fail "the packages could not be installed; see above"
  PYTHONPATH="$here" "$venv/bin/python" -m lastkey.jobs.warm_up >/dev/null 2>&1 9>&- &
  kernels="$!"
  # Its jars are packed already: that they are stored as they are saves seconds
  "${pip[@]}" --no-build-isolation --config-settings=--build-option=--compression=stored --requirement "$lock" >&2 ||
    fail "the packages could not be installed; see above"
  wait "$kernels" || true # only time depends on it
}

pins_mark() {
  cat -- "$here"/requirements/{build,"$packages"}.txt | cksum
}

# Whether the environment was made from the lock files as they are now
up_to_date() {
  [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.lastkey-pins" 2>/dev/null)" = "$(pins_mark)" ]
}

if [ -n "${LASTKEY_VENV:-}" ]; then
  [ -x "$venv/bin/python" ] || fail "LASTKEY_VENV=$venv holds no bin/python"
else
  up_to_date || make_venv
fi

export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
if [ "$packages" = dev ]; then
  export PYSPARK_PYTHON="${PYSPARK_PYTHON:-$venv/bin/python}" # a job finds its own: executors of a cluster have another
  export PYSPARK_DRIVER_PYTHON="$venv/bin/python"
  cd -- "$here"
  unset PYTHONDONTWRITEBYTECODE # images of containers set it: each process would compile all tests again
  exec "$venv/bin/python" -m pytest "${@:2}"
fi
export PYTHONSAFEPATH="${PYTHONSAFEPATH-1}" # else a file random.py of the folder where this runs, such as an archive, is code
exec "$venv/bin/python" -m lastkey "$@"
