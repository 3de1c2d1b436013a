#!/usr/bin/env bash
# A cluster to try things on: etcd and three brokers on this machine, each with its own directory and ports, until Ctrl-C.
# What they hold stays in target/cluster (or DATA) for the next time; remove that directory to begin anew.
# Ports: brokers 9401 to 9403, their pages 9391 to 9393, etcd 2379 and 2380; BASE=n adds n to each.
set -euo pipefail
cd "$(dirname "$0")/.."

data=${DATA:-target/cluster}
base=${BASE:-0}
etcd_url=http://127.0.0.1:$((2379 + base))
peer_url=http://127.0.0.1:$((2380 + base))

command -v etcd >/dev/null || {
    echo "a cluster needs etcd: apt install etcd-server" >&2
    exit 1
}
"${CARGO:-cargo}" build --locked --release --bins
bin=$PWD/target/release
mkdir -p "$data"

pids=()
# The brokers first, so that they can say goodbye to etcd.
stop() {
    trap - EXIT INT TERM
    if [ ${#pids[@]} -gt 1 ]; then
        kill -TERM "${pids[@]:1}" 2>/dev/null || true
        wait "${pids[@]:1}" 2>/dev/null || true
    fi
    if [ ${#pids[@]} -gt 0 ]; then
        kill -TERM "${pids[0]}" 2>/dev/null || true
        wait "${pids[0]}" 2>/dev/null || true
    fi
}
trap stop EXIT
trap 'echo; echo "stopping"; exit 0' INT TERM

# started NAME PID FILE PATTERN: waits until FILE has a line like PATTERN.
started() {
    local waited=0
    until grep -q "$4" "$3" 2>/dev/null; do
        if ! kill -0 "$2" 2>/dev/null || [ "$waited" -ge 600 ]; then
            echo "$1 did not start:" >&2
            tail -n 20 "$data/$1.log" >&2
            exit 1
        fi
        sleep 0.1
        waited=$((waited + 1))
    done
}

# Not in the terminal's process group, or Ctrl-C would stop etcd before the brokers have said goodbye.
setsid env -i PATH="$PATH" etcd --name cluster --data-dir "$data/etcd" \
    --listen-client-urls "$etcd_url" --advertise-client-urls "$etcd_url" \
    --listen-peer-urls "$peer_url" --initial-advertise-peer-urls "$peer_url" --initial-cluster "cluster=$peer_url" \
    --auto-compaction-mode=periodic --auto-compaction-retention=5m \
    --logger zap --log-outputs stderr >/dev/null 2>"$data/etcd.log" &
pids+=($!)
started etcd $! "$data/etcd.log" 'serving client traffic'

addresses=
for id in 1 2 3; do
    listen=127.0.0.1:$((9400 + id + base))
    setsid "$bin/corelane-broker" --etcd "$etcd_url" --cluster demo --broker-id "$id" --data "$data/broker-$id" \
        --listen "$listen" --http "127.0.0.1:$((9390 + id + base))" --shards 1 --pin-shards false "$@" \
        >"$data/broker-$id.out" 2>"$data/broker-$id.log" &
    pids+=($!)
    echo $! >"$data/broker-$id.pid"
    started "broker-$id" $! "$data/broker-$id.out" '^corelane-broker ready '
    addresses=${addresses:+$addresses,}$listen
done

cat <<TEXT
etcd and three brokers run; their logs are in $data. In another terminal:

    export PATH=$bin:\$PATH CORELANE_BROKER=$addresses
    corelane broker list
    corelane topic create access-log --partitions 6

Ctrl-C stops them.
TEXT
# One that ends is told of; the others go on.
while true; do
    gone=
    wait -n -p gone || true
    [ -n "$gone" ] || exit 0
    echo "process $gone has ended; the logs are in $data" >&2
done
