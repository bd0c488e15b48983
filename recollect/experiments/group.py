"""Experiments that go over one stream together.

The way of a run: the stream is made; gradient matching goes over it, once for all learners (`recordings`); the learners
see it batch by batch, side by side where their networks can be trained as one stack (`stacking`), one after the other
where not; and each tells its result. Results are those of running each alone, up to rounding in the stack.
"""

import copy
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recollect import datasets, metrics
from recollect.datasets import Dataset
from recollect.embedding import MakeModel
from recollect.experiments.experiment import LEARNERS, WITHOUT_MEMORY, Experiment, make_model_for, make_stream
from recollect.experiments.recordings import Playback, Recording, Recordings, record
from recollect.experiments.stacking import is_stackable, train_together
from recollect.learners import Learner
from recollect.progress import progress_bar
from recollect.streams import Stream

Group = tuple[Experiment, ...]
"""Experiments that differ in memory size, seed and settings of the pursuit alone."""

FEW = 200
"""A memory of at most so many examples is written into the result, so that it can be looked at."""


def run(experiment: Experiment, dataset: Dataset | None = None, *, progress: bool = False) -> dict[str, Any]:
    """Run it and tell everything about it as plain data.

    Example:
        >>> result = run(Experiment("gdumb", "digits", "reservoir", 50, epochs=1))
        >>> result["dataset"], len(result["accuracies"])
        ('digits', 1)
    """
    with progress_bar(f"{experiment.learner} on {experiment.dataset}", 1, show=progress) as bar:
        ((result,),) = run_group((experiment,), dataset, advance=bar.advance)
    return result


def run_group(
    group: Group,
    dataset: Dataset | None = None,
    folder: Path | None = None,
    advance: Callable[[float], None] = lambda share: None,
) -> Iterator[list[dict[str, Any]]]:
    """The results of a group, as soon as they are there.

    Args:
        group: experiments that differ in memory size, seed and settings of the pursuit alone.
        dataset: their data set; loaded if not given.
        folder: where what gradient matching keeps is looked up and written down, if anywhere.
        advance: told how many experiments' worth of work has been done since it was told last.
    """
    dataset = datasets.load(group[0].dataset) if dataset is None else dataset
    stream, make_model = make_stream(group[0], dataset), make_model_for(dataset)
    shelf = Recordings(stream, folder)
    known = {e: found for e in group if e.matches_gradients and (found := shelf.find(e)) is not None}
    unknown: dict[int, list[Experiment]] = {}
    for e in group:
        if e.matches_gradients and e not in known:
            unknown.setdefault(e.seed, []).append(e)
    share = len(group) / (len(stream.batches) * (1 + len(unknown)))
    made: dict[Experiment, Recording] = {}
    for some in unknown.values():
        made |= zip(some, record(some, stream, make_model, partial(advance, share)), strict=True)
        for e in some:
            shelf.keep(e, made[e])
    runs = [_Run(e, make_model, known.get(e, made.get(e)), counted=e in made) for e in group]
    with torch.device("meta"):  # draws nothing
        side_by_side = is_stackable(make_model())
    begun: dict[int, nn.Module] = {}
    for some_runs in [runs] if side_by_side else [[run] for run in runs]:
        yield _learn(some_runs, stream, begun, lambda: advance(share * len(some_runs) / len(runs)))  # noqa: B023


def _learn(
    runs: "Sequence[_Run]", stream: Stream, begun: dict[int, nn.Module], advance: Callable[[], None]
) -> list[dict[str, Any]]:
    """Show the stream to the learners of all runs, and test them; what they would train next is trained together.

    What they train on the first batch, when nothing is remembered, depends on the seed alone: it is kept in `begun`.
    """
    for i, batch in enumerate(stream.batches):
        if i == 0 and all(run.experiment.seed in begun for run in runs):
            models: list[nn.Module | None] = [copy.deepcopy(begun[run.experiment.seed]) for run in runs]
        else:
            models = _train(runs, "observe", *batch)
        if i == 0:
            begun |= {r.experiment.seed: copy.deepcopy(m) for r, m in zip(runs, models, strict=True) if m is not None}
        for run, trained in zip(runs, models, strict=True):
            with run.timed("observe"):
                run.learner.observe(*batch, trained=trained)
        if runs[0].experiment.every_task or i == len(stream.batches) - 1:
            for run, trained in zip(runs, _train(runs, "test"), strict=True):
                with run.timed("test"):
                    run.test(stream, trained)
        advance()
    return [run.result() for run in runs]


def _train(runs: "Sequence[_Run]", what: str, *examples: Any) -> list[nn.Module | None]:
    """The models that learners need to observe these examples or, without any, to predict."""
    tasks = []
    for run in runs:
        with run.timed(what):
            tasks.append(run.learner.pending(*examples))
    wanted = [(run, task) for run, task in zip(runs, tasks, strict=True) if task is not None]
    if wanted:
        seconds = train_together([task for _, task in wanted], runs[0].learner.training)
        for (run, _), took in zip(wanted, seconds, strict=True):
            run.seconds[what] += took
    return [None if task is None else task.model for task in tasks]


class _Run:
    """An experiment on its way through the stream.

    Args:
        experiment: what to do.
        make_model: the network for its data.
        recording: what its memory kept, if that is known in advance.
        counted: whether it was made for this run, so that it is counted as time spent on it.
    """

    def __init__(
        self, experiment: Experiment, make_model: MakeModel, recording: Recording | None, *, counted: bool
    ) -> None:
        e = self.experiment = experiment
        arguments: list[Any] = [partial(_channels_last, make_model)]
        if recording is not None:
            arguments.append(Playback(e.size, recording, seed=e.seed))
        elif e.learner not in WITHOUT_MEMORY:
            options = {**e.contender.options, **dict(e.options)}
            arguments.append(e.contender.kind(e.size, seed=e.seed, **options))
        self.learner: Learner = LEARNERS[e.learner](*arguments, epochs=e.epochs, seed=e.seed)
        self.seconds = {"choose": 0.0 if recording is None else recording.seconds, "observe": 0.0, "test": 0.0}
        self._elsewhere = 0.0 if counted else self.seconds["choose"]
        self._accuracies: list[float] = []
        self._matrix: list[list[float]] = []

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - start

    def test(self, stream: Stream, trained: nn.Module | None) -> None:
        """Measure how good the learner is, with the model that it wanted trained, if any."""
        if trained is not None:
            self.learner.accept(trained)
        found = metrics.accuracies(self.learner.predict, [stream.test, *stream.tests])
        whole, *by_task = (round(100 * accuracy, 4) for accuracy in found)
        self._accuracies.append(whole)
        self._matrix.append(by_task)

    def result(self) -> dict[str, Any]:
        """Everything about it, as plain data."""
        return {
            **self.experiment.key(),
            "final_accuracy": self._accuracies[-1],
            "accuracies": self._accuracies,
            "task_accuracies": self._matrix,
            **self._kept(),
            "seconds": round(sum(self.seconds.values()) - self._elsewhere, 2),
            "seconds_of": {name: round(value, 2) for name, value in self.seconds.items()},
            "versions": {
                "recollect": version("recollect"),
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "machine": {"processor": platform.machine(), "threads": torch.get_num_threads()},
        }

    def _kept(self) -> dict[str, Any]:
        """What is in memory at the end: how many, how well they match, and, where they are few, which and how heavy."""
        memory = self.learner.memory
        if memory is None:
            return {}
        kept: dict[str, Any] = {"kept": len(memory)}
        if isinstance(memory, Playback):
            kept["fitted_error"] = round(memory.error, 6)
        if len(memory) <= FEW:
            kept["kept_ids"] = memory.batch.ids.tolist()
            kept["kept_weights"] = [round(weight, 3) for weight in memory.batch.weights.tolist()]
        return kept


def _channels_last(make_model: MakeModel) -> nn.Module:
    """A model whose images are kept with the channels last: a third faster to train, twice as fast to ask."""
    return make_model().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
