"""What `import recollect` costs, and where it works."""

import subprocess
import sys

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
