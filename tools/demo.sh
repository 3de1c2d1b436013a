#!/usr/bin/env bash
# The system at work, in under a minute beyond the build: a real log of this machine goes in and comes back byte for
# byte, then five seconds of load, then an orderly stop.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/lib.sh

build_release
make_work_directory demo
start_broker
echo "broker: $(cat "$work/broker.out")"

# The package manager's log; where there is none, the sources of this repository.
if [ -s /var/log/dpkg.log ] && [ -r /var/log/dpkg.log ]; then
    source_log=/var/log/dpkg.log
else
    source_log=$work/sources
    find . -path ./target -prune -o -name '*.rs' -type f -print0 | sort -z | xargs -0 cat >"$source_log"
fi
# A message is a line and comes back with a newline: give the last line one if it has none.
cp "$source_log" "$work/published"
[ -z "$(tail -c 1 "$work/published")" ] || echo >>"$work/published"

echo "publishing $source_log: $(wc -l <"$work/published") lines, $(wc -c <"$work/published") bytes"
corelane topic create demo --partitions 1
corelane produce demo --file "$work/published" --acks durable
corelane consume demo --from earliest --exit-at-end --output "$work/consumed"
cmp "$work/published" "$work/consumed"
echo "consumed back: every byte the same"

echo "five seconds of load: 200-byte messages in sets of 50, acknowledged when durable, consumed and compared"
corelane-loadgen both --topic load --create-partitions 2 --size 200 --set 50 --duration 5s --acks durable

stop_broker
echo "broker stopped in order; done"
