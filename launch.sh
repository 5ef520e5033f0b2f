#!/usr/bin/env bash
# Makes .venv if there is none, installs, and runs a command in it.
#
#   ./launch.sh demo                 the main job on the embedded data set
#   ./launch.sh test [pytest args]   lint, types and tests
#   ./launch.sh test --fast          lint, types and some tests of every part
#   ./launch.sh docs                 the pages and the API reference
#   ./launch.sh prepare mnist        download and prepare a data set (internet)
#   ./launch.sh run --algorithm=...  one run; other modules by their name
#
# FEDJAX_ALG_EXTRA=cuda12 (or others of setup.cfg, comma separated) is installed
# beside what the command needs; cuda12 and cuda13 exclude each other.
# FEDJAX_ALG_REQUIREMENTS=newest takes the newest versions that pip finds, in
# .venv-newest, in the place of those that requirements.txt pins.
set -euo pipefail
started_as="$0"
cd "$(dirname "${BASH_SOURCE[0]}")"
requirements="${FEDJAX_ALG_REQUIREMENTS:-pinned}"
case "$requirements" in
  pinned) venv=.venv wanted=(-r requirements.txt) ;;
  newest) venv=.venv-newest wanted=(--upgrade --upgrade-strategy eager) ;;
  *)
    echo "error: FEDJAX_ALG_REQUIREMENTS=$requirements: must be pinned or" \
      "newest" >&2
    exit 2
    ;;
esac
venv="${FEDJAX_ALG_VENV:-$venv}"

usage() {
  sed -n '2,14p' "$0" | sed 's/^# \{0,1\}//'
  echo "modules: $(modules)"
}

modules() {
  # Modules with a command of their own.
  grep -l '__main__' experiments/[a-z]*.py | xargs -n1 basename | sed 's/\.py$//' |
    tr '\n' ' '
}

find_python() {
  local name
  for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
        >/dev/null 2>&1; then
      echo "$name"
      return
    fi
  done
  echo "error: Python 3.11 or newer is needed; set PYTHON to one" >&2
  exit 1
}

# extras OWN: OWN and those of FEDJAX_ALG_EXTRA in order, comma separated.
extras() {
  local known name asked
  known="$(sed -n '/^\[options.extras_require\]/,/^\[[^o]/s/^\([a-z0-9]*\) =$/\1/p' \
    setup.cfg)"
  IFS=', ' read -ra asked <<< "${FEDJAX_ALG_EXTRA:-}"
  for name in ${asked[@]+"${asked[@]}"}; do
    if ! grep -qFx -e "$name" <<< "$known"; then
      echo "error: FEDJAX_ALG_EXTRA=$FEDJAX_ALG_EXTRA: unknown extra" \
        "'$name'; some of: $(tr '\n' ' ' <<< "$known")" >&2
      exit 2
    fi
  done
  printf '%s\n' "$1" ${asked[@]+"${asked[@]}"} | sed '/^$/d' | sort -u |
    paste -sd, -
}

# install EXTRA: EXTRA and those of FEDJAX_ALG_EXTRA, once for each choice of
# them and version of the requirements.
install() {
  local extra stamp want
  extra="$(extras "$1")"
  if [ ! -x "$venv/bin/python" ]; then
    local python
    python="$(find_python)"
    echo "making $venv with $($python --version)" >&2
    "$python" -m venv "$venv"
  fi
  stamp="$venv/.installed-${extra:-base}"
  want="$requirements $(cat setup.cfg requirements.txt pyproject.toml | cksum)"
  if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
    echo "installing fedjax_alg${extra:+[$extra]}" >&2
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
      "${wanted[@]}" -e ".${extra:+[$extra]}"
    echo "$want" > "$stamp"
  fi
}

checks() {
  "$venv/bin/python" -m ruff format --quiet --check &&
    "$venv/bin/python" -m ruff check --quiet &&
    "$venv/bin/python" -m mypy
}

# Help and messages name the program as it was started.
run_module() {
  local module="$1"
  shift
  FEDJAX_ALG_PROGRAM="$started_as" \
    exec "$venv/bin/python" -m "experiments.$module" "$@"
}

# A group is what shares compiled programs: xdist gives it to one worker.
tests() {
  # Compiled modules are kept: workers and commands import them many times.
  PYTHONDONTWRITEBYTECODE='' "$venv/bin/python" -m pytest -n auto \
    --dist loadgroup --no-loadscope-reorder "$@"
}

command="${1:-help}"
[ $# -gt 0 ] && shift
case "$command" in
  help|-h|--help)
    usage
    ;;
  test)
    install test
    checks > "$venv/checks.log" 2>&1 &  # beside the tests, not before them
    tests "$@" && failed=0 || failed=1
    wait $! || failed=1
    cat "$venv/checks.log"
    exit $failed
    ;;
  docs)
    install docs
    rm -rf docs/_modules_of docs/_api
    "$venv/bin/python" -m sphinx -b html -q -W --keep-going docs \
      docs/_build/html "$@"
    "$venv/bin/python" docs/check_links.py
    "$venv/bin/python" docs/check_search.py
    echo "docs/_build/html/index.html"
    ;;
  prepare)
    install prepare
    run_module prepare "$@"
    ;;
  *)
    if [[ " $(modules)" != *" $command "* ]]; then
      echo "error: unknown command '$command'; one of: test docs" \
        "$(modules)" >&2
      exit 2
    fi
    # The commands that serve papers write their pages with templates.
    of_papers="$(sed -n 's/^commands = //p' setup.cfg) tune"
    [[ " $of_papers " == *" $command "* ]] && install papers || install ""
    run_module "$command" "$@"
    ;;
esac
