"""Generated damage: a store, or a file it is given, is taken or refused in one line, and a refusal changes nothing."""

import contextlib
import copy
import io
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recollect.cli import main
from recollect.files import checksum, seal, unseal
from recollect.tables import WRITTEN, Settings, Store, write_table

OTHERS: list[Any] = [None, True, -1, 0, 1, 1.5, float("nan"), 2**70, "text", "\x1b[31m\n", "", [], {}, [[1]], {"a": 1}]


def table(seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    color = rng.choice(["red", "green"], 24)
    return pa.table({"x": rng.normal(size=24), "n": list(range(24)), "color": color, "y": ["no", "yes"] * 12})


def saved(rows: pa.Table, path: Path) -> Path:
    with path.open("wb") as file:
        write_table(rows, path, file)
    return path


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Healthy stores that took two files each."""
    folder = tmp_path_factory.mktemp("healthy")
    paths = [saved(table(seed), folder / f"{seed}.parquet") for seed in range(3)]
    for memory in ("reservoir", "recollect"):
        Store.create(folder / memory, Settings("y", 6, memory=memory)).update(paths[:2])
    return {"reservoir": folder / "reservoir", "recollect": folder / "recollect", "new": paths[2]}


def tell(*arguments: object) -> tuple[int, str]:
    """The exit code of a command and what it said on standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0), err.getvalue()


def state_of(folder: Path) -> dict[str, bytes | None]:
    """What is in a folder; None stands for what is no file."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something can be changed in a document."""
    inside = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inside:
        yield (*at, key)
        yield from places(value, (*at, key))


def edited(document: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """With something else, or nothing, in one place."""
    document = copy.deepcopy(document)
    *way, last = chance.choice(list(places(document)))
    holder: Any = document
    for key in way:
        holder = holder[key]
    if isinstance(holder, dict) and chance.random() < 0.3:
        del holder[last]
    elif isinstance(holder, dict) and chance.random() < 0.1:
        holder[chance.choice(["more", "\x07"])] = chance.choice(OTHERS)
    else:
        holder[last] = copy.deepcopy(chance.choice(OTHERS))
    return document


def rebind(folder: Path) -> None:
    """Mend the checksums that bind the state to the memory, and the pointer to the state."""
    with contextlib.suppress(Exception):  # what can no longer be read stays unbound
        state = folder / "generation-000002" / "state.json"
        document = unseal(state.read_bytes(), "it")
        document["memory"] = checksum((state.parent / "memory" / "memory.json").read_bytes())
        state.write_bytes(seal(document))
        pointer = unseal((folder / "current.json").read_bytes(), "it")
        (folder / "current.json").write_bytes(seal(pointer | {"state": checksum(state.read_bytes())}))


def damage(folder: Path, chance: random.Random) -> str:
    """Do one thing to a store; returns what, for who must look into it."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and "000001" not in str(path)]
    path = chance.choice(paths)
    how = chance.choice(
        ["flip", "cut", "remove", "noise", "folder", "link", "edit", "edit", "seal", "bind", "bind", "bind"]
    )
    if how in ("edit", "seal", "bind"):
        path = chance.choice([path for path in paths if path.suffix == ".json"])
        document = edited(unseal(path.read_bytes(), "it"), chance)
        path.write_bytes(json.dumps(document, indent=1).encode() if how == "edit" else seal(document))
        if how == "bind":
            rebind(folder)
        return f"{how} {path.relative_to(folder)}: {document}"
    content = bytearray(path.read_bytes())
    path.unlink()
    if how == "flip" and content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
    elif how == "cut":
        path.write_bytes(content[: chance.randrange(len(content) + 1)])
    elif how == "noise":
        path.write_bytes(chance.randbytes(chance.randrange(200)))
    elif how == "folder":
        path.mkdir()
    elif how == "link":
        path.symlink_to(folder.parent / "nowhere")
    return f"{how} {path.relative_to(folder)}"


def survive(healthy: Path, new: Path, folder: Path, cases: int, seed: int) -> int:
    """Run commands on damaged copies of a store; returns how often it was refused."""
    chance, refused = random.Random(seed), 0
    store, output = folder / "store", folder / "out.csv"
    for case in range(cases):
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(healthy, store)
        what = damage(store, chance)
        for command in (
            ("inspect", store),
            ("export", store, "-o", output, "--quiet"),
            ("update", store, new, "--quiet"),
        ):
            before = state_of(store)
            code, error = tell(*command)
            assert (code, error.count("\n")) in ((0, 0), (2, 1)), (case, what, command[0], error)
            assert error[:-1].isprintable()
            if code == 2:
                refused += 1
                assert state_of(store) == before, (case, what, command[0])
        assert not (folder / "nowhere").exists()
    return refused


@pytest.mark.parametrize(("memory", "cases"), [("reservoir", 150), ("recollect", 40)])
def test_damaged_stores_are_opened_or_refused_in_one_line(
    stores: dict[str, Path], tmp_path: Path, memory: str, cases: int
) -> None:
    assert survive(stores[memory], stores["new"], tmp_path, cases, seed=0) > cases


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "cases"), [("reservoir", 2500), ("recollect", 500)])
def test_thousands_of_damaged_stores(stores: dict[str, Path], tmp_path: Path, memory: str, cases: int) -> None:
    assert survive(stores[memory], stores["new"], tmp_path, cases, seed=1) > cases


def test_no_flipped_bit_of_a_store_is_accepted(stores: dict[str, Path], tmp_path: Path) -> None:
    """Of those files that count: of the generation before, nothing is read."""
    folder = tmp_path / "store"
    shutil.copytree(stores["reservoir"], folder)
    chance = random.Random(0)
    for name in ("store.json", "current.json", "latest.json", "generation-000002/state.json"):
        content = (folder / name).read_bytes()
        for _ in range(60):
            flipped = bytearray(content)
            flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
            (folder / name).write_bytes(flipped)
            with pytest.raises(ValueError, match=r"^[^\n]*$"):
                Store(folder).load()
        (folder / name).write_bytes(content)


def damaged_file(content: bytes, chance: random.Random) -> bytes:
    data = bytearray(content)
    match chance.randrange(4):
        case 0:
            return bytes(data[: chance.randrange(len(data))])
        case 1:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 2:
            for _ in range(chance.randrange(1, 20)):
                data[chance.randrange(len(data))] = chance.randrange(256)
        case _:
            place = chance.randrange(len(data))
            odd = [b"9e199", b"1e400", b'"', b"[", b"\n", b"\0", b"-", b"\xff\xfe", b"9" * 400, chance.randbytes(9)]
            data[place:place] = chance.choice(odd)
    return bytes(data)


def survive_files(stores: dict[str, Path], folder: Path, suffix: str, cases: int, seed: int) -> None:
    """Update a store with damaged files."""
    store, good, bad = folder / "store", folder / f"good{suffix}", folder / f"bad{suffix}"
    rows = table(3)
    if suffix == ".npz":
        np.savez(
            good, **{name: rows.column(name).to_numpy(zero_copy_only=False).astype(str) for name in rows.schema.names}
        )
    else:
        saved(rows, good)
    chance = random.Random(seed)
    shutil.copytree(stores["reservoir"], store)
    pristine = state_of(store)
    for case in range(cases):
        bad.write_bytes(damaged_file(good.read_bytes(), chance))
        output = folder / f"out{chance.choice(WRITTEN)}"
        select = (
            "select",
            bad,
            "--target",
            chance.choice(["y", "x"]),
            "--size",
            3,
            "--memory",
            "reservoir",
            "-o",
            output,
        )
        for command in ((*select, "--quiet"), ("update", store, bad, "--quiet")):
            code, error = tell(*command)
            assert (code, error.count("\n")) in ((0, 0), (2, 1)), (case, suffix, command[0], error)
            if command[0] == "update":
                assert (state_of(store) == pristine) == (code == 2)
        if state_of(store) != pristine:
            shutil.rmtree(store)
            shutil.copytree(stores["reservoir"], store)
        output.unlink(missing_ok=True)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".ndjson", ".arrow", ".npz"])  # others mean one of these
def test_damaged_files_are_taken_or_refused_in_one_line(stores: dict[str, Path], tmp_path: Path, suffix: str) -> None:
    survive_files(stores, tmp_path, suffix, 40, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [*WRITTEN, ".npz"])
def test_thousands_of_damaged_files(stores: dict[str, Path], tmp_path: Path, suffix: str) -> None:
    survive_files(stores, tmp_path, suffix, 600, seed=1)
