from pathlib import Path

import numpy as np
import pytest

import recollect as rc
from recollect.experiments import DEFAULT_STREAMS, figures, tables
from recollect.experiments.tables import NAMES, Table


def result(**changes: object) -> dict[str, object]:
    plain = {
        "learner": "gdumb", "dataset": "covertype", "memory": "gmc", "size": 200, "seed": 0, "epochs": 200,
        "rows": None, "options": {}, "every_task": False, "final_accuracy": 60.0, "accuracies": [60.0],
    }  # fmt: skip
    made = {**plain, **changes}
    return {"stream": DEFAULT_STREAMS[made["dataset"]], **made}


RESULTS = [
    result(seed=0, final_accuracy=66.0),
    result(seed=1, final_accuracy=68.0),
    result(seed=0, memory="reservoir", final_accuracy=60.0),
    result(seed=1, memory="reservoir", final_accuracy=62.0),
    result(size=500, final_accuracy=70.0),
    result(seed=2, epochs=3, final_accuracy=1.0),
    result(seed=2, rows=100, final_accuracy=1.0),
    result(seed=2, options={"dim": 5}, final_accuracy=1.0),
    result(seed=0, stream="class-incremental", final_accuracy=1.0),
]


def test_only_plain_runs_count_and_seeds_are_averaged() -> None:
    summary = tables.summarise(RESULTS)
    assert tuple(summary["gdumb", "covertype", "gmc", 200]) == pytest.approx((67.0, 2**0.5, 2, 200))
    assert summary["gdumb", "covertype", "gmc", 500] == (70.0, 0.0, 1, 200)
    assert len(summary) == 3


def test_ours_stand_beside_the_papers_and_what_was_not_run_is_left_empty() -> None:
    table = tables.accuracy_table(RESULTS, "gdumb", "covertype")
    by_name = {row[0]: row[1:] for row in table.rows}
    assert by_name["GMC"][0] == "67.00 ± 1.41 (2) [66.07 ± 0.22]"
    assert by_name["GMC"][2] == "[70.64 ± 0.08]"
    assert "recollect (this library's settings)" not in by_name
    assert by_name["GSS"][4] == ""


def test_differences_come_with_the_papers_and_a_verdict() -> None:
    table = tables.difference_table(RESULTS, "gdumb")
    assert table.rows == (("Covertype", "better, +6.00 ± 2.00 (2) [+3.80 ± 0.62]", "", "", "", ""),)
    worse = [{**r, "final_accuracy": 100 - r["final_accuracy"]} for r in RESULTS]
    assert tables.difference_table(worse, "gdumb").rows[0][1].startswith("worse, -6.00")


def test_a_single_seed_is_lent_the_deviation_of_what_it_is_compared_with() -> None:
    """Two points above a reservoir that varies by 1.41 is within what two of them would differ by."""
    several = [result(memory="reservoir", seed=seed, final_accuracy=60.0 + 2 * seed) for seed in (0, 1)]
    gain = tables.gains([*several, result(final_accuracy=62.9)], "gdumb", "gmc")["covertype", 200]
    assert gain.verdict == "within"
    assert gain.difference.deviation == pytest.approx(2.0)
    swapped = [{**r, "memory": "gmc" if r["memory"] == "reservoir" else "reservoir"} for r in several]
    against = result(memory="reservoir", final_accuracy=58.9)
    assert tables.gains([*swapped, against], "gdumb", "gmc")["covertype", 200].verdict == "better"


def test_a_run_that_departs_from_the_paper_counts_nowhere() -> None:
    """One of each kind, better than any other: no table, figure or list of what is missing shows it."""
    odd = [
        result(dataset="mnist", size=500, every_task=True, final_accuracy=99.0, accuracies=[99.0] * 4, **change)
        for change in ({"stream": "class-incremental"}, {"epochs": 3}, {"rows": 10}, {"options": {"dim": 5}})
    ]
    assert [tables.departures(r) for r in odd] == [
        {"stream": "class-incremental"}, {"epochs": 3}, {"rows": 10}, {"dim": 5}
    ]  # fmt: skip
    plain = result(dataset="mnist", size=500, every_task=True, final_accuracy=50.0, accuracies=[50.0] * 4)
    for results in ([*odd, plain], [plain, *odd]):
        assert tables.counting(results) == [plain]
        assert tables.summarise(results) == {("gdumb", "mnist", "gmc", 500): (50.0, 0.0, 1, 200)}
        assert figures.per_task(results).axes[0].lines[0].get_ydata().tolist() == [50.0] * 4
    fewer = [result(learner="er", size=500, every_task=True, accuracies=[30.0], epochs=e) for e in (3, 20, 20)]
    (panel,) = [axes for axes in figures.per_task([plain, *fewer], "er").axes if axes.get_visible()]
    assert panel.get_title().endswith(", 20 epochs") and panel.lines[0].get_ydata().tolist() == [30.0]
    some_rows = result(dataset="fashion-mnist", size=1000, options={"dim": 100}, rows=10, final_accuracy=40.0)
    assert tables.varying([*odd, plain, some_rows]) == [odd[3], some_rows]
    varied = [result(dataset="fashion-mnist", size=1000, options={"dim": 100}, epochs=e) for e in (200, 3)]
    varied[1]["final_accuracy"] = 99.0
    assert figures.sensitivity(varied).axes[1].lines[0].get_ydata().tolist() == [60.0]
    both = [axes for axes in figures.sensitivity([*varied, some_rows]).axes if axes.get_visible() and axes.lines]
    assert [axes.lines[0].get_ydata().tolist() for axes in both] == [[60.0], [40.0]]
    assert [axes.get_title("left") for axes in both] == [
        "Fashion-MNIST, by classes, 1000 kept",
        "Fashion-MNIST, by classes, 1000 kept of 10 rows",
    ]


def test_a_cell_of_fewer_epochs_says_so_and_is_compared_with_its_like_alone() -> None:
    def run(memory: str, epochs: int, accuracy: float, seed: int = 0) -> dict[str, object]:
        return result(memory=memory, epochs=epochs, final_accuracy=accuracy, seed=seed)

    short = [run("gmc", 20, 50.0), run("gmc", 5, 99.0), run("gmc", 400, 99.0), run("reservoir", 200, 60.0)]
    table = {row[0]: row[1] for row in tables.accuracy_table(short, "gdumb", "covertype").rows}
    assert table["GMC"] == "[66.07 ± 0.22]"
    assert table["Reservoir"].startswith("60.00 (1) [")
    assert tables.epochs_run(short, "gdumb", "covertype") == [200, 20, 5]
    fewer = tables.accuracy_table(short, "gdumb", "covertype", 20)
    assert fewer.title == "GDumb, Covertype, 20 epochs"
    assert [row[:2] for row in fewer.rows] == [("GMC", "50.00 (1) [66.07 ± 0.22]")]
    most = [*short, run("gmc", 20, 51.0, seed=1), run("class-balanced", 20, 50.0)]
    shown = tables.accuracy_table(most, "gdumb", "covertype")
    assert shown.title.endswith(", 20 epochs")
    assert {row[0]: row[1] for row in shown.rows}["Reservoir"] == "[62.27 ± 0.58]"
    assert tables.gains(short, "gdumb", "gmc") == {}
    both = [*short, run("reservoir", 20, 48.0), run("reservoir", 5, 1.0)]
    assert tables.difference_table(both, "gdumb").rows[0][1] == "unknown, +2.00 (1; 20 epochs) [+3.80 ± 0.62]"
    seeds = [*both, run("gmc", 5, 97.0, seed=1)]  # a verdict needs a deviation
    assert tables.difference_table(seeds, "gdumb").rows[0][1].startswith("better, +97.00 ± 2.00 (1; 5 epochs)")
    full = [*both, run("gmc", 200, 61.0), run("gmc", 200, 62.0, seed=1)]
    assert tables.difference_table(full, "gdumb").rows[0][1].startswith("better, +1.50 ± 1.00 (1)")
    assert tables.accuracy_table(full, "gdumb", "covertype").rows[0][1].startswith("61.50 ± 0.71 (2) [")
    assert [str(tables.coverage(some)) for some in (short, full)] == [
        "2 of 395 cells, 1 of them with fewer epochs", "2 of 395 cells"
    ]  # fmt: skip
    panel = figures.accuracy_against_size(most, "gdumb").axes[0]
    assert panel.get_title() == "Covertype, 20 epochs"
    drawn = [np.asarray(line.get_ydata()).tolist() for line in panel.lines if line.get_linestyle() == "--"]
    assert sorted(drawn) == [[50.0], [50.5]]


def test_what_is_in_a_cell_does_not_end_it() -> None:
    table = Table("T", ("name", "a_b"), (("x|y & z", "1 ± 2"),))
    assert table.markdown().splitlines()[2] == "| x\\|y & z | 1 ± 2 |"


def test_figures_are_drawn_from_results_and_from_nothing(tmp_path: Path) -> None:
    varied = [
        result(dataset="fashion-mnist", size=1000, options=options, final_accuracy=70.0 + i)
        for i, options in enumerate(
            [{"inits": 3, "regularization": 0.5 / 3}, {"inits": 10, "regularization": 0.05},
             {"dim": 100}, {"regularization": 0.05},
             {"init": "kaiming_normal", "init_scale": 2.0}, {"center": "zero", "regularization": 0.5}]
        )
    ]  # fmt: skip
    tasks = [result(size=500, every_task=True, accuracies=[10.0, 20.0 + seed], seed=seed) for seed in (0, 1)]
    for results in ([], RESULTS + varied + tasks):
        made = {
            "size": figures.accuracy_against_size(results, "gdumb"),
            "gain": figures.gain_over_reservoir(results, "gdumb"),
            "sensitivity": figures.sensitivity(results),
            "initialisation": figures.initialisation(results),
            "regularisation": figures.regularisation(results),
            "per-task": figures.per_task(results),
        }
        for name, figure in made.items():
            paths = figures.save(figure, tmp_path / name)
            assert [path.suffix for path in paths] == [".png", ".svg"]
            assert all(path.stat().st_size > 1000 for path in paths)
    drawn = figures.sensitivity(varied).axes[0].lines[0]
    assert drawn.get_xdata().tolist() == [3, 10]
    elsewhere = [result(dataset="covertype", size=s, memory="recollect", options={"inits": 5}) for s in (200, 1000)]
    rows = figures.sensitivity([*varied, *elsewhere]).axes
    assert [axes.get_title("left") for axes in rows if axes.get_title("left")] == [
        "Covertype, 200 kept", "Covertype, 1000 kept", "Fashion-MNIST, by classes, 1000 kept"
    ]  # fmt: skip
    assert [[line.get_xdata().tolist() for line in axes.lines] for axes in rows[:3]] == [[[5]], [], []]


def test_a_memory_far_below_the_others_does_not_squeeze_them_together() -> None:
    far = [result(memory="sliding-window", size=size, final_accuracy=5.0) for size in (200, 1000)]
    panel = figures.accuracy_against_size([*RESULTS, *far], "gdumb").axes[0]
    assert panel.get_ylim()[0] > 20
    assert NAMES["sliding-window"] not in [line.get_label() for line in panel.lines]


def test_each_memory_has_a_shape_of_its_own_in_the_curves_and_in_the_legend() -> None:
    assert len(set(figures.MARKERS.values())) == len(figures.MARKERS)
    assert figures.MARKERS.keys() == figures.COLORS.keys()
    figure = figures.accuracy_against_size(RESULTS, "gdumb")
    drawn = {line.get_label(): line.get_marker() for line in figure.axes[0].lines if line.get_label() in NAMES.values()}
    named = {line.get_label(): line.get_marker() for line in figure.legends[0].get_lines()}
    assert len(drawn) > 1
    for name, marker in drawn.items():
        assert marker == named[name] == figures.MARKERS[next(key for key in figures.MARKERS if NAMES[key] == name)]


def test_figures_reach_to_the_largest_size_that_was_run() -> None:
    for figure in (figures.accuracy_against_size(RESULTS, "gdumb"), figures.gain_over_reservoir(RESULTS, "gdumb")):
        assert figure.axes[0].get_xticks().tolist() in ([200, 500], [200])


def test_the_default_is_ringed_in_the_figure_of_settings() -> None:
    varied = [result(size=200, memory="recollect", options={"inits": s}, final_accuracy=60.0 + s) for s in (5, 10)]
    rings = [line for line in figures.sensitivity(varied).axes[0].lines if line.get_linestyle() == "None"]
    assert [line.get_xydata().tolist() for line in rings] == [[[10.0, 70.0]]]


def test_class_frequencies_add_up_to_one() -> None:
    figure = figures.class_frequencies(rc.datasets.load("digits"), "mnist")
    heights = [bar.get_height() + bar.get_y() for bar in figure.axes[0].patches]
    assert max(heights) == pytest.approx(1.0)


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    drawn = [figures.save(figures.accuracy_against_size(RESULTS, "gdumb"), tmp_path / part / "f") for part in "ab"]
    for one, other in zip(*drawn, strict=True):
        assert one.read_bytes() == other.read_bytes()
