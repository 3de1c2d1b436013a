#!/usr/bin/env bash
# A table of what this machine does with the load generator, acks=durable: each row has a fresh broker with its data on
# the build's disk. SECONDS_EACH (default 5) is the length of a row, SHARDS the broker's shards (default: its own choice).
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/lib.sh

seconds=${SECONDS_EACH:-5}
build_release
make_work_directory bench

# number OBJECT FIELD: a number of the last report, whose objects are flat; "-" where it has none.
number() {
    local value
    value=$(tr -d ' \n' <"$work/report.json" | grep -o "\"$1\":{[^}]*}" | grep -o "\"$2\":[0-9.eE+-]*" | cut -d: -f2) || true
    if [ -n "$value" ]; then printf '%.0f' "$value"; else echo -; fi
}

# load NAME MODE ARGUMENTS...: a row on the broker that runs.
load() {
    local name=$1 mode=$2
    shift 2
    corelane-loadgen "$mode" --topic bench --json "$work/report.json" "$@" >"$work/load.out" 2>&1 || {
        cat "$work/load.out" >&2
        exit 1
    }
    printf '%-44s' "$name"
    printf ' %11s %7s' "$(number produce messages_per_s)" "$(number produce mb_per_s)"
    printf ' %11s %7s' "$(number consume messages_per_s)" "$(number consume mb_per_s)"
    printf ' %9s %9s' "$(number ack_us p50)" "$(number ack_us p99)"
    printf ' %9s %9s\n' "$(number end_to_end_us p50)" "$(number end_to_end_us p99)"
}

# publish NAME ARGUMENTS...: publishes for the length of a row, then consumes what was published.
publish() {
    local name=$1
    shift
    rm -rf "$work/data"
    start_broker ${SHARDS:+--shards "$SHARDS"}
    load "$name" produce --duration "${seconds}s" "$@"
    load "  the same, consumed" consume --exit-at-end
    stop_broker
}

# both NAME ARGUMENTS...: publishes and consumes at the same time.
both() {
    local name=$1
    shift
    rm -rf "$work/data"
    start_broker ${SHARDS:+--shards "$SHARDS"}
    load "$name" both --duration "${seconds}s" "$@"
    stop_broker
}

printf '%-44s %11s %7s %11s %7s %9s %9s %9s %9s\n' "acks=durable, ${seconds} s a row" "publish/s" "MB/s" "consume/s" "MB/s" \
    "ack p50" "p99 us" "e2e p50" "p99 us"
publish "200 B, sets of 50, 1 partition" --size 200 --set 50 --create-partitions 1
publish "200 B, sets of 50, 8 partitions" --size 200 --set 50 --create-partitions 8 --connections 8
publish "200 B, sets of 1000, 1 partition" --size 200 --set 1000 --create-partitions 1
publish "200 B, one a request, pipelined" --size 200 --set 1 --create-partitions 1
publish "1 KiB, sets of 50, 1 partition" --size 1024 --set 50 --create-partitions 1
both "200 B, sets of 50, published and consumed" --size 200 --set 50 --create-partitions 1
both "200 B, 20,000/s, one a request" --size 200 --set 1 --rate 20000 --create-partitions 1
