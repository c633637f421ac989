# Two commands do everything on a fresh machine: `make run` and `make test`.
.PHONY: run test suite docs test-slow test-effectiveness test-browser test-gpu test-integration images lint dashboard bench bench-packages gpu gpu-long gpu-wheels setup clean
PYTHON ?= python3
BIN := .venv/bin
# Python compiles at the first import and must store the result; otherwise every step would compile again.
unexport PYTHONDONTWRITEBYTECODE
INSTALLED := .venv/.installed
DEVELOPING := .venv/.developing

run: $(INSTALLED)
	$(BIN)/gnn-encoder run --preset quickstart

# Lint takes one core for half a minute, so it runs beside the tests.
test: $(DEVELOPING)
	$(MAKE) -j 2 lint suite

# Several processes with one thread each, because tests start steps as processes, and threads do not speed up imports;
# one more than there are cores, because some tests wait for servers and locks. The longest files come first
# (tests/conftest.py), so that no core waits for a long file at the end.
WORKERS := $(shell $(PYTHON) -c "import os; print(min(4, (os.cpu_count() or 1) + 1))")
BESIDE := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
suite: $(DEVELOPING)
	$(BESIDE)

# The documentation as a site, in site/. A warning is an error: a broken link, a page that no menu has.
docs: $(INSTALLED)
	$(INSTALL) "torch" -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html; for its search: $(BIN)/python -m http.server --directory site"

test-slow: $(DEVELOPING)
	$(BESIDE) -m slow

# Whole runs must reach the figures in tests/effectiveness/, also of the sets in DATA=FOLDER, and survive kill -9.
test-effectiveness: $(DEVELOPING)
	DATA="$(DATA)" $(BIN)/python -m pytest -m effectiveness -rs

# Tests the report, the dashboard, the page of `serve` and the documentation in a browser: Debian's chromium, or the one in
# GNN_ENCODER_CHROMIUM.
test-browser: $(DEVELOPING)
	$(INSTALL) "torch" -e ".[browser,docs]"
	[ -n "$$GNN_ENCODER_CHROMIUM" ] || command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium)
	$(BIN)/python -m pytest -m browser -rs

# Tests of what only a GPU runs; `make gpu` runs them, too.
test-gpu: $(DEVELOPING)
	$(BIN)/python -m pytest -m gpu -rs

# Tests with real servers, which the tests start and stop: Ceph's object store, a container engine with the steps' image,
# MLflow on PostgreSQL. With REQUIRE_ALL=1 a skipped test is a failure.
SERVERS := ceph-common ceph-mgr ceph-mon ceph-osd radosgw containerd debootstrap docker.io iptables postgresql
test-integration: $(DEVELOPING)
	$(INSTALL) "torch" -e ".[integration]"
	dpkg --status $(SERVERS) >/dev/null 2>&1 || [ "$$(id -u)" != 0 ] || \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SERVERS))
	$(BIN)/python -m pytest -m integration -rs

# The steps' image; TARGET=gpu makes the image for GPUs, and TARGET=serve the server's. images/build describes the
# requirements.
TARGET ?= cpu
images: $(DEVELOPING)
	images/build $(TARGET)

lint: $(DEVELOPING)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

dashboard: $(INSTALLED)
	$(BIN)/gnn-encoder dashboard

# Short benchmarks, a quarter of an hour on two cores. Long ones: propagate.py --scale 1, and ingest.py's default.
bench: bench-packages
	$(BIN)/python benchmarks/encode.py
	$(BIN)/python benchmarks/score.py
	$(BIN)/python benchmarks/train.py --triples 128
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/gradient_cache.py --large 1024 --rounds 2
	$(BIN)/python benchmarks/propagate.py --rounds 5
	$(BIN)/python benchmarks/bm25.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/max_similarity.py
	$(BIN)/python benchmarks/evaluate.py
	$(BIN)/python benchmarks/ingest.py --passages 200000
	$(BIN)/python benchmarks/update.py
	$(BIN)/python benchmarks/overhead.py

# Six and nine minutes on a GPU: speed beside the peers, and obliqa's run (in the folder DATA) with the fast tests.
# GPU_PYTHON: a Python with torch and the packages that `make gpu-wheels` downloads takes the place of .venv, for a GPU
# without a network. RESULTS: the folder of profiles and logs. `benchmarks/gpu.py` and `gpu_long.py` describe the rest.
GPU_PYTHON ?=
RESULTS ?= gpu-results
gpu gpu-long: export PYTHONPATH := $(CURDIR)/src:$(PYTHONPATH)
gpu: $(if $(GPU_PYTHON),,$(DEVELOPING) bench-packages)
	$(or $(GPU_PYTHON),$(BIN)/python) benchmarks/gpu.py --results "$(RESULTS)"
gpu-long: $(if $(GPU_PYTHON),,$(DEVELOPING))
	$(or $(GPU_PYTHON),$(BIN)/python) benchmarks/gpu_long.py --results "$(RESULTS)" --data "$(DATA)/obliqa"

# Downloads those packages into the folder DIR and says how large they are: see `benchmarks/gpu_wheels.py`.
FOR ?= gpu
gpu-wheels: $(DEVELOPING) bench-packages
	mkdir -p "$(DIR)"
	$(BIN)/python benchmarks/gpu_wheels.py $(FOR) "$(DIR)" "$(HAS)" $(PIP)

bench-packages: $(DEVELOPING)
	$(INSTALL) "torch" -e ".[bench]"

setup: $(DEVELOPING)

# What a run needs; and, for other commands, what tests and development need besides.
# The stamp file is written last, so an interrupted installation is repeated. pip does not compile the packages, because
# compiling every file takes longer than compiling at import. pip itself comes first: the one that Python 3.11 brings
# needs 36 s of processor time to find these packages, the pinned one 14. With hatchling there, pip needs no second
# environment to build this project. What a run needs is unpacked by two processes that need not find out what else it
# needs (12 s instead of 20); the last call does, and installs whatever these two did not.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
define install
$(PYTHON) -m venv .venv
$(INSTALL) pip hatchling editables
for half in 0 1; do $(INSTALL) --no-deps $$(awk "/^# What extras/ {exit} /==/ && NR % 2 == $$half" constraints.txt) & done; wait
$(INSTALL) --no-build-isolation "torch" -e "$(1)"
endef
# The first import compiles; the larger half of that begins here, on another core than the start of the run.
$(INSTALLED): pyproject.toml constraints.txt
	$(call install,.)
	touch $(INSTALLED)
	$(BIN)/python -c "import transformers.modeling_utils" &

$(DEVELOPING): pyproject.toml constraints.txt
	$(call install,.[dev])
	touch $(INSTALLED) $(DEVELOPING)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache dist build
