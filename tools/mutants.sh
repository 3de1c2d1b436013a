#!/usr/bin/env bash
# Breaks the code on purpose, one rule at a time, and fails when the fast suite does not notice. Each patch in mutants/ is
# a mutant; its first line says which rule it breaks and which crash that loses, a line `Suite:` names other tests than
# the log's. Works on a copy of HEAD and of what is changed beside it, under target/mutants. MUTANT="name other" runs some. A
# mutant costs ten seconds where it is noticed at once, and up to five minutes where nothing notices it.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
run_seconds_max=60
root=$PWD
tree=$root/target/mutants/tree
output=$root/target/mutants/output
unset CORELANE_SEED CORELANE_HISTORIES CORELANE_TRACE
export CARGO_TARGET_DIR=$root/target/mutants/build CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_DEBUG=0 RUST_BACKTRACE=0

# What notices, in this order: arguments of `cargo test` that choose a target, then the tests of it, if not all. The
# features of the whole workspace wherever that can be: dependencies are then those that `make test` has built.
log_suites=(
    "--workspace --test model -- nothing_visible_is_ever_lost_or_changed"
    "--workspace --test model -- damage_is_kept_copied_or_skipped"
    "--workspace --test promises"
    "--workspace --test data_dir"
    "-p corelane-log --lib"
)

make_tree() {
    mkdir -p "$(dirname "$tree")"
    git worktree prune
    [ -e "$tree/.git" ] || git worktree add --quiet --detach --force "$tree" HEAD
    git -C "$tree" reset --quiet --hard "$(git rev-parse HEAD)"
    git -C "$tree" clean --quiet -fd
    git diff --binary HEAD | git -C "$tree" apply --allow-empty --whitespace=nowarn
    # The tree's own crates have another path and with it other names; nothing of the ordinary build is written over.
    if [ ! -e "$CARGO_TARGET_DIR/debug" ] && [ -e "$root/target/debug/.fingerprint" ]; then
        mkdir -p "$CARGO_TARGET_DIR/debug"
        cp -al "$root/target/debug/deps" "$root/target/debug/build" "$CARGO_TARGET_DIR/debug/"
        cp -a "$root/target/debug/.fingerprint" "$CARGO_TARGET_DIR/debug/"
    fi
}

# in_tree SECONDS ARGUMENTS...: a command in the copy, its output kept; ends it after so many seconds.
in_tree() {
    local seconds=$1
    shift
    (cd "$tree" && timeout "$seconds" "$@") >"$output" 2>&1
}

# try SUITE: runs it. 0: it passes, or has not failed when its time is over; 1: it fails, `noticed` says where; 2: it
# cannot be built.
try() {
    local target=${1%% -- *} status=0
    # shellcheck disable=SC2086 # the arguments are words
    in_tree 1800 "$cargo" test --locked --quiet $target --no-run || return 2
    # shellcheck disable=SC2086
    in_tree "$run_seconds_max" "$cargo" test --locked --quiet $1 || status=$?
    if [ "$status" -eq 0 ] || [ "$status" -eq 124 ]; then return 0; fi
    noticed=$(sed -n 's/^seed \([0-9]*\) failed after \([0-9]*\) good histories.*/seed \1/p' "$output" | head -n 1)
    local test
    test=$(sed -n 's/^    \([a-z_:0-9]*\)$/\1/p' "$output" | head -n 1)
    noticed="${test:-$target}${noticed:+, $noticed}"
    return 1
}

make_tree
for suite in "${log_suites[@]}"; do
    CORELANE_HISTORIES=300 try "$suite" || {
        cat "$output"
        echo "not a mutant, and yet it fails: $suite" >&2
        exit 1
    }
done

# Those that only other tests notice come last: what they need takes minutes to build.
mapfile -t mutants < <(grep -L '^Suite: ' "$root"/mutants/*.patch && grep -l '^Suite: ' "$root"/mutants/*.patch)
if [ -n "${MUTANT:-}" ]; then
    mutants=()
    for name in $MUTANT; do mutants+=("$root/mutants/$name.patch"); done
fi
failures=()
began=$SECONDS
printf '%-40s %-64s %s\n' mutant "noticed by" seconds
for patch in "${mutants[@]}"; do
    name=$(basename "$patch" .patch)
    if ! git -C "$tree" apply --whitespace=nowarn "$patch" 2>"$output"; then
        printf '%-40s %s\n' "$name" "DOES NOT APPLY: the tree moved; make the patch anew"
        failures+=("$name")
        continue
    fi
    suites=("${log_suites[@]}")
    other=$(sed -n 's/^Suite: //p' "$patch")
    [ -z "$other" ] || suites=("$other")
    result="SURVIVED: $(head -n 1 "$patch")"
    started=$SECONDS
    for suite in "${suites[@]}"; do
        status=0
        try "$suite" || status=$?
        case $status in
        0) continue ;;
        1) result=$noticed ;;
        2) result="DOES NOT COMPILE" ;;
        esac
        break
    done
    [ "$status" -eq 1 ] || failures+=("$name")
    printf '%-40s %-64s %d\n' "$name" "$result" $((SECONDS - started))
    [ -z "${MUTANT:-}" ] || tail -n 40 "$output"
    git -C "$tree" apply --whitespace=nowarn --reverse "$patch"
done
printf '%d mutants, %d noticed, in %d s\n' ${#mutants[@]} $((${#mutants[@]} - ${#failures[@]})) $((SECONDS - began))
if [ ${#failures[@]} -gt 0 ]; then
    printf 'not noticed: %s\n' "${failures[@]}" >&2
    exit 1
fi
