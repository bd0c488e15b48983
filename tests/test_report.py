import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

import recollect as rc
from recollect.cli import main
from recollect.experiments import coverage
from recollect.experiments.tables import mixing_table
from recollect.report import build_page, write_document
from recollect.report.page import cost_table, learners_of
from tests.test_tables import result

HOSTILE = '</script><script>window.hacked = true</script><img src=x onerror="window.hacked = true">'

RESULTS: list[dict[str, Any]] = [
    result(
        learner=learner, dataset=dataset, memory=memory, size=size, seed=seed,
        final_accuracy=60.0 + seed + size / 1000 + 5 * (memory == "gmc"), seconds=10.0,
        seconds_of={"observe": 6.0, "test": 4.0}, versions={"torch": "2"},
    )
    for learner in ("gdumb", "er")
    for dataset in ("covertype", "mnist")
    for memory in ("gmc", "reservoir")
    for size in (200, 1000)
    for seed in (0, 1)
]  # fmt: skip
RESULTS += [
    result(dataset="digits", memory="reservoir", size=20, seed=0,
           kept_ids=[1, 5, 700], kept_weights=[1.0, 2.0, 3.0]),
    result(memory=HOSTILE, options={HOSTILE: 1}, versions={HOSTILE: "1"}),
    result(memory=HOSTILE, seed=9),
]  # fmt: skip


def only_digits(name: str) -> rc.datasets.Dataset | None:
    return rc.datasets.load("digits") if name == "digits" else None


def test_the_page_needs_nothing_from_outside() -> None:
    page = build_page(RESULTS, only_digits)
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_names_from_outside_are_escaped() -> None:
    page = build_page(RESULTS, only_digits)
    assert HOSTILE not in page
    assert html.escape(HOSTILE, quote=False)[:20] in page.replace("&#34;", '"')
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert any(point["memory"] == HOSTILE for point in json.loads(data[1])["points"])


def test_what_was_run_beside_clustering_is_compared_with_it() -> None:
    runs = [
        result(
            dataset="ldpa",
            memory=memory,
            size=200,
            seed=seed,
            final_accuracy=50.0 + seed + 5 * (memory != "clustering"),
        )
        for memory in ("recollect", "clustering")
        for seed in (0, 1)
    ]
    assert "recollect (this library's settings) less Clustering (k-means per class)" in html.unescape(
        build_page([*RESULTS, *runs], only_digits)
    )
    assert "less Clustering" not in build_page(RESULTS, only_digits)


def test_tables_differences_and_pictures_are_there() -> None:
    page = build_page(RESULTS, only_digits)
    assert "[66.07 ± 0.22]" in page
    assert "GMC less Reservoir" in page
    assert "The 3 examples of digits kept by reservoir" in page
    assert "What choosing costs" in page


def test_runs_that_depart_from_the_paper_are_listed_and_counted_nowhere(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("RECOLLECT_DATA", str(tmp_path))
    plain = [
        result(learner="gdumb", dataset="mnist", memory=m, size=200, seed=s)
        for m in ("gmc", "reservoir")
        for s in (0, 1)
    ]
    changes: list[dict[str, Any]] = [{"stream": "class-incremental"}, {"epochs": 300}, {"rows": 10}]
    odd = [
        result(learner=learner, dataset="digits" if learner == "gdumb" else "mnist", memory="reservoir", size=20,
               final_accuracy=99.0, kept_ids=[3], kept_weights=[1.0], seconds_of={"observe": 1.0}, **change)
        for learner in ("gdumb", "er")
        for change in changes
        if learner == "er" or change != {"stream": "class-incremental"}
    ]  # fmt: skip
    for text in (build_page([*plain, *odd], only_digits), write_document([*plain, *odd], tmp_path / "page.md")):
        assert "99.00" not in text
        assert "The 1 examples of digits" not in text
        assert "Experience replay, MNIST" not in text.split("ith other settings")[0].split("Not run")[0]
        for told in ("stream = class-incremental", "epochs = 300", "rows = 10"):
            assert f"Experience replay, MNIST, rotated, Reservoir: {told} (1 run)" in text
    assert learners_of([*plain, *odd]) == ["gdumb"]
    assert cost_table([*plain, *odd]).rows == ()
    odd.append(result(dataset="fashion-mnist", size=1000, epochs=3, options={"dim": 100}))
    assert "Sensitivity" not in write_document([*plain, *odd], tmp_path / "page.md")
    page = build_page([*plain, *odd], only_digits)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert {point["learner"] for point in json.loads(data[1])["points"]} == {"gdumb"}


def test_curves_are_of_the_epochs_that_most_cells_have_and_say_so() -> None:
    runs = [result(learner="er", dataset="ldpa", memory=m, epochs=20) for m in ("gmc", "reservoir")]
    page = build_page([*runs, result(learner="er", dataset="ldpa", memory="gmc", final_accuracy=99.0)], only_digits)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    points = [(p["memory"], p["epochs"]) for p in json.loads(data[1])["points"]]
    assert points == [("gmc", "20 epochs"), ("reservoir", "20 epochs")]


def test_the_command_writes_the_page_or_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["report"])
    assert caught.value.code == 2
    assert "there must be results in 'results/paper.jsonl', got none" in capsys.readouterr().err
    (tmp_path / "some.jsonl").write_text("\n".join(json.dumps(r) for r in RESULTS[:8]) + "\n")
    monkeypatch.setenv("RECOLLECT_DATA", str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        main(["report", "--results", "some.jsonl", "--output", "page.html"])
    assert caught.value.code == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "Left out: pictures of covertype, mnist, fashion-mnist" in capsys.readouterr().out.replace("\n", " ")


def test_the_document_shows_tables_verdicts_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_DATA", str(tmp_path))
    plain = [r for r in RESULTS if HOSTILE not in (r["memory"], *r["options"])]
    varied = [result(dataset="fashion-mnist", memory="gmc", size=1000, options={"inits": s}) for s in (1, 10)]
    text = write_document([*plain, *varied], tmp_path / "reproduction.md")
    assert "[66.07 ± 0.22]" in text
    assert "| GMC | Reservoir | 4 | 0 | 0 |" in text
    assert "GDumb, LDPA: 35 of 35 cells" in text
    assert "## Class frequencies along the sorted Covertype stream\n\nLeft out" in text
    assert "Of the 395 cells of the paper's tables, 16 have been run." in text
    for name in ("accuracy-gdumb", "accuracy-er", "sensitivity"):
        assert f"(images/reproduction/{name}.png)" in text
        for suffix in (".png", ".svg"):
            assert (tmp_path / "images" / "reproduction" / f"{name}{suffix}").stat().st_size > 1000


@pytest.fixture
def page_file(tmp_path: Path) -> Path:
    path = tmp_path / "page.html"
    path.write_text(build_page(RESULTS, only_digits))
    return path


def note_request(page: Any, url: str) -> None:
    """A page that needs no network asks for nothing but itself."""
    if not url.startswith(("file:", "data:")):
        page.errors.append(url)


def open_page(browser: Any, path: Path, **options: Any) -> Any:
    page = browser.new_context(**options).new_page()
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("request", lambda request: note_request(page, request.url))
    page.goto(path.as_uri())
    return page


def test_the_page_works_in_a_browser(browser: Any, page_file: Path) -> None:
    page = open_page(browser, page_file)
    assert page.errors == []
    assert not page.evaluate("window.hacked === true")
    assert page.locator("#charts figure").count() == 2
    dots = page.locator("#charts circle")
    everything = dots.count()
    assert everything == 8  # two data sets, two memories, two sizes
    dots.first.hover()
    assert "kept" in page.locator("#tip").inner_text()
    page.locator("#filters input[value=reservoir]").uncheck()
    assert page.locator("#charts circle").count() == everything // 2
    page.locator("#learner").select_option("er")
    assert page.locator("#charts circle").count() == everything // 2
    page.locator("#dataset").select_option("mnist")
    assert page.locator("#charts figure").count() == 1
    page.locator("#what").select_option("gain")
    assert "+5.00" in page.locator("#charts circle").first.get_attribute("aria-label")
    page.locator("#whole").check()
    ticks = page.locator("#charts svg text").all_text_contents()
    assert all(re.fullmatch(r"-?\d+(\.\d)?", text) for text in ticks)
    assert page.errors == []


def test_a_pointer_on_a_chart_lists_all_memories_at_the_nearest_size(browser: Any, page_file: Path) -> None:
    page = open_page(browser, page_file, viewport={"width": 1000, "height": 900})
    chart = page.locator("#charts svg").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 0.15 * box["width"], box["y"] + 0.5 * box["height"])
    lines = page.locator("#tip").inner_text().split("\n")
    assert lines == ["200 kept", "GMC: 65.70 ± 0.71 % (2 seeds)", "Reservoir: 60.70 ± 0.71 % (2 seeds)"]


def test_a_pointer_on_a_memorys_name_lets_its_curves_stand_out(browser: Any, page_file: Path) -> None:
    page = open_page(browser, page_file)
    page.locator("#filters label", has_text="Reservoir").hover()
    assert page.locator("#charts .faint[data-memory=reservoir]").count() == 0
    assert page.locator("#charts .faint").count() > 0
    page.mouse.move(1, 1)
    assert page.locator("#charts .faint").count() == 0


def test_what_a_finger_asks_for_stays_until_it_touches_something_else(browser: Any, page_file: Path) -> None:
    page = open_page(browser, page_file, viewport={"width": 390, "height": 900}, has_touch=True)
    chart = page.locator("#charts svg").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.touchscreen.tap(box["x"] + 0.15 * box["width"], box["y"] + 0.5 * box["height"])
    assert "200 kept" in page.locator("#tip").inner_text()
    tip = page.locator("#tip").bounding_box()
    assert tip["y"] + tip["height"] <= box["y"] + 1 or tip["y"] >= box["y"] + box["height"]
    page.touchscreen.tap(5, 5)
    assert not page.locator("#tip").is_visible()


def test_tables_follow_the_choice_of_data_set_memories_and_learner(browser: Any, page_file: Path) -> None:
    page = open_page(browser, page_file)
    shown = page.locator("section table:visible caption")
    assert shown.all_text_contents() == ["GDumb, Covertype", "GDumb, MNIST, rotated"]
    page.locator("#dataset").select_option("mnist")
    page.locator("#learner").select_option("er")
    assert shown.all_text_contents() == ["Experience replay, MNIST, rotated"]
    rows = page.locator("section table:visible tbody th:visible")
    assert "Reservoir" in rows.all_text_contents()
    page.locator("#filters input[value=reservoir]").uncheck()
    assert "Reservoir" not in rows.all_text_contents()


def test_what_is_not_main_is_shown_when_asked_for(browser: Any, tmp_path: Path) -> None:
    runs = [result(dataset="ldpa", memory=memory, size=200, seed=0) for memory in ("recollect", "reservoir", "gss")]
    (tmp_path / "page.html").write_text(build_page(runs, only_digits))
    page = open_page(browser, tmp_path / "page.html")
    assert page.locator("#charts circle").count() == 2
    page.locator("#every").click()
    assert page.locator("#charts circle").count() == 3


def test_a_data_set_that_a_learner_was_not_run_on_is_said_to_be_so(browser: Any, tmp_path: Path) -> None:
    runs = [
        result(learner="gdumb", dataset="ldpa", size=200, seed=0),
        result(learner="er", dataset="mnist", size=200, seed=0),
    ]
    (tmp_path / "page.html").write_text(build_page(runs, only_digits))
    page = open_page(browser, tmp_path / "page.html")
    page.locator("#dataset").select_option("mnist")
    assert page.locator("#charts").inner_text() == "GDumb was not run on MNIST, rotated."
    page.locator("#learner").select_option("er")
    assert "was not run" not in page.locator("#charts").inner_text()


def test_the_page_can_be_used_with_the_keyboard_and_a_screen_reader(browser: Any, page_file: Path) -> None:
    page = open_page(browser, page_file)
    page.locator("#filters input").first.focus()
    for _ in range(2):
        page.keyboard.press("Tab")
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert "200 kept" in focused
    assert page.locator("#tip").is_visible()
    assert all(image.get_attribute("alt") for image in page.locator("img").all())
    assert page.locator("table caption").count() == page.locator("table").count()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_in_both_schemes(browser: Any, page_file: Path, scheme: str) -> None:
    page = open_page(browser, page_file, viewport={"width": 360, "height": 700}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    ink, paper = page.evaluate(
        "(() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]; })()"
    )
    light = [sum(map(int, re.findall(r"\d+", color)[:3])) for color in (ink, paper)]
    assert (light[0] < light[1]) == (scheme == "light")
    assert abs(light[0] - light[1]) > 400


def test_both_ways_of_mixing_have_tables_of_their_own_beside_the_same_numbers_of_the_paper(tmp_path: Path) -> None:
    runs = [
        result(learner=learner, dataset="ldpa", memory=memory, size=200, final_accuracy=accuracy)
        for learner, accuracy in (("er", 51.0), ("er-drawn", 58.0))
        for memory in ("gmc", "reservoir")
    ]
    document = write_document(runs, tmp_path / "page.md")
    assert "51.00 (1) [53.42 ± 0.68]" in document and "58.00 (1) [53.42 ± 0.68]" in document
    for text in (document, build_page(runs, only_digits)):
        assert "Experience replay, drawn by weight, LDPA" in text
    assert learners_of(runs) == ["er", "er-drawn"]
    assert sum(coverage(runs)[:2]) == 2  # a cell of the paper is counted once


def test_what_drawing_gains_is_told_of_runs_of_as_many_epochs() -> None:
    told = {"dataset": "ldpa", "size": 200, "memory": "reservoir"}
    runs = [
        result(learner=learner, epochs=epochs, seed=seed, final_accuracy=accuracy, **told)
        for learner, epochs, seed, accuracy in (
            ("er", 20, 0, 51.0), ("er", 20, 1, 53.0), ("er-drawn", 20, 0, 50.0),
            ("er", 200, 0, 60.0), ("er-drawn", 5, 0, 9.0),
        )
    ]  # fmt: skip
    table = mixing_table(runs)
    assert table.header == ("", "kept", "Reservoir") and table.rows == (("LDPA, 20 epochs", "200", "-2.0 (1)"),)
    assert not mixing_table(runs[:2]).rows
