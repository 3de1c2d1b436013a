# The commands that people and CI use. `make` alone lists them.

CARGO ?= cargo
# Where `make run` keeps its log.
DATA ?= target/run
# What `make run` passes on to the broker, such as ARGS="--listen 0.0.0.0:9400".
ARGS ?=

.PHONY: help demo run cluster check test test-full soak mutants miri bench audit deb

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## build, publish a real log of this machine, consume it back, compare, five seconds of load
	@tools/demo.sh

run: ## a broker to try things on: 127.0.0.1:9400, its pages on 127.0.0.1:9390, its log in target/run
	$(CARGO) build --locked --release --bins
	target/release/corelane-broker --data $(DATA) $(ARGS)

cluster: ## etcd and three brokers on this machine: 127.0.0.1:9401 to 9403, their logs in target/cluster; Ctrl-C stops them
	@tools/cluster.sh $(ARGS)

check: ## format, lints and documentation, without a warning
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked --package corelane-client --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps

test: ## every test in its short form (five minutes once built, on two cores)
	@tools/test.sh

test-full: ## every test in its long form: gigabytes instead of megabytes
	@CORELANE_FULL=1 tools/test.sh

soak: ## random histories of the log with crashes: MINUTES=30 SEED=n; WHAT=groups, mirror: those amid kills
	@tools/soak.sh

mutants: ## breaks each rule of mutants/ on purpose and fails if no test notices, outside CI: MUTANT="name other" for some
	@tools/mutants.sh

miri: ## what is pure under Miri: the message format, the log's parts (needs a nightly toolchain with miri)
	MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri test --locked --package corelane-proto --no-default-features --lib --test golden
	MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri test --locked --package corelane-log --lib

bench: ## a broker against what this machine's disk and sockets give, under ten minutes: ARGS="--rounds 5"
	@tools/bench.sh $(ARGS)

audit: ## licences and known vulnerabilities of the dependencies (needs cargo-deny)
	@$(CARGO) deny --version >/dev/null 2>&1 || { echo "make audit needs cargo-deny: cargo install --locked cargo-deny" >&2; exit 1; }
	$(CARGO) deny --locked check

deb: ## the Debian package, in target/debian; fetches cargo-deb: BUILD=no packs the release binaries that are there
	@tools/deb.sh
