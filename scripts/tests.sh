#!/usr/bin/env bash
# Tests of what ci.sh and scripts/toolchain.sh do to a machine, on a machine of their own: programs
# that stand in for those of the system. Run by ./ci.sh scripts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh

machine=$(mktemp -d)
trap 'rm -rf "$machine"' EXIT
mkdir "$machine/bin"
did=$machine/did # What the programs were asked to do.
wrong=0

# program NAME: a program of the machine; its text comes from standard input.
program() {
    { printf '#!/usr/bin/env bash\n' && cat; } >"$machine/bin/$1"
    chmod +x "$machine/bin/$1"
}

# same WHAT WANTED GOT
same() {
    [[ $2 == "$3" ]] || { printf '%s:\n  wanted %q\n  got    %q\n' "$@" && wrong=1; }
}

# --- services ----------------------------------------------------------------------------------

# A package comes with four services, by either kind of name: one runs since it came, one ran
# before, one does not run, and of one there are only instances.
export MACHINE=$machine
program apt-get <<'PROGRAM'
[[ $* != *" -y "* ]] || touch "$MACHINE/installed"
PROGRAM
program dpkg <<'PROGRAM'
for name in new old idle 'many@'; do
    printf '%s\n' /usr/bin/$name /etc/init.d /etc/init.d/$name /lib/systemd/system/$name.service
done
PROGRAM
program systemctl <<'PROGRAM'
[[ $1 == list-units ]] || { echo "systemctl $*" >>"$MACHINE/did" && exit; }
echo 'old.service loaded active running What ran before'
echo 'other.service loaded active running What has nothing to do with it'
[[ ! -e $MACHINE/installed ]] || echo 'new.service loaded active running What has come'
PROGRAM
program service <<'PROGRAM'
[[ $1 == --status-all ]] || { echo "service $*" >>"$MACHINE/did" && exit; }
printf ' [ %s ]  %s\n' - idle + old + other
[[ ! -e $MACHINE/installed ]] || echo ' [ + ]  new'
PROGRAM

# stopped: what is asked of services when the package is installed.
stopped() {
    rm -f "$did" "$machine/installed"
    (
        # shellcheck disable=SC2030,SC2034
        PATH=$machine/bin:$PATH apt_is_updated=1
        as_root() { "$@"; }
        apt_install "to try" package
    ) >/dev/null
    cat "$did" 2>/dev/null || true
}

has_systemd() { true; }
same "services by systemd" "systemctl --quiet disable --now new.service" "$(stopped)"
has_systemd() { false; }
same "services without it" "service new stop" "$(stopped)"

# --- where cargo builds ------------------------------------------------------------------------

if use_rust; then
    folder=$machine/built
    same "target_dir, by a variable" "$folder" "$(CARGO_TARGET_DIR=$folder target_dir)"
    same "target_dir, relative" "$PWD/built" "$(CARGO_TARGET_DIR=built target_dir)"
    same "target_dir, by cargo's configuration" "$folder" "$(
        unset CARGO_TARGET_DIR
        CARGO_BUILD_TARGET_DIR=$folder target_dir
    )"
fi

# --- room on the disk --------------------------------------------------------------------------

# df says that 300 MiB are free, and du that 200 are there.
program df <<<"printf '%s\n' Avail '  300'"
program du <<<"printf '200\t%s\n' x"
# room MIB: whether there is room for so many.
room() {
    (
        # shellcheck disable=SC2030,SC2031
        PATH=$machine/bin:$PATH
        need_room "$1" "$machine"
    ) >/dev/null 2>&1 && echo yes || echo no
}
same "room for what is there and what is free" yes "$(room 500)"
same "room for more" no "$(room 501)"
rm "$machine/bin/df" "$machine/bin/du"

# --- under CI ----------------------------------------------------------------------------------

# The arguments that cargo gets of a stage, behind how much it is to tell debuggers:
# cargo_of STAGE VARIABLE=VALUE...
program cargo <<'PROGRAM'
[[ $* != --version ]] || exec "$CARGO_ITSELF" --version
[[ $1 != metadata ]] || exec "$CARGO_ITSELF" "$@"
echo "debug ${CARGO_PROFILE_DEV_DEBUG:-as ever}: $*" >>"$MACHINE/did"
PROGRAM
cargo_of() {
    local stage=$1
    shift
    rm -f "$did"
    # shellcheck disable=SC2031
    env -u CI -u CARGO_PROFILE_DEV_DEBUG -u FUZZ_ROUNDS CARGO_ITSELF="$(command -v cargo)" \
        PATH="$machine/bin:$PATH" "$@" ./ci.sh "$stage" >/dev/null
    cat "$did"
}

# has WORDS TEXT: whether it has them.
has() { [[ $2 == *"$1"* ]] && echo yes || echo no; }

if use_rust; then
    bound="timeout -k 10 600"
    same "a test that hangs is ended under CI" yes "$(has "$bound" "$(cargo_of fuzz CI=1)")"
    same "but not a long run that is asked for" no \
        "$(has "$bound" "$(cargo_of fuzz CI=1 FUZZ_ROUNDS=5)")"
    same "and nothing for a person" no "$(has "$bound" "$(cargo_of fuzz)")"

    same "debug information under CI" yes "$(has "debug false" "$(cargo_of fuzz CI=1)")"
    same "as is asked for" yes \
        "$(has "debug 2" "$(cargo_of fuzz CI=1 CARGO_PROFILE_DEV_DEBUG=2)")"
    same "as the profile has it" yes "$(has "debug as ever" "$(cargo_of fuzz)")"

    for with in A=B CI=1; do
        mkdir -p "$machine/built/doc"
        cargo_of doc "$with" CARGO_TARGET_DIR="$machine/built" >/dev/null
        same "are documents kept with $with?" "$([[ $with == CI=1 ]] && echo no || echo yes)" \
            "$([[ -d $machine/built/doc ]] && echo yes || echo no)"
    done
fi

exit "$wrong"
