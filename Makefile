PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-all sb3 check docs learning torture clean

# Trains LSAC on Pendulum-v1, three seeds side by side, and leaves a learning curve.
demo: $(STAMP)
	rm -rf runs/demo
	$(BIN)/lsac train lsac --env Pendulum-v1 --preset quickstart --out runs/demo

# Most tests wait for the compiler, which is twice as quick without its optimisations; the others compute.
UNOPTIMISED := JAX_DISABLE_MOST_OPTIMIZATIONS=1 XLA_FLAGS=--xla_cpu_use_fusion_emitters=false

test: $(STAMP)
	$(UNOPTIMISED) $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not learning and not computing and not slow'
	$(BIN)/pytest -n 2 --dist load -m 'computing and not learning and not slow'

# The same and what is slow and rarely fails.
test-all: $(STAMP)
	$(UNOPTIMISED) $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not learning and not computing'
	$(BIN)/pytest -n 2 --dist load -m 'computing and not learning'

# Tests with Stable-Baselines3, which is installed in .sb3, beside the packages of .venv.
sb3: .sb3/.installed
	$(UNOPTIMISED) .sb3/bin/python -m pytest -rs tests/test_sb3.py

.sb3/.installed: $(STAMP)
	$(PYTHON) -m venv .sb3
	.sb3/bin/python -c "import pathlib, site; pathlib.Path(site.getsitepackages()[0], 'lsac.pth').write_text('\n'.join([*map(str, pathlib.Path('.venv').resolve().glob('lib/*/site-packages')), str(pathlib.Path('src').resolve())]))"
	.sb3/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 'stable-baselines3>=2.7,<3'
	touch $@

# Minutes per algorithm: every agent must really learn.
learning: $(STAMP)
	$(BIN)/pytest -m learning

# Tries to break runs, two hours or so on two cores; with many, JOBS=8 tries as many at a time.
JOBS ?= 1

torture: $(STAMP)
	$(BIN)/python benchmarks/torture.py --full --jobs $(JOBS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# The documentation as a web site in site/; a broken link is an error.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.venv/.docs: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv .sb3 runs site build dist .mypy_cache .ruff_cache .pytest_cache
