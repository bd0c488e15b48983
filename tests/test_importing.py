"""What `import recollect` costs, and where it works."""

import subprocess
import sys
from pathlib import Path

import mypy.api

import recollect as rc
from tests.test_docs import ROOT

HEAVY = ("sklearn", "scipy", "pandas", "polars", "pyarrow", "matplotlib", "typer", "rich", "jinja2", "transformers")
ONLY_POSIX = ("fcntl", "termios", "resource", "pwd", "grp", "pty", "syslog", "readline")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert not done.returncode, done.stderr
    return done.stdout


def heavy_modules_of(code: str) -> list[str]:
    """What some code imports of the heavy modules, beyond what torch does."""
    before = "import sys, torch\nbefore = set(sys.modules)\n"
    after = f"print(*sorted({{m.partition('.')[0] for m in set(sys.modules) - before}} & set({HEAVY!r})))"
    return run(before + code + after).split()


def test_importing_brings_nothing_heavy_that_torch_does_not_bring() -> None:
    assert heavy_modules_of("import recollect\n") == []


def test_commands_are_there_before_torch_is_and_all_names_after_it() -> None:
    found = run(
        "import sys, recollect.cli\n"
        "print('torch' in sys.modules, 'pyarrow' in sys.modules)\n"
        "import recollect as rc\n"
        "missing = [n for m in (rc, rc.tables) for n in m.__all__ if not hasattr(m, n) or n not in dir(m)]\n"
        "print(missing, hasattr(rc, 'nothing'), rc.embedding.__name__, rc.select is rc.selection.select)"
    )
    assert found == "False False\n[] False recollect.embedding True\n"


def test_choosing_and_remembering_needs_nothing_heavy() -> None:
    found = heavy_modules_of(
        "import recollect as rc\n"
        "data = torch.randn(40, 3), torch.arange(40) % 2\n"
        "memory = rc.GradientMatching(lambda: rc.models.mlp(3, 2), 5, inits=2)\n"
        "memory.update(*data)\n"
        "rc.GDumb(lambda: rc.models.mlp(3, 2), memory, epochs=1).predict(data[0])\n"
    )
    assert found == []


def test_every_module_can_be_imported_without_what_only_posix_has() -> None:
    found = run(
        "import importlib, pkgutil, sys, torch\n"
        f"sys.modules |= dict.fromkeys({ONLY_POSIX!r})\n"  # importing them fails from now on
        "import recollect\n"
        "names = [m.name for m in pkgutil.walk_packages(recollect.__path__, 'recollect.')\n"
        "         if not m.name.startswith('recollect.integrations.') and not m.name.endswith('__main__')]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(len(names))"
    )
    assert int(found) > 40


def test_names_are_known_to_who_checks_types_and_others_are_refused(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    known = [*(f"rc.{name}" for name in rc.__all__), *(f"rc.tables.{name}" for name in rc.tables.__all__)]
    program.write_text(
        "\n".join(["import recollect as rc", "from recollect import tables", *known, "rc.nothing", "tables.nothing"])
    )
    ours = [ROOT / "recollect/__init__.py", ROOT / "recollect/tables/__init__.py"]
    options = ["--follow-imports=skip", "--no-error-summary", f"--cache-dir={tmp_path}", "--config-file="]
    out, err, _ = mypy.api.run([*options, *map(str, ours), str(program)])
    assert not err
    assert [line.partition("error: ")[2] for line in out.splitlines()] == [
        'Module has no attribute "nothing"  [attr-defined]'
    ] * 2
