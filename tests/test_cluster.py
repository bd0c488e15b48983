"""The same choice on a cluster: a real Ray, started here and stopped again."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import recollect as rc
from recollect import cluster
from recollect.batch import Batch
from recollect.cli import main
from recollect.experiments import Experiment, open_store, reproduce
from recollect.onepass import drawn
from recollect.tables import Reading, Store
from recollect.tables.reading import Dialect, Source, at_hand, columnar, content_hash, recognise
from recollect.tables.workers import Workers, working

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'recollect[ray]'")
pytestmark = pytest.mark.xdist_group("ray")  # one cluster, in one process

make_model = partial(rc.models.mlp, 6, 2, hidden=(16,))


def examples(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(n, 6, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, 0] + inputs[:, 1].square() > 1).long()


@pytest.fixture(scope="module", autouse=True)
def two_processors() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def same(a: rc.Coreset, b: rc.Coreset) -> bool:
    return torch.equal(a.indices, b.indices) and torch.equal(a.weights, b.weights)


@pytest.fixture(scope="module")
def local() -> rc.Coreset:
    return rc.select(make_model, *examples(9000), 20, inits=3)


def test_a_cluster_chooses_what_one_machine_chooses(local: rc.Coreset) -> None:
    assert same(rc.select(make_model, *examples(9000), 20, inits=3, cluster="auto"), local)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Data's own settings
def test_a_ray_dataset_is_chosen_from_where_it_is(local: rc.Coreset) -> None:
    inputs, targets = examples(9000)
    table = pa.table({**{f"x{i}": inputs[:, i].numpy() for i in range(6)}, "y": targets.numpy()})
    blocks = [table.slice(0, 7777), table.slice(7777, 1), table.slice(7778)]
    data = ray.data.from_arrow(blocks)
    assert same(rc.select(make_model, data, size=20, target="y", inits=3, cluster="auto"), local)
    with pytest.raises(ValueError, match="needs the cluster that it is on, got none: pass cluster='auto'"):
        rc.select(make_model, data, size=20, target="y")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Data's own settings
def test_the_rows_of_a_dataset_are_made_once(tmp_path: Path, local: rc.Coreset) -> None:
    inputs, targets = examples(9000)
    table = pa.table({**{f"x{i}": inputs[:, i].numpy() for i in range(6)}, "y": targets.numpy()})
    blocks = [table.slice(0, 0), table.slice(0, 5000), table.slice(5000, 0), table.slice(5000)]

    def noted(block: Any) -> Any:
        if len(block["y"]):
            (tmp_path / str(time.monotonic_ns())).touch()
        return block

    data = ray.data.from_arrow(blocks).map_batches(noted, batch_size=None)
    assert same(rc.select(make_model, data, size=20, target="y", inits=3, cluster="auto"), local)
    assert len([*tmp_path.iterdir()]) == 2
    for size, message in ((10_000, "between 1 and the 9000 examples, got 10000"), (0, "of at least 1")):
        with pytest.raises(ValueError, match=message):
            rc.select(make_model, data, size=size, target="y", cluster="auto")
    with pytest.raises(ValueError, match="a dataset must hold at least one example, got none"):
        rc.select(make_model, ray.data.from_arrow(blocks[:1]), size=20, target="y", cluster="auto")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Data's own settings
def test_a_dataset_that_cannot_be_made_is_one_sentence_that_says_why(tmp_path: Path) -> None:
    def broken(block: Any) -> Any:
        raise RuntimeError("no such user")

    (tmp_path / "rows.csv").write_text("x,y\n1,2\n1,2,3\n")
    table = pa.table({"x": [1.0, 2.0], "y": [0, 1]})
    memory = rc.GradientMatching(partial(rc.models.mlp, 1, 2), 2, inits=2, cluster="auto")
    for data, message in (
        (ray.data.from_arrow(table).map_batches(broken), "examples, got RuntimeError: no such user$"),
        (ray.data.read_csv(str(tmp_path)), "^Failed to read CSV file: .*$"),
    ):
        with pytest.raises(ValueError, match=rf"^[^\n]*{message.lstrip('^')}") as refused:
            rc.select(partial(rc.models.mlp, 1, 2), data, size=2, target="y", inits=2, cluster="auto")
        assert "\n" not in str(refused.value)
        with pytest.raises(ValueError, match=message):
            memory.update(data, target="y")
    assert memory.seen == 0


@pytest.mark.parametrize("layers", ["all", "last"])
def test_all_candidates_may_stay_with_the_workers(layers: str) -> None:
    data, options = examples(3000), {"inits": 3, "shortlist": None, "layers": layers}
    assert same(
        rc.select(make_model, *data, 20, **options, cluster="auto"), rc.select(make_model, *data, 20, **options)
    )


@pytest.mark.parametrize(("rows", "rows_per_task"), [(1000, 1000), (7777, 5000), (100, 9000)])
def test_what_is_found_does_not_depend_on_how_examples_are_dealt_out(rows: int, rows_per_task: int) -> None:
    inputs, targets = examples(8500)
    inputs[8123] *= 300
    batch = Batch.arriving(inputs, targets)
    assert 8123 not in drawn(batch.ids, 100, 0)
    found = []
    for pieces, per_task in ((8500, 8500), (rows, rows_per_task)):
        embedding = rc.GradientEmbedding(make_model, inits=3)
        cut, load = cluster.in_memory(batch, pieces)
        options: dict[str, Any] = {"seed": 0, "processors": 2, "rows_per_task": per_task}
        found.append(cluster.look_over(embedding, cut, load, 100, **options))
    one, other = found
    assert torch.equal(one.total.value(), other.total.value())
    assert torch.equal(one.candidates.ids, other.candidates.ids) and one.count == other.count == 8500
    assert len(one.candidates) == 101 and 8123 in one.candidates.ids  # which stands out


def children(parent: int, *pattern: str) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(parent), *pattern], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


@contextmanager
def killing(what: str, most: int) -> Iterator[list[int]]:
    """Kills workers of this process's cluster that are at such a task, one after the other."""
    killed: list[int] = []
    done = threading.Event()

    def kill() -> None:
        while not done.is_set() and len(killed) < most:
            at_it = [pid for raylet in children(os.getpid(), "-x", "raylet") for pid in children(raylet, "-f", what)]
            for pid in at_it[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield killed
    finally:
        done.set()
        killer.join()


def test_workers_that_are_killed_change_nothing(local: rc.Coreset) -> None:
    with killing("ray::_look", 3) as killed:
        chosen = [rc.select(make_model, *examples(9000), 20, inits=3, cluster="auto") for _ in range(2)]
    assert all(same(coreset, local) for coreset in chosen)
    assert killed


def test_what_a_worker_refuses_is_said_in_its_words() -> None:
    inputs, targets = examples(3000)
    targets[2500] = 7
    with pytest.raises(ValueError, match=r"^[^\n]*got 7[^\n]*$"):
        rc.select(make_model, inputs, targets, 20, inits=2, cluster="auto")
    with pytest.raises(ValueError, match="must be 'auto' or the address of a Ray cluster, got 7"):
        rc.select(make_model, inputs, targets, 20, cluster=7)
    with pytest.raises(ValueError, match="from all classes alike, got class_weight or min_per_class"):
        rc.select(make_model, inputs, targets, 20, cluster="auto", class_weight="balanced")


def test_what_comes_to_the_driver_does_not_grow_with_the_examples() -> None:
    sizes = []
    for n in (3000, 9000):
        cut, load = cluster.in_memory(Batch.arriving(*examples(n)))
        embedding = rc.GradientEmbedding(make_model, inits=3)
        found = cluster.look_over(embedding, cut, load, 200, seed=0, processors=2)
        sizes.append(len(ray.cloudpickle.dumps((found.total, found.candidates, found.classes))))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05)


def test_ray_is_imported_only_when_it_is_used() -> None:
    code = "import sys, recollect; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_experiments_on_a_cluster_have_the_same_results(tmp_path: Path) -> None:
    wanted = [Experiment("gdumb", "digits", memory, 20, epochs=2) for memory in ("reservoir", "recollect")]
    here, there = (open_store(tmp_path / f"{name}.jsonl") for name in ("here", "there"))
    assert reproduce(wanted, here, progress=False) == 2
    assert reproduce(wanted[:1], there, progress=False, cluster="auto") == 1
    assert reproduce(wanted, there, progress=False, cluster="auto") == 1  # what is stored is not repeated
    accuracies = [{r["memory"]: r["accuracies"] for r in store.read()} for store in (here, there)]
    assert accuracies[0] == accuracies[1]


def held_by(memory: rc.Memory) -> tuple[Any, ...]:
    return memory.seen, memory.batch.ids.tolist(), memory.batch.weights.tolist()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Data's own settings
def test_a_memory_keeps_the_same_whoever_looks(tmp_path: Path) -> None:
    inputs, targets = examples(3000)
    table = pa.table({**{f"x{i}": inputs[:, i].numpy() for i in range(6)}, "y": targets.numpy()})
    here, there = (rc.GradientMatching(make_model, 20, inits=3, cluster=cluster) for cluster in (None, "auto"))
    for start, stop in ((0, 5), (5, 1500), (1500, 1506), (1506, 1600), (1600, 3000)):  # few wait for a choice
        here.update(inputs[start:stop], targets[start:stop])
        if stop in (5, 1506):
            there.update(inputs[start:stop], targets[start:stop])
        else:
            there.update(ray.data.from_arrow(table.slice(start, stop - start)), target="y")
        assert held_by(there) == held_by(here)
    there.update(inputs, targets)
    here.update(inputs, targets)
    assert held_by(there) == held_by(here) and torch.equal(there.target, here.target)
    there.save(tmp_path / "memory")
    assert rc.load_memory(tmp_path / "memory", make_model).cluster is None
    with pytest.raises(ValueError, match="needs the cluster that it is on, got none: pass cluster='auto'"):
        here.update(ray.data.from_arrow(table), target="y")
    with pytest.raises(ValueError, match="a cluster chooses from a shortlist, got shortlist=None: leave out cluster"):
        rc.GradientMatching(make_model, 20, shortlist=None, cluster="auto")


def written(folder: Path, n: int) -> tuple[Path, Path]:
    """The same rows in three row groups of a Parquet file, and as text, with something odd here and there."""
    inputs, targets = examples(n)
    odd = {"colour": [("red", "blue", "green")[i % 3] for i in range(n)], "price": [f"{i % 97},5 €" for i in range(n)]}
    columns = {**{f"x{i}": inputs[:, i].numpy() for i in range(6)}, **odd, "when": ["31.12.2024", None] * (n // 2)}
    table = pa.table({**columns, "kind": [("a", "b")[t] if i % 50 else None for i, t in enumerate(targets.tolist())]})
    parquet, text = folder / "rows.parquet", folder / "rows.csv"
    pyarrow.parquet.write_table(table, parquet, row_group_size=1000)
    pyarrow.csv.write_csv(table, text)
    return parquet, text


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a Parquet file of a thousand rows, here as for workers, who read what they are told to."""
    monkeypatch.setattr(columnar, "_PART", 1000)
    divide = columnar.parquet_parts
    monkeypatch.setattr(
        Workers,
        "_parts",
        lambda self, sources: [p for s in sources for p in (divide(s) if s.dialect.format == "parquet" else [s])],
    )


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command: its exit code, and what it says to whom."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("which", ["parquet", "csv", "several", "address"])
def test_files_are_read_by_workers_and_the_choice_is_the_same(tmp_path: Path, command: Command, which: str) -> None:
    parquet, text = written(tmp_path, 4000)
    files: list[Any] = {"parquet": [parquet], "csv": [text], "several": [parquet, tmp_path / "again.parquet"]}.get(
        which, [f"file://{text}"]
    )
    if which == "several":
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(parquet).slice(0, 100), files[1])
    options = ["--target", "kind", "--size", 20, "--drop-missing-target", "--memory", "recollect"]
    options += ["--memory-limit", "721MB"]  # 1500 at a time
    answers = []
    for name, more in (("here", []), ("there", ["--cluster", "auto"])):
        code, said, _ = command("select", *files, *options, "-o", tmp_path / f"{name}.csv", "--json", *more)
        answers.append({k: v for k, v in json.loads(said).items() if "second" not in k and k != "output"})
        assert code == 0
    assert answers[0] == answers[1]
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()


@pytest.mark.usefixtures("small_parts")
def test_a_store_is_the_same_whoever_reads_its_files(tmp_path: Path, command: Command) -> None:
    parquet, _ = written(tmp_path, 4000)
    table = pyarrow.parquet.read_table(parquet)
    days = [tmp_path / f"day{i}.parquet" for i in range(3)]
    parts = [table.slice(0, 3000), table.slice(3000, 6), table.slice(2000, 2000)]
    new = pa.array(["c" if i % 7 == 0 else "a" for i in range(2000)])  # a class that comes later
    parts[2] = parts[2].set_column(table.num_columns - 1, "kind", new)
    for day, part in zip(days, parts, strict=True):
        pyarrow.parquet.write_table(part, day, row_group_size=500)
    found = []
    for name, more in (("here", []), ("there", ["--cluster", "auto"])):
        store = tmp_path / name
        options = ["--target", "kind", "--size", 20, "--drop-missing-target", "--memory", "recollect"]
        assert command("init", store, *options, "--quiet")[0] == 0
        said = command("update", store, *days, days[0], *more)
        assert said[0] == 0 and "new classes: c" in said[1]
        assert "day0.parquet: taken before, not counted again" in command("update", store, days[0], *more)[1]
        assert command("export", store, "-o", tmp_path / f"{name}.csv", "--quiet")[0] == 0
        found.append((said[1], Store(store).state()))
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()
    assert found[0][0] == found[1][0]
    assert found[0][1].encoding == found[1][1].encoding and found[0][1].account == found[1][1].account


@pytest.mark.usefixtures("small_parts")
def test_workers_that_are_killed_while_they_read_change_nothing(tmp_path: Path, command: Command) -> None:
    parquet, _ = written(tmp_path, 4000)
    choose = ["select", parquet, "--target", "kind", "--size", 20, "--memory", "recollect", "--drop-missing-target"]
    choose += ["--quiet", "-o"]
    assert command(*choose, tmp_path / "here.csv")[0] == 0
    with killing("ray::_(begin|glimpses|fold|read|encode)", 3) as killed:
        assert all(command(*choose, tmp_path / f"{i}.csv", "--cluster", "auto")[0] == 0 for i in range(2))
    assert killed
    assert {(tmp_path / f"{i}.csv").read_bytes() for i in range(2)} == {(tmp_path / "here.csv").read_bytes()}


def test_a_wrong_file_is_refused_in_the_same_words_and_changes_nothing(tmp_path: Path, command: Command) -> None:
    _, text = written(tmp_path, 2000)
    (tmp_path / "short.csv").write_text(text.read_text() + '"1"\n')
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    store = tmp_path / "store"
    matching = ["--memory", "recollect"]
    options = ["--target", "kind", "--size", 20, "--quiet", "--drop-missing-target", *matching]
    assert command("init", store, *options)[0] == 0
    assert command("update", store, text, "--cluster", "auto", "--quiet")[0] == 0
    before = {path: path.read_bytes() for path in store.rglob("*.json")}
    wrong = [
        ("update", store, tmp_path / "short.csv"),
        ("update", store, tmp_path / "other.csv"),
        ("select", text, "--target", "kind", "--size", 9, *matching, "-o", tmp_path / "o.csv"),  # targets are missing
        ("select", text, "--target", "none", "--size", 9, *matching, "-o", tmp_path / "o.csv"),
        ("select", tmp_path / "nowhere.csv", "--target", "kind", "--size", 9, *matching, "-o", tmp_path / "o.csv"),
    ]
    for arguments in wrong:
        here, there = command(*arguments), command(*arguments, "--cluster", "auto")
        assert here == there and here[0] == 2 and here[2].count("\n") == 1
    assert {path: path.read_bytes() for path in store.rglob("*.json")} == before
    assert not (tmp_path / "o.csv").exists()


def test_what_a_cluster_cannot_do_is_one_sentence(tmp_path: Path, command: Command) -> None:
    parquet, _ = written(tmp_path, 200)
    choose = ["--target", "kind", "--size", 9, "-o", tmp_path / "o.csv", "--cluster", "auto"]
    alone = command("select", "-", *choose, "--memory", "recollect")[2]
    assert "which comes to this process alone: write it to a file first" in alone
    assert "got memory 'clustering': pass --memory recollect" in command("select", parquet, *choose)[2]
    assert "got class weights or places" in command("select", parquet, *choose, "--min-per-class", 1)[2]
    missing = Source("far.csv", Path("/nowhere/far.csv"), Dialect("csv"))
    with (
        pytest.raises(ValueError, match=r"every worker must be able to read 'far.csv', got no such file on .*: put it"),
        working("auto") as workers,
    ):
        workers.digest(missing)


def test_an_address_whose_content_changes_is_refused(tmp_path: Path) -> None:
    _, text = written(tmp_path, 200)
    with working("auto") as workers:
        [source] = workers.sources([f"file://{text}"], Reading())
        assert workers.digest(source) == content_hash(recognise(text))
        text.write_text(text.read_text() + "\n")
        with pytest.raises(ValueError, match="must not change while it is read, but it did"), at_hand(source):
            pass


def test_a_cluster_that_cannot_be_used_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid()
    real = cluster._versions()
    monkeypatch.setattr(cluster, "_versions", lambda: real if os.getpid() == here else ("0.0", "0.1"))
    with pytest.raises(ValueError, match=r"every node must have recollect .* got 0.0 and 0.1 on node \w+: install"):
        rc.select(make_model, *examples(100), 5, cluster="auto")
    monkeypatch.setattr(cluster, "_START", 0.01)
    monkeypatch.setattr(cluster, "_versions", lambda: time.sleep(3))
    with pytest.raises(ValueError, match=r"start a worker within 0.01 seconds, got no answer of node \w+: see `ray"):
        rc.select(make_model, *examples(100), 5, cluster="auto")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for address in ("127.0.0.1:9", "nowhere"):
        with pytest.raises(ValueError, match=rf"^cluster must be the address of a Ray cluster .* got '{address}' \("):
            rc.select(make_model, *examples(100), 5, cluster=address)


def test_the_address_of_another_cluster_is_refused_while_connected() -> None:
    here = ray.get_runtime_context().gcs_address
    for address in ("nowhere.invalid:6379", "127.0.0.1:9", "192.0.2.77:" + here.rpartition(":")[2], "nowhere"):
        with pytest.raises(ValueError, match=rf"^cluster must be where .*, {here}, got '{address}': pass 'auto'"):
            rc.select(make_model, *examples(100), 5, cluster=address)
    for address in (here, "localhost:" + here.rpartition(":")[2]):
        with cluster.connected(address) as processors:
            assert processors == 2


def test_without_ray_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Command
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r'which is not installed: pip install "recollect\[ray\]"'):
        rc.select(make_model, *examples(100), 5, cluster="auto")
    (tmp_path / "rows.csv").write_text("x,y\n1,2\n")
    choose = ["--target", "y", "--size", 1, "--memory", "recollect", "-o", tmp_path / "o.csv", "--cluster", "auto"]
    code, _, said = command("select", tmp_path / "rows.csv", *choose)
    assert (code, said) == (
        2,
        'recollect: a cluster needs the package ray, which is not installed: pip install "recollect[ray]"\n',
    )
