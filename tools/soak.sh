#!/usr/bin/env bash
# The log's model test for as long as you like: random histories with crashes on the simulated disk, checked against a
# plain model. MINUTES (default 10) is the length, SEED the first seed (default: from the clock). A failure prints the
# seed that replays it: CORELANE_SEED=n CORELANE_HISTORIES=1 cargo test --release -p corelane-log --test model
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=${MINUTES:-10}
seed=${SEED:-$(date +%s)}
histories=${CORELANE_HISTORIES:-2000}
cargo=${CARGO:-cargo}

# Optimised, with the assertions on that the log is written with.
export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true
"$cargo" test --locked --release --package corelane-log --test model --no-run
echo "soak: $minutes minutes from seed $seed on, $histories histories a round"
deadline=$((SECONDS + minutes * 60))
rounds=0
while [ "$SECONDS" -lt "$deadline" ]; do
    CORELANE_SEED=$seed CORELANE_HISTORIES=$histories \
        "$cargo" test --locked --release --quiet --package corelane-log --test model >target/soak.log 2>&1 || {
        cat target/soak.log
        echo "failed in the round of CORELANE_SEED=$seed CORELANE_HISTORIES=$histories" >&2
        exit 1
    }
    seed=$((seed + histories))
    rounds=$((rounds + 1))
done
echo "soak: $rounds rounds of $histories histories, no failure; the next seed is $seed"
