#!/usr/bin/env bash
# Runs the checks of this repository, stage by stage: the same ones for people and for CI.
# shellcheck disable=SC2317 # the stages are called by name
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
# Tests have cards of their own, also where somebody serves one to all programs.
export REMORA_NIC=off

usage() {
    cat <<'USAGE'
./ci.sh STAGE...      runs the stages in the order given, and prints a table of them

  setup    installs what the rest needs, if it is not there (Debian, Ubuntu); says what and why
  tidy     the repository's own rules, on the files git knows
  circles  no source files name each other in a circle
  fmt      rustfmt
  scripts  what these scripts do to a machine, on one of programs that stand in
  clippy   every crate, with tests and examples; warnings are errors
  check    only: does everything compile? (quick; clippy covers it)
  features the command and the workspace share one build; the plain card needs few crates, and
           the command none that only few of its users ask for; the card compiles for aarch64
  core     the card has no clock, socket, thread, file or random source
  deny     licences and sources of what we depend on, by cargo-deny
  doc      rustdoc; warnings are errors
  test     every test, with overflow checks; those of clusters where etcd and protoc are installed
  porcupine  histories of the store, and of the cluster, are linearizable, as porcupine judges
  daemon   verbs programs again, on one card that a daemon shares among them; rdma-core's own
           tests in Python, on both kinds of card
  symbols  the verbs library has each symbol of rdma-core's newest release, and of the installed one
  cost     the instructions of hot paths, beside those of scripts/cost.json
  fuzz     every fuzz target over its corpus and random inputs
  sim      random worlds
  rxe      traffic with Linux soft-RoCE in a virtual machine (docs/testing.md)
  machine  a chain goes on when the operating system of its program has panicked, in a machine
  all      all of them but check, setup first; goes on after a failure

  CI            set: Cargo.lock must be up to date; what is missing is an error; a test program is
                ended after ten minutes, but where FUZZ_ROUNDS, SCHEDULES or RXE_TIMES asks for more
  CI_DENY=1     deny: install cargo-deny if it is missing, and look for security advisories too
  COST_WRITE=1  cost: write the table anew
  FUZZ_ROUNDS   fuzz: random inputs a target (default 200000)
  FUZZ_SEED     fuzz: where they begin (default 1)
  FUZZ_SECONDS  fuzz: seconds a target under nightly Rust's cargo-fuzz (default 0: not at all)
  SCHEDULES     porcupine: how many schedules of a cluster (default: three chosen ones)
  SCHEDULES_FIRST  porcupine: the first one's seed (default 1)
  SIM_SEEDS     sim: how many worlds (default 50), and 20 times as many groups
  SIM_FIRST     sim: the first seed (default 1)
  REMORA_SKIP_JUDGES=1  test: tshark and scapy do not judge packets, where they cannot be had
  RXE_CASES     rxe: words; only the cases whose names hold them all
  RXE_TIMES     rxe: runs each case so often (default 1)
  RXE_OPTIONAL=1  rxe, machine: may be skipped under CI too, where the machine cannot be had
USAGE
}

all_stages=(setup tidy circles fmt scripts clippy features core deny doc test porcupine daemon
    symbols cost fuzz sim rxe machine)
skipped=77 # the status of a stage whose tools this machine lacks

# CI builds a clone once: what an incremental build would keep only costs disk, and so do, two
# hundred times over, the lines of a backtrace: a panic says its own line without them. Release
# builds stay as users have them, since the stage cost counts their instructions.
locked=()
whole_run_mib=16000 # What `./ci.sh all` takes of the disk, about.
if [[ -n ${CI:-} ]]; then
    locked=(--locked)
    whole_run_mib=8000
    export CARGO_PROFILE_DEV_INCREMENTAL=${CARGO_PROFILE_DEV_INCREMENTAL:-false}
    export CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-false}
fi

# spent FOLDER: what this stage alone needed where cargo builds. CI does not keep it.
spent() { [[ -z ${CI:-} ]] || rm -rf "$(target_dir)/${1:?}"; }

# Nobody watches CI: a test program that hangs is ended with all that it has started, and the others
# go on. (The longest takes two minutes.)
bounded=()
[[ -z ${CI:-} ]] || bounded=(--config "target.'cfg(unix)'.runner = 'timeout -k 10 600'")

# patient VALUE: a person who asks for a long run by a variable gets all of it, under CI too.
patient() { [[ -z $1 ]] || bounded=(); }

# The newest Rust whose lints this repository is clean under. A newer one brings new lints: it
# reports them, but they do not fail the tests of a person who cloned this.
# Raise it with the first commit that is clean under a newer Rust.
lints_known_to=1.96.99

lints_are_errors() {
    at_least "$(rustc --version | cut -d' ' -f2)" "$lints_known_to"
}

stage_setup() {
    setup_build
    ((whole_run == 0)) || need_room "$whole_run_mib" "$(target_dir)"
    setup_lints
    need_command git "git, to know which files are the repository's" git
    need_command tshark "a packet dissector, to judge our packets" tshark
    python3 -c 'import ensurepip, venv' 2>/dev/null ||
        apt_install "Python environments, for the second judge of our packets" python3-venv
    [[ -e /usr/include/infiniband/verbs.h && -e /usr/include/rdma/rdma_cma.h ]] ||
        apt_install "the headers that our verbs library is held to" libibverbs-dev librdmacm-dev
    need_command ibv_devinfo "programs that our verbs library is tried with" ibverbs-utils
    need_command ib_send_bw "programs that our verbs library is tried with" perftest
    need_command rping "programs that our verbs library is tried with" rdmacm-utils
    need_command qperf "programs that our verbs library is tried with" qperf
    need_command fio "programs that our verbs library is tried with" fio
    need_command fi_pingpong "programs over libfabric, over verbs" libfabric-bin
    need_command ucx_perftest "programs over UCX, over verbs" ucx-utils
    need_command mpirun "MPI, over both" openmpi-bin
    # (The compiler's command comes with mpirun, but its header does not.)
    compgen -G '/usr/lib/*/openmpi/include/mpi.h' >/dev/null ||
        apt_install "the header of MPI, to build a program of it" libopenmpi-dev
    need_command valgrind "a counter of instructions, for the stage cost" valgrind
    need_command patchelf "a tool that renames libraries, as packagers do" patchelf
    need_command nm "a list of symbols, to compare libraries" binutils
    local judges_start=$SECONDS
    if ! scripts/judges-venv.sh; then
        say "  target/judges-venv, a Python with judges, could not be made; going on without it:"
        say "  scapy will not judge our packets, and clients in Python not our store"
    elif ((SECONDS - judges_start >= 2)); then
        say "  made target/judges-venv: a Python with scapy, and clients of Redis and memcached"
    fi
    have npm || (apt_install "npm, for a client of Redis and AssemblyScript" npm) || true
    scripts/store-clients.sh ||
        without "some clients in Go or for Node (scripts/store-clients.sh)"
    # The server's program is in it, too, by the name of redis-check-rdb.
    need_command redis-cli "clients of Redis, for the store" redis-tools
    need_command etcd "etcd, which has the leases of a store on several machines" etcd-server
    need_command protoc "what etcd's client is built with" protobuf-compiler
    [[ -e $protobuf_files ]] || apt_install "files that protoc reads for it" libprotobuf-dev
    need_command strace "what makes a disk slow, for the store on several machines" strace
    need_command openssl "a maker of certificates, for etcd by TLS" openssl
    need_command memcached "memcached, whose answers ours are compared with" memcached
    need_command memccapable "a judge of memcached's protocols, for the store" libmemcached-tools
    need_command tclsh "what Redis' test suite runs on" tcl
    need_command prove "what memcached's tests run on" perl
    if have go; then
        scripts/porcupine.sh || say "  going on without porcupine, a judge of the store's histories"
    else
        say "  no Go here: porcupine will not judge the store's histories"
    fi
    scripts/store-suites.sh ||
        without "the suites of Redis and memcached (scripts/store-suites.sh)"
    local programs=(ibv_devinfo:ibverbs-utils ib_write_lat:perftest ucmatose:rdmacm-utils
        qperf:qperf fio:fio cmake:cmake pkg-config:pkg-config) program
    for program in "${programs[@]}"; do
        need_command "${program%%:*}" "a program to be run on the verbs library, or to build one" \
            "${program##*:}"
    done
    scripts/pyverbs.sh || say "  going on without rdma-core's tests in Python"
    compgen -G '/usr/lib/*/libnl-route-3.so' >/dev/null ||
        apt_install "what the crate ibverbs is built with" libnl-3-dev libnl-route-3-dev
    compgen -G '/usr/lib/*/libclang*.so*' >/dev/null ||
        compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null ||
        apt_install "libclang, for the bindings of the crate ibverbs" libclang-dev
    scripts/rxe-vm.sh setup ||
        say "  going on without it: the stages rxe and machine will say what it lacks"
    need_command clang "a C compiler for WebAssembly, for the kernels in guest/c" clang
    need_command wasm-ld "its linker" lld
    add_target wasm32-unknown-unknown "guest/rust and the stage core"
    add_target "$other_target" "the stage features"
    scripts/assemblyscript.sh ||
        say "  going on without AssemblyScript: its kernel in guest/ is tested as built in the tree"
    say "Rust $(rustc --version | cut -d' ' -f2), $(tshark --version 2>/dev/null | head -n1)"
}

# add_target TARGET WHAT-FOR
add_target() {
    target_is_there "$1" || ! have rustup || {
        say "  adding the target $1 to Rust, for $2"
        rustup target add "$1" >/dev/null 2>&1 || say "  (it could not be had)"
    }
}

# without WHAT: setup goes on. Under CI it does not: tests ask for it there.
without() {
    [[ -z ${CI:-} ]] || fail "CI must have $1"
    say "  going on without $1"
}

other_target=aarch64-unknown-linux-gnu
target_is_there() {
    [[ -d $(rustc --print target-libdir --target "$1" 2>/dev/null) ]]
}

protobuf_files=/usr/include/google/protobuf/descriptor.proto

can_cluster() {
    have etcd && have protoc && [[ -e $protobuf_files ]]
}

# Says what this machine lacks; under CI that is an error.
lacks() {
    [[ -z ${CI:-} ]] || fail "CI must have what is missing here: $1"
    say "missing: $1"
}

# Cargo for the whole workspace, with all that this machine can build: etcd's client needs a
# compiler of Protocol Buffers. Cargo chooses the features of shared crates by what is built
# together, and builds them again for another choice, so all stages that build tests do it so.
whole() {
    local features=remora-cli/fuse,remora-cli/parquet,remora-cli/zstd
    if can_cluster; then features+=,remora-cli/cluster; fi
    cargo "${bounded[@]}" "$1" "${locked[@]}" --quiet --workspace --features "$features" "${@:2}"
}

stage_fmt() {
    cargo fmt --all --check || fail "some files are not formatted" "Run: cargo fmt --all"
}

stage_scripts() {
    scripts/tests.sh || fail "the scripts do what they should not"
}

stage_clippy() {
    local flags=()
    if lints_are_errors; then
        flags=(-- -D warnings)
    else
        say "Rust is newer than $lints_known_to: its warnings are shown, and are not errors"
    fi
    whole clippy --all-targets "${flags[@]}" ||
        fail "clippy objects" "Mend it, or allow the lint on that item and say why in a comment."
}

stage_check() {
    whole check --all-targets || fail "it does not compile"
}

# Tests run in the dev profile: optimised a little, and with overflow checks, which a release
# build lacks.
stage_test() {
    can_cluster || lacks "etcd, protoc or its files: clusters are not tested (./ci.sh setup)"
    (($(cat /proc/sys/vm/nr_hugepages 2>/dev/null || echo 0) > 0)) ||
        say "this machine has no huge pages (vm.nr_hugepages): registering them is not tested"
    whole test --no-fail-fast ||
        fail "a test failed" "Run one alone: cargo test -p CRATE NAME -- --nocapture"
    as_lesser_processor
}

# The tests of the library `remora` again, with the paths that a processor without wide vectors
# takes: a machine of today would never see them fail.
as_lesser_processor() {
    local built
    built=$(whole test --lib --no-run --message-format json |
        grep -oE '"executable":"[^"]*/remora-[0-9a-f]+"' | cut -d'"' -f4)
    [[ -x $built ]] || fail "the tests of the library remora are not where cargo says: $built"
    (cd crates/remora && REMORA_CPU=v2 timeout -k 10 600 "$built" --quiet) ||
        fail "a test failed with REMORA_CPU=v2"
}

# Builds the command and the libraries that tests load, of what the tests have built already.
# (Examples, like tests, have the features of dev-dependencies.)
build_as_tested() {
    whole build --lib --bins --examples ||
        fail "the build failed"
}

# The judge is judged first: it has to refuse histories that cannot be.
stage_porcupine() {
    if ! have go; then
        lacks "Go, for the judge of histories: install Debian's golang, or that of go.dev"
        return "$skipped"
    fi
    (cd scripts/porcupine && go test -mod=readonly .) || fail "the judge of histories is wrong"
    local folder
    folder=$(target_dir)/histories
    rm -rf "$folder"
    export REMORA_HISTORIES=$folder
    local tests=(--test histories)
    if can_cluster; then
        tests+=(--test etcd --test schedules)
    else
        lacks "etcd, protoc or its files: histories of clusters are not judged (./ci.sh setup)"
    fi
    patient "${SCHEDULES:-}${REMORA_CLUSTER_ROUNDS:-}"
    [[ -z ${SCHEDULES:-} ]] || export REMORA_SCHEDULES=$SCHEDULES
    [[ -z ${SCHEDULES_FIRST:-} ]] || export REMORA_SCHEDULES_FIRST=$SCHEDULES_FIRST
    whole test "${tests[@]}" -- --nocapture ||
        fail "a test of histories failed" "docs/testing.md says what they do."
    scripts/porcupine.sh "$folder"/*.jsonl ||
        fail "a history is not linearizable" "docs/testing.md says what its lines mean."
}

# rdma-core's own tests in Python, whose outcomes tests/pyverbs.txt knows: pyverbs own|shared.
# A test that hangs would do so for ever.
pyverbs() {
    local had=0
    scripts/pyverbs.sh || had=$?
    if ((had == skipped)); then
        [[ -z ${CI:-} ]] || fail "rdma-core's tests in Python are missing" "Run: ./ci.sh setup"
        say "so they are left out"
        return 0
    fi
    ((had == 0)) || return "$had"
    local built
    built=$(target_dir)
    LD_LIBRARY_PATH=$built/pyverbs/libraries timeout 900 "$built/debug/remora" run -- \
        /usr/bin/python3 scripts/pyverbs.py "$built/pyverbs" tests/pyverbs.txt "$1"
}

descriptors() {
    find "/proc/$1/fd" | wc -l
}

# Runs a program on the daemon of this process and socket, which had so many descriptors before its
# first program: on_daemon PID SOCKET COUNT COMMAND. Nothing of the program is left there then: no
# session, and none of its descriptors. (The first ones that need them leave the memory that the
# user's programs have on the card, and a socket by which the card asks the kernel.)
on_daemon() {
    local daemon=$1 socket=$2 first=$3 told status=0 built
    shift 3
    built=$(target_dir)
    REMORA_NIC=$socket "$@" || status=1
    for _ in {1..300}; do
        told=$("$built/debug/remora" nic status --json --socket "$socket")
        if [[ $told == *'"dma_clients":[]'*'"sessions":[]'* ]] &&
            (($(descriptors "$daemon") <= first + 4)); then
            return "$status"
        fi
        sleep 0.1
    done
    say "the daemon, which began with $first descriptors, still has, behind $*:" "$told" \
        "$(ls -l "/proc/$daemon/fd")"
    return 1
}

# What passes on a program's own card passes on one that it shares with its peer, by the same tests.
stage_daemon() {
    local folder daemon status=0
    build_as_tested
    pyverbs own || status=1
    folder=$(mktemp -d)
    "$(target_dir)/debug/remora" nic --socket "$folder/nic.sock" &
    daemon=$!
    for _ in {1..100}; do
        [[ -S $folder/nic.sock ]] && break
        sleep 0.1
    done
    local on=(on_daemon "$daemon" "$folder/nic.sock" "$(descriptors "$daemon")") tests
    for tests in verbs_programs verbs_frameworks ranks cm_programs cm_api chains process reactor \
        event_loop multicast storm calls; do
        "${on[@]}" whole test --test "$tests" || status=1
    done
    # (The simulator has tests of some of these names, too. They need no card.)
    "${on[@]}" whole test --test queues --test regions --test requests --test programs || status=1
    # A child may use its parent's objects here, which `shared` tests.
    "${on[@]}" whole test --test objects -- --skip a_child_starts_anew || status=1
    # The thread that has the card is the daemon's, with the priority that that one has.
    "${on[@]}" whole test --test loopback -- --skip a_card_goes_before_others || status=1
    "${on[@]}" pyverbs shared || status=1
    kill "$daemon"
    wait "$daemon" || status=1
    rm -rf "$folder"
    ((status == 0)) || fail "a program failed on a shared card" "docs/nic.md says how to start one."
}

# A program that needs a symbol that is not there does not load.
stage_symbols() {
    local list=crates/verbs/tests/symbols/rdma-core.txt
    whole test --test library symbols ||
        fail "the verbs library lacks symbols: they stand above" \
            "Export them in crates/verbs/src/*/symbols.rs."
    say "all $(grep -vc '^#' "$list") symbols; the list is that of"
    sed -n 's/^# \(Release .*\|What has been added .*\)/  \1/p' "$list"
}

# Counts do not depend on the pace of the machine, as times do. The build is that of the stage sim.
stage_cost() {
    local write=()
    if ! have valgrind; then
        lacks "valgrind (./ci.sh setup installs it)"
        return "$skipped"
    fi
    [[ ${COST_WRITE:-} != 1 ]] || write=(--write)
    cargo build "${locked[@]}" --quiet --release -p remora-cli || fail "the build failed"
    local had=0
    python3 scripts/cost.py "$(target_dir)/release/remora" "${write[@]}" || had=$?
    ((had == 0 || had == skipped)) || fail "hot paths take more instructions"
    return "$had"
}

# Only the libraries: the command `remora` and the library `remora` would share a page.
stage_doc() {
    local deny=""
    if lints_are_errors; then deny="-D warnings"; fi
    RUSTDOCFLAGS=$deny whole doc --no-deps --lib ||
        fail "rustdoc objects" "Read it with: cargo doc --no-deps --open"
    spent doc
}

# Building cargo-deny takes over three minutes on two cores, and the advisories need their database
# from the network, and change while the tree does not. So by default this stage uses cargo-deny
# only where it is installed, and checks only what the tree itself decides.
stage_deny() {
    if ! cargo deny --version >/dev/null 2>&1; then
        if [[ ${CI_DENY:-} != 1 ]]; then
            say "cargo-deny is not installed; CI_DENY=1 installs it (several minutes)"
            return "$skipped"
        fi
        say "installing cargo-deny"
        cargo install --quiet --locked cargo-deny || fail "cargo-deny could not be installed"
    fi
    local checks=(bans licenses sources)
    [[ ${CI_DENY:-} != 1 ]] || checks+=(advisories)
    cargo deny --log-level error check "${checks[@]}" ||
        fail "cargo-deny objects" "A new licence or source needs a line with a reason in deny.toml."
}

# --- features ----------------------------------------------------------------------------------

# The crates that cargo would build for these arguments, each with its features.
crates_built() {
    cargo tree "${locked[@]}" --edges normal,build --prefix none --no-dedupe \
        --format '{p} [{f}]' "$@" | sort -u
}

stage_features() {
    local others heavy
    # 1. What ./demo.sh has built, `cargo build --release` does not build again.
    others=$(comm -23 <(crates_built -p remora-demo) <(crates_built -p remora-cli))
    others+=$(comm -23 <(crates_built -p remora-cli) <(crates_built))
    [[ -z $others ]] || fail "\`cargo build\` would build these anew after ./demo.sh:" "$others" \
        "Features of shared crates are named in the workspace's Cargo.toml, for all alike."

    # The demo is there first: it does not wait for what it does not use.
    heavy=$(crates_built -p remora-demo | grep -E '^(wasmtime|cranelift|remora-sim)' || true)
    [[ -z $heavy ]] || fail "the demo depends on:" "$heavy"

    # 2. An embedder of the plain card builds no compiler of kernels, and no language of chains.
    # (With all its features, remora is part of what clippy checks.)
    heavy=$(crates_built -p remora | grep -E '^(wasmtime|cranelift|annotate-snippets)' || true)
    [[ -z $heavy ]] || fail "the plain card depends on:" "$heavy"
    cargo check "${locked[@]}" --quiet -p remora || fail "the plain card does not compile"

    # 3. What the command can do beyond that costs only those who ask for it. (What they get is
    # built and tested with all else.)
    heavy=$(crates_built -p remora-cli | grep -E '^(parquet|etcd-client|tokio|fuser|zstd)' || true)
    [[ -z $heavy ]] || fail "the command depends by default on:" "$heavy"

    # 4. Parts of the card are written for one kind of processor: the other one's compile, too.
    if target_is_there "$other_target"; then
        cargo check "${locked[@]}" --quiet --target "$other_target" \
            -p remora-nic -p remora-offload -p remora ||
            fail "the card does not compile for $other_target"
    else
        say "skipped: Rust has no $other_target here (rustup target add $other_target)"
    fi
}

# --- core --------------------------------------------------------------------------------------

# Three proofs that the card is sans-IO. Clippy is a fourth: crates/nic/clippy.toml bans the types
# by name, so that no signature has them either.
stage_core() {
    local library calls bad
    # 1. No unsafe code, so no system calls of its own.
    grep -q '^#!\[forbid(unsafe_code)\]$' crates/nic/src/lib.rs ||
        fail "crates/nic/src/lib.rs does not forbid unsafe code"

    # 2. What its compiled code calls: nothing of the standard library that asks the machine,
    # nothing of C but what the compiler itself calls.
    cargo build "${locked[@]}" --quiet -p remora-nic || fail "remora-nic does not build"
    library=$(target_dir)/debug/libremora_nic.rlib
    # (Demangled, "std" may carry a hash in brackets.)
    calls=$(nm -uC "$library" 2>/dev/null | sed -n 's/^ *U //p' |
        sed 's/\[[0-9a-f]*\]//g' | sort -u)
    [[ $calls == *core::* ]] || fail "nm found no calls at all in $library: is binutils there?"
    bad=$(grep -E '^<*std::(env|fs|io|net|os|process|sys|thread|time|hash::random)::' \
        <<<"$calls" || true)
    [[ -z $bad ]] || fail "remora-nic calls the machine:" "$bad" \
        "Time, memory, packets and seeds come in as arguments (docs/architecture.md)."
    bad=$(grep -vE '::|^<|^anon\.|^(__rust|rust_)' <<<"$calls" |
        grep -vxE 'mem(cpy|move|set|cmp)|bcmp|strlen|_Unwind_Resume|_GLOBAL_OFFSET_TABLE_' |
        grep -vE '^__aarch64_(cas|swp|ld)' | # Atomics, on processors of two generations.
        grep -vxE '__u(div|mod)ti3' || true)
    [[ -z $bad ]] || fail "remora-nic calls C:" "$bad"

    # 3. It and all it depends on compile for a machine without an operating system.
    if target_is_there wasm32-unknown-unknown; then
        cargo build "${locked[@]}" --quiet -p remora-nic --target wasm32-unknown-unknown ||
            fail "remora-nic, or what it depends on, needs an operating system"
        spent wasm32-unknown-unknown
    else
        say "no wasm32-unknown-unknown here: that part is left out (./ci.sh setup may add it)"
    fi
}

stage_circles() {
    local said
    said=$(python3 scripts/circles.py) || fail "files name each other in a circle:" "$said" \
        "Move what ties them to the file that is named by both, or to a file of its own."
    say "$said, no circle"
}

# --- tidy --------------------------------------------------------------------------------------

# objections WHAT-TO-DO: fails if something was found on standard input.
objections() {
    local found
    found=$(head -n 20)
    [[ -z $found ]] && return
    printf '%s\n  -> %s\n' "$found" "$1"
    return 1
}

# Files with unsafe code where CONTRIBUTING.md says there is none, tests aside; and places that it
# names for nothing.
# shellcheck disable=SC2016 # the quotes of Markdown, not of the shell
unsafe_elsewhere() {
    local files places file place found
    files=$(git grep -lE '^[^/]*\bunsafe( |$)' -- '*.rs' | grep -vE '(^|/)tests(\.rs$|/[^/]*\.rs$)')
    files=$(grep -vE '^(crates/[^/]*|tests)/tests/' <<<"$files")
    places=$(sed -n '/^\*\*Unsafe\*\*/,/^\*\*Dependencies/p' CONTRIBUTING.md |
        sed -n 's/^| \(`.*`\) | .*/\1/p' | grep -oE '`[^`]+`' | tr -d '`')
    for file in $files; do
        found=
        for place in $places; do
            if [[ $file == "$place" || $place == */ && $file == "$place"* ]]; then found=yes; fi
        done
        [[ $found ]] || printf '%s: unsafe code\n' "$file"
    done
    for place in $places; do
        grep -qF "$place" <<<"$files" || printf 'CONTRIBUTING.md: no unsafe code in %s\n' "$place"
    done
}

# Rules of text that can be tested, so that no person has to remember them. The patterns are
# written so that they do not match themselves.
stage_tidy() {
    export LC_ALL=C.UTF-8
    local - # a grep that finds nothing is the good case, not a failure
    set +o pipefail
    local ok=0 file
    local text=(':!*Cargo.lock' ':!LICENSE-*' ':!*.snap')

    git grep -nIE '(^|[^[:alnum:]_.~$}-])/(wor[k]|hom[e]|tm[p]|roo[t])/' -- "${text[@]}" |
        objections "a path of one machine: derive it, or take it as an argument" || ok=1

    git grep -nIE 'crate[s]\.io|pyp[i]\.org|npm[j]s|(deb|archive|security)\.(debia[n]|ubunt[u])\.' \
        -- "${text[@]}" | objections "a registry's host: its client knows it" || ok=1

    git grep -nIi 'whoeve[r]' -- "${text[@]}" |
        objections "name the subject: the caller, a client, a thread" || ok=1

    git grep -nIE '^.{101,}' -- '*.rs' '*.sh' '*.md' '*.toml' .ci ':!*/corpus/*' |
        grep -vE '\]\(|^[^:]*\.md:[0-9]*:\|' |
        objections "longer than 100 columns (links and tables of prose excepted)" || ok=1

    git grep -nIE '^(<{7}|>{7}) ' -- "${text[@]}" |
        objections "a merge that was not finished" || ok=1

    git grep -nIE '[[:blank:]]+$' -- "${text[@]}" | objections "blanks at the end of a line" || ok=1

    git ls-files '*.rs' | while read -r file; do
        awk -v file="$file" 'END { if (NR > 800) print file ": " NR " lines" }' "$file"
    done | objections "longer than 800 lines: split it by what its parts do" || ok=1

    git ls-files | grep -E '(^|/)([^/]*[-_])?(core|common|utils?|types|helpers)(/|\.rs$)' |
        objections "a name that says nothing: name it after what it does" || ok=1

    unsafe_elsewhere | objections "unsafe, and CONTRIBUTING.md's table differ: mend either" || ok=1

    for file in $(git ls-files 'crates/*/Cargo.toml' fuzz/Cargo.toml); do
        tr '\n' ' ' <"$file" | grep -qE '\[lints\] +workspace = true' || printf '%s\n' "$file"
    done | objections "not under the workspace's lints: [lints] workspace = true" || ok=1

    python3 scripts/rules.py 2>&1 | objections "what scripts/rules.py says of it is not so" || ok=1

    if have shellcheck; then
        git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck -x || ok=1
    fi
    return "$ok"
}

# --- fuzz and sim ------------------------------------------------------------------------------

stage_fuzz() {
    local target seconds=${FUZZ_SECONDS:-0}
    patient "${FUZZ_ROUNDS:-}"
    REMORA_FUZZ_ROUNDS=${FUZZ_ROUNDS:-200000} REMORA_FUZZ_SEED=${FUZZ_SEED:-1} \
        whole test --test replay ||
        fail "a fuzz target failed"
    ((seconds > 0)) || return 0
    if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
        lacks "nightly Rust with cargo-fuzz, for a coverage-guided run"
        say "(rustup toolchain install nightly; cargo install cargo-fuzz)"
        return "$skipped"
    fi
    for target in fuzz/fuzz_targets/*.rs; do
        target=$(basename "$target" .rs)
        say "fuzz: $target for $seconds s"
        # New inputs go to a scratch corpus; `cargo fuzz cmin` chooses what is worth keeping.
        mkdir -p "$(target_dir)/fuzz-corpus/$target"
        cargo +nightly fuzz run "$target" "$(target_dir)/fuzz-corpus/$target" \
            "fuzz/corpus/$target" -- -max_total_time="$seconds" -max_len=4200 \
            -verbosity=0 -print_final_stats=1 ||
            fail "fuzz target $target found something" \
                "Put the input into fuzz/corpus/$target with the fix: the tests replay it."
    done
}

stage_sim() {
    local first=${SIM_FIRST:-1} count=${SIM_SEEDS:-50} remora failures
    cargo build "${locked[@]}" --quiet --release -p remora-cli || fail "the build failed"
    remora=$(target_dir)/release/remora
    [[ -x $remora ]] || fail "the build made no $remora"
    # shellcheck disable=SC2016 # the inner bash expands it
    failures=$(seq "$first" $((first + count - 1)) | xargs -P "$(nproc)" -I SEED bash -c \
        'out=$("$0" sim SEED 2>&1) || printf "%s\n--- seed SEED failed\n" "$out"' "$remora")
    if [[ -n $failures ]]; then
        tail -n 60 <<<"$failures"
        fail "some worlds failed" "One alone: $remora sim SEED"
    fi
    say "$count worlds from seed $first"
    # These take milliseconds each.
    "$remora" sim "$first" --count $((20 * count)) --of groups || fail "some groups failed"
}

# --- the real peer -----------------------------------------------------------------------------

# machine_image WORD...: the folder of a virtual machine, by scripts/rxe-vm.sh. Under CI it is an
# error if the machine cannot be had; elsewhere the stage says so and is skipped.
machine_image() {
    local status=0
    scripts/rxe-vm.sh "$@" || status=$?
    if ((status == skipped)); then
        [[ -z ${CI:-} || ${RXE_OPTIONAL:-} == 1 ]] ||
            fail "CI must have the virtual machine" "RXE_OPTIONAL=1 allows to go on without it."
        return "$skipped"
    fi
    ((status == 0)) || fail "the virtual machine could not be made"
}

stage_rxe() {
    local image libraries name words=()
    image=$(machine_image) || return
    build_as_tested
    # Under the names that programs are linked to.
    libraries=$(target_dir)/rxe-libraries
    mkdir -p "$libraries"
    for name in libibverbs.so.1 librdmacm.so.1; do
        ln -sfn ../debug/libremora_verbs.so "$libraries/$name"
    done
    read -ra words <<<"${RXE_CASES:-}"
    patient "${RXE_TIMES:-}"
    # Two ends on this host exchange packets as those in the machine do, too.
    REMORA_FABRIC=udp \
        REMORA_RXE_VM=$image REMORA_VERBS_DIR=${REMORA_VERBS_DIR:-$libraries} \
        whole test --test rxe -- \
        "${words[@]}" || fail "Remora and soft-RoCE do not get along" \
        "Some cases alone: RXE_CASES='WORD...' ./ci.sh rxe"
}

# The panic of an operating system, whose program has a chain on the card of its host.
stage_machine() {
    local image
    build_as_tested
    image=$(machine_image with "$(target_dir)/debug/machine_program") || return
    REMORA_MACHINE_IMAGE=$image whole test --test machine -- --nocapture ||
        fail "a chain did not survive its operating system" \
            "docs/nic.md, Virtual machines, says how it is meant to."
}

# --- the stages --------------------------------------------------------------------------------

names=() results=() times=() failed=0

run_stage() {
    local name=$1 start=$EPOCHREALTIME status
    printf '== %s\n' "$name"
    if [[ $name != setup && $name != tidy && $name != circles ]] && ! use_rust; then
        say "no Rust of $(rust_wanted) or newer here; run: ./ci.sh setup"
        status=1
    else
        # In a subshell that stops at the first error; in a condition bash would not stop.
        set +e
        (
            set -e
            "stage_$name"
        )
        status=$?
        set -e
    fi
    names+=("$name")
    times+=($((${EPOCHREALTIME/[.,]/} - ${start/[.,]/})))
    case $status in
        0) results+=(ok) ;;
        "$skipped") results+=(skipped) ;;
        *)
            results+=(FAILED)
            failed=1
            ;;
    esac
}

stages=() whole_run=0
for argument in "$@"; do
    case $argument in
        all)
            stages+=("${all_stages[@]}")
            whole_run=1
            ;;
        -h | --help) usage && exit ;;
        *)
            declare -F "stage_$argument" >/dev/null || { usage >&2 && exit 2; }
            stages+=("$argument")
            ;;
    esac
done
((${#stages[@]})) || { usage >&2 && exit 2; }

for stage in "${stages[@]}"; do
    run_stage "$stage"
    [[ $stage == setup && $failed == 1 ]] && break
done

printf '\n%-8s %-8s %8s\n' stage result seconds
for i in "${!names[@]}"; do
    printf '%-8s %-8s %6d.%d\n' "${names[i]}" "${results[i]}" $((times[i] / 1000000)) \
        $((times[i] / 100000 % 10))
done
exit $failed
