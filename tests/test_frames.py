"""The Python face of tables: what comes out is of the kind that went in."""

import datetime
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet
import pytest
from torch import nn

import recollect as rc
from recollect.cli import main


def frame(n: int = 90) -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    return pandas.DataFrame(
        {
            "x": x,
            "color": pandas.Categorical(rng.choice(["red", "blue"], n)),
            "when": pandas.Timestamp("2024-01-01") + pandas.to_timedelta(rng.integers(0, 99, n), unit="D"),
            "customer_id": rng.permutation(10**6)[:n],
            "y": np.where(x > 0, "yes", "no"),
        },
        index=[f"row {i}" for i in range(n)],
    )


def test_pandas_comes_out_as_pandas_with_its_index_and_types() -> None:
    table = frame()
    chosen = rc.tables.select(table, target="y", size=12)
    assert isinstance(chosen, pandas.DataFrame) and len(chosen) <= 12
    pandas.testing.assert_frame_equal(chosen.drop(columns="weight"), table.loc[chosen.index])
    assert 60 < chosen["weight"].sum() < 120


def test_a_fraction_of_all_rows_can_be_asked_for(tmp_path: Path) -> None:
    table = frame()
    chosen = rc.tables.select(table, target="y", size=0.1)
    pandas.testing.assert_frame_equal(chosen, rc.tables.select(table, target="y", size=9))
    table.to_parquet(tmp_path / "rows.parquet")
    assert rc.tables.select(tmp_path / "rows.parquet", target="y", size=0.1).num_rows == 9
    with pytest.raises(ValueError, match=r"or a part of all rows such as 1% or 0\.01, got 1\.5"):
        rc.tables.select(table, target="y", size=1.5)


def test_all_libraries_choose_the_same_rows() -> None:
    table = frame()
    numbers = [table.index.get_loc(name) for name in rc.tables.select(table, target="y", size=12).index]
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    from_arrow = rc.tables.select(arrow, target="y", size=12)
    assert from_arrow.drop_columns(["weight"]).equals(arrow.take(numbers))
    of_polars = polars.from_pandas(table)
    chosen = rc.tables.select(of_polars, target="y", size=12)
    assert isinstance(chosen, polars.DataFrame) and chosen.drop("weight").equals(of_polars[numbers])
    np.testing.assert_allclose(chosen["weight"].to_numpy(), from_arrow.column("weight").to_numpy())


def test_a_lazy_frame_is_run_once_as_its_rows_may_come_in_another_order_each_time() -> None:
    runs = []

    def turned(rows: polars.DataFrame) -> polars.DataFrame:
        runs.append(len(rows))
        return rows if len(runs) % 2 else rows.reverse()

    table = polars.from_pandas(frame())
    chosen = rc.tables.select(table.lazy().map_batches(turned), target="y", size=12)
    assert runs == [90] and chosen.equals(rc.tables.select(table, target="y", size=12))


def test_files_come_out_as_the_command_writes_them(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "rows.csv", index=False)
    chosen = rc.tables.select(tmp_path / "rows.csv", target="y", size=12)
    assert isinstance(chosen, pa.Table) and chosen.column_names[-2:] == ["row", "weight"]
    assert pa.types.is_floating(chosen.schema.field("x").type)
    again = rc.tables.select([str(tmp_path / "*.csv")], target="y", size=12)
    assert again.equals(chosen)


def test_rows_without_a_target_are_left_out_and_the_others_keep_their_places() -> None:
    table = frame()
    table.loc[table.index[:30], "y"] = None
    with pytest.raises(ValueError, match=r"got 30 missing: pass reading=Reading\(drop_missing_target=True\)"):
        rc.tables.select(table, target="y", size=12)
    reading = rc.tables.Reading(drop_missing_target=True)
    chosen = rc.tables.select(table, target="y", size=12, memory="reservoir", reading=reading)
    pandas.testing.assert_frame_equal(chosen.drop(columns="weight"), table.loc[chosen.index])
    assert chosen["y"].notna().all()


def test_all_sorts_of_objects_in_a_column_are_text() -> None:
    table = frame().assign(odd=[1, "two", datetime.date(2024, 1, 1)] * 30)
    account = rc.tables.columns(table, "y")
    assert account["odd"].kind == "category" and account["customer_id"].kind == "ignored"
    assert "odd" in rc.tables.select(table, target="y", size=5, memory="reservoir")


def test_a_class_without_rows_is_warned_of_and_kept_if_asked_for() -> None:
    rng = np.random.default_rng(0)
    rare = np.arange(505) % 100 == 99
    table = pa.table({"x": rng.normal(size=505) + 9.0 * rare, "y": np.where(rare, "rare", rng.choice(["a", "b"], 505))})
    with pytest.warns(rc.LostClassWarning, match="none of 'rare'"):
        rc.tables.select(table, target="y", size=4, memory="sliding-window")
    for option in ({"min_per_class": 2}, {"class_weight": "balanced"}):
        chosen = rc.tables.select(table, target="y", size=20, **option)
        assert chosen.column("y").to_pylist().count("rare") >= 2


def test_a_network_of_ones_own_is_matched() -> None:
    built = []

    def network(features: int, outputs: int) -> nn.Module:
        built.append((features, outputs))
        return nn.Linear(features, outputs)

    rc.tables.select(frame(), target="y", size=12, network=network)
    assert built


def test_many_rows_are_announced_with_the_time_they_take_which_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = rc.tables.select(frame(), target="y", size=5, memory="recollect")
    monkeypatch.setattr("recollect.tables.memory._LONG", 90)
    announced = rc.tables.select(frame(), target="y", size=5, memory="recollect", progress=True)
    assert re.search(r"^90 rows will take (a few|about .*) (second|minute)s?$", capsys.readouterr().err, re.MULTILINE)
    pandas.testing.assert_frame_equal(quiet, announced)


def test_a_frame_of_ones_own_kind_is_a_frame() -> None:
    class Mine(pandas.DataFrame):
        @property
        def _constructor(self) -> type:
            return Mine

    chosen = rc.tables.select(Mine(frame()), target="y", size=12)
    assert isinstance(chosen, Mine) and chosen.equals(rc.tables.select(frame(), target="y", size=12))


def test_a_frame_of_another_library_is_none_of_files() -> None:
    kind = type("DataFrame", (list,), {"__module__": "dask.dataframe"})
    with pytest.raises(ValueError, match=r"must be a table of pandas, .* or paths of files, got a DataFrame of dask$"):
        rc.tables.select(kind(["x", "y"]), target="y", size=3)


@pytest.mark.parametrize("memory", ["auto", "recollect"])
def test_intervals_of_pandas_are_categories(memory: str) -> None:
    frame = pandas.DataFrame({"x": np.arange(90) % 7 * 0.5, "y": ["a", "b"] * 45})
    frame["part"] = pandas.cut(frame["x"], 3)
    account = rc.tables.columns(frame, "y")["part"]
    assert (account.kind, account.distinct, account.features) == ("category", 3, 4)
    chosen = rc.tables.select(frame, target="y", size=6, memory=memory)
    pandas.testing.assert_frame_equal(chosen[["x", "y", "part"]], frame.loc[chosen.index])
    assert set(rc.tables.select(frame, target="part", size=6, memory=memory)["part"]) == set(frame["part"])


def test_categories_that_are_lists_come_out_as_they_went_in() -> None:
    lists = pa.DictionaryArray.from_arrays(pa.array([0, 1, None] * 30, pa.int32()), pa.array([[1, 2], [3]]))
    table = pa.table({"lists": lists, "x": np.arange(90) % 7, "y": ["a", "b"] * 45, "place": range(90)})
    chosen = rc.tables.select(table, target="y", size=6)
    assert chosen["lists"].to_pylist() == [([1, 2], [3], None)[place % 3] for place in chosen["place"].to_pylist()]


def test_a_type_that_pyarrow_does_not_have_is_refused_with_its_column() -> None:
    table = polars.from_pandas(frame()).with_columns(large=polars.lit(1, polars.Int128))
    with pytest.raises(ValueError, match=r"^column 'large' must be of a type that pyarrow has, got Int128: cast it"):
        rc.tables.select(table, target="y", size=3)


@pytest.mark.parametrize("wrong", [{"target": 1}, {"target": 0}, {"ignore": [0]}, {"kinds": {0: "number"}}])
def test_columns_that_are_called_by_numbers_are_named_by_text(wrong: dict[str, Any]) -> None:
    table = pandas.DataFrame([[1, "a"], [2, "b"], [3, "a"]])
    for function, options in ((rc.tables.columns, {}), (rc.tables.select, {"size": 2})):
        with pytest.raises(ValueError, match=r"^(target|columns) must be named by text, got (0|1): pass '\2'$"):
            function(table, **{"target": "1", **options, **wrong})
        assert function(table, **{"target": "1", "kinds": {"0": "number"}, **options}) is not None


@pytest.mark.parametrize("wrong", [3, None, {"x": [1]}, [], [1, 2], pa.table({"x": []}), pandas.DataFrame({"x": []})])
def test_what_is_no_table_is_refused_in_one_sentence(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        rc.tables.select(wrong, target="x", size=3)


@pytest.mark.parametrize(
    ("label", "words", "followed", "shell"),
    [
        (
            ["a", "b", None, "b"],
            "pass reading=Reading(drop_missing_target=True) to leave",
            {"reading": rc.tables.Reading(drop_missing_target=True)},
            ["--drop-missing-target"],
        ),
        (
            ["2024-01-01", "2024-03-31"],
            "pass kinds={'the label': 'category'} or kinds",
            {"kinds": {"the label": "category"}},
            ["--as", "the label=category"],
        ),
    ],
)
def test_what_is_advised_is_in_the_words_of_who_asks_and_works(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    label: list[str | None],
    words: str,
    followed: dict[str, Any],
    shell: list[str],
) -> None:
    """Each sentence is written once; who follows it, in Python or in a shell, gets on."""
    table = pa.table({"x": [float(i % 7) for i in range(200)], "the label": label * (200 // len(label))})
    with pytest.raises(ValueError, match=re.escape(words)):
        rc.tables.select(table, "the label", 4)
    assert len(rc.tables.select(table, "the label", 4, **followed)) == 4
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    asked = ["select", tmp_path / "a.parquet", "--target", "the label", "--size", "4", "-o", tmp_path / "o.csv"]
    assert run(*asked) == 2
    assert f"pass {shlex.join(shell)} " in capsys.readouterr().err
    assert run(*asked, *shell) == 0


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([*map(str, arguments)])
    return int(stop.value.code or 0)


def test_options_are_named_in_one_place() -> None:
    """What a sentence advises is made by `option` and `command`; those who use Python cannot pass `--as`."""
    folder = Path(rc.tables.__file__).parent
    for path in {*folder.rglob("*.py")} - {folder / f"{name}.py" for name in ("commands", "options", "wording")}:
        assert not re.findall(r"--[a-z]+|run `recollect", path.read_text()), path


def test_a_batch_of_pyarrow_is_a_table() -> None:
    table = pa.table({"x": [float(i % 7) for i in range(60)], "y": ["a", "b"] * 30})
    [batch] = table.to_batches()
    assert rc.tables.select(batch, "y", 6).equals(rc.tables.select(table, "y", 6))
    assert rc.tables.columns(batch, "y") == rc.tables.columns(table, "y")
