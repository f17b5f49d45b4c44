# shellcheck shell=bash
# The installation that launch/local.sh and tests/run.sh share. It is sourced, and gives them
#   say TEXT, fail TEXT [EXIT_CODE]
#   module_of NAME                   afterwards module is the entry stub of that collective
#   install_torchcoll VENV EXTRAS    afterwards VENV/bin/python has torch and torchcoll

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CONSTRAINTS=$ROOT/launch/constraints.txt
LOG=

# To stderr: stdout belongs to torchcoll's own tables.
say() { printf '==> %s\n' "$*" >&2; }

fail() {
    printf 'torchcoll: error: %s\n' "$1" >&2
    exit "${2:-1}"
}

MODULES='allreduce allgather reducescatter alltoall alltoallv reducescatterv allgatherv broadcast'
MODULES+=' reduce gather scatter sendrecv hypercube barrier suite pairs'

# module_of NAME: sets module to the entry stub of a collective; torch writes all_reduce.
module_of() {
    module=${1//_/}
    case " $MODULES " in
        *" $module "*) ;;
        *) fail "collective: got '$1', expected one of: $MODULES. Put it first, its arguments after it" 2 ;;
    esac
}

# logged WHAT COMMAND...: pip's and venv's pages of text are shown only when they failed.
logged() {
    local what=$1 reason=
    shift
    printf '\n$ %s\n' "$*" >>"$LOG"
    "$@" >>"$LOG" 2>&1 </dev/null && return
    tail -n 15 "$LOG" >&2
    if grep -q 'No space left on device' "$LOG"; then
        reason=' The disk is full.'
    elif grep -qE 'NewConnectionError|NameResolutionError|ConnectTimeout|ProxyError|Max retries' "$LOG"; then
        reason=' pip reached no package index: no network here, or pip needs its settings'
        reason+=' (PIP_INDEX_URL, PIP_PROXY, PIP_FIND_LINKS).'
    fi
    fail "$what failed.$reason The log is $LOG"
}

# Sets PYTHON. The environment variable wins; python3 comes before newer ones because it is
# the one that a vendor's image has put its torch into.
find_python() {
    local candidate answer found=none
    local candidates=(python3 python3.14 python3.13 python3.12 python3.11 python3.10)
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        answer=$("$candidate" -c \
            'import sys; print("%d.%d " % sys.version_info[:2] + sys.executable)' 2>/dev/null) ||
            continue
        case $answer in
            3.[1-9][0-9]\ *)
                PYTHON=${answer#* }
                return
                ;;
        esac
        [ "$found" != none ] || found=$answer
    done
    [ -z "${PYTHON:-}" ] || [ "$found" != none ] || found="PYTHON=$PYTHON, which does not run"
    fail "python: got $found, expected 3.10 or newer. \
Install one, or name one: PYTHON=/path/to/python3 bash $0"
}

# torch_of PYTHON: 'VERSION PATH', or nothing where torch does not import. The last line only:
# some builds print a greeting.
torch_of() {
    "$1" -W ignore -c 'if 1:
        import os, torch
        print(torch.__version__, os.path.realpath(torch.__file__))' 2>>"$LOG" | tail -n 1
}

# make_venv [beside]: an environment of its own, or one that sees all that PYTHON sees.
make_venv() {
    local parent='' prefix options=()
    prefix=$("$PYTHON" -c 'import sys; print(sys.prefix)')
    if [ "${1:-}" = beside ]; then
        # An environment made from a virtual one sees the system, not its parent: hence the .pth.
        [ ! -f "$prefix/pyvenv.cfg" ] || parent=$("$PYTHON" -c 'if 1:
            import sysconfig
            paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
            print("import site;", "; ".join(f"site.addsitedir({p!r})" for p in sorted(paths)))')
        if [ -z "$parent" ] || grep -qi '^include-system.*true' "$prefix/pyvenv.cfg"; then
            options=(--system-site-packages)
        fi
    fi
    if "$PYTHON" -c 'import venv, ensurepip' 2>>"$LOG"; then
        logged 'making the virtual environment' "$PYTHON" -m venv \
            "${options[@]+"${options[@]}"}" "$VENV"
    elif "$PYTHON" -c 'import venv, pip' 2>>"$LOG"; then
        # Debian, and images made from it, with pip but without python3-venv.
        logged 'making the virtual environment' \
            "$PYTHON" -m venv --without-pip "${options[@]+"${options[@]}"}" "$VENV"
        logged 'installing pip' "$PYTHON" -m pip install --target \
            "$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" pip
    else
        fail "$PYTHON: got neither ensurepip nor pip, expected one of them. Install it, on Debian \
and Ubuntu: apt install python3-venv"
    fi
    [ -z "$parent" ] || "$VENV/bin/python" - "$parent" <<'EOF'
import pathlib, sys, sysconfig
pathlib.Path(sysconfig.get_path("purelib"), "torchcoll-parent.pth").write_text(sys.argv[1] + "\n")
EOF
}

# What torchcoll still lacks beside a torch that is not ours to touch, one requirement a line,
# and two constraint files: frozen.txt holds every installed package where it is, torch among
# them; tested.txt adds our versions of all that is not installed.
missing_requirements() {
    "$VENV/bin/python" - "$1" "$CONSTRAINTS" "$VENV/torchcoll" "$2" <<'EOF'
import importlib.metadata as metadata, pathlib, re, sys
from pip._vendor.packaging.requirements import InvalidRequirement, Requirement

def key(name):
    return re.sub(r"[-_.]+", "-", name).lower()

extras, pins, folder, torch = sys.argv[1].split(","), sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4]
# First on the path wins, as in an import. A broken .dist-info has no name.
installed = {key(d.metadata["Name"]): d.version
             for d in reversed(list(metadata.distributions())) if d.metadata["Name"]}
installed["torch"] = torch
missing = []
for text in metadata.requires("torchcoll"):
    need = Requirement(text)
    if need.marker and not any(need.marker.evaluate({"extra": e}) for e in ["", *extras]):
        continue
    have = installed.get(key(need.name))
    if need.name != "torch" and not (have and need.specifier.contains(have, prereleases=True)):
        missing.append(f"{need.name}{need.specifier}")
        installed.pop(key(need.name), None)
frozen = []
for name, version in installed.items():
    try:
        frozen.append(str(Requirement(f"{name}=={version}")))
    except InvalidRequirement:  # a version from before PEP 440: pip would refuse the file
        pass
lines = [line for line in pathlib.Path(pins).read_text().splitlines() if "==" in line]
ours = [line for line in lines if key(line.split("==")[0].strip()) not in installed]
folder.joinpath("frozen.txt").write_text("\n".join(frozen) + "\n")
folder.joinpath("tested.txt").write_text("\n".join(frozen + ours) + "\n")
print("\n".join(missing))
EOF
}

# Beside a torch that is already there: never replaced, never downloaded again.
install_beside() {
    local extras=$1 before=$2 after missing with
    missing=()
    logged 'installing torchcoll' "${PIP[@]}" --no-deps -e "$ROOT"
    while IFS= read -r after; do
        [ -z "$after" ] || missing+=("$after")
    done < <(missing_requirements "$extras" "${before%% *}")
    if [ ${#missing[@]} -gt 0 ]; then
        say "adding what is missing: ${missing[*]}"
        with=("${PIP[@]}" "${missing[@]}" -c)
        # The image's packages may be too old for our tested versions: then pip chooses.
        "${with[@]}" "$VENV/torchcoll/tested.txt" >>"$LOG" 2>&1 </dev/null ||
            logged 'installing what is missing' "${with[@]}" "$VENV/torchcoll/frozen.txt"
    fi
    after=$(torch_of "$VENV/bin/python") || true
    [ "$after" = "$before" ] || fail "torch of $PYTHON: got '$after' after the installation, \
expected '$before'. Remove $VENV and report this; the log is $LOG"
}

install_torchcoll() {
    VENV=$1
    local extras=$2 made_from installed torch version
    # A --user or --target of pip's settings does not go together with a virtual environment.
    export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1
    unset PIP_TARGET PIP_PREFIX
    find_python
    # Run from inside one of our own environments: go back to the python it was made from.
    made_from=$("$PYTHON" -c 'import sys; print(sys.prefix)')/torchcoll/python
    [ ! -f "$made_from" ] || PYTHON=$(cat "$made_from")

    # Up to date? Asked without importing torch, which takes a second.
    made_from=$(cd "$ROOT" && "$PYTHON" -c 'if 1:
        import importlib.util, sys
        torch = importlib.util.find_spec("torch")
        print(sys.prefix, sys.version.split()[0], torch and torch.origin)')" $ROOT"
    installed=$(printf '%s\n' "$extras" |
        cat - "$ROOT"/{setup.cfg,pyproject.toml,launch/constraints.txt,launch/install.sh} | cksum)
    if [ -x "$VENV/bin/python" ] && [ "$(cat "$VENV/torchcoll/made_from" 2>/dev/null)" = "$made_from" ]; then
        if [ "$(cat "$VENV/torchcoll/installed" 2>/dev/null)" = "$installed" ]; then
            say "using ${VENV##*/}, which is up to date"
            return
        fi
    elif [ -d "$VENV/torchcoll" ]; then
        say "removing ${VENV##*/}: it is incomplete, or was made from another python"
        rm -rf "$VENV"
    elif [ -e "$VENV" ]; then
        fail "$VENV: got a folder that this script did not make, expected none. Move it away"
    fi

    mkdir -p "$VENV/torchcoll" || fail "$VENV: cannot be written. Copy the checkout to a place that can"
    LOG=$VENV/torchcoll/install.log
    : >"$LOG"
    PIP=("$VENV/bin/python" -m pip install --no-input)
    torch=$(torch_of "$PYTHON") || torch=
    if [ -n "$torch" ]; then
        version=${torch%%[+a-z ]*}
        case $version in
            [01].* | 2.[0-5].*) fail "torch of $PYTHON: got $version, expected 2.6 or newer. \
Name a python that has a newer torch, or none: PYTHON=/path/to/python3 bash $0" ;;
        esac
        say "keeping torch ${torch%% *} of $PYTHON"
    fi
    if [ ! -f "$VENV/torchcoll/made_from" ]; then
        say "making ${VENV##*/} with $PYTHON"
        make_venv ${torch:+beside}
        printf '%s\n' "$PYTHON" >"$VENV/torchcoll/python"
        printf '%s\n' "$made_from" >"$VENV/torchcoll/made_from"
    fi
    if [ -z "$torch" ] && ! "$VENV/bin/python" -c 'import torch' 2>/dev/null; then
        say "pip will fetch torch: about 200 MB for a CPU build, about 3 GB (5 GB on disk) for a \
CUDA build, which many indexes give on Linux (free here: $(df -Ph "$VENV" | awk 'END {print $4}'))"
        say "for another build, stop here and set PIP_INDEX_URL, PIP_EXTRA_INDEX_URL or \
PIP_FIND_LINKS (pytorch.org lists the builds), or PYTHON=... to one that has torch"
    fi
    say "installing torchcoll${extras:+[$extras]}; to follow: tail -f $LOG"
    if [ -n "$torch" ]; then
        install_beside "$extras" "$torch"
    else
        logged 'installing torchcoll' "${PIP[@]}" -c "$CONSTRAINTS" -e "$ROOT${extras:+[$extras]}"
        torch=$(torch_of "$VENV/bin/python") || fail "torch in $VENV does not import. The log is $LOG"
    fi
    printf '%s\n' "$installed" >"$VENV/torchcoll/installed"
    say "installed, with torch ${torch%% *}"
}
