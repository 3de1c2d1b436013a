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

etcd_pid=
# Brokers that somebody has started again are no children of this shell: their pids are in the files.
is_running() {
    [ -n "$1" ] && kill -0 "$1" 2>/dev/null
}
pid_of() {
    cat "$data/broker-$1.pid" 2>/dev/null || true
}
# The brokers first, so that they can say goodbye to etcd.
stop() {
    trap - EXIT INT TERM
    local id
    for id in 1 2 3; do
        is_running "$(pid_of $id)" && kill -TERM "$(pid_of $id)" 2>/dev/null || true
    done
    for id in 1 2 3; do
        while is_running "$(pid_of $id)"; do sleep 0.1; done
        rm -f "$data/broker-$id.pid"
    done
    if [ -n "$etcd_pid" ]; then
        kill -TERM "$etcd_pid" 2>/dev/null || true
        wait "$etcd_pid" 2>/dev/null || true
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
etcd_pid=$!
started etcd $! "$data/etcd.log" 'serving client traffic'

addresses=
for id in 1 2 3; do
    listen=127.0.0.1:$((9400 + id + base))
    # What starts it now starts it again when it was stopped.
    {
        echo '#!/usr/bin/env bash'
        printf 'setsid'
        printf ' %q' "$bin/corelane-broker" --etcd "$etcd_url" --cluster demo --broker-id "$id" --data "$data/broker-$id" \
            --listen "$listen" --http "127.0.0.1:$((9390 + id + base))" --shards 1 --pin-shards false "$@"
        printf ' >%q 2>>%q &\necho $! >%q\n' "$data/broker-$id.out" "$data/broker-$id.log" "$data/broker-$id.pid"
    } >"$data/start-broker-$id"
    chmod +x "$data/start-broker-$id"
    : >"$data/broker-$id.log"
    "$data/start-broker-$id"
    started "broker-$id" "$(pid_of $id)" "$data/broker-$id.out" '^corelane-broker ready '
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
declare -A ended=()
while is_running "$etcd_pid"; do
    sleep 1
    for id in 1 2 3; do
        if is_running "$(pid_of $id)"; then
            ended[$id]=
        elif [ -z "${ended[$id]:-}" ]; then
            ended[$id]=1
            echo "broker $id has ended; its log is $data/broker-$id.log; it starts again with: $data/start-broker-$id" >&2
        fi
    done
done
echo "etcd has ended; its log is $data/etcd.log" >&2
exit 1
