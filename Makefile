# What one does with the project, one word each. The work is in scripts/.

.DEFAULT_GOAL := help
.PHONY: help demo packages test gate bench soak fuzz docs vectors

# What is named on the command line reaches the scripts through the environment and as it was typed, so that a name may
# hold quotes, spaces and dollar signs.
override FILE := $(value FILE)
override ROWS := $(value ROWS)
override FILES := $(value FILES)
override KINDS := $(value KINDS)
override TARGETS := $(value TARGETS)
override ARGS := $(value ARGS)
export FILE ROWS FILES KINDS TARGETS ARGS

help: ## list what there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-8s %s\n", $$1, $$2 }'

demo: ## watch an agent session about a file of yours: make demo FILE=path
	@bash scripts/demo.sh $${FILE:+"$$FILE"}

packages: ## what users install: wheel, Node tarball, C prefix, into target/packages
	@bash scripts/packages.sh

test: ## install what is missing, then run every suite; the sum comes last
	@bash scripts/test.sh

gate: ## what every change must pass first: format, lints, policy, purity, protocol tests
	@bash scripts/gate.sh

bench: ## measure beside what people would use instead: make bench ROWS="P1 T1"
	@cargo build --quiet --locked --profile release -p broca-bench
	@bench="$${CARGO_TARGET_DIR:-target}/release/broca-bench" && needs=$$("$$bench" needs $$ROWS) && \
		bash bench/setup.sh $$needs && ulimit -n "$$(ulimit -H -n)" && "$$bench" $$ROWS

soak: ## long runs under faults: make soak ARGS="…"
	@cargo build --quiet --locked --profile ci -p broca-cli -p broca-testkit --bins
	@"$${CARGO_TARGET_DIR:-target}/ci/soak" $$ARGS

fuzz: ## every fuzz target for FUZZ_SECONDS each (60), or some: make fuzz TARGETS="…"
	@bash scripts/fuzz.sh $$TARGETS

docs: ## build the reference of the libraries and check the links of the guides
	@bash scripts/docs.sh

vectors: ## play vectors in every language: make vectors FILES="path …" KINDS="kind …"
	@bash scripts/vectors.sh
