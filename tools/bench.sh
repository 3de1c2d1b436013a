#!/usr/bin/env bash
# A table of what this machine does with the load generator: each row a broker of its own, fresh, on the build's disk.
# SECONDS_EACH (default 5) is the length of a row; CORES (such as "0") pins the broker's shards by `--shards`.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/lib.sh

seconds=${SECONDS_EACH:-5}
build_release
make_work_directory bench

# row NAME MODE ARGUMENTS...
row() {
    local name=$1 mode=$2
    shift 2
    rm -rf "$work/data"
    start_broker ${SHARDS:+--shards "$SHARDS"}
    corelane-loadgen "$mode" --broker "$CORELANE_BROKER" --topic bench --duration "${seconds}s" --acks durable \
        --json "$work/row.json" "$@" >"$work/row.out" 2>&1 || { cat "$work/row.out" >&2; exit 1; }
    stop_broker
    printf '%-44s' "$name"
    for way in produce consume; do
        printf ' %12.0f %8.1f' "$(number "$work/row.json" "$way" messages_per_s)" \
            "$(number "$work/row.json" "$way" mb_per_s)"
    done
    printf ' %9.0f %9.0f\n' "$(number "$work/row.json" ack_us p50)" "$(number "$work/row.json" ack_us p99)"
}

printf '%-44s %12s %8s %12s %8s %9s %9s\n' "acks=durable, ${seconds} s a row" "publish/s" "MB/s" "consume/s" "MB/s" \
    "ack p50us" "ack p99us"
row "200 B, sets of 50, 1 connection" produce --size 200 --set 50 --create-partitions 1 --connections 1
row "200 B, sets of 50, 8 connections" produce --size 200 --set 50 --create-partitions 8 --connections 8
row "200 B, sets of 1000, 1 connection" produce --size 200 --set 1000 --create-partitions 1 --connections 1
row "200 B, one a request, pipelined" produce --size 200 --set 1 --create-partitions 1 --connections 1
row "200 B, sets of 50, published and consumed" both --size 200 --set 50 --create-partitions 1 --connections 1
row "1 KiB, sets of 50, published and consumed" both --size 1024 --set 50 --create-partitions 2 --connections 2
row "20,000/s, published and consumed" both --size 200 --set 1 --rate 20000 --create-partitions 1 --connections 1
