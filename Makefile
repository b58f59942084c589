# Every target sets up what it needs: a virtual environment in .venv, with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
QUIETLY := --quiet --disable-pip-version-check
EXTRAS := train plot forecast vision signals export chip serve clients

# The lowest versions that pyproject.toml promises, and the part of the tests that uses every package. pip has no CPU
# build of old versions of torch for Linux: LOWEST_TORCH names another.
LOWEST_TORCH ?= $(shell sed -n 's/^  "torch>=\(.*\)",/\1/p' pyproject.toml)
LOWEST_EXTRAS := train plot forecast signals export serve
LOWEST_TESTS := tests/ops tests/kernels tests/models tests/data tests/tasks tests/training tests/runs tests/forecasting \
  tests/serving tests/cli

# The newest versions that pip finds, of all but torch, whose newest build may carry CUDA, and the parts of the tests that
# other packages break first. A client that does not install beside them is left out.
NEWEST_TORCH ?= $(shell sed -n 's/^torch==//p' constraints.txt)
NEWEST_EXTRAS := train,plot,forecast,export,serve
NEWEST_CLIENTS := peft trl lm-eval sentence-transformers torchao
NEWEST_TESTS := tests/models tests/runs tests/serving

# The version of Triton that the GPU build of this torch comes with.
TRITON := triton==3.7.1

# torchtitan and what it imports, but for datasets, of which it needs an older version than lagwise.
TITAN := torchtitan==0.3.0 spmd_types==0.2.3 torch_checkpointing==0.1.1 torchdata==0.11.0 tyro==1.0.17 typeguard==4.6.1 \
  docstring_parser==0.18.0 tensorboard==2.21.0 tensorboard_data_server==0.7.2 absl-py==2.5.1 werkzeug==3.1.9 grpcio==1.85.3

# What tests/fuzz/guided reads with, each for 55 seconds.
READERS := tables times lines archives recordings recipes weights bodies

# What makes requirements-tested.txt, and looks into it.
UV := uv==0.13.9
AUDIT := cyclonedx-bom==7.5.0 pip-audit==2.10.1

# What `make mutate` changes, each for ten minutes after a run of its tests: packages, and three parts that
# scripts/mutate.py names.
MUTATED := ops kernels mixers fits conversion sampling

.PHONY: demo test test-slow test-faults test-gpu test-device test-examples test-triton test-titan test-lowest test-newest coverage fuzz fuzz-models mutate lint names bench docs docs-serve \
  wheel-check hashes audit release-check release clean

$(INSTALLED): pyproject.toml papers/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "lagwise needs Python 3.11 or later: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# torch first and by its exact version: a range would pull the newest build, which on Linux carries CUDA, where
	@# pip has been told of a CPU build of this one
	$(BIN)/python -m pip install $(QUIETLY) $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install $(QUIETLY) --editable '.[dev]' --editable './papers[bench]' --constraint constraints.txt
	@touch $@

demo: $(INSTALLED)  ## train, evaluate, sample and plot, in five to ten minutes on two idle cores
	$(BIN)/lagwise train --recipe demo --resume auto
	$(BIN)/lagwise evaluate runs/demo
	$(BIN)/lagwise generate runs/demo --prompt "class " --tokens 400 --seed 0
	$(BIN)/lagwise plot runs/demo

test: $(INSTALLED)  ## the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8

test-slow: $(INSTALLED)  ## what takes longer: compilation, training to a figure, several processes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n auto --maxprocesses 8 --timeout=1200

test-faults: $(INSTALLED)  ## every call on a file of eleven commands fails, or the process dies there; half an hour
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 tests/faults

test-gpu: $(INSTALLED)  ## the test suite on a GPU, on a machine that has one (with a CUDA build of torch)
	$(BIN)/python -m pytest --device cuda

test-device: $(INSTALLED)  ## mixers, models and commands on a device made in Python, to find what would fail on a GPU
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --device pretended -n auto --maxprocesses 8 \
	  tests/mixers/test_devices.py tests/runs/test_devices_of_runs.py tests/runs/test_devices_waits.py \
	  tests/mixers/test_edges.py $(addprefix tests/models/test_,context_embeddings.py heads.py prediction.py rates.py) \
	  $(addprefix papers/tests/imports/test_,hyena_import.py mega_import.py)

test-examples: $(INSTALLED)  ## the gallery's stories on real data
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "slow or not slow" tests/test_examples.py -k "neuron or files"

test-triton: $(INSTALLED)  ## the fused kernels for GPUs, in Triton's interpreter and by its compiler, on Linux
	rm -rf build/triton && $(BIN)/python -m pip install $(QUIETLY) --no-deps --target build/triton $(TRITON)
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 PYTHONPATH=build/triton $(BIN)/python -m pytest tests/ops/test_fused.py
	PYTHONPATH=build/triton $(BIN)/python -m pytest tests/ops/test_fused_compilation.py

test-titan: $(INSTALLED)  ## trainings by torchtitan, in two processes on CPUs, on Linux
	rm -rf build/titan && $(BIN)/python -m pip install $(QUIETLY) --no-deps --target build/titan $(TITAN) $(TRITON)
	OMP_NUM_THREADS=1 PYTHONPATH=build/titan $(BIN)/python -m pytest -m 'slow or not slow' tests/models/test_titan.py

test-lowest:  ## part of the test suite with the lowest versions that pyproject.toml promises
	rm -rf build/lowest && $(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install $(QUIETLY) uv torch==$(LOWEST_TORCH)
	echo torch==$(LOWEST_TORCH) > build/lowest-torch.txt
	build/lowest/bin/uv pip compile pyproject.toml $(LOWEST_EXTRAS:%=--extra %) --resolution lowest-direct --quiet \
	  --override build/lowest-torch.txt --output-file build/lowest.in
	grep -vE '^(torch|triton|nvidia-.*|cuda-.*)=|^ *#' build/lowest.in > build/lowest.txt
	build/lowest/bin/python -m pip install $(QUIETLY) --no-deps --requirement build/lowest.txt --editable . --editable ./papers
	build/lowest/bin/python -m pip install $(QUIETLY) $$(grep -E '^(pytest.*|execnet|hypothesis)=' constraints.txt)
	OMP_NUM_THREADS=1 build/lowest/bin/python -m pytest -n auto --maxprocesses 8 $(LOWEST_TESTS)

test-newest:  ## models, runs, serving and clients with the newest packages, without constraints.txt
	rm -rf build/newest && $(PYTHON) -m venv build/newest
	build/newest/bin/python -m pip install $(QUIETLY) torch==$(NEWEST_TORCH)
	build/newest/bin/python -m pip install $(QUIETLY) --editable '.[$(NEWEST_EXTRAS)]' torch==$(NEWEST_TORCH) \
	  pytest pytest-timeout pytest-xdist hypothesis
	for client in $(NEWEST_CLIENTS); do build/newest/bin/python -m pip install $(QUIETLY) $$client \
	  torch==$(NEWEST_TORCH) || echo "$$client is left out: it does not install"; done
	build/newest/bin/python -m pip freeze > build/newest.txt
	OMP_NUM_THREADS=1 build/newest/bin/python -m pytest -n auto --maxprocesses 8 $(NEWEST_TESTS)
	OMP_NUM_THREADS=1 build/newest/bin/python -m pytest -m slow --timeout=1200 \
	  $(addprefix tests/models/test_,clients.py replaced_layers.py onnx_exporter.py)

coverage: $(INSTALLED)  ## the test suite, and which lines it runs, in build/coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --cov --cov-report=term:skip-covered \
	  --cov-report=html:build/coverage --cov-report=xml:build/coverage.xml

fuzz: $(INSTALLED)  ## readers of files and requests, by what an input runs and by the server's description, ten minutes
	$(BIN)/python -m pip install $(QUIETLY) --editable '.[fuzz]' --constraint constraints.txt
	for name in $(READERS); do OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/guided/harnesses.py $$name \
	  -max_total_time=$${LAGWISE_GUIDED_SECONDS:-55} || exit 1; done
	LAGWISE_FUZZ_CASES=30 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow tests/fuzz/test_described_server.py

fuzz-models: $(INSTALLED)  ## random models against dense references, 20 minutes, and random damage of files
	LAGWISE_FUZZ_SECONDS=$${LAGWISE_FUZZ_SECONDS:-1200} OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/fuzz -s -k at_length
	LAGWISE_FUZZ_CASES=1000 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'slow or not slow' \
	  tests/fuzz/test_state_space_fuzz.py tests/fuzz/test_malformed.py

mutate: $(INSTALLED)  ## how many small changes of PACKAGE=kernels (by default of six), drawn by a seed, its tests notice
	for name in $(or $(PACKAGE),$(MUTATED)); do OMP_NUM_THREADS=1 $(BIN)/python scripts/mutate.py $$name \
	  --seconds $(or $(SECONDS),600) || exit 1; done

lint: $(INSTALLED)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check

names: $(INSTALLED)  ## the public names against the last tag: what breaks code must be in the changelog
	$(BIN)/python scripts/check_names.py

bench: $(INSTALLED)  ## speed and memory of the Toeplitz layer
	$(BIN)/lagwise bench toeplitz --out benchmarks/results/toeplitz-cpu.json

docs: $(INSTALLED)  ## regenerate the pages that are made of code and results, and build the site in build/site
	for page in equations family benchmarks choosing figures matrices gallery; do \
	  PYTHONPATH=benchmarks $(BIN)/python docs/$$page.py || exit 1; done
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

docs-serve: $(INSTALLED)  ## show the site at http://127.0.0.1:8000, and again after each change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# Each extra has an environment of its own, which sees the packages of the one without extras.
wheel-check:  ## build sdist and wheel, install each alone and the wheel with each extra, and use every command there
	rm -rf dist build/wheel* build/sdist && $(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install $(QUIETLY) build twine $$(grep -E '^(torch|pytest.*)==' constraints.txt)
	build/wheel/bin/python -m build --outdir dist .
	build/wheel/bin/python -m twine check --strict dist/*
	build/wheel/bin/python scripts/check_wheel.py dist/*.whl
	build/wheel/bin/python -m pip install $(QUIETLY) dist/*.whl --constraint constraints.txt
	$(PYTHON) -m venv build/sdist
	realpath build/wheel/lib/python*/site-packages > $$(echo build/sdist/lib/python*/site-packages)/base.pth
	build/sdist/bin/python -m pip install $(QUIETLY) --no-deps --force-reinstall dist/*.tar.gz
	cd build && sdist/bin/python -c 'import lagwise; assert "/sdist/" in lagwise.__file__' && sdist/bin/lagwise recipes
	for extra in $(EXTRAS); do \
	  $(PYTHON) -m venv build/wheel-$$extra && \
	  realpath build/wheel/lib/python*/site-packages > $$(echo build/wheel-$$extra/lib/python*/site-packages)/base.pth && \
	  build/wheel-$$extra/bin/python -m pip install $(QUIETLY) "$$(ls dist/*.whl)[$$extra]" --constraint constraints.txt && \
	  echo "== $$extra" && build/wheel-$$extra/bin/python tests/with_extra.py build/wheel-inputs $$extra || exit 1; \
	done
	build/wheel/bin/python tests/with_extra.py build/wheel-inputs ""
	rm -rf build/papers && build/wheel/bin/python -m build --outdir build/papers papers
	build/wheel/bin/python -m twine check --strict build/papers/*
	build/wheel/bin/python scripts/check_wheel.py build/papers/*.whl papers/src
	$(PYTHON) -m venv build/wheel-papers
	realpath build/wheel/lib/python*/site-packages > $$(echo build/wheel-papers/lib/python*/site-packages)/base.pth
	build/wheel-papers/bin/python -m pip install $(QUIETLY) --no-deps build/papers/*.whl
	cd build && wheel-papers/bin/lagwise recipes --all && wheel-papers/bin/lagwise recipes lra-text-small

hashes:  ## write requirements-tested.txt: the tested set, each file by its hash, but for torch
	rm -rf build/hashes && $(PYTHON) -m venv build/hashes && build/hashes/bin/python -m pip install $(QUIETLY) $(UV)
	grep '^mega-pytorch==' constraints.txt > build/bench.in
	build/hashes/bin/uv pip compile pyproject.toml --extra dev build/bench.in --constraint constraints.txt --universal \
	  --python-version 3.11 --generate-hashes --no-annotate --no-header --quiet --output-file build/hashes.txt
	(grep '^#' requirements-tested.txt; sed -E '/^(torch=|triton|nvidia-|cuda-)/,/[^\\]$$/d' build/hashes.txt) > build/tested.txt
	mv build/tested.txt requirements-tested.txt

audit:  ## install the tested set by its hashes, list its parts as CycloneDX, and ask whether faults of them are known
	rm -rf build/audit build/audited && $(PYTHON) -m venv build/audit && $(PYTHON) -m venv build/audited
	grep '^torch==' constraints.txt > build/torch.txt
	build/audited/bin/python -m pip install $(QUIETLY) --requirement build/torch.txt
	build/audited/bin/python -m pip install $(QUIETLY) --no-deps --require-hashes --requirement requirements-tested.txt
	build/audited/bin/python -m pip check
	build/audit/bin/python -m pip install $(QUIETLY) $(AUDIT)
	build/audit/bin/cyclonedx-py requirements requirements-tested.txt --pyproject pyproject.toml \
	  --output-file build/lagwise.cdx.json
	build/audit/bin/pip-audit --no-deps --disable-pip $(addprefix --requirement ,requirements-tested.txt build/torch.txt)

release-check: lint names test test-device test-slow wheel-check  ## all that a release must pass
	$(BIN)/python scripts/release.py tested

# The first release names the repository, too: REPOSITORY=https://github.com/OWNER/NAME
release: $(INSTALLED)  ## commit and tag VERSION=0.3.0, of a committed tree that has passed `make release-check`
	$(BIN)/python scripts/release.py release "$(VERSION)" "$(REPOSITORY)"

clean:
	rm -rf $(VENV) build dist runs
