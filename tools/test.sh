#!/usr/bin/env bash
# Runs every test of the workspace: builds once (tests and the binaries they start share the dev profile), runs all of
# them whatever fails, and ends with a summary line and the names of the tests that could not run here.
# Arguments go to `cargo test`. What was skipped is left in target/skipped.txt, the output in target/test.log.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
mkdir -p target
export CORELANE_SKIPPED_FILE="$PWD/target/skipped.txt"
: >"$CORELANE_SKIPPED_FILE"

# All targets, not just the binaries: so the features, and with them the artifacts, are those that `cargo test` uses.
"$cargo" build --locked --workspace --all-targets
export CORELANE_BINARIES_BUILT=1

# Most of the short forms wait (for a flush, a lease, a retention), so three a core are under way; the long ones work.
if [ -z "${CORELANE_FULL:-}" ]; then
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((3 * $(nproc)))}
fi

began=$SECONDS
status=0
"$cargo" test --locked --workspace --no-fail-fast "$@" 2>&1 | tee target/test.log || status=$?

sort -u -o "$CORELANE_SKIPPED_FILE" "$CORELANE_SKIPPED_FILE"
awk -v seconds=$((SECONDS - began)) -v skipped="$(wc -l <"$CORELANE_SKIPPED_FILE")" '
    /^test result: / { passed += $4; failed += $6; ignored += $8 }
    END { printf "\n%d passed, %d failed, %d ignored, %d skipped, in %d s\n", passed, failed, ignored, skipped, seconds }
' target/test.log
cat "$CORELANE_SKIPPED_FILE"
exit "$status"
