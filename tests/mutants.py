"""Do the tests notice? Breaks the package in the small ways that `mutants.txt` lists, and says which go unnoticed.

    python tests/mutants.py [--only TEXT] [--budget SECONDS] [--fresh]

Works in a copy. The tests are run once while noting which lines each goes through; a mutant is then shown to those that
go through its lines, the quickest first, until one fails. What came of each is kept in `.mutants`, and what was caught
is not tried again unless `--fresh`. It takes a few seconds per mutant.
"""

import argparse
import importlib
import itertools
import json
import math
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".mutants"
TRACED = WORK / "traced"
COPY = WORK / f"copy-{os.getpid()}"
LINES, RESULTS, TESTS_NOW = WORK / "lines.json", WORK / "results.jsonl", WORK / f"tests-{os.getpid()}.json"
TESTS = (
    *("test_selection.py", "test_pursuit.py", "test_gradient_matching.py", "test_embedding.py", "test_memories.py"),
    *("test_rows.py", "test_training.py", "test_storage.py", "test_inputs.py", "test_stored_choices.py"),
    *("test_standouts.py", "test_surroundings.py", "test_foreign_models.py"),
    *("contracts/test_memories.py", "contracts/test_learners.py"),
)
OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
SECONDS = 300  # a mutant that runs longer has been noticed: it does not end


class Mutant(NamedTuple):
    """A piece of a file and what takes its place; `reason` says why no test can notice, if none can."""

    file: str
    old: str
    new: str
    reason: str = ""


def read_mutants(text: str) -> Iterator[Mutant]:
    """`@ file`, then for each mutant lines `- old`, `+ new` and, if it changes nothing that matters, `= why`.

    Example:
        >>> list(read_mutants("@ a.py\\n- x + y\\n+ x - y\\n= y is 0"))
        [Mutant(file='a.py', old='x + y', new='x - y', reason='y is 0')]
    """
    file, parts = "", {"-": "", "+": "", "=": ""}
    for line in [*text.splitlines(), "@ "]:
        kind, rest = line[:1], line[2:]
        if kind in "-@" and parts["+"]:
            yield Mutant(file, *(parts[k].removesuffix("\n") for k in "-+="))
            parts = dict.fromkeys(parts, "")
        if kind == "@":
            file = rest
        elif kind in parts:
            parts[kind] += rest + "\n"


class Lines:
    """A pytest plugin that notes how long each test takes and which lines of the package it goes through."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[float, list[tuple[str, int]]]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        inside, found = str(COPY / "recollect") + os.sep, set()

        def note(frame: FrameType, event: str, _: Any) -> Any:
            if not frame.f_code.co_filename.startswith(inside):
                return None
            found.add((frame.f_code.co_filename, frame.f_lineno))
            return note

        began = time.perf_counter()
        sys.settrace(note)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            lines = sorted((str(Path(file).relative_to(COPY)), line) for file, line in found)
            self.seen[item.nodeid] = (time.perf_counter() - began, lines)


class Collected:
    """A pytest plugin that writes down which tests there are."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        TESTS_NOW.write_text(json.dumps([item.nodeid for item in session.items]))


def run(arguments: list[str], plugins: list[object]) -> int:
    """Pytest's exit code, of a child: the package is imported anew each time, torch only once."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            signal.alarm(SECONDS if not plugins else 0)
            for name in [name for name in sys.modules if name.partition(".")[0] == "recollect"]:
                del sys.modules[name]
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            code = int(pytest.main([*OPTIONS, *arguments], plugins=plugins))
            for plugin in plugins:
                if isinstance(plugin, Lines):
                    LINES.write_text(json.dumps(plugin.seen))
        except BaseException:
            (WORK / "failure.txt").write_text(traceback.format_exc())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def make_copy(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("recollect", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


Seen: TypeAlias = dict[str, tuple[float, list[tuple[str, int]]]]


def tests_of(mutant: Mutant, seen: Seen, tests: list[str], budget: float) -> list[str]:
    """Tests that go through the lines of a mutant, the quickest first; or through its file, if the lines are new.

    A test that is new is taken to go where others of its file do.
    """
    source = (TRACED / mutant.file).read_text() if (TRACED / mutant.file).exists() else ""
    first = source[: source.find(mutant.old)].count("\n") + 1
    exactly = range(first, first + mutant.old.count("\n") + 1) if source.count(mutant.old) == 1 else range(0)
    through: list[tuple[float, str]] = []
    for lines in (exactly, range(10**6)):
        for test in tests:
            seconds, places = seen.get(test, (1.0, []))
            if any(file == mutant.file and line in lines for file, line in places):
                through.append((seconds, test))
        if through:
            break
    files = {test.partition("::")[0] for _, test in through}
    through += [(1.0, test) for test in tests if test not in seen and test.partition("::")[0] in files]
    sums = itertools.accumulate(seconds for seconds, _ in sorted(through))
    return [test for (_, test), total in zip(sorted(through), sums, strict=True) if total <= budget]


def try_mutant(mutant: Mutant, tests: list[str]) -> str:
    path = COPY / mutant.file
    source = path.read_text()
    if source.count(mutant.old) != 1:
        return f"stale: found {source.count(mutant.old)} times"
    if not tests:
        return "survived: no test goes through it"
    path.write_text(source.replace(mutant.old, mutant.new))
    try:
        code = run(tests, [])
    finally:
        path.write_text(source)
    known = {0: f"survived {len(tests)} tests", 1: "caught", -signal.SIGALRM: "caught: does not end"}
    return known.get(code, f"not tried: pytest ended with {code}")


def summary(outcomes: dict[Mutant, str]) -> str:
    """How many of each room were caught, and those that were not, as Markdown."""
    rooms: dict[str, list[Mutant]] = {}
    for mutant in outcomes:
        rooms.setdefault("/".join(mutant.file.split("/")[1:-1]) or Path(mutant.file).name, []).append(mutant)
    lines = ["| room | mutants | change nothing that matters | others | of these caught |", "|---|---|---|---|---|"]
    totals = [0, 0, 0, 0]
    for room, mutants in {**rooms, "all": list(outcomes)}.items():
        others = [mutant for mutant in mutants if not mutant.reason]
        caught = sum(outcomes[mutant].startswith("caught") for mutant in others)
        totals = [len(mutants), len(mutants) - len(others), len(others), caught]
        lines.append(f"| {room} | {' | '.join(map(str, totals))} ({caught / max(1, len(others)):.0%}) |")
    lines += ["", "| not noticed | in its place | why |", "|---|---|---|"]
    for mutant, outcome in outcomes.items():
        if not outcome.startswith("caught"):
            code = [
                f"`{text.strip() or ' '}`".replace("|", "\\|").replace("\n", " ") for text in (mutant.old, mutant.new)
            ]
            lines.append(f"| {code[0]} ({Path(mutant.file).name}) | {code[1]} | {mutant.reason or '**a gap**'} |")
    return "\n".join(lines)


def main() -> None:
    """Try all mutants that have not been caught before, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose file or text contains this")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds of tests for each mutant at most")
    parser.add_argument("--fresh", action="store_true", help="forget what was found, and note anew who goes where")
    chosen = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    (WORK / ".gitignore").write_text("*\n")
    if chosen.fresh or not LINES.exists():
        RESULTS.unlink(missing_ok=True)
    make_copy(COPY)
    os.chdir(COPY)
    sys.path[:0] = [str(COPY)]
    for name in ("hypothesis", "scipy.stats", "pandas", "recollect.cli", "recollect.experiments.figures"):
        importlib.import_module(name)  # torch and all else that takes long, once for all children
    try:
        if chosen.fresh or not LINES.exists():
            if code := run([f"tests/{name}" for name in TESTS], [Lines()]):
                sys.exit(f"the tests must pass before anything is broken, got exit code {code}")
            make_copy(TRACED)
        print(summary(try_all(chosen.only, chosen.budget)))
    finally:
        shutil.rmtree(COPY)


def try_all(only: str, budget: float) -> dict[Mutant, str]:
    seen: Seen = json.loads(LINES.read_text())
    run(["--collect-only", *(f"tests/{name}" for name in TESTS)], [Collected()])
    tests = json.loads(TESTS_NOW.read_text())
    TESTS_NOW.unlink()
    before = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    known = {tuple(line[:3]): line[3] for line in before}
    outcomes: dict[Mutant, str] = {}
    for mutant in read_mutants((ROOT / "tests/mutants.txt").read_text()):
        if only not in mutant.file + mutant.old:
            continue
        outcome = known.get(mutant[:3], "")
        if not outcome.startswith("caught") and not (outcome and mutant.reason):
            outcome = try_mutant(mutant, tests_of(mutant, seen, tests, budget))
            with RESULTS.open("a") as file:
                file.write(json.dumps([*mutant[:3], outcome]) + "\n")
            print(f"{outcome:24} {mutant.file}: {mutant.old[:60]!r}", file=sys.stderr, flush=True)
        outcomes[mutant] = outcome
    return outcomes


if __name__ == "__main__":
    main()
