"""What the documentation says of the code is so."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCES = "".join(path.read_text() for path in sorted((ROOT / "recollect").rglob("*.py")))


def test_every_message_of_the_troubleshooting_page_is_said_by_the_code() -> None:
    headings = re.findall(r"^### `(.+)`$", (DOCS / "troubleshooting.md").read_text(), flags=re.MULTILINE)
    assert len(headings) > 10
    # Long sentences are written as several strings, one after the other.
    joined = re.sub(r'"\s*f?"', "", SOURCES)
    for heading in headings:
        assert heading in joined, f"no code says {heading!r}"


def test_every_function_and_test_that_the_paper_is_mapped_to_exists() -> None:
    page = (DOCS / "paper-to-code.md").read_text()
    tests = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(tests) > 15
    for path, name in tests:
        assert (ROOT / path).is_file(), path
        assert not name or f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"
    names = re.findall(r"`(recollect(?:\.\w+)+)(?:\(.*?\))?`", page)
    assert len(names) > 10
    for name in names:
        assert resolve(name) is not None


def resolve(name: str) -> object:
    """What a dotted name stands for."""
    module, rest = name, list[str]()
    while True:
        try:
            found: object = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest = [last, *rest]
    for part in rest:
        found = getattr(found, part)
    return found


def test_the_reference_shows_everything_that_is_public() -> None:
    import recollect

    shown = set(re.findall(r"^::: recollect\.(\w+)", reference(), flags=re.MULTILINE))
    modules = {"datasets", "streams", "models", "metrics", "tables"}
    values = {"PAPER"}
    missing = set(recollect.__all__) - shown - modules - values
    assert not missing, f"the reference does not show {sorted(missing)}"


def reference() -> str:
    return "".join(path.read_text() for path in sorted((DOCS / "reference").glob("*.md")))


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_every_page_is_in_the_navigation(page: Path) -> None:
    assert f" {page.relative_to(DOCS)}\n" in (ROOT / "mkdocs.yml").read_text()
