# Everything here works on a fresh machine that has Python (3.11 or newer) and make.
#   make plan     set up, then size and price the fleet of scenarios/support-chat.yaml
#   make test     set up, then run the tests (the torch ones included) but those marked `long`, of which it runs a sample
#   make long     the others, which take a second or more each: what every page prints, searches of every shipped scenario, whole
#                 calibrations and refits, and the rest of the sweeps over every key and every flag
#   make old-processor  the tests that time this processor again, without AVX-512 and units for bf16: torch and oneDNN are told
#                 to use AVX2 at most, as on a processor that has no more; one to two minutes on two cores of an EPYC with AVX-512
#   make lint     ruff, mypy --strict, and the vocabulary of pages and messages (docs/words), with Vale too where it is installed
#   make check    lint, then every test: test, long, site and old-processor, a pass of each fuzzer, and the oracle
#   make bench    start-up time and search speed, as ratios measured in one run
#   make golden   write the golden files anew; review the difference like code
#   make docs     write docs/commands/, docs/scenario/ and the output of the marked console blocks of all pages again,
#                 then build the pages as a site into site/; a warning stops it
#   make page     write a page again and build the site, in half a minute: PAGE=docs/how-to/capacity.md; open it below site/
#   make site     build the site without writing pages, and test it: its links, its widths on a phone and a desk, the height of pages and what scrolls on a phone, its search, the age of its pictures
#   make mutants  how many small faults the tests notice: MUTANTS=100 SEED=7 ROOMS=operators,serving
#   make fuzz     new questions: laws over random inputs and over what commands print of them, files of every kind and texts of their grammars, command lines, plan files, exports and calls of the
#                 library with small faults; SECONDS=600 SEED=1 (a ninth of the time each) KIND=config.json (files of one kind alone)
#                 RECORD=1 (adds the cases to the figures of docs/evidence/reliability.md)
#   make same     the JSON and files of every command, on the shipped scenarios and on random ones, next to those of another commit: SINCE=main RANDOM=60 SEED=7; an hour or two on two cores
#   make oracle   every model type of the newest transformers against our reading of config.json, and which types are new; writes docs/models.md and the sample
#                 that make test reads: SEED=1 CHANGED=2 (files with changed values for each type)
#   make live     a running vLLM and llama.cpp's server with random weights on this processor, each in an environment of its own, next to what capplan predicts
#                 (docs/evidence/live.md); about an hour and a quarter on two cores; Linux, Python 3.11, 4 GB of disk: PARTS="scheduler loads"
#                 LIVE_PYTHON=python3.11 TORCH_INDEX=URL (where pip finds a torch without CUDA, where it does not by itself)
#   make constraints  write constraints/ anew: the versions that make plan and make test install, with the hashes of their files
#   make installs     the lowest, tested and newest versions in empty environments, a build twice, the Dockerfile's steps, the same bytes everywhere:
#                     OTHERS="python3.12 python3.13"; writes docs/evidence/reliability.md
#   make audit    what pip-audit knows of the versions in constraints/; where its registry cannot be asked, what a file of
#                 advisories in the OSV format knows: ADVISORIES=FILE
#   make reliability  write docs/evidence/reliability.md from the figures of make installs and make fuzz RECORD=1
#   make release  check everything, then build the sdist, a pure wheel and one with the compiled core into dist/, twice with the
#                 same bytes, with an SBOM; the workflow of a tag does the same for the usual platforms
#   make wheels   what a campaign on a card needs besides torch, into wheels/: WHEELS_PYTHON=3.12 (see calibrate/campaign.sh)
#   make pictures draw the pictures of docs/ again; the page is photographed by the browser that tests the site, or by CHROMIUM=PROGRAM
PYTHON ?= python3
VENV ?= .venv
MUTANTS ?= 100
SEED ?= 7
SECONDS ?= 60
SINCE ?= main
RANDOM ?= 60
WHEELS_PYTHON ?= 3.12
OTHERS ?=
LIVE ?= .live
LIVE_PYTHON ?= python3.11
TORCH_INDEX ?=
PARTS ?=
CHROMIUM ?=
ADVISORIES ?=
PAGE ?= README.md
BIN := $(VENV)/bin
# A file of tests runs in one process, so that what its tests share is made once; files come in the order of their names.
SPREAD := --dist loadfile --no-loadscope-reorder
# Tests that run torch on this processor; all other tests of calibrations run on virtual cards.
TIMED := abilities_and_shapes calibration_file collectives emulated fit layers pace this_machine turns_and_timing tutorial \
	two_calibrations
# A compiled core that is older than its source would run in its place.
COMPILED := hatch_build.py $(foreach types,$(wildcard capplan/serving/*.pxd),$(types) $(types:.pxd=.py))
# Compiled modules are kept, even where an image says otherwise: every process of the tests would compile all of them anew.
export PYTHONDONTWRITEBYTECODE :=

# Ledgers of money that are computed apart from the code.
LEDGERS := tests/oracles/test_billed.py tests/oracles/test_cash.py tests/oracles/test_commitments.py tests/oracles/test_cost_metrics.py tests/oracles/test_energy.py tests/oracles/test_growth.py \
	tests/oracles/test_hosted_money.py tests/oracles/test_hosted_rules.py tests/oracles/test_offers.py tests/oracles/test_orders.py tests/oracles/test_orders_of_pools.py \
	tests/oracles/test_outside.py tests/oracles/test_own_prices.py tests/oracles/test_planned_and_paid.py tests/oracles/test_portfolio.py tests/oracles/test_prices.py tests/oracles/test_prices_by_term.py tests/oracles/test_provider_ledgers.py tests/oracles/test_who_pays.py \
	tests/properties/test_budgets.py tests/properties/test_electricity.py tests/properties/test_hosted_bills_by_events.py tests/properties/test_hosted_laws.py \
	tests/properties/test_money_by_hand.py tests/properties/test_money_of_pools.py tests/properties/test_owned_machines.py tests/properties/test_one_price.py

.PHONY: plan test money long old-processor lint check bench golden docs page site mutants fuzz same constraints audit installs reliability oracle live wheels pictures release clean
.DEFAULT_GOAL := plan

plan: $(VENV)/.ready
	$(BIN)/capplan fleet support-chat

test: $(VENV)/.ready-test
	$(BIN)/python -m pytest -n 2 $(SPREAD) -m "not long"

money: $(VENV)/.ready-test
	$(BIN)/python -m pytest -n 2 $(SPREAD) $(LEDGERS)

long: $(VENV)/.ready-test
	$(BIN)/python -m pytest -n 2 $(SPREAD) -m long

lint: $(VENV)/.ready-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m docs.generators.words
	if vale --version > /dev/null 2>&1; then vale README.md CONTRIBUTING.md SECURITY.md docs; fi

old-processor: $(VENV)/.ready-test
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/python -m pytest -n 2 $(SPREAD) $(TIMED:%=tests/calibrate/test_%.py)

check: lint test long site old-processor
	$(MAKE) fuzz
	$(MAKE) oracle CHANGED=1

bench: $(VENV)/.ready
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

golden: $(VENV)/.ready-test
	$(BIN)/python -m pytest tests/golden --update-golden

docs: $(VENV)/.ready-docs
	$(BIN)/python -m docs.generators.commands
	$(BIN)/python -m docs.generators.orders
	$(BIN)/python -m docs.generators.hosted_models
	$(BIN)/mkdocs build --quiet

page: $(VENV)/.ready-docs
	$(BIN)/python -m docs.generators.commands $(PAGE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo $(patsubst docs/%.md,site/%.html,$(PAGE))

site: $(VENV)/.ready-docs $(VENV)/.ready-test
	$(BIN)/python -m pytest -m long tests/rules/test_built_site.py tests/rules/test_pictures.py

mutants: $(VENV)/.ready-test
	$(BIN)/python -m tests.mutants.sample --mutants $(MUTANTS) --seed $(SEED) $(if $(ROOMS),--rooms $(ROOMS))

fuzz: $(VENV)/.ready-test
ifeq ($(KIND),)
	for fuzzer in laws answers shown readers grammars commands plans exports library; do $(BIN)/python -m tests.fuzz.$$fuzzer --seconds $$(( $(SECONDS) / 9 )) --seed $(SEED) $(if $(RECORD),--record) || exit 1; done
else
	$(BIN)/python -m tests.fuzz.readers --seconds $(SECONDS) --seed $(SEED) --kind $(KIND)
endif

same: $(VENV)/.ready-test
	$(BIN)/python -m tests.fuzz.same_answers since $(SINCE) --random $(RANDOM) --seed $(SEED)

constraints: $(BIN)/python
	$(BIN)/python -m tests.installs.lock

audit: $(VENV)/.ready-test
	$(BIN)/python -m tests.installs.advisories $(ADVISORIES)

installs: $(VENV)/.ready-test
	$(BIN)/python -m tests.installs.ranges lowest
	for python in $(OTHERS); do $(BIN)/python -m tests.installs.ranges tested --python $$python && $(BIN)/python -m tests.installs.ranges newest --python $$python || exit 1; done
	$(BIN)/python -m tests.installs.built
	$(BIN)/python -m tests.installs.container
	$(BIN)/python -m tests.installs.same_bytes --pythons $(OTHERS)
	$(BIN)/python -m docs.generators.reliability

reliability: $(VENV)/.ready
	$(BIN)/python -m docs.generators.reliability

oracle: $(VENV)/.ready-oracle
	$(BIN)/python -m pip install --quiet --upgrade --upgrade-strategy only-if-needed transformers
	$(BIN)/python -m tests.differential $(if $(CHANGED),--changed $(CHANGED),--write) $(if $(filter command line,$(origin SEED)),--seed $(SEED))

live: $(VENV)/.ready-test
	PYTHONPATH=. $(LIVE_PYTHON) -m calibrate.live.environment $(LIVE)/environment $(TORCH_INDEX)
	$(BIN)/python -m calibrate.live $(LIVE)/environment $(LIVE)/results $(PARTS)

wheels: $(BIN)/python
	$(BIN)/python -m pip download --quiet --only-binary :all: --python-version $(WHEELS_PYTHON) --dest wheels pydantic pyyaml scipy typer rich huggingface-hub

release: check
	$(BIN)/python -m tests.installs.built --keep dist

pictures: $(VENV)/.ready
	$(BIN)/capplan sweep scenarios/support-chat.yaml --plot docs/pictures/support-chat-frontier.svg
	$(BIN)/capplan kv-size llama-3.1-8b --context 4096 --context 32768 --plot docs/pictures/paged.svg
	$(BIN)/python -m pip install --quiet pillow
	CHROMIUM=$(CHROMIUM) $(BIN)/python -m docs.generators.pictures

clean:
	rm -rf $(VENV) $(LIVE) build dist site .mypy_cache .ruff_cache .hypothesis

# A first answer and the tests import a part of the packages: only that part is compiled, when it runs (--no-compile).
# The stamp files keep set-up from being repeated until what is declared, constrained or compiled changes.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "capplan needs Python 3.11 or newer; choose one with make PYTHON=/path/to/python3")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: pyproject.toml constraints/plan.txt $(COMPILED) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --require-hashes --requirement constraints/plan.txt
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --no-build-isolation --editable .
	@touch $@

# torch has no hash here: each index has other builds of the version that the extra pins.
$(VENV)/.ready-test: pyproject.toml constraints/test.txt | $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --no-compile --require-hashes --requirement constraints/test.txt
	$(BIN)/python -m pip install --quiet --no-compile --no-build-isolation --editable '.[test]'
	@touch $@

$(VENV)/.ready-oracle: pyproject.toml | $(VENV)/.ready-test
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[oracle]'
	@touch $@

$(VENV)/.ready-docs: pyproject.toml constraints/docs.txt | $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --require-hashes --requirement constraints/docs.txt
	@touch $@

$(VENV)/.ready-lint: pyproject.toml constraints/test.txt | $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --require-hashes --requirement constraints/test.txt
	@touch $@
