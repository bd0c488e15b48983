"""What the documentation says of the code is so."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recollect.experiments.targets import TARGETS
from tests.test_report import open_page

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


def test_the_paper_is_mapped_to_every_target_that_can_be_reproduced() -> None:
    told = re.findall(r"`recollect reproduce ([\w-]+)`", (DOCS / "paper-to-code.md").read_text())
    assert sorted(told) == sorted(TARGETS)


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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make site` builds it, elsewhere."""
    pytest.importorskip("zensical", reason="zensical is not installed: it is in the extra docs")
    if not (DOCS / "images" / "reproduction").exists():
        pytest.skip("docs/images/reproduction is not there, as in a source distribution")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    config = (ROOT / "mkdocs.yml").read_text().replace("paths: [.]", f"paths: [{ROOT}]")
    (folder / "mkdocs.yml").write_text(config)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "mkdocs.yml"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "build" / "site"


def test_no_page_asks_the_network_or_is_wider_than_a_phone(site: Path, browser: Any) -> None:
    paths = sorted(site.rglob("*.html"))
    assert len(paths) > 25
    page = open_page(browser, site / "index.html", viewport={"width": 390, "height": 800})
    for path in paths:
        page.goto(path.as_uri())
        assert page.errors == [], path.name
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path.name


CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = color => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].map((part, i) => i === 3 ? part / 255 : part);
  };
  const over = (top, ground) => ground.map((part, i) => top[i] * top[3] + part * (1 - top[3]));
  const own = node => rgba(getComputedStyle(node).backgroundColor);
  const ground = node => node ? over(own(node), ground(node.parentElement)) : [255, 255, 255];
  const linear = part => part <= 0.04 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = color => 0.05 + [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => sum + w * linear(color[i] / 255), 0);
  const text = [...document.querySelectorAll(".md-content :is(p, td, a), .md-nav__link")];
  return text.filter(node => node.checkVisibility() && !node.matches(".headerlink")).map(node => {
    const behind = ground(node), front = over(rgba(getComputedStyle(node).color), behind);
    const lights = [light(front), light(behind)];
    return { contrast: Math.max(...lights) / Math.min(...lights), text: node.textContent.trim() };
  });
}"""  # of text with what is behind it, as WCAG has it


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_links_and_navigation_can_be_read(site: Path, browser: Any, scheme: str) -> None:
    page = open_page(browser, site / "index.html", color_scheme=scheme)
    found = page.evaluate(CONTRASTS)
    assert len(found) > 40
    assert [one for one in found if one["contrast"] < 4.5] == []


def test_the_reference_shows_defaults_by_their_values(site: Path) -> None:
    for path in (site / "reference").glob("*.html"):
        assert "SHORTLIST" not in path.read_text(), path.name


def test_the_site_can_be_searched_without_a_network(site: Path, browser: Any) -> None:
    page = open_page(browser, site / "guides" / "cluster.html")
    page.keyboard.press("Control+k")
    box = page.get_by_placeholder("Search").last
    box.fill("LostClassWarning")
    page.get_by_text("LostClassWarning").first.wait_for()
    assert box.input_value() == "LostClassWarning"
    assert page.errors == []
