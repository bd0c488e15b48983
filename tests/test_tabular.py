"""Tables in files: encoding, choosing, and a store that survives whatever happens to it."""

import csv
import datetime
import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from recollect.cli import main
from recollect.files import checksum, seal, unseal
from recollect.tables import (
    Settings,
    Store,
    export_table,
    find_files,
    fit_encoding,
    parse_bytes,
    pieces,
    select,
    select_rows,
    write_table,
)
from recollect.tables.conforming import conform
from recollect.tables.encoding import Drift
from recollect.tables.memory import TableMemory, Taken
from recollect.tables.saying import remarks, scarce
from recollect.tables.wording import in_shell


def make_table(n: int = 120, seed: int = 0, shift: float = 0.0) -> pa.Table:
    """Numbers with holes, categories, dates, a code and a target that depends on them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n) + shift
    color = rng.choice(["red", "green", "blue"], size=n)
    age = [None if hole else float(v) for v, hole in zip(rng.integers(18, 90, n), rng.random(n) < 0.1, strict=True)]
    day = np.datetime64("2024-01-01") + rng.integers(0, 365, n)
    label = ["yes" if value + (c == "red") > 0.3 else "no" for value, c in zip(x, color, strict=True)]
    return pa.table(
        {
            "x": x,
            "color": color,
            "age": age,
            "day": pa.array(day),
            "code": [f"0{i % 7}" for i in range(n)],
            "bought": label,
        }
    )


def save(table: pa.Table, path: Path) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **{name: table.column(name).to_numpy() for name in table.schema.names})
    else:
        with path.open("wb") as file:
            write_table(table, path, file)
    return path


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# Reading and encoding


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".ndjson", ".arrow"])
def test_every_format_is_encoded_alike(tmp_path: Path, suffix: str) -> None:
    table = make_table()
    expected = fit_encoding([table], "bought")
    path = save(table, tmp_path / f"rows{suffix}")
    found = fit_encoding(pieces(path), "bought")
    read = pa.concat_tables(pieces(path))
    kinds = {column.name: column.kind for column in found.columns}
    assert kinds == {"x": "number", "color": "category", "age": "number", "day": "date", "code": "category"}
    assert found.classes == ["no", "yes"]
    torch.testing.assert_close(found.features(read, Drift()), expected.features(table, Drift()), rtol=1e-4, atol=1e-4)
    assert torch.equal(found.targets(read, Drift()), expected.targets(table, Drift()))


def test_features_are_what_they_say(tmp_path: Path) -> None:
    """Against the plainest possible encoding, written out by hand."""
    table = pa.table({"a": [1.0, 2.0, None, 3.0], "c": ["u", "v", "u", None], "y": [0, 1, 0, 1]})
    encoding = fit_encoding([table.slice(0, 1), table.slice(1)], "y")  # pieces do not matter
    scale = np.std([1.0, 2.0, 3.0])
    expected = [[-1 / scale, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 1, 1, 0, 0], [1 / scale, 0, 0, 0, 0]]
    torch.testing.assert_close(encoding.features(table, Drift()), torch.tensor(expected, dtype=torch.float32))


def test_new_categories_and_ranges_are_handled_and_told() -> None:
    encoding = fit_encoding([make_table()], "bought")
    drift = Drift()
    later = make_table(shift=50.0).set_column(1, "color", pa.array(["mauve"] * 120))
    features = encoding.features(later, drift)
    assert torch.isfinite(features).all() and features.abs().max() < 10
    assert drift.new_categories == {"color": ["mauve"]}
    assert drift.outside["x"] > 0.9
    assert "mauve" in " ".join(drift.sentences()) and "x (100.0%)" in " ".join(drift.sentences())


@pytest.mark.parametrize(
    ("values", "task"),
    [
        ([0, 1, 2] * 40, "classification"),
        ([True, False] * 60, "classification"),
        (["a", "b"] * 60, "classification"),
        ([i / 7 for i in range(120)], "regression"),
        (list(range(120)), "regression"),
    ],
)
def test_the_task_is_inferred_from_the_target(values: list[Any], task: str) -> None:
    table = make_table().set_column(5, "bought", pa.array(values))
    assert fit_encoding([table], "bought").task == task
    assert fit_encoding([table], "bought", task="classification").task == "classification"


def test_a_code_with_leading_zeros_stays_as_it_is(tmp_path: Path) -> None:
    path = save(make_table(), tmp_path / "rows.csv")
    assert run("select", path, "--target", "bought", "--size", 20, "-o", tmp_path / "out.csv", "--quiet") == 0
    with path.open(newline="") as file:
        original = list(csv.DictReader(file))
    with (tmp_path / "out.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            assert float(row.pop("weight")) >= 0
            assert original[int(row.pop("row"))] == row


# Selecting


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".ndjson", ".arrow"])
def test_selected_rows_are_unchanged_and_weighted(tmp_path: Path, suffix: str) -> None:
    tables = [make_table(seed=0), make_table(70, seed=1)]
    for i, table in enumerate(tables):
        save(table, tmp_path / f"part{i}.parquet")
    output = tmp_path / f"out{suffix}"
    assert run("select", tmp_path / "part*.parquet", "--target", "bought", "--size", 25, "-o", output, "--quiet") == 0
    chosen = pa.concat_tables(pieces(output))
    assert 0 < chosen.num_rows <= 25
    if suffix in (".parquet", ".arrow"):
        rows = chosen.column("row").to_pylist()
        assert chosen.drop_columns(["row", "weight"]).equals(pa.concat_tables(tables).take(rows))
        assert 100 < sum(chosen.column("weight").to_pylist()) < 260


@pytest.mark.parametrize("memory", ["clustering", "recollect", "reservoir"])
def test_a_share_of_all_rows_chooses_as_their_number_does(tmp_path: Path, memory: str) -> None:
    files = [save(make_table(80, seed=i), tmp_path / f"{i}.parquet") for i in range(2)]
    chosen = []
    for size in ("24", "15%", "0.15", " 15.0 %"):
        output = tmp_path / "out.parquet"
        options = ["--target", "bought", "--size", size, "--memory", memory, "-o", output, "--quiet"]
        assert run("select", *files, *options) == 0
        chosen.append(output.read_bytes())
    assert len(set(chosen)) == 1 and pyarrow.parquet.read_table(output).num_rows == 24


@pytest.mark.parametrize("size", ["0%", "101%", "-5%", "1.5", "many", "", "0", "nan"])
def test_a_share_that_cannot_be_is_one_sentence(tmp_path: Path, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = save(make_table(), tmp_path / "rows.parquet"), tmp_path / "out.csv"
    assert run("select", path, "--target", "bought", f"--size={size}", "-o", output) == 2
    said = capsys.readouterr().err
    assert "size must be a whole number" in said and said.count("\n") == 1 and not output.exists()


def test_a_rate_is_told_of_many_rows_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n in (120, 10_000):
        path = save(make_table(n), tmp_path / "rows.parquet")
        options = ["--target", "bought", "--size", 9, "--memory", "reservoir", "-o", tmp_path / "o.csv"]
        assert run("select", path, *options) == 0
        assert ("rows per second" in capsys.readouterr().out) is (n == 10_000)


def test_regression_and_arrays_work(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    np.savez(tmp_path / "rows.npz", x=x, y=x @ [1.0, 2.0, 3.0])
    output = tmp_path / "out.parquet"
    assert run("select", tmp_path / "rows.npz", "--target", "y", "--size", 30, "-o", output, "--quiet") == 0
    assert pyarrow.parquet.read_table(output).schema.names == ["x_0", "x_1", "x_2", "y", "row", "weight"]


@pytest.mark.parametrize("memory", ["clustering", "recollect"])
def test_the_same_rows_are_chosen_whatever_the_format(tmp_path: Path, memory: str) -> None:
    chosen = []
    for suffix in (".parquet", ".csv", ".arrow"):
        path = save(make_table(), tmp_path / f"rows{suffix}")
        held, _ = select_rows(Settings("bought", 15, memory, seed=3), [path])
        chosen.append(held.memory.batch.ids)
    assert torch.equal(chosen[0], chosen[1]) and torch.equal(chosen[0], chosen[2])


def test_json_for_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(make_table(), tmp_path / "rows.parquet")
    run("select", path, "--target", "bought", "--size", 9, "-o", tmp_path / "o.csv", "--json")
    answer = json.loads(capsys.readouterr().out)
    assert answer["rows"] == 120 and answer["kept"] <= 9 and answer["task"] == "classification"
    run("init", tmp_path / "s", "--target", "bought", "--size", 9, "--json")
    run("update", tmp_path / "s", path, "--json")
    run("inspect", tmp_path / "s", "--json")
    made, updated, inspected = map(json.loads, capsys.readouterr().out.splitlines())
    assert made["size"] == 9 and updated[0]["taken"] and inspected["seen"] == 120


def test_a_network_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "my_networks.py").write_text(
        "from torch import nn\n\ndef small(features, outputs):\n    return nn.Linear(features, outputs)\n"
        "\ndef narrow(features, outputs):\n    return nn.Linear(features - 1, outputs)\n"
        "\ndef nothing(features, outputs):\n    return None\n"
    )
    monkeypatch.chdir(tmp_path)
    path = save(make_table(), tmp_path / "rows.parquet")
    own = ("--model", "my_networks:small")
    assert run("init", "s", "--target", "bought", "--size", 10, *own) == 0
    assert run("update", "s", path) == 2
    assert "pass it again" in capsys.readouterr().err
    assert run("update", "s", path, *own) == 0
    assert run("export", "s", "-o", "m.parquet") == 0  # reading executes nothing of the user's
    for bad in ("narrow", "nothing"):
        assert (
            run("select", path, "--target", "bought", "--size", 5, "-o", "o.csv", "--model", f"my_networks:{bad}") == 2
        )
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and ("examples of (16,)" in error or "torch.nn.Module" in error)
    for bad in ("my_networks", "nowhere:small", "my_networks:big", "os:sep"):
        assert run("init", "other", "--target", "bought", "--size", 10, "--model", bad) == 2
        assert not Path("other").exists()


# The store


def make_store(folder: Path, **settings: Any) -> Store:
    return Store.create(folder, Settings(**{"target": "bought", "size": 20, "memory": "recollect", **settings}))


@pytest.mark.parametrize("memory", ["recollect", "clustering", "reservoir", "class-balanced", "sliding-window"])
def test_a_store_takes_files_and_exports_rows_as_they_came(tmp_path: Path, memory: str) -> None:
    tables = [make_table(seed=i, shift=i) for i in range(3)]
    store = make_store(tmp_path / "s", memory=memory)
    for i, table in enumerate(tables):
        [done] = store.update([save(table, tmp_path / f"{i}.parquet")])
        assert done.seen == 120 * (i + 1)
    held = Store(tmp_path / "s").load()
    everything = pa.concat_tables(tables)
    assert held.rows.equals(everything.take(held.memory.batch.ids.numpy()))
    assert held.table().num_rows <= 20


def write_with_gaps(path: Path, first: int, rows: int = 300) -> Path:
    """Rows that know their places, some of them unreadable, without a target, or of a class that is one too many."""
    is_csv = path.suffix == ".csv"
    lines = ["x,place,y"] if is_csv else []
    for place in range(first, first + rows):
        x, y = place * place % 11 / 2, ["a", "b", "", "c", "a"][place * place % 5] if place >= 7 else "ab"[place % 2]
        good = f'{x},"{place}",{y}' if is_csv else json.dumps({"x": x, "place": str(place), "y": y or None})
        lines += [f"{x}" if place % 17 == 3 else good, *([""] if place % 50 == 0 else [])]  # a blank line is no row
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".ndjson"])
def test_places_of_rows_are_those_in_the_files_whatever_was_left_out(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recollect.tables.reading.records.BLOCK_BYTES", 1000)
    monkeypatch.setattr("recollect.tables.reading.delimited.block_bytes", lambda columns: 1000)
    files = [write_with_gaps(tmp_path / f"{i}{suffix}", 300 * i) for i in range(3)]
    leaving = ["--target", "y", "--size", 50, "--drop-missing-target", "--skip-bad-rows", "--as", "place=ignored"]
    output = tmp_path / "out.parquet"
    assert run("select", *files, *leaving, "--memory", "reservoir", "-o", output, "--quiet") == 0
    chosen = pyarrow.parquet.read_table(output)
    assert chosen.column("row").to_pylist() == [int(place) for place in chosen.column("place").to_pylist()]
    assert run("init", tmp_path / "s", *leaving, "--memory", "reservoir", "--classes", 2, "--quiet") == 0
    for file in files:
        assert run("update", tmp_path / "s", file, "--quiet") == 0
    assert run("export", tmp_path / "s", "-o", output, "--quiet") == 0
    exported = pyarrow.parquet.read_table(output)
    assert set(exported.column("y").to_pylist()) == {"a", "b"} and exported.column("row")[-1].as_py() > 600
    assert exported.column("row").to_pylist() == [int(place) for place in exported.column("place").to_pylist()]


def test_a_store_from_before_places_were_kept_still_opens(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s")
    store.update([save(make_table(), tmp_path / "a.parquet")])
    rows, generation = store.load().rows, store.generation(1)
    write_rows(generation, rows)
    held = store.load()
    assert held.rows.equals(rows) and held.places.tolist() == held.memory.batch.ids.tolist()
    for wrong in (pa.array([None] * 20, pa.int64()), pa.array(["a"] * 20)):
        write_rows(generation, rows.append_column("row", wrong))
        with pytest.raises(ValueError, match="must hold a state, rows and a memory that fit together"):
            store.load()


def write_rows(generation: Path, rows: pa.Table) -> None:
    """Other rows in a generation, with all checksums."""
    save(rows, generation / "rows.arrow")
    state = unseal((generation / "state.json").read_bytes(), "it")
    state["rows"] = checksum((generation / "rows.arrow").read_bytes())
    (generation / "state.json").write_bytes(seal(state))
    pointer = unseal((generation.parent / "current.json").read_bytes(), "it")
    pointer["state"] = checksum((generation / "state.json").read_bytes())
    (generation.parent / "current.json").write_bytes(seal(pointer))


def test_an_update_is_refused_if_the_store_was_given_other_settings_since_it_was_opened(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s")
    path = save(make_table(), tmp_path / "a.parquet")
    Store(tmp_path / "s").change(replace(store.settings, size=30))
    with pytest.raises(ValueError, match="must stay as they are once it is open, but somebody gave it others: open it"):
        store.update([path])
    assert Store(tmp_path / "s").update([path])[0].kept == 30
    assert Store(tmp_path / "s").load().memory.capacity == 30
    with pytest.raises(ValueError, match=r"a store is a folder, got the file '.*a.parquet': name the store first"):
        Store(path)


def test_a_file_is_not_counted_twice_unless_forced(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s")
    path = save(make_table(), tmp_path / "monday.parquet")
    copy = save(make_table(), tmp_path / "copy of monday.parquet")
    assert store.update([path])[0].taken is not None
    before = files_of(tmp_path / "s")
    assert store.update([path, copy])[1].taken is None
    assert files_of(tmp_path / "s") == before
    assert store.update([path], force=True)[0].seen == 240


def test_a_file_that_is_packed_later_is_not_counted_twice(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", memory="reservoir")
    content = save(make_table(), tmp_path / "day.csv").read_bytes()
    for i in range(2):
        (tmp_path / f"{i}.csv.gz").write_bytes(gzip.compress(content, mtime=i))
    with zipfile.ZipFile(tmp_path / "day.zip", "w") as archive:
        archive.writestr("day.csv", content)
    done = store.update([tmp_path / "0.csv.gz", tmp_path / "1.csv.gz", tmp_path / "day.zip", tmp_path / "day.csv"])
    assert [one.taken is None for one in done] == [False, True, True, True]
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(content + b"9" * 99)[:-9])
    with pytest.raises(ValueError, match=r"cut.csv.gz' must be a readable (gzip file|table)"):
        store.update([tmp_path / "cut.csv.gz"])


def test_a_store_takes_one_path_or_several_from_python_and_no_frame(tmp_path: Path) -> None:
    table = make_table()
    path = save(table, tmp_path / "a.parquet")
    store = Store.create(tmp_path / "store", Settings("bought", 10, "reservoir"))
    for i, files in enumerate((path, str(path), [path], (str(path) for _ in range(1)))):
        [done] = store.update(files, force=True)
        assert done.seen == 120 * (i + 1)
    for wrong in (table, [table], table.to_pandas(), 3, None):
        with pytest.raises(ValueError, match=r"^a store must be given paths of files, got a \w+: write it to a file"):
            store.update(wrong)  # type: ignore[arg-type]
    assert store.number() == 4


def test_updates_in_pieces_or_at_once_give_the_same_store(tmp_path: Path) -> None:
    paths = [save(make_table(seed=i), tmp_path / f"{i}.parquet") for i in range(3)]
    one, many = make_store(tmp_path / "one"), make_store(tmp_path / "many")
    one.update(paths)
    for path in paths:
        Store(tmp_path / "many").update([path])
    assert one.load().table().equals(many.load().table())


def test_new_classes_find_room_until_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = make_table()
    store = make_store(tmp_path / "s", classes=3)
    store.update([save(table, tmp_path / "a.parquet")])
    maybe = table.set_column(5, "bought", pa.array(["maybe"] * 120))
    [done] = store.update([save(maybe, tmp_path / "b.parquet")])
    assert done.taken is not None and done.taken.drift.new_classes == ["maybe"]
    before = files_of(tmp_path / "s")
    never = save(table.set_column(5, "bought", pa.array(["never"] * 120)), tmp_path / "c.parquet")
    assert run("update", tmp_path / "s", never) == 2
    assert "room for 3 classes, got 4" in capsys.readouterr().err
    assert files_of(tmp_path / "s") == before


def test_room_for_more_classes_than_there_can_be_is_refused_and_older_stores_with_it_are_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make_store(tmp_path / "s", classes=1000)
    for command in (("init", tmp_path / "t", "--target", "y", "--size", "3"), ("set", tmp_path / "s")):
        assert run(*command, "--classes", "1001") == 2
        assert "classes must be at most 1000, got 1001" in one_line(capsys)
    assert not (tmp_path / "t").exists()
    rewrite(tmp_path / "s" / "store.json", settings=replace(store.settings, classes=5000).as_data())
    store = Store(tmp_path / "s")
    [done] = store.update(save(make_table(), tmp_path / "a.parquet"))
    assert done.seen == 120 and store.settings.classes == 5000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["color"]), "'color'"),
        (lambda t: t.append_column("extra", pa.array([1] * 120)), "'extra'"),
        (lambda t: t.set_column(0, "x", pa.array(["word"] * 120)), "'x'"),
        (lambda t: t.set_column(5, "bought", pa.array([None] * 120, pa.string())), "'bought'"),
    ],
)
def test_another_schema_is_refused_with_the_column_named(
    tmp_path: Path, change: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make_store(tmp_path / "s")
    store.update([save(make_table(), tmp_path / "a.parquet")])
    before = files_of(tmp_path / "s")
    assert run("update", tmp_path / "s", save(change(make_table(seed=1)), tmp_path / "b.parquet")) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert files_of(tmp_path / "s") == before


def coded(values: list[str], index: pa.DataType) -> pa.DictionaryArray:
    found = pa.array(values).dictionary_encode()
    return pa.DictionaryArray.from_arrays(found.indices.cast(index), found.dictionary)


@pytest.mark.parametrize("index", [pa.int8(), pa.int32()])
def test_a_store_holds_no_values_of_rows_that_are_gone(tmp_path: Path, index: pa.DataType) -> None:
    store = make_store(tmp_path / "s", memory="sliding-window")
    for day in range(3):
        values = [f"address {i} of day {day}" for i in range(120)]
        table = make_table(seed=day).append_column("address", coded(values, index))
        nested = pa.StructArray.from_arrays([coded(values, index)], ["address"])
        store.update([save(table.append_column("nested", nested), tmp_path / f"{day}.arrow")])
    held, last = store.load(), values[-20:]
    assert held.rows.column("address").combine_chunks().dictionary.to_pylist() == last
    assert [row["address"] for row in held.rows.column("nested").to_pylist()] == last
    content = (store.generation(3) / "rows.arrow").read_bytes()
    assert b"day 2" in content and b"day 1" not in content and b"address 7 of" not in content
    export_table(held, tmp_path / "out.parquet")
    exported = pyarrow.parquet.read_table(tmp_path / "out.parquet").column("address")
    assert exported.type == pa.dictionary(pa.int32(), pa.string()) and exported.to_pylist() == last


def test_whole_numbers_of_more_digits_than_a_float_beside_fractions_stay_text(tmp_path: Path) -> None:
    rows = [f"{2**53 + 1},1.5,{'ab'[i % 2]}" for i in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(["n,m,y", *rows, "0.5,2,a"]))
    held, _ = select_rows(Settings("y", 30, "reservoir"), [tmp_path / "a.csv"])
    export_table(held, tmp_path / "o.parquet")
    found = pyarrow.parquet.read_table(tmp_path / "o.parquet")
    assert found.column("n").to_pylist() == [str(2**53 + 1)] * 20 + ["0.5"]
    assert found.column("m").to_pylist() == [1.5] * 20 + [2.0]


def test_an_ordered_scale_stays_whole(tmp_path: Path) -> None:
    scale = pa.array(["low", "middle", "high"])
    store = make_store(tmp_path / "s")
    for seed, step in enumerate((0, 1)):
        steps = pa.DictionaryArray.from_arrays(pa.array([step, 2] * 60, pa.int8()), scale, ordered=True)
        store.update([save(make_table(seed=seed).append_column("step", steps), tmp_path / f"{seed}.arrow")])
    found = store.load().rows.column("step").combine_chunks()
    assert found.type.ordered and found.dictionary.equals(scale)


MORNING, TWO = datetime.datetime(2024, 1, 1, 10), pa.struct({"a": pa.int64(), "b": pa.int64()})
ONE, OTHER = pa.struct({"a": pa.int64()}), pa.struct({"z": pa.int64()})


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        ([100000000.142], pa.float64(), pa.float32()),
        ([0, 1, 2], pa.int64(), pa.bool_()),
        ([True], pa.bool_(), pa.int64()),
        ([MORNING], pa.timestamp("us"), pa.date32()),
        ([MORNING], pa.timestamp("us"), pa.time64("us")),
        ([MORNING], pa.timestamp("us"), pa.timestamp("us", "UTC")),
        ([MORNING], pa.timestamp("us", "UTC"), pa.timestamp("us")),
        ([1], pa.int64(), pa.timestamp("s")),
        ([1], pa.duration("s"), pa.int64()),
        ([1.005], pa.float64(), pa.decimal128(10, 2)),
        ([Decimal("12345678901234567.8")], pa.decimal128(38, 1), pa.float64()),
        ([2**53 + 1], pa.int64(), pa.float64()),
        ([{"a": 1, "b": 2}], TWO, ONE),
        ([{"z": 1}], OTHER, ONE),
        ([[0, 1]], pa.list_(pa.int64()), pa.list_(pa.bool_())),
        (["007"], pa.string(), pa.int64()),
        (["9007199254740993"], pa.string(), pa.float64()),
    ],
)
def test_a_type_that_would_change_values_is_refused_with_the_column_named(
    values: list[Any], kind: pa.DataType, wanted: pa.DataType
) -> None:
    piece, schema = pa.table({"c": pa.array(values, kind)}), pa.schema({"c": wanted})
    with pytest.raises(ValueError, match=r"'c' of 'b' must be .* as in the first file, got .*: pass ignore=\['c'\]"):
        conform(piece, schema, "b", ())


@pytest.mark.parametrize(
    ("values", "kind", "wanted", "expected"),
    [
        ([0.5, None], pa.float64(), pa.float32(), [0.5, None]),
        ([1, None], pa.int64(), pa.int8(), [1, None]),
        ([1.0], pa.float64(), pa.int64(), [1]),
        ([2**53], pa.int64(), pa.float64(), [2.0**53]),
        ([None], pa.null(), pa.list_(pa.int64()), [None]),
        (["a", None], pa.large_string(), pa.dictionary(pa.int8(), pa.string()), ["a", None]),
        ([MORNING], pa.timestamp("s", "UTC"), pa.timestamp("us", "UTC"), [MORNING.replace(tzinfo=datetime.UTC)]),
        ([MORNING], pa.timestamp("us"), pa.string(), ["2024-01-01 10:00:00.000000"]),
        (["3.50", "1e3", None], pa.string(), pa.float64(), [3.5, 1000.0, None]),
        ([Decimal("2848.49"), None], pa.decimal128(12, 2), pa.float64(), [2848.49, None]),
        ([{"a": 1}, None], ONE, TWO, [{"a": 1, "b": None}, None]),
        ([[1], None], pa.list_(pa.int64()), pa.large_list(pa.float64()), [[1.0], None]),
    ],
)
def test_a_type_that_changes_no_value_is_taken(
    values: list[Any], kind: pa.DataType, wanted: pa.DataType, expected: list[Any]
) -> None:
    found = conform(pa.table({"c": pa.array(values, kind)}), pa.schema({"c": wanted}), "b")
    assert found.schema.field("c").type == wanted and found.column("c").to_pylist() == expected


def test_values_that_are_no_numbers_are_the_same_in_a_narrower_type() -> None:
    piece = pa.table({"c": [0.5, float("nan")], "l": [[float("nan")], None]})
    schema = pa.schema({"c": pa.float32(), "l": pa.list_(pa.float32())})
    assert str(conform(piece, schema, "b", ()).to_pylist()) == str(piece.to_pylist())


@pytest.mark.parametrize("command", ["select", "update"])
def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, store = save(make_table(), tmp_path / "rows.csv"), make_store(tmp_path / "s")
    take = TableMemory.take

    def grow_and_take(self: TableMemory, *arguments: Any) -> Taken:
        with path.open("a") as file:  # after the columns were looked at
            file.write(path.read_text().splitlines()[-1] + "\n")
        return take(self, *arguments)

    monkeypatch.setattr(TableMemory, "take", grow_and_take)
    output = tmp_path / "out.csv"
    options = ["--target", "bought", "--size", 20, "-o", output, "--quiet"] if command == "select" else []
    assert run(command, *([store.folder] if command == "update" else []), path, *options) == 2
    assert "rows.csv' must not change while it is read, but it did: start again" in one_line(capsys)
    assert not output.exists() and store.number() == 0


def write_prices(path: Path, price: float, note: str | None) -> Path:
    rows = [
        {"x": i % 7 / 2, "price": i % 5 + price, "note": note, "in": {"a": [note]}, "y": "ab"[i % 2]} for i in range(60)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_types_that_the_first_json_did_not_tell_are_told_by_a_later_one(tmp_path: Path, order: tuple[int, int]) -> None:
    both = [write_prices(tmp_path / "0.ndjson", 1, None), write_prices(tmp_path / "1.ndjson", 0.5, "new")]
    files = [both[i] for i in order]
    kinds = [pa.float64(), pa.float64(), pa.string(), pa.struct({"a": pa.list_(pa.string())}), pa.string()]
    everything = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    store = Store.create(tmp_path / "s", Settings("y", 120, memory="sliding-window"))
    store.update(files)
    assert store.load().rows.schema.types == kinds and store.load().rows.to_pylist() == everything
    held, _ = select_rows(store.settings, files)
    assert held.rows.schema.types == kinds and held.rows.to_pylist() == everything
    before = files_of(store.folder)
    large = write_prices(tmp_path / "2.ndjson", 2**60 + 1, None)
    with pytest.raises(
        ValueError, match=r"column 'price' of .*2.ndjson' must be double as in the first file, got int64"
    ):
        store.update([large])
    assert files_of(store.folder) == before
    other = Store.create(tmp_path / "t", store.settings)
    other.update([large])
    with pytest.raises(
        ValueError, match=r"column 'price' of .*1.ndjson' must be int64 as in the first file, got double"
    ):
        other.update([both[1]])


def test_whole_numbers_of_a_typed_file_stay_such(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s", Settings("y", 5, memory="reservoir"))
    whole, broken = ({"x": [i + part for i in NUMBERS], "y": ["a", "b"] * 30} for part in (0, 0.5))
    store.update([save(pa.table(whole), tmp_path / "a.parquet")])
    with pytest.raises(ValueError, match=r"column 'x' of .* must be int64 as in the first file, got double"):
        store.update([save(pa.table(broken), tmp_path / "b.parquet")])


def test_a_second_update_waits_or_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path / "s")
    path = save(make_table(), tmp_path / "a.parquet")
    with store._locked(True, print):
        assert run("update", tmp_path / "s", path, "--no-wait") == 2
        assert "one is running" in capsys.readouterr().err
    assert run("update", tmp_path / "s", path, "--no-wait") == 0


def rewrite(path: Path, **changes: Any) -> None:
    """Change a sealed document and seal it again, as somebody would who knows how."""
    path.write_bytes(seal(unseal(path.read_bytes(), "it") | changes))


def rebind(folder: Path) -> None:
    """Let current.json hold the checksum of the state as it is now."""
    number = unseal((folder / "current.json").read_bytes(), "it")["number"]
    rewrite(folder / "current.json", state=checksum((Store(folder).generation(number) / "state.json").read_bytes()))


def two_files(folder: Path, **settings: Any) -> Store:
    """A store that has taken two files."""
    store = make_store(folder / "s", **settings)
    for i in range(2):
        store.update([save(make_table(60, seed=i), folder / f"{i}.parquet")])
    return store


def test_damaged_stores_are_refused_and_nothing_leads_out_of_the_folder(tmp_path: Path) -> None:
    folder = two_files(tmp_path).folder
    generation = "generation-000002"
    state = unseal((folder / generation / "state.json").read_bytes(), "it")
    for name, content, message in [
        ("current.json", seal({"number": 2, "state": None}), "must point at its latest generation"),
        ("current.json", seal({"number": "../../2", "state": "0"}), "a whole number at number"),
        ("current.json", b"{", "checksum says otherwise"),
        (f"{generation}/rows.arrow", b"ARROW1", "content it was saved with"),
        (f"{generation}/state.json", b"[]", "content it was saved with"),
        (f"{generation}/state.json", seal(state | {"outputs": 17}), "content it was saved with"),
        ("store.json", seal({"format": "recollect store", "version": 99}), "version 3, got 99: update recollect"),
        ("store.json", b'{\n  "format": "recollect store",\n  "version": 1,\n', "an older recollect wrote"),
        ("store.json", seal({"format": "recollect store", "version": 3, "settings": {"target": 1}}), "settings"),
    ]:
        path = folder / name
        good = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            Store(folder).load()
        path.write_bytes(good)
    assert Store(folder).load().memory.seen == 120


def test_a_store_that_lost_its_pointer_is_not_an_empty_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = two_files(tmp_path).folder
    rows = Store(folder).load().table()
    for lost in (["current.json"], ["latest.json"], ["current.json", "latest.json"], ["store.json"]):
        for name in lost:
            (folder / name).unlink()
        before = files_of(folder)
        for command in (("update", folder, tmp_path / "0.parquet"), ("inspect", folder)):
            assert run(*command) == 2
            assert capsys.readouterr().err.count("\n") == 1
        assert files_of(folder) == before
        assert run("recover", folder) == 0
        assert "goes on from generation 2: 20 rows kept of 120 seen in 2 files" in capsys.readouterr().out
        assert Store(folder).load().table().equals(rows)
    assert run("recover", folder) == 0
    assert "was whole, nothing was changed" in capsys.readouterr().out
    assert run("update", folder, tmp_path / "0.parquet") == 0
    assert "taken before" in capsys.readouterr().out
    make_store(tmp_path / "new")
    (tmp_path / "new" / "current.json").unlink()
    assert run("update", tmp_path / "new", tmp_path / "0.parquet") == 2  # not even when nothing was taken yet


def test_recovering_goes_back_to_the_newest_generation_that_is_whole(tmp_path: Path, capsys: Any) -> None:
    folder = two_files(tmp_path).folder
    (folder / "generation-000002" / "rows.arrow").write_bytes(b"ARROW1")
    assert run("recover", folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["number"] == 1
    assert Store(folder).load().memory.seen == 60
    assert Store(folder).update([tmp_path / "1.parquet"])[0].seen == 120
    for path in folder.glob("generation-*/state.json"):
        path.unlink()
    before = files_of(folder)
    assert run("recover", folder) == 2
    assert "must hold a whole generation, got none" in capsys.readouterr().err
    assert run("recover", tmp_path) == 2
    assert files_of(folder) == before and not (tmp_path / "lock").exists()


def test_a_pointer_that_was_set_back_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = two_files(tmp_path).folder
    old = seal({"number": 1, "state": checksum((folder / "generation-000001" / "state.json").read_bytes())})
    (folder / "current.json").write_bytes(old)
    before = files_of(folder)
    assert run("update", folder, tmp_path / "1.parquet") == 2
    assert "must point at its latest generation, 2, got 1" in capsys.readouterr().err
    assert files_of(folder) == before
    (folder / "latest.json").write_bytes(seal({"number": 1}))  # a crash before naming looks like this: it is no fault
    assert Store(folder).load().memory.seen == 60


def test_a_state_that_still_parses_is_noticed_when_it_was_edited(tmp_path: Path) -> None:
    """Also by somebody who mends all checksums, where the parts no longer fit one another."""
    folder = two_files(tmp_path).folder
    path = folder / "generation-000002" / "state.json"
    state, good = unseal(path.read_bytes(), "it"), files_of(folder)
    encoding = state["encoding"]
    for changes in (
        {"files": state["files"][:1]},
        {"files": [state["files"][0], state["files"][1] | {"first": 7}]},
        {"encoding": encoding | {"columns": encoding["columns"][1:]}},
        {"encoding": encoding | {"classes": encoding["classes"][:1]}},
        {"encoding": encoding | {"target": "color"}},
        {"encoding": encoding | {"task": "regression"}},
        {"outputs": 1},
        {"number": 1},
        {"settings": state["settings"] | {"size": 21}},
    ):
        rewrite(path, **changes)
        with pytest.raises(ValueError, match="content it was saved with"):
            Store(folder).load()
        rebind(folder)
        with pytest.raises(ValueError, match=r"^[^\n]*$"):
            Store(folder).load()
        for name, content in good.items():
            (folder / name).write_bytes(content)


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = two_files(tmp_path).folder
    (folder / "lock").unlink()
    (folder / "lock").symlink_to(tmp_path / "outside")
    assert run("update", folder, tmp_path / "0.parquet") == 2
    assert "a lock must be a plain file, got the link" in capsys.readouterr().err
    assert not (tmp_path / "outside").exists()


def test_a_generation_is_on_disk_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path / "s")
    synced: list[int] = []
    sync, replaced = os.fsync, Path.replace

    def recording(handle: int) -> None:
        synced.append(os.fstat(handle).st_ino)
        sync(handle)

    def checked(self: Path, target: Path) -> Path:
        if target.name == "current.json":
            new = store.generation(1)
            assert {path.stat().st_ino for path in (store.folder, new, new / "memory")} <= set(synced)
        return replaced(self, target)

    monkeypatch.setattr(os, "fsync", recording)
    monkeypatch.setattr(Path, "replace", checked)
    store.update([save(make_table(), tmp_path / "a.parquet")])
    assert synced[-1] == store.folder.stat().st_ino


def test_a_reader_that_updates_leave_behind_reads_the_new_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = two_files(tmp_path, memory="reservoir")
    paths = [save(make_table(60, seed=i), tmp_path / f"{i}.parquet") for i in range(2, 4)]
    held = Store._held

    def late(self: Store, *arguments: Any) -> Any:
        if paths:
            monkeypatch.setattr(Store, "_held", held)
            store.update([paths.pop(), paths.pop()])  # which removes what is about to be read
        return held(self, *arguments)

    monkeypatch.setattr(Store, "_held", late)
    assert Store(tmp_path / "s").load().memory.seen == 240


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting a small disk needs root on Linux")
def test_a_full_disk_ends_an_update_in_one_sentence_and_leaves_the_store_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        rows = "".join(f"{i},{'yes' if i % 3 else 'no'}\n" for i in range(3000))
        (tmp_path / "some.csv").write_text("x,label\n" + rows)
        store = ["init", str(disk / "store"), "--target", "label", "--size", "2000", "--memory", "reservoir"]
        for arguments, code in ((store, 0), (["update", str(disk / "store"), str(tmp_path / "some.csv")], 2)):
            with pytest.raises(SystemExit) as caught:
                main(arguments)
            assert caught.value.code == code
        no_room = "there must be room on the disk, got no more: free some and try again"
        assert capsys.readouterr().err == f"recollect: {no_room}; the store is as it was before this file\n"
        assert not list((disk / "store").glob("generation-*"))
        assert run("inspect", disk / "store") == 0
        assert "0 rows" in capsys.readouterr().out
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of files are those of Linux")
def test_a_limit_on_files_ends_an_export_in_one_sentence(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", memory="reservoir", size=2000)
    store.update([save(make_table(2000), tmp_path / "a.parquet")])
    command = f"ulimit -f 8; exec {sys.executable} -m recollect export {tmp_path / 's'} -o {tmp_path / 'out.csv'}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 2 and not (tmp_path / "out.csv").exists()
    assert done.stderr.startswith("recollect: there must be room for files so large") and done.stderr.count("\n") == 1


def test_a_killed_init_can_be_repeated(tmp_path: Path) -> None:
    make_store(tmp_path / "s")
    (tmp_path / "s" / "store.json").unlink()
    make_store(tmp_path / "s").update([save(make_table(), tmp_path / "a.parquet")])
    (tmp_path / "s" / "store.json").unlink()
    with pytest.raises(ValueError, match="must be new or have taken in nothing"):
        make_store(tmp_path / "s")


def test_inspect_tells_by_class_and_by_file_and_escapes_names(tmp_path: Path, capsys: Any) -> None:
    evil = '<img src=x onerror="alert(1)">'
    table = make_table().set_column(5, "bought", pa.array([evil, "[bold]no"] * 60))
    make_store(tmp_path / "s").update([save(table, tmp_path / "<b>monday$.parquet")])
    assert run("inspect", tmp_path / "s", "--html", tmp_path / "page.html") == 0
    told = capsys.readouterr().out
    assert "[bold]no" in told and "120" in told
    page = (tmp_path / "page.html").read_text()
    assert evil not in page and "&lt;img" in page and "<b>monday" not in page
    assert "http" not in page.replace("data:image", "")


def test_an_empty_store_can_be_inspected_and_says_what_to_do(tmp_path: Path, capsys: Any) -> None:
    make_store(tmp_path / "s")
    assert run("inspect", tmp_path / "s", "--html", tmp_path / "page.html") == 0
    assert run("export", tmp_path / "s", "-o", tmp_path / "m.csv") == 2
    assert "recollect update" in capsys.readouterr().err
    assert run("init", tmp_path / "s", "--target", "bought", "--size", 5) == 0
    assert Store(tmp_path / "s").settings.size == 5


def test_files_larger_than_the_limit_are_taken_in_blocks_that_do_not_depend_on_the_format(tmp_path: Path) -> None:
    settings = Settings("bought", 20, memory="recollect", memory_limit=parse_bytes("720MB"))
    block = settings.block_rows("classification", 2)
    table = make_table(2 * block + 100)
    chosen = []
    for suffix in (".parquet", ".csv"):
        held, taken = select_rows(settings, [save(table, tmp_path / f"rows{suffix}")])
        chosen.append(held.memory.batch.ids)
        assert held.memory.seen == taken.rows == len(table)
    assert torch.equal(chosen[0], chosen[1])
    assert len({int(i) // block for i in chosen[0]}) > 1


def test_limits_are_read_as_people_write_them() -> None:
    assert parse_bytes("1.5GB") == 1_500_000_000 and parse_bytes("2 GiB") == 2**31 and parse_bytes("10") == 10
    for bad in ("", "much", "1XB", "-1GB"):
        with pytest.raises(ValueError, match="memory limit"):
            parse_bytes(bad)
    with pytest.raises(ValueError, match=r"^keeping 5000 rows by gradient matching needs a memory limit of at least"):
        Settings("y", 5000, memory="recollect", memory_limit=10**9)


def test_a_quantity_that_needs_more_than_the_limit_is_refused_when_it_is_known_to_be_one(tmp_path: Path) -> None:
    """Gradients of classes are two short factors, those of quantities many numbers."""
    table = make_table()
    store = make_store(tmp_path / "s", size=1000, memory="recollect", memory_limit=10**9)
    store.update([save(table, tmp_path / "classes.parquet")])
    quantity = table.set_column(5, "bought", pa.array([i + 0.5 for i in range(len(table))]))
    other = make_store(tmp_path / "t", size=1000, memory="recollect", memory_limit=10**9)
    with pytest.raises(
        ValueError, match=r"^keeping 1000 rows by gradient matching needs a memory limit of at least 1.5GB"
    ):
        other.update([save(quantity, tmp_path / "quantity.parquet")])
    with pytest.raises(ValueError, match=r"needs a memory limit of at least 1\.5GB"):
        Settings("y", 1000, memory="recollect", task="regression", memory_limit=10**9)


# Whatever people feed it


def broken_files(folder: Path) -> dict[str, Path]:
    """Files that cannot be taken in, by what is wrong with them."""
    good = make_table()

    def written(name: str, content: bytes) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    parquet = save(good, folder / "good.parquet").read_bytes()
    arrow = save(good, folder / "good.arrow").read_bytes()
    whole = {
        "all null": good.set_column(0, "x", pa.nulls(120)).select(["x", "bought"]),
        "one class": good.set_column(5, "bought", pa.array(["yes"] * 120)),
        "10,000 classes": pa.table({"x": range(10_000), "bought": [f"c{i}" for i in range(10_000)]}),
        "no rows": good.slice(0, 0),
        "no target": good.drop_columns(["bought"]),
        "target with holes": good.set_column(5, "bought", pa.array(["a", None, "b"] * 40)),
        "constant": pa.table({"x": [1.0] * 120, "bought": ["yes", "no"] * 60}),
    }
    return {
        **{why: save(table, folder / f"{why}.parquet") for why, table in whole.items()},
        "truncated parquet": written("t.parquet", parquet[: len(parquet) // 2]),
        "truncated arrow": written("t.arrow", arrow[: len(arrow) // 2]),
        "not parquet": written("n.parquet", b"PAR1 it says"),
        "empty csv": written("e.csv", b""),
        "empty parquet": written("e.parquet", b""),
        "header alone": written("h.csv", b"x,bought\n"),
        "ragged csv": written("r.csv", b"x,bought\n1,a\n2,b,c\n3\n"),
        "zeros": written("z.csv", b"\0" * 500),
        "same name twice": written("d.csv", b"x,x,bought\n1,2,a\n2,3,b\n"),
        "broken ndjson": written("b.ndjson", b'{"x": 1, "bought": "a"}\n{"x": \n'),
        "mixed ndjson": written("m.ndjson", b'{"x": 1, "bought": "a"}\n{"x": "word", "bought": "b"}\n'),
        "not npz": written("p.npz", b"PK\x03\x04 not really"),
        "unknown ending": written("rows.xlsx", b"PK"),
        "a pickle": _pickled(folder / "o.npz"),
    }


def _pickled(path: Path) -> Path:
    np.savez(path, x=np.array([{"a": 1}, None], dtype=object), bought=np.array([0, 1]))
    return path


def test_broken_files_get_exit_code_2_and_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "files").mkdir()
    store = tmp_path / "s"
    make_store(store)
    for why, path in broken_files(tmp_path / "files").items():
        for arguments in (
            ("select", path, "--target", "bought", "--size", 5, "-o", tmp_path / "out.parquet"),
            ("update", store, path),
        ):
            assert run(*arguments) == 2, why
            error = capsys.readouterr().err
            assert error.startswith("recollect: ") and error.count("\n") == 1 and len(error) < 700, (why, error)
            assert "Traceback" not in error
    assert not (tmp_path / "out.parquet").exists()
    assert sorted(p.name for p in store.iterdir()) == ["current.json", "latest.json", "lock", "store.json"]


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Cut off, overwritten here and there, or with something put in between."""
    data, kind = bytearray(content), chance.randrange(3)
    if kind == 0:
        return bytes(data[: chance.randrange(len(data))])
    if kind == 1:
        for _ in range(chance.randrange(1, 20)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    else:
        place = chance.randrange(len(data))
        data[place:place] = chance.randbytes(chance.randrange(50))
    return bytes(data)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".ndjson", ".arrow", ".npz"])
def test_damaged_files_are_read_or_refused_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    table = make_table(60).select(["x", "age"]).set_column(1, "bought", pa.array([0, 1] * 30))
    content = save(table if suffix == ".npz" else make_table(60), tmp_path / f"good{suffix}").read_bytes()
    chance = random.Random(0)
    path = tmp_path / f"bad{suffix}"
    refused = 0
    for _ in range(100):
        path.write_bytes(damaged(content, chance))
        try:
            encoding = fit_encoding(pieces(path), "bought")
            read = pa.concat_tables(pieces(path))
            encoding.features(read, Drift())
            encoding.targets(read, Drift())
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 10


def test_brackets_within_brackets_do_not_end_the_process(tmp_path: Path) -> None:
    good = b'{"x": 1, "note": "[[[[ \\" [[[[", "bought": "a"}\n'
    for name, content in {
        "one line": b'{"x": ' + b"[" * 20_000 + b"]" * 20_000 + b', "bought": "a"}\n',
        "many lines": good + b'{"x":\n' * 20_000,
        "after a stray quote": good + b'{"x": "\n' + b"[" * 20_000,
        "closed too often": b"]" * 30_000 + b"\n" + b'{"a":' * 20_000,
        "far away": good * 100_000 + b'{"a":' * 20_000,
    }.items():
        path = tmp_path / "deep.ndjson"
        path.write_bytes(content)
        with pytest.raises(ValueError, match="must hold plain objects, got brackets 100 deep and more"):
            list(pieces(path))
        assert name
    path.write_bytes(good * 1000 + b'{"x": 2, "note": "' + b"[" * 1000 + b'", "bought": "b"}\n')
    assert sum(piece.num_rows for piece in pieces(path)) == 1001


def test_a_stray_quote_and_many_columns_cost_no_more_than_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b'x,"bought\n' + b"1,a\n" * 2_000_000)
    start = time.process_time()
    with pytest.raises(ValueError, match="is a quote open"):
        list(pieces(path))
    names = [f"column {i}" for i in range(20_000)]
    path.write_text(",".join(names) + "\n" + ("1," * 19_999 + "1\n") * 3)
    [piece] = list(pieces(path))
    backwards = piece.select(names[::-1])
    assert conform(backwards, piece.schema, path).equals(piece)
    assert time.process_time() - start < 20  # before, this took minutes


ROWS = 60
NUMBERS = [i % 7 for i in range(ROWS)]
DIGITS = [str(i) for i in NUMBERS]


def unusual_columns() -> dict[str, Any]:
    """Types that tables seldom have, and numbers that few expect."""
    kinds = {
        "half": pa.array(np.array(NUMBERS, np.float16)),
        "binary": pa.array([text.encode() for text in DIGITS]),
        "fixed": pa.array([f"{i:04d}".encode() for i in NUMBERS], pa.binary(4)),
        "decimal": pa.array([Decimal(i) / 4 for i in NUMBERS]),
        "large decimal": pa.array([Decimal(10) ** 70 + i for i in NUMBERS], pa.decimal256(76, 0)),
        "time": pa.array(NUMBERS, pa.time32("s")),
        "fine time": pa.array(NUMBERS, pa.time64("ns")),
        "duration": pa.array(NUMBERS, pa.duration("ms")),
        "far duration": pa.array([2**62 + i for i in NUMBERS], pa.duration("s")),
        "zoned": pa.array(NUMBERS, pa.timestamp("ns", "Europe/Berlin")),
        "far away": pa.array([2**62 + i for i in NUMBERS], pa.timestamp("s")),
        "far day": pa.array([2**30 + i for i in NUMBERS], pa.date32()),
        "interval": pa.array([(0, i, 0) for i in NUMBERS], pa.month_day_nano_interval()),
        "view": pa.array(DIGITS, pa.string_view()),
        "binary view": pa.array([text.encode() for text in DIGITS], pa.binary_view()),
        "numbered": pa.array(NUMBERS).dictionary_encode(),
        "with a hole": pa.DictionaryArray.from_arrays(pa.array([i % 3 for i in NUMBERS]), pa.array(["a", None, "b"])),
        "viewed": pa.DictionaryArray.from_arrays(
            pa.array([i % 3 for i in NUMBERS]), pa.array(["a", "c", "b"], pa.string_view())
        ),
        "runs": pa.compute.run_end_encode(pa.array(NUMBERS)),
        "runs of text": pa.compute.run_end_encode(pa.array(DIGITS)),
        "struct": pa.array([{"a": i} for i in NUMBERS]),
        "map": pa.array([[("a", i)] for i in NUMBERS], pa.map_(pa.string(), pa.int64())),
        "union": pa.UnionArray.from_sparse(
            pa.array([i % 2 for i in NUMBERS], pa.int8()), [pa.array(NUMBERS), pa.array(DIGITS)]
        ),
        "null": pa.nulls(ROWS),
        "extension": pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([b"%016d" % i for i in NUMBERS], pa.binary(16))
        ),
        "text of large numbers": pa.array([f"{i}.5e160" for i in NUMBERS]),
        "long digits": pa.array(["9" * 400 if i == 3 else str(i) for i in NUMBERS]),
        "no date": pa.array([f"{i + 1}000-13-45" for i in NUMBERS]),
        "infinite": pa.array([np.inf if i == 3 else i + 0.5 for i in NUMBERS]),
    }
    return kinds | {
        f"{scale:g}": pa.array([(i + 0.5) * scale for i in NUMBERS]) for scale in (1e160, 2e307, 1e39, 1e-160)
    }


@pytest.mark.parametrize("kind", unusual_columns())
def test_unusual_types_and_numbers_are_taken_or_refused_in_one_line(tmp_path: Path, kind: str, capsys: Any) -> None:
    table = pa.table(
        {"x": [float(i * i) for i in NUMBERS], "c": unusual_columns()[kind], "y": [i % 2 for i in NUMBERS]}
    )
    path = save(table, tmp_path / "rows.arrow")
    for options in (["--target", "y"], ["--target", "c"], ["--target", "y", "--ignore", "c"]):
        for suffix in (".parquet", ".csv", ".ndjson", ".arrow"):  # other endings mean one of these
            output = tmp_path / f"out{suffix}"
            code = run("select", path, "--size", 5, "--memory", "reservoir", "-o", output, "--quiet", *options)
            error = capsys.readouterr().err
            assert (code, error.count("\n")) in ((0, 0), (2, 1)), (options, suffix, error)
            assert output.exists() == (code == 0)
            output.unlink(missing_ok=True)


def test_a_target_that_leaves_all_bounds_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.create(tmp_path / "s", Settings("y", 5, memory="reservoir"))
    x = [float(i * i) for i in NUMBERS]
    store.update([save(pa.table({"x": x, "y": [i / 7 for i in NUMBERS]}), tmp_path / "a.parquet")])
    far = save(pa.table({"x": x, "y": [i * 1e60 for i in NUMBERS]}), tmp_path / "b.parquet")
    assert run("update", tmp_path / "s", far) == 2
    assert "must stay near the first file's" in capsys.readouterr().err


def test_arrays_are_read_a_piece_at_a_time_whatever_their_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(40_000, 3)), rng.integers(0, 9, (40_000, 2, 2))
    path = tmp_path / "rows.npz"
    np.savez_compressed(
        path,
        x=np.asfortranarray(x),
        z=z,
        s=np.array(["é", "ab"] * 20_000),
        d=np.array(["2024-01-01"] * 40_000, "M8[D]"),
        n=3,
    )
    read = list(pieces(path))
    assert [piece.num_rows for piece in read] == [16_384, 16_384, 7232]
    table = pa.concat_tables(read)
    assert table.schema.names == ["x_0", "x_1", "x_2", "z_0", "z_1", "z_2", "z_3", "s", "d"]
    assert np.array_equal(np.stack([table.column(f"x_{i}").to_numpy() for i in range(3)], 1), x)
    assert np.array_equal(np.stack([table.column(f"z_{i}").to_numpy() for i in range(4)], 1), z.reshape(-1, 4))
    assert table.column("s").to_pylist()[:2] == ["é", "ab"]


LIMITED = """
import resource, sys
from pathlib import Path
import pyarrow as pa
from recollect.tables.blocks import cut_blocks, joined
from recollect.tables.reading import pieces
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read = ((piece, piece.num_rows, piece.nbytes) for piece in pieces(Path(sys.argv[1])))
rows = sum(joined(parts).num_rows for parts in cut_blocks(read, 10_000, 2**25))
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wide text", "bomb"])
def test_reading_takes_little_memory_whatever_the_file_unpacks_to(tmp_path: Path, kind: str) -> None:
    """Each of these files unpacks to more than 600 MB."""
    if kind == "bomb":
        path, rows = tmp_path / "bomb.npz", 10_000_000
        np.savez_compressed(path, x=np.zeros((rows, 8)), y=np.zeros(rows, np.int8))
    else:
        words = [f"{i} " * 20_000 for i in range(10)]
        path, rows = tmp_path / "wide.parquet", 15_000
        pyarrow.parquet.write_table(pa.table({"t": pa.array(words).take(pa.array(np.arange(rows) % 10))}), path)
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=True)
    read, megabytes = map(int, done.stdout.split())
    assert read == rows and megabytes < 400


def test_strange_names_are_fine(tmp_path: Path) -> None:
    names = ['a "quoted" name', "new\nline", "<script>alert(1)</script>", "comma, and ; more", "ünïcode"]
    rng = np.random.default_rng(0)
    table = pa.table({name: rng.normal(size=60) for name in names} | {"the target's\nname": [0, 1] * 30})
    for suffix in (".parquet", ".csv", ".ndjson"):
        path = save(table, tmp_path / f"rows{suffix}")
        output = tmp_path / f"out{suffix}"
        assert run("select", path, "--target", "the target's\nname", "--size", 9, "-o", output, "--quiet") == 0
        assert next(pieces(output)).schema.names == [*table.schema.names, "row", "weight"]


def test_wrong_options_are_refused_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(make_table(), tmp_path / "rows.parquet")
    (tmp_path / "empty").mkdir()
    base = ("--target", "bought", "--size", "5", "-o", tmp_path / "out.csv")
    for arguments in [
        (path, "--target", "bought", "--size", "0", "-o", tmp_path / "out.csv"),
        (path, "--target", "bought", "--size", "5", "-o", tmp_path / "out.xlsx"),
        (path, "--target", "bought", "--size", "5", "-o", tmp_path / "no" / "out.csv"),
        (path, "--target", "bought", "--size", "5", "-o", path),
        (path, "--target", "sold", "--size", "5", "-o", tmp_path / "out.csv"),
        (tmp_path / "nothing*.csv", *base),
        (tmp_path / "empty", *base),
        (path, *base, "--memory", "brain"),
        (path, *base, "--task", "guessing"),
        (path, *base, "--ignore", "nothing"),
        (path, *base, "--ignore", "bought"),
        (path, *base, "--memory-limit", "lots"),
        (path, *base, "--memory-limit", "1MB"),
    ]:
        assert run("select", *arguments) == 2, arguments
        error = capsys.readouterr().err
        assert error.startswith("recollect: ") and error.count("\n") == 1, error
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "rows.parquet"]
    for wrong in ("foo", {1: 2.0}):  # which class is 1, nobody sees
        with pytest.raises(ValueError, match="class weights of a table must be 'balanced' or left out, got"):
            Settings("bought", 5, class_weight=wrong)  # type: ignore[arg-type]


def test_nothing_is_written_into_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = two_files(tmp_path, memory="reservoir")
    before, generation = files_of(store.folder), store.generation(store.number())
    path = save(make_table(), tmp_path / "rows.parquet")
    select = ("select", path, "--target", "bought", "--size", "5", "-o")
    for place in (store.folder / "out.csv", generation / "rows.arrow", generation / "memory" / "out.csv"):
        for command in (("export", store.folder, "-o"), select):
            assert run(*command, place) == 2
            assert "must not be within a store" in one_line(capsys)
    assert run("inspect", store.folder, "--html", generation / "page.html") == 2
    assert files_of(store.folder) == before
    assert run("export", store.folder, "-o", tmp_path / "out.csv") == 0


def test_globs_name_each_file_once(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.parquet"):
        (tmp_path / name).touch()
    found = find_files([str(tmp_path / "b.csv"), str(tmp_path / "*.csv"), str(tmp_path / "c.*"), str(tmp_path / "a*")])
    assert [path.name for path in found] == ["b.csv", "a.csv", "c.parquet"]


# No dead ends


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_a_store_that_has_taken_nothing_can_be_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, path = tmp_path / "s", save(make_table(), tmp_path / "a.parquet")
    make_store(store, target="sold", memory="reservoir")
    assert run("update", store, path) == 2
    assert "the target must be one of" in one_line(capsys)
    assert run("set", store, "--target", "bought", "--ignore", "x", "--size", 7) == 0
    capsys.readouterr()
    assert run("set", store, "--ignore", "age", "--as", "code=number", "--decimal", ".", "--seed", 3) == 0
    line = "target bought, size 7, memory reservoir, ignore x, age, code as number, decimal ., seed 3"
    assert capsys.readouterr().out == f"{store}: {line}\n"
    settings = Store(store).settings
    assert (settings.target, settings.size, settings.ignore) == ("bought", 7, ("x", "age"))
    assert settings.kinds == {"code": "number"} and settings.reading.decimal == "."
    assert run("update", store, path) == 0
    capsys.readouterr()
    before = files_of(store)
    assert run("set", store, "--ignore", "day") == 2
    assert "must stay as they are, as it has taken in files" in one_line(capsys)
    assert files_of(store) == before
    assert run("init", store, "--target", "bought", "--size", 5) == 2
    assert "must be new or have taken in nothing" in one_line(capsys)
    assert files_of(store) == before


def test_init_works_over_what_a_failed_start_left(tmp_path: Path) -> None:
    store = tmp_path / "s"
    make_store(store)
    (store / "generation-000001").mkdir()  # of a first update that was killed
    (store / "store.json").write_bytes(b"{")
    assert run("init", store, "--target", "bought", "--size", 5, "--memory", "reservoir") == 0
    assert run("update", store, save(make_table(), tmp_path / "a.parquet")) == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    assert run("init", tmp_path / "other", "--target", "bought", "--size", 5) == 2


def test_columns_may_be_called_weight_and_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = make_table().append_column("weight", pa.array([1.5] * 120)).append_column("row", pa.array(["a", "b"] * 60))
    path, output = save(table, tmp_path / "a.parquet"), tmp_path / "out.parquet"
    asked = ("select", path, "--target", "bought", "--size", 9, "--memory", "reservoir", "-o", output)
    assert run(*asked) == 0
    assert "places are in 'recollect_row', weights in 'recollect_weight'" in capsys.readouterr().out
    chosen = pyarrow.parquet.read_table(output)
    assert chosen.column_names == [*table.column_names, "recollect_row", "recollect_weight"]
    assert chosen.select(table.column_names).equals(table.take(chosen.column("recollect_row")))
    assert run(*asked, "--weight-name", "w", "--quiet") == 0
    assert pyarrow.parquet.read_table(output).column_names[-1] == "w"
    assert run(*asked, "--weight-name", "color") == 2
    assert "must have a name of its own, got 'color'" in one_line(capsys)
    save(pa.table({"x": np.arange(20.0), "y": ["a", "b"] * 10}), tmp_path / "plain.csv")
    named_row = ("select", tmp_path / "plain.csv", "--target", "y", "--size", 4, "-o", output, "--weight-name", "row")
    assert run(*named_row) == 0
    named = pyarrow.parquet.read_table(output)
    assert named.column_names == ["x", "y", "recollect_row", "row"] and pyarrow.compute.sum(named["row"]).as_py() == 20


def test_types_of_exports_follow_all_rows_and_not_those_that_are_kept(tmp_path: Path) -> None:
    lines = [f"{i % 7},{i}.0,{i if i % 4 else 'NA'},{'odd' if i == 59 else i},{i % 2},{i % 3}" for i in range(60)]
    lines[30] = "3,7.5,3,4,1,0.5"
    (tmp_path / "a.csv").write_text("\n".join(["whole,broken,holes,strays,y,q", *lines]))
    expected = {"whole": pa.int64(), "broken": pa.float64(), "holes": pa.int64(), "strays": pa.string()}
    for target, more in [("y", {"y": pa.int64(), "q": pa.float64()}), ("q", {"y": pa.int64(), "q": pa.float64()})]:
        for seed in range(6):
            settings = Settings(target, 2, "reservoir", task=None if target == "y" else "regression", seed=seed)
            held, _ = select_rows(settings, [tmp_path / "a.csv"])
            export_table(held, tmp_path / "o.parquet")
            found = pyarrow.parquet.read_schema(tmp_path / "o.parquet")
            assert {name: found.field(name).type for name in [*expected, *more]} == expected | more
    (tmp_path / "b.csv").write_text("\n".join(["x,y", *(f"{i % 5},{'1.5' if i == 29 else i % 2}" for i in range(30))]))
    for seed in range(4):
        settings = Settings("y", 2, "reservoir", kinds={"y": "category"}, seed=seed)
        held, _ = select_rows(settings, [tmp_path / "b.csv"])
        export_table(held, tmp_path / "o.parquet")
        assert pyarrow.parquet.read_schema(tmp_path / "o.parquet").field("y").type == pa.float64()


def test_a_store_from_before_types_were_known_still_opens(tmp_path: Path) -> None:
    folder = two_files(tmp_path).folder
    path = folder / "generation-000002" / "state.json"
    state = unseal(path.read_bytes(), "it")
    del state["encoding"]["whole"]
    for column in state["encoding"]["columns"]:
        del column["whole"]
    path.write_bytes(seal(state))
    rebind(folder)
    assert Store(folder).load().memory.seen == 120
    del state["encoding"]["dated"]  # which was always there
    path.write_bytes(seal(state))
    rebind(folder)
    with pytest.raises(ValueError, match="it is damaged"):
        Store(folder).load()


def test_blanks_around_a_class_do_not_count_and_are_written(tmp_path: Path, capsys: Any) -> None:
    lines = ["x,y", *(f"{i},{name}" for i, name in enumerate(["yes", "yes ", " no", "no"] * 5))]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    output = tmp_path / "o.csv"
    asked = ("--target", "y", "--size", 20)
    assert run("select", tmp_path / "a.csv", *asked, "--memory", "reservoir", "-o", output, "--json") == 0
    assert json.loads(capsys.readouterr().out)["class_counts"] == {"no": 10, "yes": 10}
    with output.open(newline="") as file:
        assert [f"{row['x']},{row['y']}" for row in csv.DictReader(file)] == lines[1:]
    encoding = fit_encoding([pa.table({"x": [1.0, 2.0], "y": ["yes", "no"]})], "y")
    encoding.classes = ["no", "yes "]  # as stores that were made before have it
    table = pa.table({"x": [1.0, 2.0], "y": ["yes ", " no"]})
    assert encoding.targets(table, Drift()).tolist() == [1, 0] and encoding.classes == ["no", "yes "]


def test_classes_that_look_alike_are_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day, names in enumerate([["0", "1", "0.0"], ["0", "1", "1.0"]]):
        lines = [f"{i * i % 17},{name}" for i, name in enumerate(names * 10)]
        (tmp_path / f"{day}.csv").write_text("\n".join(["x,y", *lines]))
    assert run("init", tmp_path / "s", "--target", "y", "--size", 10) == 0
    assert run("update", tmp_path / "s", tmp_path / "0.csv") == 0
    assert "y: 3 classes, '0' and '0.0' look alike, and are told apart" in capsys.readouterr().out
    assert run("update", tmp_path / "s", tmp_path / "1.csv") == 0
    out = capsys.readouterr().out
    assert "classes '1' and '1.0' look alike, and are told apart" in out and "'0.0'" not in out


def test_a_decimal_mark_that_the_store_does_not_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for day in range(3):
        rows = [f"{i},{i % 10};{'ja' if i % 3 else 'nein'}" for i in range(40 * day, 40 * day + 40)]
        (tmp_path / f"{day}.csv").write_text("\n".join(["x;y", *rows]))
    assert run("init", tmp_path / "s", "--target", "y", "--size", 10) == 0
    assert run("update", tmp_path / "s", tmp_path / "0.csv") == 0
    before = files_of(tmp_path / "s")
    capsys.readouterr()
    assert run("update", tmp_path / "s", tmp_path / "1.csv", "--decimal", ".") == 2
    assert "must stay that of the first file, ',', got '.': leave out --decimal" in one_line(capsys)
    assert files_of(tmp_path / "s") == before
    assert run("update", tmp_path / "s", tmp_path / "1.csv", "--decimal", ",") == 0
    assert run("update", tmp_path / "s", tmp_path / "2.csv") == 0
    typed = save(make_table(), tmp_path / "typed.parquet")  # numbers that are no text have no mark
    make_store(tmp_path / "t").update([typed])
    assert run("update", tmp_path / "t", save(make_table(seed=1), tmp_path / "u.parquet"), "--decimal", ",") == 0


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda t: t.drop_columns(["color"]), "color"),
        (lambda t: t.append_column("extra", pa.array([1] * 120)), "extra"),
        (lambda t: t.set_column(0, "x", pa.array(["word"] * 120)), "x"),
        (lambda t: t.set_column(3, "day", pa.array(["word"] * 120)), "day"),
    ],
)
def test_a_file_that_does_not_fit_can_be_taken_without_the_column(
    tmp_path: Path, change: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make_store(tmp_path / "s", memory="sliding-window")
    store.update([save(make_table(), tmp_path / "a.parquet")])
    path = save(change(make_table(seed=1)), tmp_path / "b.parquet")
    assert run("update", store.folder, path) == 2
    assert f"--ignore {name}" in one_line(capsys)
    assert run("update", store.folder, path, "--ignore", name) == 0
    rows = store.load().rows
    assert rows.schema.names == make_table().schema.names and "extra" not in rows.schema.names
    assert name == "extra" or rows.column(name).null_count == 20
    assert run("update", store.folder, path, "--ignore", "bought", "--force") == 2


def test_a_column_to_ignore_that_is_nowhere_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path / "s", memory="sliding-window")
    store.update([save(make_table(), tmp_path / "a.parquet")])
    before = files_of(store.folder)
    plain = save(make_table(seed=1), tmp_path / "b.parquet")
    more = save(make_table(seed=2).append_column("extra", pa.array([1] * 120)), tmp_path / "c.parquet")
    for name, hint in (("colour", "is it 'color'?"), ("extra", "leave it out")):
        assert run("update", store.folder, plain, "--ignore", name) == 2
        assert f"must be in the store or in a file, got {name!r}: {hint}" in one_line(capsys)
    assert files_of(store.folder) == before
    with pytest.raises(ValueError, match="must be in the store or in a file"):
        store.update(plain, ignore=["extra"])
    assert run("update", store.folder, plain, more, "--ignore", "extra") == 0  # some files have it


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.drop_columns(["color"]),
        lambda t: t.append_column("extra", pa.array([1] * 120)),
        lambda t: t.set_column(0, "x", pa.array(["word"] * 120)),
    ],
)
def test_files_that_are_chosen_from_together_are_not_told_to_ignore_what_differs(
    tmp_path: Path, change: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    files = save(make_table(), tmp_path / "a.parquet"), save(change(make_table(seed=1)), tmp_path / "b.parquet")
    assert run("select", *files, "--target", "bought", "--size", "5", "-o", tmp_path / "out.csv") == 2
    assert one_line(capsys).endswith(": give all files the same columns\n")


def test_a_lost_target_is_to_be_named_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path / "s", memory="sliding-window")
    store.update([save(make_table(), tmp_path / "a.parquet")])
    path = save(make_table(seed=1).rename_columns({"bought": "sold"}), tmp_path / "b.parquet")
    assert run("update", store.folder, path) == 2
    assert "or name it so if it is the target" in one_line(capsys)
    assert run("update", store.folder, path, "--ignore", "bought") == 2
    assert "the target must not be ignored" in (line := one_line(capsys)) and "give its column that name" in line


def test_rows_that_cannot_be_taken_are_left_out_and_counted_if_asked_for(tmp_path: Path, capsys: Any) -> None:
    store = make_store(tmp_path / "s", classes=3, memory="sliding-window")
    store.update([save(make_table(), tmp_path / "a.csv")])
    labels = pa.array(["yes", "maybe", None, "never"] * 30)
    path = save(make_table(seed=1).set_column(5, "bought", labels), tmp_path / "b.csv")
    assert run("update", store.folder, path) == 2
    assert "got 30 missing: pass --drop-missing-target" in one_line(capsys)
    assert run("update", store.folder, path, "--drop-missing-target") == 2
    assert "room for 3 classes, got 4: pass --skip-bad-rows" in one_line(capsys)
    assert run("update", store.folder, path, "--drop-missing-target", "--skip-bad-rows", "--json") == 0
    [told] = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["skipped"], told["unlabelled"]) == (60, 30, 30)
    assert told["seen"] == 180 and store.load().memory.seen == 180


def test_a_class_that_loses_all_rows_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path / "s", memory="sliding-window")
    paths = [
        save(make_table(seed=i).set_column(5, "bought", pa.array(names * 60)), tmp_path / f"{i}.csv")
        for i, names in enumerate((["rare", "a"], ["a", "b"]))
    ]
    assert run("update", store.folder, paths[0]) == 0
    assert "no row is kept" not in capsys.readouterr().out
    assert run("update", store.folder, paths[1]) == 0
    told = "no row is kept of the class 'rare'; a new store with --memory recollect with --min-per-class 1 or"
    assert told in capsys.readouterr().out
    assert run("inspect", store.folder) == 0
    assert "no row is kept of the class 'rare'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("size", "memory", "least", "advice"),
    [
        (5, "recollect", 0, "--min-per-class 1 or --class-weight balanced"),
        (5, "reservoir", 0, "--memory recollect with --min-per-class 1 or --class-weight balanced"),
        (2, "recollect", 0, "a larger --size"),
        (2, "recollect", 1, "a larger --size"),
    ],
)
def test_what_is_advised_for_a_lost_class_would_keep_it(size: int, memory: str, least: int, advice: str) -> None:
    taken = Taken(rows=90, class_counts={"a": 30, "b": 30, "c": 30}, lost=["c"])
    settings = Settings("y", size, memory=memory, min_per_class=least)
    with in_shell():
        assert f"no row is kept of the class 'c'; {advice} keeps some" in list(remarks(taken, size, settings))


def test_a_class_that_keeps_too_few_rows_to_be_learned_is_told_of_with_what_keeps_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    rare = np.arange(3000) % 50 == 0
    table = pa.table(
        {"x": rng.normal(size=3000) + rare, "z": rng.normal(size=3000), "y": np.where(rare, "rare", "usual")}
    )
    path, out = save(table, tmp_path / "a.parquet"), tmp_path / "o.parquet"
    asked = ("select", path, "--target", "y", "-o", out, "--size", 100)
    assert run(*asked) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "too few" in line]
    advice = re.fullmatch(
        r"only [1-4] rows? of 'rare' kept, too few .*; --memory recollect with (--min-per.*) keeps more", line
    )
    assert advice is not None and advice[1] == "--min-per-class 25"
    assert run(*asked, *advice[1].split()) == 0
    assert "too few" not in capsys.readouterr().out
    assert pyarrow.parquet.read_table(out).column("y").to_pylist().count("rare") >= 25
    store = make_store(tmp_path / "s", target="y", size=100, memory="reservoir")
    assert run("update", store.folder, path) == 0
    assert "'rare' kept, too few for most models to learn from; a new store with --mem" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("size", "counts", "options"),
    [
        (100, {"a": 900, "b": 49}, {}),  # there are not many of it
        (19, {"a": 900, "b": 900}, {}),  # few are kept of all, as asked for
        (100, {"a": 900, "b": 100}, {"min_per_class": 1}),  # as asked for
        (100, {"a": 900, "b": 100}, {"class_weight": "balanced"}),
    ],
)
def test_nothing_is_said_of_few_rows_where_nothing_else_can_be_wanted(
    size: int, counts: dict[str, int], options: dict[str, Any]
) -> None:
    held = SimpleNamespace(
        encoding=SimpleNamespace(task="classification", classes=["a", "b"]),
        memory=SimpleNamespace(batch=SimpleNamespace(targets=torch.tensor([0] * 15 + [1] * 4))),
    )
    few = scarce(cast(TableMemory, held), counts)
    assert few == ({} if counts["b"] < 50 else {"b": 4})
    taken = Taken(rows=sum(counts.values()), class_counts=counts)
    assert not any("too few" in remark for remark in remarks(taken, size, Settings("y", size, **options), "", few))


def test_places_that_are_too_few_for_each_class_are_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"x": np.arange(60.0), "y": ["a", "b", "c"] * 20})
    asked = ("select", save(table, tmp_path / "a.csv"), "--target", "y", "-o", tmp_path / "o.csv", "--min-per-class")
    assert run(*asked, 4, "--size", 9) == 0
    assert "some classes keep fewer than 4 rows, as 3 of them have 9 places" in capsys.readouterr().out
    assert run(*asked, 1, "--size", 2) == 0
    assert "a larger --size keeps some" in capsys.readouterr().out
    assert run(*asked, 3, "--size", 9) == 0
    assert "keep fewer" not in capsys.readouterr().out


def test_rare_rows_are_kept_if_asked_for(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rare = np.arange(1005) % 100 == 50
    table = pa.table({"x": rng.normal(size=1005) + 8 * rare, "z": rng.normal(size=1005), "y": np.where(rare, "r", "c")})
    path = save(table, tmp_path / "a.parquet")
    for option in (("--min-per-class", 3), ("--class-weight", "balanced")):
        store = tmp_path / str(option[1])
        assert run("init", store, "--target", "y", "--size", 15, *option) == 0
        assert run("update", store, path) == 0
        assert Store(store).load().rows.column("y").to_pylist().count("r") >= 3
    for wrong in (
        ("--class-weight", "heavy"),
        ("--min-per-class", -1),
        ("--min-per-class", 2, "--memory", "reservoir"),
        ("--class-weight", "balanced", "--memory", "clustering"),
        ("--model", "torch.nn:Linear", "--memory", "clustering"),
    ):
        assert run("init", tmp_path / "t", "--target", "y", "--size", 15, *wrong) == 2


def test_stores_match_gradients_unless_told_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--target", "y", "--size", 5)
    for more, memory in [
        ((), "recollect"),
        (("--memory", "auto"), "recollect"),
        (("--memory", "clustering"), "clustering"),
        (("--memory", "reservoir"), "reservoir"),
    ]:
        assert run("init", tmp_path / "s", *asked, *more, "--json") == 0
        assert json.loads(capsys.readouterr().out)["memory"] == Store(tmp_path / "s").settings.memory == memory
    assert Store.create(tmp_path / "t", Settings("y", 5)).settings.memory == "recollect"
    assert run("init", tmp_path / "s", *asked, "--memory", "clustering") == 0
    assert "memory clustering" in capsys.readouterr().out
    assert run("set", tmp_path / "s", "--class-weight", "balanced") == 2
    assert "pass --memory recollect" in one_line(capsys)
    assert run("set", tmp_path / "s", "--class-weight", "balanced", "--memory", "auto") == 0
    assert Store(tmp_path / "s").settings.memory == "recollect"


def test_tables_chosen_from_once_are_clustered_unless_something_needs_gradients(tmp_path: Path, capsys: Any) -> None:
    path = save(make_table(), tmp_path / "rows.parquet")
    asked = (path, "--target", "bought", "--size", 5, "-o", tmp_path / "o.csv", "--json")
    for more, matches in [
        ((), False),
        (("--min-per-class", 1), True),
        (("--class-weight", "balanced"), True),
        (("--model", "torch.nn:Linear"), True),
        (("--memory", "recollect"), True),
    ]:
        assert run("select", *asked, *more) == 0
        assert (json.loads(capsys.readouterr().out)["error"] is not None) == matches
    alike = [select(make_table(), "bought", 5, memory=memory) for memory in ("auto", "clustering")]
    assert alike[0].equals(alike[1])
    assert not alike[0].equals(select(make_table(), "bought", 5, min_per_class=1))


def test_a_store_for_more_rows_than_gradient_matching_has_room_for_is_told_what_else_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("init", tmp_path / "s", "--target", "y", "--size", 20_000) == 2
    assert "by gradient matching needs" in (error := one_line(capsys)) and "or --memory clustering" in error
    assert not (tmp_path / "s").exists()
    assert run("init", tmp_path / "s", "--target", "y", "--size", 20_000, "--memory", "clustering") == 0


def test_clustered_rows_that_are_fewer_than_asked_for_say_why(tmp_path: Path, capsys: Any) -> None:
    path = save(pa.table({"x": [1.0, 2.0] * 20, "y": ["a", "b"] * 20}), tmp_path / "a.parquet")
    output = tmp_path / "o.parquet"
    assert run("select", path, "--target", "y", "--size", 10, "-o", output) == 0
    assert "8 rows fewer than asked for, as no others differ from these" in capsys.readouterr().out
    assert pyarrow.parquet.read_table(output).column("weight").to_pylist() == [20.0, 20.0]


def test_places_that_stay_free_for_the_next_rows_are_not_said_to_lack_rows(tmp_path: Path, capsys: Any) -> None:
    store = make_store(tmp_path / "s", size=20)
    table = make_table()
    for name, rows in (("a", table), ("b", table.slice(7, 1))):
        capsys.readouterr()
        assert run("update", store.folder, save(rows, tmp_path / f"{name}.parquet")) == 0
    told = capsys.readouterr().out
    assert "15 kept of 121 seen" in told
    assert "5 rows fewer than asked for, as some places stay free for the next rows where few come at a time" in told


def test_a_dry_run_shows_the_columns_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(make_table(), tmp_path / "a.csv")
    before = sorted(tmp_path.iterdir())
    for command in (("select", path), ("init", tmp_path / "s", path)):
        assert run(*command, "--target", "bought", "--size", 5, "--dry-run", "--json") == 0
        account = json.loads(capsys.readouterr().out)
        assert account["files"] == {"a.csv": "csv with commas"} and account["rows"] == 120
        assert run(*command, "--target", "bought", "--size", 5, "--dry-run") == 0
        assert "category" in capsys.readouterr().out
        assert run(*command, "--target", "sold", "--size", 5, "--dry-run") == 2
        assert "must be one of" in one_line(capsys)
    assert sorted(tmp_path.iterdir()) == before
    assert run("select", path, "--target", "bought", "--size", 5) == 2
    assert "pass --output" in one_line(capsys)
    assert run("init", tmp_path / "s", path, "--target", "bought", "--size", 5) == 0
    assert Store(tmp_path / "s").number() == 0


def test_the_account_is_kept_with_the_store_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("id;preis;ja\n" + "".join(f"{i};{i % 7},5;{i % 2}\n" for i in range(1, 61)))
    store = make_store(tmp_path / "s", target="ja", memory="reservoir")
    assert run("update", store.folder, tmp_path / "a.csv") == 0
    told = capsys.readouterr().out
    assert "a.csv: read as csv with semicolons" in told and "preis: decimal comma" in told
    assert "not looked at: id (row numbers)" in told
    account = Store(store.folder).load().account
    assert account.files == {"a.csv": "csv with semicolons"} and account["preis"].features == 1
    assert run("inspect", store.folder, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [column["kind"] for column in found["columns"]] == ["ignored", "number", "target"]
    assert found["files"][0]["read_as"] == "csv with semicolons"
    output = tmp_path / "out.parquet"
    assert run("export", store.folder, "-o", output) == 0
    assert pa.types.is_floating(pyarrow.parquet.read_table(output).schema.field("preis").type)
    assert run("export", store.folder, "-o", tmp_path / "out.csv") == 0
    assert ",5" in (tmp_path / "out.csv").read_text()  # as it came


def test_a_file_may_have_a_name_that_is_no_text_and_numbers_more_digits_than_a_float(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv"))
    numbers = [str(9007199254740993 + 7 * (i % 5)) for i in range(60)]
    path.write_text("n,y\n" + "".join(f"{n},{i % 2}\n" for i, n in enumerate(numbers)))
    store = make_store(tmp_path / "s", target="y", memory="reservoir")
    store.update([path])
    assert run("export", store.folder, "-o", tmp_path / "out.parquet") == 0
    chosen = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert {str(n) for n in chosen.column("n").to_pylist()} <= set(numbers)


# Kills

KILLED = """
import os, sys
import torch
torch.set_num_threads(1)
from pathlib import Path
from recollect.tables import Store
folder, *paths = map(Path, sys.argv[1:])
print("ready", flush=True)
for line in sys.stdin:  # each line asks for one child that updates
    child = os.fork()
    if child == 0:
        Store(folder).update(paths)
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def survive_kills(folder: Path, kills: int) -> None:
    """Kill updates at random moments; afterwards the store opens every time and ends as if nothing had happened."""
    paths = [save(make_table(300, seed=i, shift=i / 2), folder / f"{i}.parquet") for i in range(6)]
    calm = make_store(folder / "calm", size=30)
    start = time.monotonic()
    calm.update(paths)
    whole = time.monotonic() - start
    make_store(folder / "s", size=30)
    command = [sys.executable, "-c", KILLED, str(folder / "s"), *map(str, paths)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    moments = random.Random(0)
    seen = 0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    ) as driver:
        assert driver.stdin is not None and driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        for _ in range(kills):
            driver.stdin.write("\n")
            child = int(driver.stdout.readline())
            time.sleep(moments.uniform(0.0, 1.3 * whole / 6))
            os.kill(child, signal.SIGKILL)
            assert driver.stdout.readline() == "gone\n"
            if Store(folder / "s").state() is not None:
                held = Store(folder / "s").load()
                assert held.memory.seen >= seen  # nothing that was taken is lost
                seen = held.memory.seen
    Store(folder / "s").update(paths, wait=False)  # and no lock was left behind
    assert Store(folder / "s").load().table().equals(calm.load().table())
    saved = [files_of(Store(folder / s).generation(6) / "memory") for s in ("s", "calm")]
    assert saved[0] == saved[1]


def test_an_update_can_be_killed_at_any_moment(tmp_path: Path) -> None:
    survive_kills(tmp_path, 10)


@pytest.mark.slow
def test_an_update_can_be_killed_a_hundred_times(tmp_path: Path) -> None:
    survive_kills(tmp_path, 100)


@pytest.mark.parametrize(
    ("wrong", "change", "said"),
    [
        (0, lambda line: line.partition(",")[0] + ",", "the target 'y' must be known in every row"),
        (1, lambda line: line.partition(",")[0] + ",", "the target 'y' must be known in every row"),
        (1, lambda line: line.replace(",", "cold,"), "column 'x' must hold numbers as in the first file"),
    ],
)
def test_of_several_files_the_one_with_something_wrong_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: int, change: Any, said: str
) -> None:
    for day in range(3):
        lines = [f"{i}.5,{'yes' if i % 3 else 'no'}" for i in range(40 * day, 40 * day + 40)]
        if day == wrong:
            lines = lines[:1] + [change(line) for line in lines[1:]]
        (tmp_path / f"day{day}.csv").write_text("\n".join(["x,y", *lines]))
    assert run("init", tmp_path / "s", "--target", "y", "--size", 10) == 0
    capsys.readouterr()
    assert run("update", tmp_path / "s", *(tmp_path / f"day{day}.csv" for day in range(3))) == 2
    assert f"day{wrong}.csv': {said}" in one_line(capsys)


def test_a_column_by_another_name_is_told_with_the_name_that_came() -> None:
    known, came = pa.table({"city": ["a"], "load": [1.0]}), pa.table({"CITY": ["a"], "load": [1.0]})
    with pytest.raises(ValueError, match=r"the column 'city' of the first file, which is missing, while 'CITY' came"):
        conform(came, known.schema, "b.csv", ())


def test_a_target_that_was_called_dates_is_a_quantity_also_where_days_come_again(tmp_path: Path) -> None:
    rows = [f"{i},2024-01-{1 + i % 28:02}" for i in range(200)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *rows]))
    store = Store.create(tmp_path / "s", Settings("y", 10, kinds={"y": "date"}))
    store.update([tmp_path / "a.csv"])
    assert store.load().encoding.task == "regression"
