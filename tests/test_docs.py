"""The code in the README and the documentation runs."""

import re
import runpy
import shlex
import tomllib
from collections import Counter
from itertools import product
from pathlib import Path
from statistics import mean

import pytest

from recollect import datasets
from recollect.cli import main
from recollect.experiments import figures, open_store
from recollect.experiments.tables import NAMES, by_epochs, gains, summarise
from recollect.randomness import seeded
from recollect.report import write_document
from tests.mutants import read_mutants

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


TUTORIAL, QUICK_START = ROOT / "docs" / "tables.md", ROOT / "docs" / "quickstart.md"

needs_results = pytest.mark.skipif(
    not (ROOT / "results").exists(), reason="results/ is not there, as in a source distribution"
)


def python_blocks(page: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL))


WITH_CODE = [page for page in PAGES if page not in (TUTORIAL, QUICK_START) and python_blocks(page)]
"""Pages whose code is just run; the others have tests of their own."""


@needs_results
def test_the_page_of_the_reproduction_is_what_its_runs_make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If not, `make docs` writes it anew; drawing its pictures has tests of its own."""
    if datasets.find("covertype") is None:
        pytest.skip("the page has a picture of Covertype, which is not here: set RECOLLECT_DATA to its folder")
    monkeypatch.setattr(figures, "save", lambda figure, path: (path.with_suffix(".png"), path.with_suffix(".svg")))
    runs = open_store(ROOT / "results" / "paper.jsonl").read()
    page = ROOT / "docs" / "reproduction.md"
    assert write_document(runs, tmp_path / page.name) == page.read_text(), "results were added: run make docs"
    pictures = set(re.findall(r"\((images/reproduction/.*?\.png)\)", page.read_text()))
    assert pictures == {str(p.relative_to(page.parent)) for p in (page.parent / "images/reproduction").glob("*.png")}


def test_each_mutant_breaks_code_that_is_there_once() -> None:
    mutants = read_mutants((ROOT / "tests" / "mutants.txt").read_text())
    assert not [mutant for mutant in mutants if (ROOT / mutant.file).read_text().count(mutant.old) != 1]


@needs_results
def test_the_readme_tells_what_the_results_say() -> None:
    found = summarise(open_store(ROOT / "results" / "paper.jsonl").read())
    names = {name: dataset for dataset, name in NAMES.items()} | {"MNIST": "mnist", "Fashion-MNIST": "fashion-mnist"}
    lines = re.findall(r"^\|([A-Za-z -]*)\| (200|1000) \| (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(lines) == 10
    dataset = ""
    for name, size, told in lines:
        dataset = names[name.strip()] if name.strip() else dataset
        paper = "gmc-last-layer" if "mnist" in dataset else "gmc"
        cells = [found["gdumb", dataset, m, int(size)] for m in ("recollect", "clustering", paper, "reservoir")]
        for text, cell in zip(told.split(" | "), cells, strict=True):
            ahead = [cell.less(other) for other in cells if other is not cell]
            accuracy = f"{cell.mean:.1f} ± {cell.deviation:.1f}"
            accuracy = f"**{accuracy}**" if all(gain.mean > gain.deviation for gain in ahead) else accuracy
            assert text == f"{accuracy} ({cell.seeds})", (dataset, size)


@needs_results
def test_the_page_of_settings_tells_what_the_results_say() -> None:
    results = open_store(ROOT / "results" / "paper.jsonl").read()
    page = (ROOT / "docs" / "guides" / "settings.md").read_text()
    varied: dict[tuple[str, int, int], list[float]] = {}
    for one in results:
        if one["learner"] == "gdumb" and one["memory"] == "recollect" and list(one["options"]) == ["inits"]:
            varied.setdefault((one["dataset"], one["size"], one["options"]["inits"]), []).append(one["final_accuracy"])
    pulled: dict[tuple[str, int, float], list[float]] = {}
    for one in results:
        if one["learner"] == "gdumb" and one["memory"] == "recollect" and list(one["options"]) == ["regularization"]:
            key = (one["dataset"], one["size"], one["options"]["regularization"])
            pulled.setdefault(key, []).append(one["final_accuracy"])
    draws = re.findall(r"^\| (\d) draws? instead of 10 \| (.*) \|$", page, re.MULTILINE)
    for number, told in draws:
        places = product(("covertype", "walking-activity"), (200, 1000))
        costs = [mean(varied[*place, 10]) - mean(varied[*place, int(number)]) for place in places]
        assert [float(cost) for cost in told.split(" | ")] == pytest.approx(costs, abs=0.051), number
    found = summarise(results)
    beside_reservoir = re.findall(r"^\| (200|1000) \| (\+.*) \|$", page, re.MULTILINE)
    for size, told in beside_reservoir:
        cells = [found["gdumb", name, "recollect", int(size)] for name in ("covertype", "walking-activity", "ldpa")]
        others = [found["gdumb", name, "reservoir", int(size)] for name in ("covertype", "walking-activity", "ldpa")]
        less = [cell.less(other).mean for cell, other in zip(cells, others, strict=True)]
        assert [float(gain) for gain in told.split(" | ")] == pytest.approx(less, abs=0.051), size
    lambdas = re.findall(r"^\| (0\.\d+|1) \| ([+-].*) \|$", page, re.MULTILINE)
    for value, told in lambdas:
        places = product(("covertype", "walking-activity"), (200, 1000))
        changes = [mean(pulled[*place, float(value)]) - mean(pulled[*place, 0.001]) for place in places]
        assert [float(change) for change in told.split(" | ")] == pytest.approx(changes, abs=0.051), value
    assert (len(draws), len(beside_reservoir), len(lambdas)) == (2, 2, 5)


@needs_results
def test_the_page_of_memories_tells_what_the_results_of_experience_replay_say() -> None:
    found = by_epochs(open_store(ROOT / "results" / "paper.jsonl").read())
    names = {name: dataset for dataset, name in NAMES.items()} | {"MNIST": "mnist", "Fashion-MNIST": "fashion-mnist"}
    page = (ROOT / "docs" / "guides" / "which-memory.md").read_text()
    lines = re.findall(r"^\| ([\w -]+), (\d+) epochs \| (.*) \|$", page, re.MULTILINE)
    assert len(lines) == 5
    for name, epochs, told in lines:
        for memory, text in zip(
            ("recollect", "clustering", "reservoir", "class-balanced"), told.split(" | "), strict=True
        ):
            cells = [found.get(("er-drawn", names[name], memory, size), {}).get(int(epochs)) for size in (200, 1000)]
            means = ", ".join(f"{cell.mean:.1f}" for cell in cells if cell)
            assert text == (f"{means} ({cells[0].seeds})" if cells[0] else "not run"), (name, memory)


@needs_results
def test_the_page_of_memories_tells_what_the_results_of_larger_memories_say() -> None:
    found = summarise(open_store(ROOT / "results" / "paper.jsonl").read())
    page = (ROOT / "docs" / "guides" / "which-memory.md").read_text()
    lines = re.findall(r"^\| (500|2000|5000) \| (.*) \|$", page, re.MULTILINE)
    assert len(lines) == 3
    for size, told in lines:
        for name, text in zip(
            ("covertype", "ldpa", "walking-activity", "mnist", "fashion-mnist"), told.split(" | "), strict=True
        ):
            cells = [found["gdumb", name, memory, int(size)] for memory in ("recollect", "clustering")]
            means = ", ".join(f"{cell.mean:.1f}" for cell in cells)
            assert text == f"{means} ({cells[0].seeds})", (name, size)


COUNT = r"better in (\d+)( of \d+)? cells, level in (\d+) and worse in (\d+)"


@needs_results
@pytest.mark.parametrize(
    ("name", "learners"),
    {
        "README.md": ["er-drawn"],
        "docs/coverage.md": ["er-drawn"],
        "docs/guides/which-memory.md": ["gdumb", "er-drawn", "er-drawn"],
        "docs/tables.md": ["gdumb", "er-drawn"],
    }.items(),
)
def test_pages_count_the_cells_that_the_results_have(name: str, learners: list[str]) -> None:
    results = open_store(ROOT / "results" / "paper.jsonl").read()
    told = re.findall(COUNT, " ".join((ROOT / name).read_text().split()))
    assert len(told) == len(learners)
    for (better, known, level, worse), learner in zip(told, learners, strict=True):
        counts = Counter(gain.verdict for gain in gains(results, learner, "recollect", "clustering").values())
        found = [counts[verdict] for verdict in ("better", "within", "worse")]
        assert [int(better), int(level), int(worse)] == found, learner
        assert known in ("", f" of {sum(found)}")


@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md"])
def test_the_commands_of_a_page_run_where_nothing_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```console\n(.*?)^```", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)
    [block] = [block for block in blocks if "iris" in block]
    for line in filter(None, block.splitlines()):
        program, *arguments = shlex.split(line, comments=True)
        if program == "python":
            exec(arguments[1], {})
            continue
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert not stop.value.code, capsys.readouterr().err
    assert (tmp_path / "coreset.csv").exists()


def test_the_readme_of_a_package_index_leads_nowhere_but_to_addresses() -> None:
    """Its links and pictures are made absolute when the package is built: here by the same patterns."""
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"][
        "fancy-pypi-readme"
    ]
    shown = (ROOT / "README.md").read_text()
    for one in hook["substitutions"]:
        shown = re.sub(one["pattern"], one["replacement"], shown)
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []


def test_the_page_of_the_command_line_is_what_the_commands_say() -> None:
    """If not, `python docs/commands.py` writes it anew."""
    made = runpy.run_path(str(ROOT / "docs" / "commands.py"))
    assert made["write_page"]() == made["PAGE"].read_text()


def test_pages_that_are_meant_to_have_code_do() -> None:
    assert {page.name for page in WITH_CODE} >= {"README.md", "continual-learning.md"}


@pytest.mark.filterwarnings("ignore::Warning:lightning.*")  # Lightning's own, about the machine and about torch
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_code_of_a_page_runs_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with seeded(0):  # a reader's own model is drawn from the global state, and trainers of others seed it
        exec(compile(python_blocks(page), str(page), "exec"), {"__name__": "__main__"})


def test_the_quick_start_does_not_forget_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with seeded(0):
        exec(compile(python_blocks(QUICK_START), str(QUICK_START), "exec"), {"__name__": "__main__"})
    printed, told = (
        [float(line) for line in re.findall(r"^0\.\d+$", text, flags=re.MULTILINE)]
        for text in (capsys.readouterr().out, QUICK_START.read_text())
    )
    assert printed == pytest.approx(told, abs=0.02)
    assert printed[-1] > 0.9


@needs_results
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_every_room_has_its_place_in_the_contract_and_on_the_page_about_it() -> None:
    """A file or folder of the package that neither speaks of could be imported from anywhere."""
    found = [path for path in (ROOT / "recollect").iterdir() if not path.name.startswith("_")]
    rooms = {path.stem for path in found if path.suffix == ".py" or (path / "__init__.py").exists()}
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["name"].startswith("The package reads"))
    assert {name.removeprefix("recollect.") for layer in layers for name in layer.split(" : ")} == rooms
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert [room for room in sorted(rooms) if f"`{room}.py`" not in page and f"`{room}/`" not in page] == []


def test_the_tutorial_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code and commands in the order in which they stand, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    commands = 0
    for kind, block in re.findall(
        r"^```(python|console)\n(.*?)^```", TUTORIAL.read_text(), flags=re.MULTILINE | re.DOTALL
    ):
        if kind == "python":
            exec(compile(block, str(TUTORIAL), "exec"), names)
            continue
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "recollect"
            with pytest.raises(SystemExit) as stop:
                main(arguments)
            assert not stop.value.code, capsys.readouterr().err
            commands += 1
    told = capsys.readouterr().out
    assert commands == 9 and "not counted again" in told
    [accuracy] = re.findall(r"^0\.\d+$", told, flags=re.MULTILINE)
    assert float(accuracy) > 0.85
    assert (tmp_path / "cancer.html").exists() and (tmp_path / "coreset.parquet").exists()
