PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test check learning torture clean

# Trains LSAC on Pendulum-v1, three seeds side by side, and leaves a learning curve.
demo: $(STAMP)
	rm -rf runs/demo
	$(BIN)/lsac train lsac --env Pendulum-v1 --preset quickstart --out runs/demo

# Most tests wait for the compiler, which is twice as quick without its optimisations; the others compute.
UNOPTIMISED := JAX_DISABLE_MOST_OPTIMIZATIONS=1 XLA_FLAGS=--xla_cpu_use_fusion_emitters=false

test: $(STAMP)
	$(UNOPTIMISED) $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not learning and not computing'
	$(BIN)/pytest -n 2 --dist load -m 'computing and not learning'

# Minutes per algorithm: every agent must really learn.
learning: $(STAMP)
	$(BIN)/pytest -m learning

# Tries to break runs, two hours or so; the share that the tests run takes minutes.
torture: $(STAMP)
	$(BIN)/python benchmarks/torture.py --full

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs build dist .mypy_cache .ruff_cache .pytest_cache
