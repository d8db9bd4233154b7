# `make demo` and `make test` set up all they need on a machine with make and Python 3.11+.
PYTHON ?= python3
BIN := .venv/bin
# This folder's code, even if .venv is another clone's, as after cp -r.
export PYTHONPATH := $(CURDIR)
# Keep what Python compiles, even where PYTHONDONTWRITEBYTECODE is set, or each command would take seconds to start.
export PYTHONDONTWRITEBYTECODE :=
RUN := runs/en-zh
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

.PHONY: demo check test test-all results mutants matrix lint unmoved clean

# Train on the corpus that ships (once), then show what came out: scores, translations, and the proof.
demo: $(RUN)/model.json
	for split in test test_compositional everyday values names phrasebook/formulas; do $(BIN)/minitrans evaluate $(RUN) --source data/en-zh/$$split.en \
		$$(printf -- ' --reference %s' data/en-zh/$$split.zh*) || exit; done
	$(BIN)/minitrans translate $(RUN) "Machine learning is fun." "I love you." "deep learning" "I saw a saw." \
		"Turn off the light, please." "This box is very light." "I saw her at the bank yesterday." "We watched a movie together." \
		"The axolotl is sleeping."
	$(BIN)/minitrans verify $(RUN)
	@echo
	@echo 'Done. Your model is in $(RUN). In this shell, once:'
	@echo '    . $(BIN)/activate'
	@echo 'Then translate sentences of your own, see how one comes about, or try the model on a page in your browser:'
	@echo '    minitrans translate $(RUN)'
	@echo '    minitrans explain $(RUN) "I love you." -o page.html'
	@echo '    minitrans serve $(RUN)'

# A run that was interrupted goes on where it stopped, if its settings and its corpus have not changed since it began.
$(RUN)/model.json: configs/en-zh.yaml $(wildcard data/en-zh/train.* data/en-zh/valid.* data/en-zh/test*.*) | .venv/ready
	@how=--overwrite; \
		if ls $(RUN)/checkpoints/step-*.ckpt >/dev/null 2>&1 && [ ! -f $@ ]; then \
		if [ -z "$$(find $^ -newer $(RUN)/config.yaml)" ]; then how=--resume; \
		else echo 'settings or corpus are newer than the interrupted run: training anew' >&2; fi; fi; \
		$(BIN)/minitrans train --config $< --run-dir $(RUN) $$how

# The short check, for whoever edits the model: style, types, its tests, and the proof on a fresh model.
check: lint
	$(PYTEST) -m "model and not slow"
	$(BIN)/minitrans verify

# All but the slow tests: it takes minutes, and docs/training.md says how many.
test: .venv/ready
	$(PYTEST) -m "not slow"

# The slow tests, too: the whole self-test, many random examples, processes that are killed or train together.
test-all: .venv/ready
	$(PYTEST) --hypothesis-profile many

# Test the tests: of 2,800 small changes of the model and a sample of those around it, 95 in 100 must make a test fail.
# About three hours.
mutants: .venv/ready
	$(BIN)/python scripts/dev/mutants.py

# Train all models of the first table in docs/results.md, and print it: hours; run again, only what is missing.
# CORPORA: a folder that has each corpus under the name of its config; if there is none, configs say where they are.
CORPORA ?= $(wildcard ../shared/corpora)
results: .venv/ready
	$(BIN)/python scripts/dev/results_table.py $(if $(CORPORA),--corpora '$(CORPORA)')

# The model, compiled code and the proof, computed in each way that this machine has: compilers, optimizations,
# instruction sets, threads, and with sanitizers; and on an emulated ARM processor. Two hours.
matrix: .venv/ready $(RUN)/model.json
	$(BIN)/python scripts/dev/environment_matrix.py
	$(BIN)/python scripts/dev/arm.py $(RUN)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/deptry minitrans --optional-dependencies-dev-groups bench,browser,dev
	$(BIN)/deptry minitrans scripts scripts/*/ tests tests/*/
	$(BIN)/deptry minitrans/cachecheck --config packages/cachecheck/pyproject.toml

# Playwright, of 170 MB, only where there is a Chromium for it to drive.
EXTRAS = dev$(shell { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null && echo ,browser)

# The programs in .venv name their Python by its path, and have been installed for its version.
unmoved:
	@[ ! -e $(BIN)/pip ] || $(BIN)/pip --version >/dev/null 2>&1 || \
		{ echo 'the programs in .venv do not run (another folder, or another Python?); rm -r .venv, then make it again' >&2; exit 2; }

.venv/ready: pyproject.toml constraints.txt | unmoved
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15) and "Python 3.11 to 3.14 is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf .venv runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
