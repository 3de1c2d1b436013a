# What the scripts that start a broker share; sourced by them. They run from the repository's root, with `set -euo
# pipefail`. Nothing outlives the script: the broker is stopped and the directory removed however it ends.

broker_pid=
work=

# Builds the binaries that are measured and shown, and puts them first in the path.
build_release() {
    "${CARGO:-cargo}" build --locked --release --bins
    PATH=$PWD/target/release:$PATH
}

# Makes the directory that the script works in: on the build's own disk, since /tmp may be memory without direct I/O.
make_work_directory() {
    mkdir -p target/tmp
    work=$(mktemp -d "$PWD/target/tmp/$1-XXXXXX")
    trap clean_up EXIT
    trap 'exit 130' INT TERM
}

# Starts a broker on free ports and exports its address for the CLI and the load generator. Arguments go to the broker.
start_broker() {
    corelane-broker --data "$work/data" --listen 127.0.0.1:0 --http 127.0.0.1:0 "$@" \
        >"$work/broker.out" 2>"$work/broker.log" &
    broker_pid=$!
    local waited=0
    until grep -q '^corelane-broker ready ' "$work/broker.out"; do
        if ! kill -0 "$broker_pid" 2>/dev/null || [ "$waited" -ge 300 ]; then
            echo "the broker did not get ready:" >&2
            cat "$work/broker.log" >&2
            exit 1
        fi
        sleep 0.1
        waited=$((waited + 1))
    done
    CORELANE_BROKER=$(sed -n 's/^corelane-broker ready listen=\([^ ]*\).*/\1/p' "$work/broker.out")
    export CORELANE_BROKER
}

# Stops the broker in order and fails unless it ends with status 0.
stop_broker() {
    local status=0
    kill -TERM "$broker_pid"
    wait "$broker_pid" || status=$?
    broker_pid=
    if [ "$status" -ne 0 ]; then
        echo "the broker ended with status $status:" >&2
        cat "$work/broker.log" >&2
        exit 1
    fi
}

clean_up() {
    if [ -n "$broker_pid" ]; then
        kill -KILL "$broker_pid" 2>/dev/null || true
        wait "$broker_pid" 2>/dev/null || true
    fi
    [ -z "$work" ] || rm -rf "$work"
}
