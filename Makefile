# What can be done here: make help

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export GOTOOLCHAIN := local

# Every package of every module: ./... stops at the next go.mod.
MODULES := $(shell dev/modules)
ALL := $(addsuffix /...,$(MODULES))
E2E := ./e2e/...
UNITS := $(filter-out $(E2E),$(ALL))

# The race detector everywhere in CI; it makes tests several times slower, so at home it is asked for: make test RACE=-race
RACE ?= $(if $(CI),-race)
export GO_TEST_FLAGS ?= $(RACE)

.PHONY: help
help: ## say what can be done
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: test
test: up ## every test of every module on real servers; none may skip
	@GO_TEST_FLAGS='$(GO_TEST_FLAGS) -skip=ConformanceThroughAPooler' dev/part 'test modules' dev/test modules $(UNITS)
	@dev/part 'simulator' $(MAKE) --silent sim
	@dev/part 'test e2e' dev/test e2e $(E2E)
	@GO_TEST_FLAGS='-skip=AtAMillionMessages|TestConformance$$' PGTZ=Asia/Tokyo ONWARD_TEST_TABLE_PREFIX=shop_ dev/part 'test store/postgres in another time zone, with another table prefix, through a pooler' dev/test elsewhere ./store/postgres/...

.PHONY: check
check: ## what must hold before a commit: tidy modules, generated files, format, lint
	@dev/part 'check tidy' dev/tidy --check
	@dev/part 'check generated' dev/drift make --silent generate
	@dev/part 'check lint' make --silent lint

# Paths that do not depend on the checkout: what is built here is then found by the tests that build the modules from outside.
lint generate build: export GOFLAGS := $(GOFLAGS) -trimpath

.PHONY: lint
lint: ## golangci-lint, whose reasons are in .golangci.yml: vet, staticcheck, format and others
	@"$$(dev/tool golangci-lint)" run $(ALL)

.PHONY: format
format: ## format every Go file
	@"$$(dev/tool golangci-lint)" fmt $(ALL)

.PHONY: tidy
tidy: ## go mod tidy in every module
	@dev/tidy

.PHONY: generate
generate: ## write generated files again
	@go generate $(ALL)

.PHONY: build
build: ## bin/onward
	@go build -o bin/ ./cmd/onward

.PHONY: demo
demo: ## an outbox at work for half a minute, and a proof; ARGS='--fail crash' (onward demo --help)
	@[ -x bin/onward ] || echo 'demo: build bin/onward first, which takes a while' >&2
	@$(MAKE) --silent build
	@bin/onward demo $(ARGS)

# What `make chaos` and `make chaos-all` pass on: SEED, DURATION, STORE, BROKER, RATE, and ARGS (bin/chaos --help).
CHAOS = $(if $(SEED),--seed $(SEED)) $(if $(DURATION),--duration $(DURATION)) $(if $(RATE),--rate $(RATE)) $(ARGS)

.PHONY: chaos
chaos: up ## break everything around an outbox for a while, and check; SEED=42 DURATION=1m STORE=sqlite BROKER=jsonl (docs/chaos.md)
	@eval "$$(dev/services env)"; go build -o bin/ ./e2e/cmd/chaos; bin/chaos $(if $(STORE),--store $(STORE)) $(if $(BROKER),--broker $(BROKER)) $(CHAOS)

.PHONY: chaos-all
chaos-all: up ## the same for every pair of a store and a broker; DURATION=1h is of all together
	@eval "$$(dev/services env)"; go build -o bin/ ./e2e/cmd/chaos; bin/chaos all $(CHAOS)

.PHONY: bench
bench: up ## benchmarks; BENCH=Drain chooses, COUNT=10 repeats
	@eval "$$(dev/services env)"; go test -run '^$$' -bench '$(or $(BENCH),.)' -benchmem -count $(or $(COUNT),1) -timeout 60m $(ALL)

.PHONY: kills
kills: up ## kill relays 10,000 times under load, half an hour; nothing may be lost. KILLS=100 for fewer, SEED=n
	@eval "$$(dev/services env)"; go run ./e2e/endure kills $(if $(KILLS),-n $(KILLS),-report docs/proof/kills.json) $(if $(SEED),-seed $(SEED))

.PHONY: restarts
restarts: up ## restart and rescale relays 1,000 times under load, minutes; nothing may come twice. RESTARTS=100 for fewer, SEED=n
	@eval "$$(dev/services env)"; go run ./e2e/endure restarts $(if $(RESTARTS),-n $(RESTARTS),-report docs/proof/restarts.json) $(if $(SEED),-seed $(SEED))

.PHONY: sim
sim: ## the simulator: every promise checked after every step; SEEDS=1000 runs more, FROM=77 SEEDS=1 ARGS=-trace shows one
	@go run ./e2e/cmd/sim -from $(or $(FROM),1) -seeds $(or $(SEEDS),60) -workers 2 $(ARGS)

.PHONY: fuzz
fuzz: up ## run each fuzz target for FUZZTIME=10s; FUZZ=Filter chooses
	@dev/fuzz $(or $(FUZZTIME),10s) $(ALL) $(FUZZ)

.PHONY: model
model: ## explore the formal model of leases and settles in every order, and the same with a guard left out (docs/model.md)
	@dev/part 'model' dev/model/run

.PHONY: known-bad
known-bad: up ## builds with a known fault, each of which must be caught; BAD=name makes one; they write docs/proof/known-bad.json
	@eval "$$(dev/services env)"; go run ./e2e/cmd/knownbad $(BAD)

.PHONY: proof
proof: up ## measure again and write docs/proof.md: simulator, model, chaos over every pair, restarts, known-bad builds; an hour (kills: make kills)
	@$(MAKE) --silent sim SEEDS=200 ARGS='-json docs/proof/sim.json'
	@$(MAKE) --silent model
	@$(MAKE) --silent chaos-all DURATION=9m ARGS='--proof docs/proof'
	@$(MAKE) --silent restarts known-bad
	@go run ./e2e/cmd/proof

.PHONY: up
up: ## start the servers of the tests; dev/services env prints where they are
	@dev/part 'servers' dev/services up

.PHONY: down
down: ## end the servers, remove their data
	@dev/services down

.PHONY: clean
clean: down ## remove all that make has left here
	@rm -rf .dev bin
