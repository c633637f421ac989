# Two commands do everything on a fresh machine: `make run` and `make test`.
.PHONY: run test suite test-slow test-browser test-integration images lint dashboard bench setup clean
PYTHON ?= python3
BIN := .venv/bin
# The installation leaves compiling to the first import: without a place for its result, every step would compile again.
unexport PYTHONDONTWRITEBYTECODE
INSTALLED := .venv/.installed

run: $(INSTALLED)
	$(BIN)/gnn-encoder run --preset quickstart

# Lint takes one core for half a minute, so it runs beside the tests.
test: $(INSTALLED)
	$(MAKE) -j 2 lint suite

# In several processes with a thread each: steps are processes, whose imports no thread makes faster. The longest files
# come first (tests/conftest.py), so that no core waits for one at the end.
suite: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

# The report and the dashboard as a reader sees them; Debian's chromium, or the one GNN_ENCODER_CHROMIUM names.
test-browser: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt "torch" -e ".[browser]"
	$(BIN)/python -m pytest -m browser

# Against real servers, which the tests start and stop: Ceph's object store, a container engine and the steps' image in
# it, MLflow on PostgreSQL. REQUIRE_ALL=1 makes what is skipped a failure.
SERVERS := ceph-common ceph-mgr ceph-mon ceph-osd radosgw containerd debootstrap docker.io iptables postgresql
test-integration: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt "torch" -e ".[integration]"
	dpkg --status $(SERVERS) >/dev/null 2>&1 || [ "$$(id -u)" != 0 ] || \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SERVERS))
	$(BIN)/python -m pytest -m integration

# The steps' image; TARGET=gpu for the GPU's. What it takes: images/build.
TARGET ?= cpu
images: $(INSTALLED)
	images/build $(TARGET)

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

dashboard: $(INSTALLED)
	$(BIN)/gnn-encoder dashboard

# The short ones, a quarter of an hour on two cores; the long ones are propagate.py --scale 1 and ingest.py's million.
bench: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt "torch" -e ".[bench]"
	$(BIN)/python benchmarks/encode.py
	$(BIN)/python benchmarks/score.py
	$(BIN)/python benchmarks/train.py --triples 128
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/gradient_cache.py --large 1024 --rounds 2
	$(BIN)/python benchmarks/propagate.py --rounds 5
	$(BIN)/python benchmarks/bm25.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/evaluate.py
	$(BIN)/python benchmarks/ingest.py --passages 200000
	$(BIN)/python benchmarks/update.py
	$(BIN)/python benchmarks/overhead.py

setup: $(INSTALLED)

# The stamp is written last: an interrupted installation is made again. Python compiles what it imports; compiling
# every file of every package at installation takes longer than that.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt "torch" -e ".[dev]"
	touch $(INSTALLED)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache dist build
