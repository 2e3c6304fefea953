# shellcheck shell=bash
# What demo.sh and ci.sh need of the machine. They source this file, from the repository's root.
# Before it installs a package it says which and why; it uses sudo only if something is missing.

say() { printf '%s\n' "$*"; }

fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '       %s\n' "$line" >&2; done
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# --- apt ---------------------------------------------------------------------------------------

# Runs a command as root: directly, or through sudo. Without a terminal, sudo cannot ask.
as_root() {
    if ((EUID == 0)); then
        "$@"
    elif ! have sudo; then
        fail "this needs root, and there is no sudo: $*" "Run that line as root, then this again."
    elif [[ -t 0 ]]; then
        say "  (sudo may ask for your password, for: $*)"
        sudo "$@"
    else
        sudo -n "$@" || fail "this needs root: $*" "Run that line yourself, then this again."
    fi
}

# Reads the package lists, once in a run.
apt_update() {
    [[ -z ${apt_is_updated:-} ]] || return 0
    say "  reading the package lists (apt-get update)"
    as_root apt-get update -qq || say "  apt-get update failed; going on with the lists there are"
    apt_is_updated=1
}

# Prints the version of a package that apt would install; nothing if it has none.
apt_candidate() {
    LC_ALL=C apt-cache policy "$1" 2>/dev/null |
        sed -n 's/^ *Candidate: *\([0-9][^ ]*\)$/\1/p'
}

# apt_install WHY PACKAGE...: installs packages. It removes nothing but an older Rust in their way.
apt_install() {
    local why=$1 removed other
    shift
    have apt-get || fail "missing here: $why" \
        "This script installs with apt only. Please install what Debian calls: $*"
    apt_update
    say "  installing $*: $why"
    removed=$(LC_ALL=C apt-get -s install "$@" 2>/dev/null | sed -n 's/^Remv \([^ ]*\).*/\1/p' ||
        true) # What apt does not know, it says below.
    if [[ -n $removed ]]; then
        other=$(grep -vE '^(rustc|cargo|rustfmt|rust-|libstd-rust)' <<<"$removed" || true)
        [[ -z $other ]] || fail "apt would have to remove: ${other//$'\n'/ }" \
            "That is for you to decide: apt-get install $*"
        say "  in place of the older ${removed//$'\n'/ }"
    fi
    local before
    before=$(services_running)
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o Dpkg::Use-Pty=0 "$@" >/dev/null || fail "apt-get could not install: $*" \
        "Run it yourself to see why: apt-get install $*"
    stop_services "$before" "$@"
}

# stop_services BEFORE PACKAGE...: stops what runs of these packages and did not run before. Debian
# starts a package's services when it installs it, and when the machine starts; we want programs.
stop_services() {
    local before=$1 name names='s#.*/(systemd/system|init\.d)/([^/@]+)$#\2#p'
    shift
    for name in $(dpkg -L "$@" | sed -nE "$names" | sort -u); do
        services_running | grep -qxF "$name" || continue
        ! grep -qxF "$name" <<<"$before" || continue
        say "  stopping $name, which its package has started: we need its program only"
        stop_service "$name" || say "  (it goes on)"
    done
}

has_systemd() { [[ -d /run/systemd/system ]]; }

services_running() {
    if has_systemd; then
        systemctl list-units --plain --no-legend --type=service,socket --state=active |
            cut -d' ' -f1
    elif have service; then
        service --status-all 2>/dev/null | sed -n 's/^ *\[ + \] *//p'
    fi
}

stop_service() {
    if has_systemd; then
        as_root systemctl --quiet disable --now "$1"
    else
        as_root service "$1" stop >/dev/null
    fi
}

# need_command COMMAND WHY PACKAGE...: installs the packages if the command is missing.
need_command() {
    local command=$1
    shift
    have "$command" || apt_install "$@"
}

# --- Rust --------------------------------------------------------------------------------------

# at_least WANTED VERSION: is VERSION new enough?
at_least() { [[ -n $2 ]] && printf '%s\n%s\n' "$1" "$2" | sort -V -C; }

rust_wanted() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml; }

# Do cargo and rustc answer, and are both new enough?
rust_answers() {
    local wanted
    wanted=$(rust_wanted)
    # shellcheck disable=SC2030,SC2031
    (
        export RUSTUP_AUTO_INSTALL=0
        at_least "$wanted" "$(cargo --version 2>/dev/null | cut -d' ' -f2)" &&
            at_least "$wanted" "$(rustc --version 2>/dev/null | cut -d' ' -f2)"
    )
}

# Finds a Rust that is new enough, without installing: the default one, else rustup's stable.
# Changes PATH and RUSTUP_TOOLCHAIN for this run only.
use_rust() {
    local bin=${CARGO_HOME:-${HOME:-/root}/.cargo}/bin
    if [[ -x $bin/cargo && :$PATH: != *:"$bin":* ]]; then export PATH=$bin:$PATH; fi
    rust_answers && return
    # shellcheck disable=SC2030,SC2031
    if have rustup && (export RUSTUP_TOOLCHAIN=stable && rust_answers); then
        export RUSTUP_TOOLCHAIN=stable
        return
    fi
    return 1
}

rustup_stable() {
    say "  installing the current stable Rust with rustup, in your home (your default stays)"
    rustup toolchain install stable --profile minimal --component clippy --component rustfmt \
        --no-self-update >/dev/null 2>&1 || fail "rustup could not install stable Rust" \
        "Run it yourself to see why: rustup toolchain install stable"
}

# Installs a Rust that is new enough, from the first source that has one.
install_rust() {
    use_rust && return
    local wanted suffix
    wanted=$(rust_wanted)
    say "Rust $wanted or newer is needed to build; this machine has $(rustc --version \
        2>/dev/null | cut -d' ' -f1,2 | grep . || echo none)."
    if have rustup; then
        rustup_stable
        use_rust && return
    fi
    if have apt-get; then
        apt_update
        if [[ -n $(apt_candidate rustup) ]]; then
            apt_install "rustup, which brings Rust" rustup
            hash -r
            rustup_stable
            use_rust && return
        fi
        # Debian has a newer Rust beside the release's own, for building web browsers.
        for suffix in -web ""; do
            if at_least "$wanted" "$(apt_candidate "rustc$suffix")" &&
                at_least "$wanted" "$(apt_candidate "cargo$suffix")"; then
                apt_install "the Rust compiler" "rustc$suffix" "cargo$suffix"
                hash -r
                use_rust && return
            fi
        done
    fi
    fail "this machine has no Rust of $wanted or newer, nor a package of one." \
        "Please install rustup as its web page (rustup.rs) says, then run this again."
}

# Everything that building needs: a linker, root certificates for cargo, Rust.
setup_build() {
    need_command cc "a C compiler and linker, which Rust links with" gcc libc6-dev
    if have apt-get && [[ ! -s /etc/ssl/certs/ca-certificates.crt ]]; then
        apt_install "root certificates, to fetch Rust's libraries" ca-certificates
    fi
    install_rust
}

# What the checks need besides: rustfmt and clippy for the Rust in use.
setup_lints() {
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return
    if have rustup && rustup component add clippy rustfmt >/dev/null 2>&1; then return; fi
    if dpkg-query -W cargo-web >/dev/null 2>&1; then
        apt_install "Rust's formatter and linter" rustfmt-web rust-web-clippy
    elif dpkg-query -W cargo >/dev/null 2>&1; then
        apt_install "Rust's formatter and linter" rustfmt rust-clippy
    else
        say "  rustfmt or clippy is missing and belongs to a Rust that was installed by hand:"
        say "  the stages fmt and clippy will fail until it is there"
    fi
}

# Where cargo puts what it builds, which its configuration or the environment may say, and these
# scripts what they bring along.
target_dir() {
    have cargo || use_rust || fail "there is no cargo, which knows where it builds" "./ci.sh setup"
    cargo metadata --no-deps --offline --format-version 1 |
        sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p' | grep .
}

# need_room MIB FOLDER: fails if the folder cannot grow to so many MiB.
need_room() {
    local wanted=$1 folder=$2 has free
    mkdir -p "$folder"
    has=$(du -sm "$folder" | cut -f1)
    free=$(df -m --output=avail "$folder" | tail -n1)
    say "A whole run takes $wanted MiB of disk in $folder: $has are there, and $((free)) are free."
    ((has + free >= wanted)) || fail "the disk is too small for a whole run" \
        "Make room for $((wanted - has - free)) MiB more, or set CARGO_TARGET_DIR to a folder" \
        "of another disk. Single stages take less: ./ci.sh STAGE..."
}
