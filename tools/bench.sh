#!/usr/bin/env bash
# How near the broker comes to what this machine's disk and sockets give: docs/benchmarks.md says how it is measured.
# Builds, fetches fio and valgrind if they are missing, and runs corelane-bench; its arguments go through. Under ten
# minutes once built. The table goes to standard output, everything to bench.json; exit status 1: a row was missed.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/lib.sh

need() {
    command -v "$1" >/dev/null && return
    echo "installing $1" >&2
    local as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get install -y -q "$1" >/dev/null || {
        echo "make bench needs $1: install it and run this again" >&2
        exit 2
    }
}

need fio
need valgrind
build_release
"${CARGO:-cargo}" build --locked --release --package corelane-log --example instructions
make_work_directory bench
corelane-bench --directory "$work/bench" --instructions target/release/examples/instructions "$@"
