"""Examples from anywhere: the same choice, in one pass, whoever holds them."""

import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import recollect as rc
from recollect.embedding import gradients
from recollect.sources import Incoming, examples_of

N = 1500
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 1).long()
make_model = partial(rc.models.mlp, 4, 3, hidden=(8,))
choose = partial(rc.select, make_model, inits=2, dim=50, batch_size=100)


def loader(dataset: Any, batch_size: int, **options: Any) -> DataLoader[Any]:
    """With a generator of its own: torch's loaders draw from the global one otherwise."""
    return DataLoader(dataset, batch_size, generator=torch.Generator(), **options)


class Squares(Dataset[Any]):
    """As people write them: a Python number as the target, a NumPy array as the input."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if index >= N:
            raise IndexError(index)
        return X[index].numpy(), int(Y[index])


class Named(Squares):
    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return {"x": x, "label": y}


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y, strict=True))


class Takes(nn.Module):
    """Takes its input by name, or as the first of two."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_model()

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def parts(size: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(X.split(size), Y.split(size), strict=True)


FRAME = pd.DataFrame(X.numpy(), columns=list("abcd")).assign(label=Y.numpy())
SOURCES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "dataset": lambda: (Squares(),),
    "tensor dataset": lambda: (TensorDataset(X, Y),),
    "iterable dataset": lambda: (Endless(),),
    "loader": lambda: (loader(Squares(), 64),),
    "loader with workers": lambda: (loader(Squares(), 300, num_workers=2),),
    "loader of an iterable": lambda: (loader(Endless(), 33),),
    "list of batches": lambda: (list(parts(70)),),
    "generator of small batches": lambda: (parts(1),),
    "generator of one batch": lambda: (parts(N),),
    "generator of arrays": lambda: (([x.numpy(), y.numpy()] for x, y in parts(200)),),
    "pair": lambda: ((X, Y),),
    "pandas": lambda: (FRAME[list("abcd")], FRAME["label"]),
    "polars": lambda: (pl.from_pandas(FRAME[list("abcd")]), pl.Series(Y.numpy())),
    "pyarrow": lambda: (pa.table(FRAME[list("abcd")]), pa.array(Y.numpy())),
}


@pytest.fixture(scope="module")
def expected() -> rc.Coreset:
    return choose(X, Y, 20)


def assert_same(found: rc.Coreset, expected: rc.Coreset) -> None:
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.weights, expected.weights)
    assert found.error == expected.error


@pytest.mark.parametrize("what", SOURCES)
def test_the_choice_is_that_of_the_same_examples_in_tensors(what: str, expected: rc.Coreset) -> None:
    assert_same(choose(*SOURCES[what](), size=20), expected)


@pytest.mark.parametrize(
    "options",
    [{"shortlist": None}, {"shortlist": 100.0}, {"layers": "last"}, {"seed": 3}, {"class_weight": "balanced"}],
)
def test_a_stream_gives_the_same_choice_with_other_options(options: Any) -> None:
    assert_same(choose(parts(70), size=20, **options), choose(X, Y, 20, **options))


def test_a_stream_gives_the_same_choice_where_blocks_are_small_and_draws_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gradients, "_BLOCK_ROWS", 300)
    assert_same(choose(parts(70), size=20), choose(X, Y, 20))
    assert_same(choose(parts(70), size=20, shortlist=20.0), choose(X, Y, 20, shortlist=20.0))
    monkeypatch.setattr(gradients, "_KEEP_BYTES", 0)
    assert_same(choose(parts(70), size=20), choose(X, Y, 20))


def test_a_class_that_is_lost_on_the_way_is_told_of() -> None:
    rare = torch.where(torch.arange(N) == N - 1, 2, Y.clamp(max=1))
    batches = list(zip(X.split(100), rare.split(100), strict=True))
    for source in ((X, rare), batches):
        with pytest.warns(rc.LostClassWarning, match=r"got none left of 1 of 3 \(class 2\)"):
            choose(source, size=3)
        with pytest.warns(rc.LostClassWarning, match=r"got none left of 1 of 3 \(class 2\)"):
            rc.GradientMatching(make_model, 3, inits=2, dim=50).update(source)


def test_a_stream_is_never_held_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """With blocks of 300 rows and 30 candidates, no more than two blocks are alive at any time."""
    monkeypatch.setattr(gradients, "_BLOCK_ROWS", 300)
    alive: list[int] = []

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        import weakref

        references = []
        for x, y in parts(50):
            x = x.clone()
            references.append(weakref.ref(x))
            yield x, y
            del x
            alive.append(sum(reference() is not None for reference in references))

    choose(batches(), size=3)
    assert len(alive) == N // 50
    assert max(alive) <= 2 * 300 // 50


def test_whoever_makes_batches_may_use_their_memory_again(expected: rc.Coreset) -> None:
    def reused() -> Iterator[tuple[Tensor, Any]]:
        inputs, targets = torch.empty(60, 4), np.empty(60, dtype=np.int64)
        for start in range(0, N, 60):
            inputs[:], targets[:] = X[start : start + 60], Y[start : start + 60].numpy()
            yield inputs, targets

    assert_same(choose(reused(), size=20), expected)
    memories = rc.SlidingWindow(200), rc.Clustering(N), rc.GradientMatching(make_model, 200, inits=2)
    for memory in memories:
        memory.update(reused())
        assert torch.equal(memory.batch.inputs, X[memory.batch.ids])  # type: ignore[arg-type]
        assert torch.equal(memory.batch.targets, Y[memory.batch.ids])


def test_batches_may_be_dicts_with_a_named_target(expected: rc.Coreset) -> None:
    by_name = partial(rc.select, Takes, size=20, target="label", inits=2, dim=50, batch_size=100)
    whole = by_name({"x": X, "label": Y})
    for source in (Named(), loader(Named(), 64), ({"x": x, "label": y} for x, y in parts(70))):
        assert_same(by_name(source), whole)


@pytest.mark.parametrize("frame", [FRAME, pl.from_pandas(FRAME), pa.table(FRAME)], ids=["pandas", "polars", "pyarrow"])
def test_a_table_may_hold_its_target(frame: Any, expected: rc.Coreset) -> None:
    assert_same(choose(frame, size=20, target="label"), expected)
    memory = rc.Reservoir(5)
    memory.update(frame, target="label")
    assert torch.equal(memory.batch.targets, Y[memory.batch.ids])


@pytest.mark.parametrize("name", ["collect", "column_names", "columns", "iloc"])
def test_a_column_of_pandas_may_be_called_what_other_tables_have(name: str, expected: rc.Coreset) -> None:
    """Of a frame of pandas each column is an attribute, too."""
    frame = FRAME.rename(columns={"b": name})
    assert_same(choose(frame, size=20, target="label"), expected)
    assert_same(choose(frame.drop(columns="label"), Y, 20), expected)


def test_tuples_that_a_loader_turned_into_lists_are_tuples_again() -> None:
    class Two(Squares):
        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return (x, x), y

    options = {"size": 5, "inits": 2, "dim": 50}
    assert_same(rc.select(Takes, Two(), **options), rc.select(Takes, (X, X), Y, **options))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_an_array_that_is_mapped_from_a_file_is_read_in_parts(
    dtype: Any, mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", X.numpy().astype(dtype))
    mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
    assert isinstance(examples_of(mapped, Y), Incoming)
    plain = np.array(mapped)
    assert_same(choose(mapped, Y, 20), choose(plain, Y, 20))
    assert_same(choose(mapped, pd.Series(Y.numpy(), index=X[:, 0].numpy()), 20), choose(plain, Y, 20))
    memory, other = rc.Reservoir(9), rc.Reservoir(9)
    memory.update(mapped, Y)
    other.update(plain, Y)
    assert torch.equal(memory.batch.inputs, other.batch.inputs)


def test_read_only_arrays_are_taken_without_a_warning(expected: rc.Coreset) -> None:
    x, y = X.numpy().copy(), Y.numpy().copy()
    x.flags.writeable = y.flags.writeable = False
    assert_same(choose(x, y, 20), expected)


def test_size_may_be_a_fraction() -> None:
    assert_same(choose(X, Y, 0.01), choose(X, Y, 15))
    assert_same(choose(loader(Squares(), 64), size=0.01), choose(X, Y, 15))
    assert len(choose(loader(Squares(), 1000, drop_last=True), size=0.01)) == 10
    assert len(choose(X[:9], Y[:9], 0.001)) == 1
    assert len(rc.pursue(torch.randn(40, 9, generator=torch.Generator().manual_seed(0)), 0.1)) == 4


def test_the_global_generators_are_left_alone() -> None:
    before = torch.random.get_rng_state()
    choose(Squares(), size=5)
    assert torch.equal(torch.random.get_rng_state(), before)


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "inputs alone": (lambda: X, {}, "targets must be passed beside inputs that have none, got Tensor alone"),
    "a shuffled loader": (
        lambda: loader(Squares(), 64, shuffle=True),
        {},
        "a loader to select from must not shuffle, as rows are counted in its order: pass its dataset",
    ),
    "a size in their place": (
        lambda: TensorDataset(X, Y),
        {"targets": 10},
        "if it is a size, pass it by name, as size=10",
    ),
    "a size beside a name": (lambda: {"x": X, "y": Y}, {"targets": 10, "target": "y"}, "pass it by name, as size=10"),
    "both": (lambda: (X, Y), {"targets": Y, "target": "y"}, "targets must be passed or named, got both"),
    "no name": (lambda: [{"x": X, "y": Y}], {}, "target must be the name of the targets in a dict that has 'x', 'y'"),
    "another name": (lambda: {"x": X, "y": Y}, {"target": "z"}, "got 'z'"),
    "no such column": (lambda: FRAME, {"target": "z"}, "in the table that has 'a', 'b', 'c', 'd', 'label', got 'z'"),
    "a number as the name": (lambda: FRAME, {"target": 3}, "target must be the name of the targets, got 3"),
    "only targets": (lambda: {"y": Y}, {"target": "y"}, "a dict must have inputs beside the targets, got 'y' alone"),
    "three entries": (lambda: [(X, Y, Y)], {}, "a batch must be (inputs, targets), or a dict"),
    "a name for pairs": (lambda: [(X, Y)], {"target": "y"}, "target='y' must be an entry of a dict, got a pair"),
    "single examples": (
        lambda: list(zip(X, Y.tolist(), strict=True)),
        {},
        "if these are single examples, pass a torch DataLoader of them",
    ),
    "no batches": (lambda: iter([]), {}, "there must be at least one batch, got none"),
    "an empty dataset": (lambda: torch.utils.data.Subset(Squares(), []), {}, "a dataset must hold at least one"),
    "a bad second batch": (
        lambda: [(X, Y), (X * torch.nan, Y)],
        {},
        "the first at position 0: drop or fill them (batch 1 of those given)",
    ),
    "another shape": (lambda: [(X, Y), (X[:, :2], Y)], {}, "inputs must keep the shape (4,) of earlier examples"),
    "fewer than asked": (lambda: parts(10), {"size": N + 1}, f"size must be between 1 and the {N} examples"),
    "a fraction of who knows": (lambda: parts(10), {"size": 0.1}, "must be a whole number where nobody knows how many"),
    "no size": (lambda: (X, Y), {"size": None}, "size must be a whole number of at least 1, or a fraction"),
    "no size of a stream": (lambda: parts(9), {"size": None}, "size must be a whole number of at least 1, got None"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_taken_is_refused_in_one_sentence(what: str) -> None:
    make, options, message = REFUSED[what]
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        choose(make(), **{"size": 5, **options})
    assert message in str(caught.value)


def test_examples_that_cannot_be_stacked_are_refused_with_what_to_do() -> None:
    class Odd(Squares):
        def __getitem__(self, index: int) -> Any:
            return object(), 1

    class Ragged(Squares):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(index + 1), 1

    for dataset in (Odd(), Ragged()):
        with pytest.raises(ValueError, match=r"give it a transform, or pass a DataLoader with a collate_fn$"):
            choose(dataset, size=5)


TABLES: dict[str, tuple[Any, str]] = {
    "pandas": (pd.DataFrame({"a": [1.0], "k": ["x"]}), "as by pandas.get_dummies(frame, dtype=float)"),
    "categories": (pd.DataFrame({"a": [1.0], "k": pd.Categorical(["x"])}), "got column 'k' of category: leave it out"),
    "polars": (pl.DataFrame({"a": [1.0], "k": ["x"]}), "as by frame.to_dummies(['k'])"),
    "pyarrow": (pa.table({"a": [1.0], "k": ["x"]}), "as by pandas.get_dummies(table.to_pandas(), dtype=float)"),
    "lists": (pl.DataFrame({"e": [[1.0, 2.0]]}), "as by numpy.stack(list(table['e']))"),
    "arrays": (pd.Series([np.zeros(2)]), "pass numpy.stack of them"),
    "lazy": (pl.LazyFrame({"a": [1.0]}), "pass what .collect() returns"),
}


@pytest.mark.parametrize("what", TABLES)
def test_tables_that_are_not_numbers_are_refused_with_the_line_that_converts_them(what: str) -> None:
    table, message = TABLES[what]
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        choose(table, [0], 1)
    assert message in str(caught.value)


def test_truth_values_beside_fractions_are_numbers() -> None:
    frame = pd.DataFrame({"a": [0.5, 1.5], "b": [True, False]})
    inputs, _ = examples_of(frame, [0, 1])
    assert inputs.tolist() == [[0.5, 1.0], [1.5, 0.0]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, ">f4"])
def test_pursuit_of_a_mapped_store_is_that_of_its_rows(dtype: Any, tmp_path: Path) -> None:
    rows = (10 * torch.randn(3000, 30, generator=torch.Generator().manual_seed(0)) + 3).numpy().astype(dtype)
    np.save(tmp_path / "store.npy", rows)
    mapped = np.load(tmp_path / "store.npy", mmap_mode="r")
    plain = rows.astype(np.float64 if dtype == np.float64 else np.float32)
    assert_same(rc.pursue(mapped, 20), rc.pursue(torch.from_numpy(plain), 20))
    assert_same(rc.pursue(mapped[1:2001, :20], 0.01), rc.pursue(torch.from_numpy(plain[1:2001, :20]), 20))


def test_a_mapped_store_is_not_copied(tmp_path: Path) -> None:
    store = np.lib.format.open_memmap(tmp_path / "grads.mmap", mode="w+", dtype=np.float16, shape=(20_000, 400))
    for i in range(0, 20_000, 1000):
        store[i : i + 1000] = torch.randn(1000, 400, generator=torch.Generator().manual_seed(i)).numpy()
    mapped = np.load(tmp_path / "grads.mmap", mmap_mode="r")
    tracemalloc.start()
    try:
        rc.pursue(mapped, 3)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < mapped.nbytes / 2


def test_stores_that_are_no_rows_of_numbers_are_refused(tmp_path: Path) -> None:
    named = np.lib.format.open_memmap(tmp_path / "a", mode="w+", dtype=[("layer", np.float32, 3)], shape=(4,))
    with pytest.raises(ValueError, match=r"map it as plain numbers, as bergson's load_gradients"):
        rc.pursue(named, 2)
    flat = np.lib.format.open_memmap(tmp_path / "b", mode="w+", dtype=np.float32, shape=(4,))
    with pytest.raises(ValueError, match=r"one row per candidate, got shape \(4,\) of float32"):
        rc.pursue(flat, 2)
