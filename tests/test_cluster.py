"""The same choice on a cluster: a real Ray, started here and stopped again."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import recollect as rc
from recollect import cluster
from recollect.batch import Batch
from recollect.experiments import Experiment, open_store, reproduce

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


@pytest.mark.parametrize("layers", ["all", "last"])
def test_all_candidates_may_stay_with_the_workers(layers: str) -> None:
    data, options = examples(3000), {"inits": 3, "shortlist": None, "layers": layers}
    assert same(
        rc.select(make_model, *data, 20, **options, cluster="auto"), rc.select(make_model, *data, 20, **options)
    )


@pytest.mark.parametrize(("rows", "rows_per_task"), [(1000, 1000), (7777, 5000), (100, 9000)])
def test_what_is_found_does_not_depend_on_how_examples_are_dealt_out(rows: int, rows_per_task: int) -> None:
    batch = Batch.arriving(*examples(8500))
    found = []
    for pieces, per_task in ((8500, 8500), (rows, rows_per_task)):
        embedding = rc.GradientEmbedding(make_model, inits=3)
        cut, load = cluster.in_memory(batch, pieces)
        options: dict[str, Any] = {"seed": 0, "processors": 2, "rows_per_task": per_task}
        found.append(cluster.look_over(embedding, cut, load, 100, **options))
    one, other = found
    assert torch.equal(one.total.value(), other.total.value())
    assert torch.equal(one.candidates.ids, other.candidates.ids) and one.count == other.count == 8500


def test_workers_that_are_killed_change_nothing(local: rc.Coreset) -> None:
    killed: list[int] = []
    done = threading.Event()

    def kill() -> None:
        while not done.is_set() and len(killed) < 5:
            found = subprocess.run(["pgrep", "-f", "ray::_look"], capture_output=True, text=True, check=False)
            for pid in map(int, found.stdout.split()[:1]):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        chosen = [rc.select(make_model, *examples(9000), 20, inits=3, cluster="auto") for _ in range(2)]
    finally:
        done.set()
        killer.join()
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


def test_without_ray_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r'which is not installed: pip install "recollect\[ray\]"'):
        rc.select(make_model, *examples(100), 5, cluster="auto")


def test_experiments_on_a_cluster_have_the_same_results(tmp_path: Path) -> None:
    wanted = [Experiment("gdumb", "digits", memory, 20, epochs=2) for memory in ("reservoir", "recollect")]
    here, there = (open_store(tmp_path / f"{name}.jsonl") for name in ("here", "there"))
    assert reproduce(wanted, here, progress=False) == 2
    assert reproduce(wanted[:1], there, progress=False, cluster="auto") == 1
    assert reproduce(wanted, there, progress=False, cluster="auto") == 1  # what is stored is not repeated
    accuracies = [{r["memory"]: r["accuracies"] for r in store.read()} for store in (here, there)]
    assert accuracies[0] == accuracies[1]
