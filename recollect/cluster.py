"""One look at examples by many processes, on this machine or on many: the same choice, made with Ray.

A worker is given consecutive examples and looks at them as `one_pass` does. What it has found is one sum of embeddings
and the candidates among its examples; what two have found is put together by adding the sums and keeping the candidates
with the smallest keys. Sums are exact, so the outcome does not depend on who was given which examples, and what comes
to the driver, one sum and one shortlist, does not depend on how many there are.

Where all examples are candidates, they stay with actors, and a scan asks each of them for its products (`Sharded`).

Ray places, ships, spills and restarts: a worker that dies is started again, and its examples are looked at again.
"""

import math
import socket
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recollect.batch import Batch
from recollect.dictionary import SCAN_ROWS, Dictionary, Factored, add_up
from recollect.embedding import GradientEmbedding, Prepared
from recollect.numerics import ExactSum
from recollect.onepass import Arrivals, drawn, keys_of, whole_classes
from recollect.progress import progress_bar
from recollect.rows import Outer
from recollect.sources import examples_of
from recollect.standouts import Standouts

_ROWS_PER_TASK = 8192  # at least, so that a task takes longer than starting it
_MOST_ROWS_PER_TASK = 131_072  # so that a worker that dies has not much to do again
_TASKS = 8  # for each worker, so that none is idle for long while another ends
_TOGETHER = 8  # findings that are put together by one task
_PATIENCE = 10.0  # seconds until nobody is thought to be there
_START = 120.0  # seconds in which every node must have started a worker that answers
_WAITING = 4  # tasks per processor that are handed out in advance

Load = Callable[[Any], Batch]
"""Makes examples of what a worker was given; their ids do not matter."""


class Piece(NamedTuple):
    """Consecutive examples, wherever they are: what a worker is given to load them, and how many there are."""

    what: Any
    rows: int


@dataclass(frozen=True)
class Work:
    """What every worker must know."""

    embedding: GradientEmbedding
    prepared: Prepared
    load: Load
    limit: int
    seed: int
    highest: float  # key of a candidate: others need not travel


@dataclass(frozen=True)
class Found:
    """What has been found out about some examples."""

    total: ExactSum
    candidates: Batch
    standouts: Standouts
    classes: Tensor
    count: int


@contextmanager
def connected(address: str) -> Iterator[int]:
    """Connect to a cluster, and leave it as it was; says how many processors there are.

    Args:
        address: "auto" for the cluster that this process is connected to or that this machine belongs to, or one of its
            own if there is none; otherwise where its head node is.
    """
    if not isinstance(address, str) or not address:
        raise ValueError(f"cluster must be 'auto' or the address of a Ray cluster, got {address!r}")
    ray = import_ray()
    ours = not ray.is_initialized()
    if not ours:
        _check_connection(ray, address)
    else:
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if address == "auto":
                try:
                    ray.init(address="auto", **quiet)
                except ConnectionError:
                    ray.init(address="local", include_dashboard=False, **quiet)
            else:
                _knock(address)
                ray.init(address=address, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"cluster must be the address of a Ray cluster that can be reached, got {address!r} ({reason})"
            ) from None
    try:
        _check_versions(ray)
        yield max(1, int(ray.cluster_resources().get("CPU", 1)))
    except ray.exceptions.RayError as error:
        raise _cause(error) from None
    finally:
        if ours:
            ray.shutdown()


def _knock(address: str) -> None:
    """See that somebody is there, as Ray itself would try for minutes."""
    host, port = _place(address)
    if not host or not port.isdigit():
        raise ValueError("it must be written as HOST:PORT")
    socket.create_connection((host, int(port)), timeout=_PATIENCE).close()


def _place(address: str) -> tuple[str, str]:
    """Host and port."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return host.strip("[]"), port


def _check_connection(ray: Any, address: str) -> None:
    """A process is connected to one cluster at a time; refuse the address of another."""
    here = ray.get_runtime_context().gcs_address
    if address != "auto" and not _is_at(ray, address, here):
        raise ValueError(
            f"cluster must be where this process is connected to, {here}, got {address!r}: "
            "pass 'auto' to use that, or call ray.shutdown() first"
        )


def _is_at(ray: Any, address: str, here: str) -> bool:
    """Whether an address, by whatever name of the host, is that of the head node."""
    (host, port), (head, head_port) = _place(address), _place(here)
    if port != head_port and not address.startswith("ray://"):  # whose port is that of a proxy
        return False
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return head in found or (not found.isdisjoint(("127.0.0.1", "::1")) and head == ray.util.get_node_ip_address())


def look_over(
    embedding: GradientEmbedding,
    pieces: Sequence[Piece],
    load: Load,
    limit: int,
    *,
    seed: int,
    processors: int,
    first_id: int = 0,
    prepared: Prepared | None = None,
    rows_per_task: int | None = None,
    progress: bool = False,
) -> Arrivals:
    """As `one_pass`, of examples that are in pieces, by the workers of the cluster that is connected.

    Args:
        embedding: how examples become vectors.
        pieces: the examples, in order.
        load: makes examples of what a piece says.
        limit: how many candidates are drawn at most.
        seed: of the keys.
        processors: how many there are.
        first_id: of the first example.
        prepared: what was decided on earlier examples; on the first of these if None.
        rows_per_task: about how many examples a worker is given at a time; it changes nothing else. Some for each
            processor by default.
        progress: show a progress bar in a terminal.
    """
    ray = import_ray()
    ends = _ends(pieces)
    count = ends[-1]
    look = ray.remote(_look).options(max_retries=-1)
    block: int = ray.get(ray.remote(_block_rows).remote(load, embedding, pieces[0].what))
    prepared = prepared or _prepare(ray, embedding, pieces, load, block)
    work = ray.put(Work(embedding, prepared, load, limit, seed, _highest_key(limit, count)))
    if rows_per_task is None:
        rows_per_task = min(max(_ROWS_PER_TASK, count // (_TASKS * processors)), _MOST_ROWS_PER_TASK)
    step = -(-max(rows_per_task, 1) // block) * block
    running: list[Any] = []
    found: list[Any] = []
    with progress_bar("looking at examples", count, show=progress) as bar:
        for start in range(0, count, step):
            stop = min(start + step, count)
            running.append(look.remote(work, first_id + start, *_parts(pieces, start, stop, ends)))
            if len(running) >= _WAITING * processors:
                found, running = _gather(ray, found, running, work)
            bar.advance(stop - start)
        whole: Found = ray.get(_put_together(ray, work, [*found, *running]))
    assert len(whole.candidates) == min(limit, count)  # or keys would not be uniform
    total = None if count <= limit else whole.total
    candidates = whole.candidates if total is None else whole.standouts.beside(whole.candidates)
    return Arrivals(candidates, total, whole.count, prepared, whole.classes)


def shards_of(
    embedding: GradientEmbedding,
    pieces: Sequence[Piece],
    load: Load,
    *,
    processors: int,
) -> tuple[Dictionary, Tensor]:
    """All examples as candidates, embedded by actors and kept by them, one for each processor; and their targets."""
    ray = import_ray()
    ends = _ends(pieces)
    count = ends[-1]
    block: int = ray.get(ray.remote(_block_rows).remote(load, embedding, pieces[0].what))
    prepared = _prepare(ray, embedding, pieces, load, block)
    work = ray.put(Work(embedding, prepared, load, 0, 0, 1.0))
    unit = math.lcm(SCAN_ROWS, embedding.batch_size)  # within which rows are embedded and scanned together
    step = -(-count // (processors * unit)) * unit
    actor = ray.remote(Shard).options(max_restarts=-1, max_task_retries=-1)
    pieces = [Piece(ray.put(what) if isinstance(what, Batch) else what, rows) for what, rows in pieces]
    shards = [actor.remote(work, *_parts(pieces, i, min(i + step, count), ends)) for i in range(0, count, step)]
    targets = torch.cat(ray.get([shard.targets.remote() for shard in shards]))
    return Sharded(shards, [work, *(piece.what for piece in pieces)]), targets


def _highest_key(limit: int, count: int) -> float:
    """A key that the `limit` smallest of `count` uniform ones do not reach, by twelve standard deviations."""
    return min(1.0, (limit + 12 * math.sqrt(limit) + 12) / count)


def _prepare(ray: Any, embedding: GradientEmbedding, pieces: Sequence[Piece], load: Load, block: int) -> Prepared:
    """What is decided on first sight of the first block, which is all that comes here."""
    ends = _ends(pieces)
    head = ray.get(ray.remote(_head).remote(load, *_parts(pieces, 0, min(block, ends[-1]), ends)))
    return embedding.prepare(head.inputs, head.targets)


def spread(function: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
    """What a function returns for each item, as soon as a worker has found out, in whatever order that is."""
    ray = import_ray()
    remote = ray.remote(_apply).options(max_retries=-1)
    running = [remote.remote(function, item) for item in items]
    while running:
        ready, running = ray.wait(running, num_returns=1)
        yield ray.get(ready[0])


def _apply(function: Callable[..., Any], item: Any) -> Any:
    return function(item)


def is_ray_dataset(value: Any) -> bool:
    """Without importing Ray: who has one has imported it."""
    return type(value).__module__.startswith("ray.data.")


def in_memory(batch: Batch, rows: int = _ROWS_PER_TASK) -> tuple[list[Piece], Load]:
    """Examples that are here, to be sent to workers."""
    starts = range(0, len(batch), rows)
    parts = [batch.take(torch.arange(start, min(start + rows, len(batch)))) for start in starts]
    return [Piece(part, len(part)) for part in parts], partial(as_it_is, None)


def of_dataset(dataset: Any, target: str | None) -> tuple[list[Piece], Load]:
    """The examples of a Ray Dataset, where they are; never through the driver."""
    ray = import_ray()
    options = dataset.context.execution_options
    before, options.preserve_order = options.preserve_order, True  # not the order in which readers happen to end
    try:
        tables = dataset.to_arrow_refs()
    finally:
        options.preserve_order = before
    rows = ray.get([ray.remote(_rows).remote(table) for table in tables])
    pieces = [Piece(table, count) for table, count in zip(tables, rows, strict=True) if count]
    if not pieces:
        raise ValueError("a dataset must hold at least one example, got none")
    return pieces, partial(_of_table, target)


def _rows(table: Any) -> int:
    return len(table)


def as_it_is(load: Load | None, what: Any) -> Batch:
    """Examples that were sent; whatever else there is must be loaded."""
    return what if load is None or isinstance(what, Batch) else load(what)


def fetched(pieces: Sequence[Piece], load: Load, first_id: int) -> Batch:
    """Few examples, brought here."""
    ray = import_ray()
    task = ray.remote(_loaded).options(max_retries=-1)
    some = Batch.joined(ray.get([task.remote(load, what) for what, _ in pieces]))
    return Batch.arriving(some.inputs, some.targets, first_id=first_id)


def _loaded(load: Load, what: Any) -> Batch:
    return load(what)


def _of_table(target: str | None, table: Any) -> Batch:
    found = examples_of(table, target=target)
    assert isinstance(found, tuple)
    return Batch.arriving(*found)


def import_ray() -> Any:
    """Ray, which is needed for nothing else; who has not installed it is told how to."""
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'a cluster needs the package {error.name}, which is not installed: pip install "recollect[ray]"',
            name=error.name,
        ) from None
    return ray


def _versions() -> tuple[str, str]:
    from importlib.metadata import version

    return version("recollect"), version("torch")


def _check_versions(ray: Any) -> None:
    """Every node must compute what this one does."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    mine = _versions()
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    ask = ray.remote(_versions)
    asked = {node: ask.options(num_cpus=0, scheduling_strategy=strategy(node, soft=False)).remote() for node in nodes}
    late = set(ray.wait([*asked.values()], num_returns=len(asked), timeout=_START)[1]) if asked else set()
    for node, answer in asked.items():
        if answer in late:
            raise ValueError(
                f"every node must start a worker within {_START:g} seconds, got no answer of node {node[:8]}: "
                "see `ray status` and the logs of that node"
            )
        try:
            theirs = " and ".join(ray.get(answer))
        except ray.exceptions.RayError as error:
            theirs = f"none ({str(error).strip().splitlines()[-1]})"
        if theirs != " and ".join(mine):
            raise ValueError(
                f"every node must have recollect {mine[0]} and torch {mine[1]}, got {theirs} on node {node[:8]}: "
                "install the same versions everywhere"
            )


def _cause(error: Any) -> Exception:
    """What went wrong in a worker, in the words of who said it."""
    cause = getattr(error, "cause", None)
    said = str(cause).strip().splitlines()[:1]
    if isinstance(cause, ValueError | OSError):
        return ValueError(*said) if "\n" in str(cause).strip() else cause
    lines = str(error).strip().splitlines()
    if cause is not None and said and type(cause).__module__.partition(".")[0] != "ray":
        lines = [f"{type(cause).__name__}: {said[0]}"]
    elif raised := _raised(lines):  # by a user's function in a dataset, of which Ray keeps the traceback alone
        lines = [raised]
    return ValueError(f"a worker must be able to look at its examples, got {lines[-1] if lines else repr(error)}")


def _raised(lines: Sequence[str]) -> str | None:
    """What was raised first, from a traceback: the line behind its places."""
    places = (i for i, line in enumerate(lines) if line.startswith('  File "'))
    return next((line for line in lines[next(places, len(lines)) :] if line[:1].strip()), None)


def _gather(ray: Any, found: list[Any], running: list[Any], work: Any) -> tuple[list[Any], list[Any]]:
    """Wait for one worker, and put together what has been found if it is much."""
    ready, running = ray.wait(running, num_returns=1)
    found = [*found, *ready]
    return ([_put_together(ray, work, found)] if len(found) >= _TOGETHER else found), running


def _put_together(ray: Any, work: Any, found: list[Any]) -> Any:
    return ray.remote(_merge).options(max_retries=-1).remote(work, *found)


def _parts(pieces: Sequence[Piece], start: int, stop: int, ends: Sequence[int]) -> list[Any]:
    """Which pieces hold the examples from start to stop, as arguments: the cuts, then what to load.

    The ends, where each piece ends among all examples, are found out once for all.
    """
    cuts, whats = [], []
    for i in range(bisect_right(ends, start), bisect_left(ends, stop) + 1):
        first = ends[i] - pieces[i].rows
        cuts.append((max(start - first, 0), min(stop - first, pieces[i].rows)))
        whats.append(pieces[i].what)
    return [cuts, *whats]


def _ends(pieces: Sequence[Piece]) -> list[int]:
    return [*accumulate(piece.rows for piece in pieces)]


def _load(load: Load, cuts: list[tuple[int, int]], whats: Sequence[Any]) -> Batch:
    parts = []
    for (start, stop), what in zip(cuts, whats, strict=True):
        batch = load(what)
        whole = (start, stop) == (0, len(batch))
        parts.append(batch if whole else batch.take(torch.arange(start, stop)))
    return Batch.joined(parts)


def _block_rows(load: Load, embedding: GradientEmbedding, what: Any) -> int:
    return embedding.block_rows(load(what).inputs)


def _head(load: Load, cuts: list[tuple[int, int]], *whats: Any) -> Batch:
    return _load(load, cuts, whats)


def _look(work: Work, first_id: int, cuts: list[tuple[int, int]], *whats: Any) -> Found:
    """What one worker does; a single thread, so that as many workers as processors are of use."""
    torch.set_num_threads(1)
    batch = _load(work.load, cuts, whats)
    batch = Batch(batch.inputs, batch.targets, batch.weights, torch.arange(first_id, first_id + len(batch)))
    total, losses = work.embedding.add_total(None, batch.inputs, batch.targets, prepared=work.prepared)
    few = batch.take((keys_of(batch.ids, work.seed) <= work.highest).nonzero()[:, 0])
    candidates = few.take(drawn(few.ids, work.limit, work.seed))
    standouts = Standouts.of(batch, losses, work.limit)
    return Found(total, candidates, standouts, whole_classes(batch.targets), len(batch))


def _merge(work: Work, *found: Found) -> Found:
    total = ExactSum(*found[0].total.shape)
    for part in found:
        total.merge(part.total)
    some = Batch.joined(part.candidates for part in found)
    some = some.take(some.ids.argsort())
    candidates = some.take(drawn(some.ids, work.limit, work.seed))
    standouts = reduce(Standouts.plus, (part.standouts for part in found))
    classes = torch.cat([part.classes for part in found]).unique()
    return Found(total, candidates, standouts, classes, sum(part.count for part in found))


class Shard:
    """Candidates that stay where they were embedded."""

    def __init__(self, work: Work, cuts: list[tuple[int, int]], *whats: Any) -> None:
        torch.set_num_threads(1)
        batch = _load(work.load, cuts, whats)
        self._rows = work.embedding.dictionary(batch.inputs, batch.targets, prepared=work.prepared)
        self._targets = batch.targets

    def targets(self) -> Tensor:
        """Of the examples."""
        return self._targets

    def about(self) -> tuple[int, int, torch.dtype, Outer | None]:
        """How many there are, how long, of which type, and what the factors are like if they are kept as such."""
        form = self._rows.form if isinstance(self._rows, Factored) else None
        return len(self._rows), self._rows.dim, self._rows.dtype, form

    def add_up(self) -> ExactSum:
        """The sum of all rows."""
        return add_up(self._rows)

    def ask(self, question: str, *arguments: Any) -> Any:
        """One of the questions of a dictionary."""
        return getattr(self._rows, question)(*arguments)


class Sharded:
    """A dictionary whose rows are with the actors of a cluster.

    A scan sends the residual to each and gets a number per row and column back.
    """

    def __init__(self, shards: Sequence[Any], needed: Sequence[Any]) -> None:
        self._ray, self._shards = import_ray(), shards
        self._needed = needed  # to restart a shard: Ray lets go of what nobody holds
        about = self._ray.get([shard.about.remote() for shard in shards])
        self._starts: list[int] = [sum(rows for rows, *_ in about[:i]) for i in range(len(about) + 1)]
        _, self.dim, self.dtype, form = about[0]
        self.form: Outer | None = form if all(other == form for *_, other in about) else None

    def __len__(self) -> int:
        return self._starts[-1]

    def _all(self, question: str, *arguments: Any) -> list[Any]:
        sent = [self._ray.put(value) for value in arguments]
        answers: list[Any] = self._ray.get([shard.ask.remote(question, *sent) for shard in self._shards])
        return answers

    def products(self, vectors: Tensor) -> Tensor:
        return torch.cat(self._all("products", vectors))

    def rows(self, indices: Tensor) -> Tensor:
        return self._each("rows", indices, self.dim)

    def packed(self, indices: Tensor) -> Tensor:
        assert self.form is not None
        return self._each("packed", indices, self.form.width)

    def _each(self, question: str, indices: Tensor, width: int) -> Tensor:
        """The answers of those who have these rows, in one matrix."""
        out = torch.empty(len(indices), width, dtype=self.dtype)
        asked = []
        for shard, start, stop in zip(self._shards, self._starts, self._starts[1:], strict=False):
            inside = ((indices >= start) & (indices < stop)).nonzero()[:, 0]
            if len(inside):
                asked.append((inside, shard.ask.remote(question, indices[inside] - start)))
        for inside, answer in asked:
            out[inside] = self._ray.get(answer)
        return out

    def sum(self) -> Tensor:
        total = ExactSum(1, self.dim)
        for part in self._ray.get([shard.add_up.remote() for shard in self._shards]):
            total.merge(part)
        return total.value()[0]

    def norms(self) -> Tensor:
        return torch.cat(self._all("norms"))
