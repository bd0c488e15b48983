# Each target builds .venv as needed and works on a fresh checkout with Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin

AVALANCHE := .venv-avalanche
SITE := -c "import sysconfig; print(sysconfig.get_path('purelib'))"

.PHONY: demo test test-avalanche lint format bench slow mutants docs site pictures wheel clean

demo: .venv/installed
	$(BIN)/recollect demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

# Avalanche has an environment of its own, on top of the other: its torchvision is built for another torch.
test-avalanche: $(AVALANCHE)/installed
	OMP_NUM_THREADS=1 $(AVALANCHE)/bin/python -m pytest tests/integrations/test_avalanche.py

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed .venv/peers
	@for name in matching settings batchnorm pursuit embedding training store; do \
		echo "== benchmarks/$$name.py"; $(BIN)/python benchmarks/$$name.py || exit 1; \
	done

slow: .venv/installed
	$(BIN)/python -m pytest -m slow

# Breaks a copy of the package in hundreds of small ways, and lists what no test notices.
mutants: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py

docs: .venv/installed
	$(BIN)/recollect report --results results/paper.jsonl --output docs/reproduction.md
	$(BIN)/python docs/commands.py
	$(BIN)/python -m pytest tests/test_docs.py

# Strictly: a link or an anchor that leads nowhere is an error.
site: .venv/installed
	$(BIN)/zensical build --strict --config-file mkdocs.yml
	$(BIN)/python -m pytest tests/test_site.py

pictures: .venv/installed
	$(BIN)/python docs/pictures.py

# What a stranger gets: built, checked, installed where nothing else is, and run.
wheel: .venv/installed
	rm -rf build/dist build/empty
	$(BIN)/python -m build --outdir build/dist
	$(BIN)/python -m twine check --strict build/dist/*
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build/dist/*.whl
	cd build && empty/bin/recollect demo
	rm -rf build/empty

clean:
	rm -rf .venv $(AVALANCHE) .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	touch $@

# Without what its packages ask for, which would bring another torch: these are the ones that it imports.
$(AVALANCHE)/installed: .venv/installed
	$(BIN)/python -m venv --clear --without-pip $(AVALANCHE)
	echo "import site; site.addsitedir('$$($(BIN)/python $(SITE))')" > $$($(AVALANCHE)/bin/python $(SITE))/base.pth
	$(BIN)/python -m pip --python $(AVALANCHE)/bin/python install --quiet --disable-pip-version-check --no-deps \
		avalanche-lib==0.6.0 torchvision==0.29.2 absl-py beautifulsoup4 gdown gputil pytorchcv qpsolvers soupsieve \
		tensorboard
	$(BIN)/python -m pip --python $(AVALANCHE)/bin/python install --quiet --disable-pip-version-check -c constraints.txt wandb
	touch $@

# What benchmarks compare with; one that does not install is reported by the benchmark that wants it.
.venv/peers: .venv/installed
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps cords==0.0.4
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps backpack-for-pytorch einops unfoldNd
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps opacus opt_einsum
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps traker tqdm
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt apricot-select==0.6.1 coreax==1.0.0
	touch $@
