#!/usr/bin/env bash
# The main job, on this machine: a memory node in one process, a client in another, a real file
# read and written one-sided over RoCE v2, every byte verified, and a plain-TCP copy beside it; then
# look-ups in remote memory by a kernel on its card, by READs, and by an RPC over TCP; then a
# key-value store, read in five ways, killed, and recovered.
# Installs what building needs (and says so), builds, runs. Needs no root to run.
#
#   ./demo.sh [OPTION...]      options go to `remora demo`; try --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
# shellcheck source=scripts/progress.sh
source scripts/progress.sh

setup_build
remora=$(target_dir)/release/remora
[[ -x $remora ]] || say "Building Remora: four to seven minutes the first time, on two cores."
build_shown --release -p remora-cli || fail "the build failed; the reason stands above."
exec "$remora" demo "$@"
