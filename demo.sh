#!/usr/bin/env bash
# The main job, on this machine: a memory node in one process, a client in another, a real file
# read and written one-sided over RoCE v2, every byte verified, and a plain-TCP copy beside it; then
# look-ups in remote memory by a kernel on its card, by READs, and by an RPC over TCP; then a
# key-value store, read in five ways, killed, and recovered.
# Installs what building needs (and says so), builds the demo, runs it, and builds the rest of the
# command. Needs no root to run.
#
#   ./demo.sh [OPTION...]      options go to the demo; try --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
# shellcheck source=scripts/progress.sh
source scripts/progress.sh

setup_build
built=$(target_dir)/release
[[ -x $built/remora-demo ]] ||
    say "Building the demo: two to four minutes the first time, on two cores."
build_shown --release -p remora-demo || fail "the build failed; the reason stands above."
"$built/remora-demo" "$@"

case " $* " in *" --help "* | *" -h "* | *" --version "* | *" -V "*) exit ;; esac

# The rest of the command takes as long again, so the demo does not wait for it.
{
    [[ -x $built/remora ]] ||
        say "Building the command \`remora\`: two to four minutes more. Ctrl-C stops this, and" \
            "\`cargo build --release\` goes on from there."
    build_shown --release -p remora-cli || fail "the build failed; the reason stands above."
    say "The command is there: $built/remora"
} >&2
