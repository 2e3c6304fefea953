# shellcheck shell=bash
# Shows a person the progress of a first build: how many crates of how many, what is being built,
# time left. Sourced by demo.sh.

# build_shown ARGUMENT...: runs `cargo build` with these arguments, its progress on standard error.
# Cargo's own progress lacks the time left, and shows nothing where there is no terminal.
build_shown() {
    CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=200 CARGO_TERM_COLOR=never \
        cargo build "$@" 2>&1 | show_progress
    return "${PIPESTATUS[0]}"
}

# Per cent of a cold build's time that have passed when 0, 1, ... 10 tenths of its crates are built:
# small crates come first. Measured with `cargo build --release --timings` on two cores.
shares=(0 4 5 8 15 32 42 55 72 76 100)

# share DONE TOTAL: the share of the time, by the table, in tenths of a per cent.
share() {
    local tenth=$((10 * $1 / $2)) rest=$((10 * $1 % $2))
    local from=${shares[tenth]} to=${shares[tenth + 1]:-100}
    printf '%d' $((10 * from + 10 * (to - from) * rest / $2))
}

# Reads what cargo writes: its bar ends with a carriage return each time, messages are lines.
show_progress() {
    local chunk line shown=-100 first_share="" start=$SECONDS
    local bar='^ +Building .* ([0-9]+)/([0-9]+): *(.*[^ ])? *$'
    local news='^ +(Compiling|Finished|Updating|Locking|Adding|Download|Fetch|Blocking)'
    while IFS= read -r -d $'\r' chunk || [[ -n $chunk ]]; do
        while IFS= read -r line; do
            if [[ $line =~ $bar ]]; then
                show_bar "${BASH_REMATCH[@]:1}"
            elif [[ $line =~ ^\ +Downloading ]]; then
                show_line "Fetching the libraries that Remora is built with"
            elif [[ $line == *[![:space:]]* && ! $line =~ $news ]]; then
                clear_line
                printf '%s\n' "$line" >&2
            fi
        done <<<"$chunk"
    done
    clear_line
}

# show_bar DONE TOTAL NAMES: uses the variables of show_progress.
show_bar() {
    local now elapsed=$((SECONDS - start)) left=""
    now=$(share "$1" "$2")
    : "${first_share:=$now}"
    if ((now - first_share >= 50 && elapsed >= 3)); then
        left=$((elapsed * (1000 - now) / (now - first_share)))
        left=", about $(((left + 9) / 10 * 10)) s left"
    fi
    show_line "Building: $1 of $2 crates$left: ${3:-}"
}

# show_line TEXT: in place of the last one on a terminal; elsewhere a line every ten seconds.
show_line() {
    if [[ -t 2 ]]; then
        printf '\r\033[K%.*s' "$((${COLUMNS:-$(tput cols 2>/dev/null || echo 80)} - 1))" "$1" >&2
    elif ((SECONDS - shown >= 10)); then
        shown=$SECONDS
        printf '%s\n' "$1" >&2
    fi
}

clear_line() { if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi; }
