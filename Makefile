# `make test` and `make demo` set up all they need on a machine with Python 3.11 or newer and either
# Java 17 with Maven, or Docker.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test test-broker test-pure demo bench soak lint lock image image-check release clean

# Two sessions side by side: the one waits most of the time, for brokers, and goes first; the other
# computes.
test: .venv/ready
	+$(MAKE) --no-print-directory -j2 test-broker test-pure

test-broker: .venv/ready
	$(BIN)/pytest tests/chaos tests/integration tests/checker/test_kafka.py

test-pure: .venv/ready
	nice -n 19 $(BIN)/pytest tests/unit tests/property tests/simulation tests/checker/test_checker.py tests/packaging tests/longrun

demo: .venv/ready
	$(BIN)/surefoot demo examples/triage.py

bench: .venv/ready
	$(BIN)/python -m benchmarks

# Simulated lives with fresh seeds, for so long.
MINUTES ?= 60
soak: .venv/ready
	$(BIN)/python -m tests.simulation --minutes $(MINUTES) --keep-going

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Take up newer versions of the dependencies; the files hold every version and hash.
UV_COMPILE = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --custom-compile-command 'make lock' pyproject.toml
lock: .venv/ready
	$(BIN)/pip install --quiet uv
	$(UV_COMPILE) --output-file requirements.lock
	$(UV_COMPILE) --group dev --constraint requirements.lock --output-file requirements-dev.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command 'make lock' --group release --output-file requirements-release.lock
	$(UV_COMPILE) --constraint requirements-dev.lock --output-file infra/docker/requirements.lock \
		$(foreach extra,aws ed25519 encryption metrics msk oidc otel views,--extra $(extra))

# BASE=... names another image with Python
image: .venv/ready
	rm -rf dist
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	docker build $(if $(BASE),--build-arg BASE=$(BASE)) --file infra/docker/Dockerfile --tag surefoot:local .

# Runs every process from the image against a broker
image-check: .venv/ready
	$(BIN)/python -m tests.packaging.image_check surefoot:local

# Makes all that a release publishes, in dist/; uploads nothing
release: .venv/ready
	.ci/release

clean:
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/ready: pyproject.toml requirements-dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
		"Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
