#!/usr/bin/env bash
# The log's model test for as long as you like: random histories with crashes on the simulated disk, checked against a
# plain model, with the assertions on that the log is written with. MINUTES (default 10) is the length, SEED the first
# seed (default: from the clock). Prints how far it is; ends with what it went through, or with the seed that failed and
# the command that runs that history again, and then not with status 0. The tests' own build is used.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
minutes=${MINUTES:-10}
seed=${SEED:-$(date +%s)}

# As the tests are built: what they start is not built once more beside them.
"$cargo" build --locked --workspace --all-targets
export CORELANE_BINARIES_BUILT=1

# WHAT=groups: rounds of a group whose members, brokers and etcd are killed, paused and cut off, instead of the log's test.
if [ "${WHAT:-log}" = groups ]; then
    echo "soak: $minutes minutes of groups from seed $seed on"
    CORELANE_FULL=1 CORELANE_SEED=$seed CORELANE_MINUTES=$minutes \
        exec "$cargo" test --locked --workspace --test groups_chaos a_group_gets_everything -- --nocapture
fi

# WHAT=mirror: two clusters, mirrors, a group and exports whose brokers and tools are killed.
if [ "${WHAT:-log}" = mirror ]; then
    echo "soak: $minutes minutes of mirrors and exports by seed $seed"
    CORELANE_SEED=$seed CORELANE_MINUTES=$minutes \
        exec "$cargo" test --locked --workspace --test mirror_chaos -- --nocapture
fi

mkdir -p target
echo "soak: $minutes minutes from seed $seed on"
status=0
CORELANE_SEED=$seed CORELANE_MINUTES=$minutes \
    "$cargo" test --locked --quiet --workspace --test model 2>&1 | tee target/soak.log || status=$?
if [ "$status" -ne 0 ]; then
    grep '^seed ' target/soak.log >&2 || true
    echo "soak: FAILED; the whole output is in target/soak.log" >&2
fi
exit "$status"
