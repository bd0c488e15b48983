import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import recollect as rc
from recollect.cli import main
from recollect.datasets import Dataset, Examples
from recollect.experiments import (
    CONTENDERS,
    DEFAULT_STREAMS,
    LEARNERS,
    TARGETS,
    Experiment,
    Results,
    estimate_seconds,
    make_model_for,
    open_store,
    paper_results,
    reproduce,
    run,
)
from recollect.experiments.experiment import make_stream
from recollect.experiments.group import run_group
from recollect.experiments.recordings import ELSEWHERE, Recordings, decisive_sources, record
from recollect.experiments.runner import grouped
from recollect.experiments.stacking import train_together
from recollect.learners import Task, Training
from tests.conftest import assert_refused, needs_data


@cache
def slice_of(name: str, tested: int = 50) -> Dataset:
    """The first examples, copied, so that the others need not be held."""
    dataset = rc.datasets.load(name)
    parts = [
        Examples(*(tensor[:rows].clone() for tensor in part))
        for part, rows in ((dataset.train, 5000), (dataset.test, tested))
    ]
    return Dataset(*parts, dataset.n_classes)


PAIRS = sorted({*(("gdumb", memory) for memory in CONTENDERS), *((learner, "recollect") for learner in LEARNERS)})
STREAMS = [pytest.param(n, marks=() if n == "digits" else needs_data(n)) for n in DEFAULT_STREAMS]


@pytest.mark.parametrize("name", STREAMS)
def test_memories_and_learners_run_on_every_data_set(name: str) -> None:
    """All of them on digits, and on each other data set a few, so that together these run all again."""
    first, others = [*DEFAULT_STREAMS].index(name) - 1, len(DEFAULT_STREAMS) - 1
    assert next(iter(DEFAULT_STREAMS)) == "digits"
    smoke_run(name, PAIRS if name == "digits" else PAIRS[first::others])


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_all_memories_and_learners_run_on_every_data_set(name: str) -> None:
    smoke_run(name, PAIRS)


def smoke_run(name: str, pairs: list[tuple[str, str]]) -> None:
    """On a slice, for one epoch."""
    rows, tested = (24, 20) if name == "cifar-10" else (120, 50)  # few for a ResNet-18, but several in each batch
    dataset = slice_of(name, tested)
    for learner, memory in pairs:
        options: dict[str, object] = {}
        if name == "cifar-10" and memory.startswith(("gmc", "recollect")):
            options = {"dim": 100, **({"layers": "last"} if memory == "gmc-local" else {"inits": 1})}
        experiment = Experiment(
            learner, name, memory, size=rows // 2, epochs=1, rows=rows, options=tuple(options.items())
        )
        result = run(experiment, dataset)
        assert 0 <= result["final_accuracy"] <= 100
        assert json.loads(json.dumps(result)) == result


def test_a_result_says_what_it_is_a_result_of() -> None:
    experiment = Experiment("er", "digits", "reservoir", 30, seed=2, epochs=1, every_task=True)
    result = run(experiment)
    assert {name: result[name] for name in ("learner", "dataset", "memory", "size", "seed", "epochs")} == {
        "learner": "er", "dataset": "digits", "memory": "reservoir", "size": 30, "seed": 2, "epochs": 1,
    }  # fmt: skip
    assert len(result["accuracies"]) == len(result["task_accuracies"]) == 5
    assert result["final_accuracy"] == result["accuracies"][-1]
    assert result["versions"]["torch"]


@pytest.mark.parametrize("memory", ["reservoir", "recollect"])
def test_dark_replay_on_split_mnist_works_with_any_memory(memory: str) -> None:
    if rc.datasets.find("mnist") is None:
        pytest.skip("mnist.npz is not there")
    experiment = Experiment("der", "mnist", memory, 50, epochs=1, rows=600, stream="class-incremental")
    assert run(experiment, slice_of("mnist"))["stream"] == "class-incremental"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learner": "sgd"}, "learner must be one of gdumb, er, er-drawn, der, finetune, joint, got 'sgd'"),
        ({"dataset": "imagenet"}, "dataset must be one of digits"),
        ({"memory": "elephant"}, "memory must be one of recollect"),
        ({"stream": "river"}, "stream must be one of class-incremental, rotated, sorted, got 'river'"),
        ({"rows": 0}, "rows must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_experiments_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Experiment(**{"learner": "gdumb", "dataset": "digits", "memory": "reservoir", "size": 5, **fields})


def test_a_store_appends_finds_and_survives_a_torn_line(tmp_path: Path) -> None:
    store = Results(tmp_path / "results.jsonl", key=("seed",))
    assert store.read() == []
    store.append({"seed": 0, "x": 1})
    with store.path.open("ab") as file:
        file.write(b'{"seed": 1, "x"')  # a crash half-way
    assert [r["seed"] for r in store.read()] == [0]
    store.append({"seed": 2, "x": 3})
    assert [r["seed"] for r in store.read()] == [0, 2]
    assert store.find({"seed": 2}) == {"seed": 2, "x": 3}
    store.path.write_text("not results\n")
    with pytest.raises(ValueError, match="must hold one JSON object per line, got another thing in line 1"):
        store.read()


def test_run_keeps_results_and_does_not_repeat_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["run", "--memory", "reservoir", "--size", "20", "--epochs", "1", "--seed", "0", "--seed", "1"]
    outputs = []
    for _ in range(2):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--memory", "elephant"], "memory must be one of recollect"),
        (["run", "--size", "0"], "size must be a whole number of at least 1, got 0"),
        (["run", "--epochs", "0"], "epochs must be a whole number of at least 1, got 0"),
        (["run", "--size", "many"], "--size must be a whole number, got 'many'"),
        (["run", "--results", "."], "results are kept in a file, got the folder"),
        (["run", "--stream", "rotated", "--dataset", "ldpa"], "only images of shape"),
    ],
)
def test_bad_runs_get_exit_code_2_one_line_and_leave_no_file(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "ldpa" in arguments and rc.datasets.find("ldpa") is None:
        pytest.skip("ldpa.npz is not there")
    monkeypatch.chdir(tmp_path)
    assert_refused(arguments, message, capsys)
    assert list(tmp_path.iterdir()) == []


def test_datasets_lists_what_is_here_and_where(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["datasets"])
    output = capsys.readouterr().out
    for name in DEFAULT_STREAMS:
        assert name in output
    assert "bundled" in output


@pytest.mark.parametrize("memory", ["gmc", "gmc-last-layer", "gmc-local"])
def test_lambda_is_the_papers_for_embeddings_that_are_not_divided_by_the_root_of_s(memory: str) -> None:
    options = CONTENDERS[memory].options
    assert options["regularization"] * options.get("inits", 1) == 0.5
    assert options["dim"] * options.get("inits", 1) == 10_000  # as many numbers per example


def results_of(group: tuple[Experiment, ...], folder: Path | None = None) -> list[dict[str, Any]]:
    return [result for results in run_group(group, folder=folder) for result in results]


@pytest.mark.parametrize("memory", ["recollect", "gmc-last-layer"])
@pytest.mark.parametrize(("learner", "mix"), [("er", "weighted"), ("er-drawn", "drawn")])
def test_a_run_is_what_learner_and_memory_do_by_hand(learner: str, mix: Any, memory: str) -> None:
    """Sizes share an embedding and learners are shown recordings; the outcome is that of the plain loop."""
    dataset = rc.datasets.load("digits")
    make_model = make_model_for(dataset)
    (group,) = grouped(Experiment(learner, "digits", memory, s, seed=1, epochs=2, rows=300) for s in (10, 25))
    for experiment, result in zip(group, results_of(group), strict=True):
        kept = rc.GradientMatching(make_model, experiment.size, seed=1, **CONTENDERS[memory].options)
        by_hand = rc.ExperienceReplay(make_model, kept, epochs=2, seed=1, mix=mix)
        stream = make_stream(experiment, dataset)
        for batch in stream.batches:
            by_hand.observe(*batch)
        assert result["kept_ids"] == kept.batch.ids.tolist()
        assert result["kept_weights"] == pytest.approx(kept.batch.weights.tolist(), abs=6e-4)
        assert result["fitted_error"] == pytest.approx(kept.error, abs=1e-6)
        accuracy = 100 * rc.metrics.accuracy(by_hand.predict(stream.test.inputs), stream.test.targets)
        assert result["final_accuracy"] == pytest.approx(accuracy, abs=0.6)  # two of 360 digits


@pytest.mark.parametrize(("learner", "memory"), [("gdumb", "gss"), ("er", "recollect"), ("der", "reservoir")])
def test_runs_side_by_side_learn_what_they_learn_alone(
    learner: str, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their models are trained in one stack, so equal up to rounding."""
    monkeypatch.setattr("recollect.learners.learner.train", None)  # none is left to the learners
    group = tuple(
        Experiment(learner, "digits", memory, size, seed, epochs=3, rows=300, every_task=True)
        for seed in (0, 1)
        for size in (10, 25)
    )
    for experiment, result in zip(group, results_of(group), strict=True):
        alone = run(experiment)
        assert result["accuracies"] == pytest.approx(alone["accuracies"], abs=0.6)  # two of 360 digits
        assert result["kept_ids"] == alone["kept_ids"]
        assert result["seconds_of"]["observe"] >= 0 and result["seconds"] > 0


def test_runs_one_by_one_share_what_is_trained_before_anything_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    group = tuple(
        Experiment("er", "digits", "reservoir", size, seed, epochs=2, rows=300) for seed in (0, 1) for size in (10, 25)
    )
    alone = [run(experiment)["final_accuracy"] for experiment in group]

    def counting(tasks: Sequence[Task], training: Training) -> list[float]:
        sizes.extend(len(task.batch) for task in tasks)
        return train_together(tasks, training)

    monkeypatch.setattr("recollect.experiments.group.train_together", counting)
    monkeypatch.setattr("recollect.experiments.group.is_stackable", lambda model: False)
    assert [result["final_accuracy"] for result in results_of(group)] == alone
    batches = len(make_stream(group[0], rc.datasets.load("digits")).batches)
    assert len(sizes) == 2 * batches + 2 * (batches - 1)


def test_embeddings_are_computed_once_per_batch_and_group(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    dictionary = rc.GradientEmbedding.dictionary

    def counting(self: rc.GradientEmbedding, *arguments: object, **options: object) -> object:
        counts.append(1)
        return dictionary(self, *arguments, **options)

    monkeypatch.setattr(rc.GradientEmbedding, "dictionary", counting)
    sizes = [Experiment("gdumb", "digits", "recollect", size, epochs=1, rows=200) for size in (10, 20, 30)]
    others = [replace(sizes[0], options=(("regularization", value),)) for value in (0.1, 1.0)]
    (group,) = grouped([*sizes, *others])
    results = results_of(group)
    assert len(counts) == 5
    assert len({tuple(result["kept_weights"]) for result in results}) == 5  # each setting has its own memory
    for experiment in others:
        alone = run(experiment)
        assert alone["kept_weights"] == next(r for r in results if r["options"] == alone["options"])["kept_weights"]


def test_other_embeddings_are_another_group() -> None:
    experiments = [Experiment("gdumb", "digits", "gmc", 10, options=(("dim", dim),)) for dim in (50, 100)]
    assert [len(group) for group in grouped(experiments)] == [1, 1]


def test_networks_that_are_not_stacked_are_stored_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.experiments.group.is_stackable", lambda model: False)
    experiments = [Experiment("gdumb", "digits", "reservoir", size, epochs=1, rows=100) for size in (10, 20)]
    store = open_store(tmp_path / "results.jsonl")
    append = Results.append

    def killed_after_one(self: Results, *results: dict[str, object]) -> None:
        append(self, *results)
        raise KeyboardInterrupt

    monkeypatch.setattr(Results, "append", killed_after_one)
    with pytest.raises(KeyboardInterrupt):
        reproduce(experiments, store)
    assert [result["size"] for result in store.read()] == [10]
    monkeypatch.setattr(Results, "append", append)
    assert reproduce(experiments, store) == 1
    assert [result["size"] for result in store.read()] == [10, 20]


def test_learners_share_what_was_chosen_and_a_damaged_file_is_chosen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def group(learner: str) -> tuple[Experiment, ...]:
        return tuple(Experiment(learner, "digits", "recollect", size, epochs=1, rows=200) for size in (10, 30))

    updates = []
    update = rc.GradientMatching.update

    def counting(self: rc.GradientMatching, *arguments: object, **options: object) -> None:
        updates.append(self.capacity)
        update(self, *arguments, **options)

    monkeypatch.setattr(rc.GradientMatching, "update", counting)
    gdumb = results_of(group("gdumb"), tmp_path)
    assert updates == [10, 30] * 5
    replay = results_of(group("er"), tmp_path)
    assert updates == [10, 30] * 5  # nothing was chosen anew
    for one, other in zip(gdumb, replay, strict=True):
        for name in ("kept_ids", "kept_weights", "fitted_error"):
            assert one[name] == other[name]
        assert one["seconds"] == pytest.approx(sum(one["seconds_of"].values()), abs=0.03)
        assert one["seconds_of"]["choose"] == other["seconds_of"]["choose"] > 0
        assert other["seconds"] == pytest.approx(other["seconds_of"]["observe"] + other["seconds_of"]["test"], abs=0.02)

    damaged, _ = sorted(tmp_path.iterdir())
    content = bytearray(damaged.read_bytes())
    content[-100] ^= 1  # one bit of one weight
    damaged.write_bytes(content)
    assert results_of(group("gdumb"), tmp_path)[0]["kept_weights"] == gdumb[0]["kept_weights"]
    assert updates == [10, 30] * 5 + [10] * 5
    changed = Experiment("gdumb", "digits", "recollect", 10, epochs=1, rows=201)
    results_of((changed,), tmp_path)
    assert updates[-5:] == [10] * 5 and len(updates) == 20  # another stream, another choice


def test_nothing_stale_is_found(tmp_path: Path) -> None:
    first = Experiment("gdumb", "digits", "recollect", 10, rows=100)
    others = [replace(first, size=11), replace(first, seed=1), replace(first, memory="gmc")]
    others += [replace(first, options=(("center", "zero"),))]
    stream = make_stream(first, rc.datasets.load("digits"))
    shelf = Recordings(stream, tmp_path)
    shelf.keep(first, record([first], stream, make_model_for(rc.datasets.load("digits")))[0])
    assert shelf.find(replace(first, learner="er", epochs=3)) is not None
    assert [shelf.find(other) for other in others] == [None] * 4


def test_files_without_a_say_are_told_by_their_path(tmp_path: Path) -> None:
    names = ["memories/store.py", "memories/learners/one.py", "experiments/experiment.py", "batch.py"]
    others = ["experiments/results.py", "experiments/group.py", "learners/gdumb.py", "cli.py", "batch.pyc"]
    for name in [*names, *others]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(name for name, _ in decisive_sources(tmp_path)) == sorted(names)
    package = Path(rc.__file__).parent
    assert all((package / name).exists() for name in ELSEWHERE)  # so that a file that moves is not forgotten


@pytest.mark.parametrize("target", TARGETS)
def test_targets_can_be_narrowed(target: str) -> None:
    experiments = TARGETS[target](datasets=["covertype"], memories=["gmc"], sizes=[200], seeds=range(2))
    assert all(e.dataset == "covertype" and e.memory == "gmc" and e.size == 200 for e in experiments)
    assert {e.seed for e in experiments} <= {0, 1}
    assert len({json.dumps(e.key()) for e in experiments}) == len(experiments)


def test_the_papers_tables_are_complete() -> None:
    results = paper_results()
    assert results["er", "mnist", "gmc-last-layer", 1000] == (92.11, 0.35)
    assert ("gdumb", "covertype", "gss", 5000) not in results
    assert len(results) > 350


def small_targets() -> list[Experiment]:
    return [
        Experiment("gdumb", "digits", memory, size, seed, epochs=1, rows=200)
        for memory in ("reservoir", "sliding-window")
        for size in (10, 20)
        for seed in (0, 1)
    ]


def timeless(store: Results) -> list[str]:
    return sorted(
        json.dumps({k: v for k, v in r.items() if not k.startswith("seconds")}, sort_keys=True) for r in store.read()
    )


def test_reproducing_in_processes_gives_the_same_results_and_repeats_nothing(tmp_path: Path) -> None:
    one, two = open_store(tmp_path / "one.jsonl"), open_store(tmp_path / "two.jsonl")
    assert reproduce(small_targets(), one) == 8
    assert reproduce(small_targets(), one) == 0
    assert reproduce(small_targets(), two, workers=2) == 8
    strip = [[json.loads(line) for line in timeless(store)] for store in (one, two)]
    for results in strip:
        for result in results:
            result.pop("machine")
    assert strip[0] == strip[1]
    assert estimate_seconds(small_targets(), one) == 0
    more = [*small_targets(), Experiment("gdumb", "digits", "reservoir", 30, epochs=1, rows=200)]
    left = estimate_seconds(more, one)
    assert left is not None
    assert left > 0


def test_a_run_that_fails_in_a_process_leaves_those_alone_that_have_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mnist.npz").write_bytes(b"no archive")
    monkeypatch.setenv("RECOLLECT_DATA", str(tmp_path))
    good = ("reservoir", "sliding-window", "class-balanced", "herding", "clustering")
    runs = [
        Experiment("gdumb", "mnist", "reservoir", 10, epochs=1),
        *(Experiment("gdumb", "digits", memory, 10, epochs=1, rows=200) for memory in good),
    ]
    store = open_store(tmp_path / "runs.jsonl")
    with pytest.raises(ValueError, match="must hold the arrays of mnist"):
        reproduce(runs, store, workers=2)
    assert len(store.read()) < len(good)


def test_the_cheapest_come_first_as_told_by_stored_runs_like_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "results.jsonl")
    for memory, seconds, choosing in (("reservoir", 50.0, 0.0), ("gss", 90.0, 0.0), ("gmc", 60.0, 58.0)):
        key = Experiment("gdumb", "digits", memory, 10, epochs=10).key()
        store.append({**key, "seconds": seconds, "seconds_of": {"choose": choosing, "observe": seconds - choosing}})
    wanted = [Experiment("gdumb", "digits", m, 10, seed=1, epochs=100) for m in ("reservoir", "gss", "gmc")]
    assert estimate_seconds(wanted, store) == pytest.approx(500 + 900 + 58 + 20)
    ran: list[str] = []

    def noting(group: tuple[Experiment, ...], **_: object) -> list[list[dict[str, Any]]]:
        ran.extend(e.memory for e in group)
        return [[e.key() for e in group]]

    monkeypatch.setattr("recollect.experiments.runner.run_group", noting)
    assert reproduce(wanted, store, progress=False, cheapest_first=True) == 3
    assert ran == ["gmc", "reservoir", "gss"]


def test_a_dry_run_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["reproduce", "table-gdumb", "--dataset", "covertype", "--seeds", "3", "--dry-run"])
    assert caught.value.code == 0
    assert "135 experiments, 0 done, no stored run to estimate the time by" in capsys.readouterr().out.replace(
        "\n", " "
    )
    assert list(tmp_path.iterdir()) == []
    for target, count in (("table-gdumb", 225), ("figure-initialisation", 60)):  # five seeds and three by default
        with pytest.raises(SystemExit):
            main(["reproduce", target, "--dataset", "covertype", "--dry-run"])
        assert f"{target}: {count} experiments" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["reproduce", "table-7"])
    assert "the target must be one of table-gdumb" in capsys.readouterr().err


@pytest.mark.slow
def test_reproducing_survives_being_killed_at_ten_random_moments(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recollect", "reproduce", "table-gdumb", "--dataset", "digits", "--seeds", "3"]
    for memory in ("recollect", "gmc-local", "reservoir", "gss"):
        command += ["--memory", memory]
    command += ["--size", "20", "--size", "40"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = time.monotonic()
    subprocess.run([*command, "--results", tmp_path / "calm.jsonl"], check=True, env=environment, capture_output=True)
    whole = time.monotonic() - start
    moments = random.Random(0)
    killed = 0
    for _ in range(10):
        with subprocess.Popen(
            [*command, "--results", tmp_path / "killed.jsonl"], env=environment, stdout=subprocess.DEVNULL
        ) as running:
            time.sleep(moments.uniform(0, whole / 2))
            killed += running.poll() is None
            running.send_signal(signal.SIGKILL)
    assert killed >= 5  # or the moments were chosen badly
    subprocess.run([*command, "--results", tmp_path / "killed.jsonl"], check=True, env=environment, capture_output=True)
    calm, after = (timeless(open_store(tmp_path / f"{name}.jsonl")) for name in ("calm", "killed"))
    assert len(calm) == 24
    assert calm == after
