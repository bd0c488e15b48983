"""The page about a store, from what is found in it as plain data."""

import re
from pathlib import Path
from typing import Any

import pytest

from recollect.tables.inspecting import _by_class, _by_file, _percent, _together, page, shortened


def found(n_files: int, classes: dict[str, tuple[int, int]]) -> dict[str, Any]:
    files = [
        {
            "name": f"deliveries-north-{i:04d}.parquet", "seen": 100, "kept": 1, "weight": 100.0, "hash": "0",
            "time": 0.0, "error": 0.1 / (i + 1), "seconds": 1.0, "rows_per_second": 100.0,
            "drift": ["x & <b>y</b>"] * (i == 1),
        }
        for i in range(n_files)
    ]  # fmt: skip
    by_class = [
        {"name": name, "seen": seen, "kept": kept, "weight": float(seen * (kept > 0))}
        for name, (seen, kept) in classes.items()
    ]
    settings = {"target": "y", "size": n_files, "memory": "recollect", "seed": 0}
    return {
        "store": "a store", "settings": settings, "seen": 100 * n_files, "kept": n_files, "task": "classification",
        "classes": by_class, "files": files, "weights": [100.0] * n_files,
    }  # fmt: skip


def test_names_that_share_much_can_still_be_told_apart() -> None:
    for names in (
        [f"warehouse-of-the-north-{day:02d}.csv.gz" for day in range(1, 31)],
        ["a very long name of a class that ends in one", "a very long name of a class that ends in two"],
        ["x" * 60, "y" * 60, "z"],
    ):
        short = shortened(names)
        assert len(set(short)) == len(names) and max(map(len, short)) <= 22


def test_shares_are_those_of_all_files_however_many_are_drawn() -> None:
    files = found(500, {})["files"]
    bars = [_together(files[start : start + 9]) for start in range(0, 500, 9)]
    for values, _, _ in _percent(bars, files):
        assert sum(values) == pytest.approx(100)
    assert _percent(files[:3], files)[0][0] == pytest.approx([0.2] * 3)


def test_pages_are_made_for_any_number_of_files_and_classes() -> None:
    many = {f"class {i}": (1000 - i, i % 2) for i in range(60)}
    for n_files in (1, 8, 9, 500):
        text = page(found(n_files, many))
        assert text.count("data:image/png") == 4
        assert len(re.findall(r'<tr class="lost">', text)) == 30
    assert _by_class(found(1, many)["classes"]) != _by_class(found(1, {"a": (1, 1)})["classes"])
    assert _by_file(found(500, many)["files"]).startswith("data:image/png")


def test_a_class_without_rows_is_named_with_what_to_do() -> None:
    text = page(found(2, {"fine": (100, 3), "<i>lost</i>": (5, 0)}))
    assert "No row is kept of &lt;i&gt;lost&lt;/i&gt;" in text and "--min-per-class 1" in text
    assert "<i>lost</i>" not in text and "x &amp; &lt;b&gt;y&lt;/b&gt;" in text
    assert "No row is kept" not in page(found(2, {"fine": (100, 3)}))


def test_names_that_would_turn_the_line_around_are_written_out() -> None:
    text = page(found(1, {"a\u202ebc\n": (100, 3), "שלום": (5, 1)}))
    assert "a\\u202ebc\\n" in text and "\u202e" not in text and "שלום" in text


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_a_screen_and_a_phone(browser: Any, width: int, tmp_path: Path) -> None:
    path = tmp_path / "store.html"
    path.write_text(page(found(40, {"returned to the sender unopened": (3000, 30), "lost": (5, 0)})))
    view = browser.new_page(viewport={"width": width, "height": 900})
    view.goto(path.as_uri())
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    # Names are broken between words, not letter by letter: a row of the table is a few lines high.
    assert view.evaluate("Math.max(...[...document.querySelectorAll('tbody tr')].map(r => r.offsetHeight))") < 140
    columns = view.evaluate("new Set([...document.querySelectorAll('figure')].map(f => f.offsetLeft)).size")
    assert columns == (2 if width == 1280 else 1)
