"""What happens to examples that arrive: they wait for a choice, stand for others, or are chosen from (Alg. 2)."""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn

from recollect.batch import Batch
from recollect.candidates import shortlist_length, total_of
from recollect.classes import COUNTED, Classes, Tally, are_classes, class_labels, warn_of_lost_classes
from recollect.cluster import Load, Piece, as_it_is, fetched, look_over
from recollect.dictionary import Dictionary, joined, remembered, remembering_more, taken, to_remember, weighted_sum
from recollect.embedding import GradientEmbedding, Prepared
from recollect.memories.choice import Choice
from recollect.memories.gradient_matching.choosing import Choosing
from recollect.memories.gradient_matching.pool import Pool
from recollect.memories.gradient_matching.record import Record, draws_of, forgotten_of, tally_of
from recollect.memories.memory import OWN, TOTAL, Memory
from recollect.onepass import Arrivals, one_pass
from recollect.sources import Incoming


class Matching(Memory):
    """Gradient matching by a given embedding; options and their names are those of `GradientMatching`.

    Args:
        embedding: how examples become vectors; None if the memory is only to be read.
        capacity: how many examples are kept at most.
        shortlist: how many candidates there are for each place; None if all are.
        classes: how much each class counts, and how many places it has.
        pursuit: options of `pursue`.
        seed: of the shortlist.
        progress: show progress bars in a terminal.
    """

    counts_weights = True

    def __init__(
        self,
        embedding: GradientEmbedding | None,
        capacity: int,
        *,
        shortlist: float | None,
        classes: Classes,
        pursuit: Mapping[str, Any],
        seed: int,
        progress: bool,
    ) -> None:
        super().__init__(capacity, seed=seed)
        self.embedding, self.progress = embedding, progress
        self._shortlist, self._classes, self._pursuit = shortlist, classes, pursuit
        self._prepared: Prepared | None = None  # what the state says of it, at hand

    @property
    def _choosing(self) -> Choosing:
        """The options of a choice, as they are now."""
        return Choosing(self.capacity, self.seed, self._shortlist, self._classes, self._pursuit, self.progress)

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        return self.revise(held, arrived)

    def revise(
        self, held: Batch, arrived: Batch, candidates: Dictionary | None = None, *, arrivals: Arrivals | None = None
    ) -> Choice:
        """Decide what stays of what is held and what arrived (Alg. 2).

        What arrived is embedded unless candidates are given; it may be some of those that passed, the `arrivals`.
        """
        embedding, prepared = self._ready(arrived, candidates is not None, arrivals)
        count = arrivals.count if arrivals else len(arrived)
        choosing = self._choosing
        room = choosing.room(count)
        total = self.total_weight + arrivals.count if arrivals else self._total(arrived)
        held, waiting = self._divided(held)
        if len(waiting) and candidates is None and arrivals is None:  # as if they came now
            waiting, arrived = waiting.take(torch.arange(0)), waiting.followed_by(arrived)
            if not len(held) and embedding.prepared is None:  # no gradient has been looked at: all of them decide
                prepared = embedding.prepare(arrived.inputs, arrived.targets)
        if room and candidates is None and arrivals is None:
            thinned = self._thinned(held, arrived, embedding, prepared, total)
            if thinned is not None:
                return thinned
        labels, seen = self._count(arrived)
        if arrivals is None:
            pool = choosing.gathered(arrived, candidates, embedding, prepared, labels, seen, total)
        else:
            pool = Pool.of(arrived, *arrivals.gathered(embedding, progress=self.progress))
        if len(waiting):
            others = embedding.dictionary(waiting.inputs, waiting.targets, prepared=prepared)
            pool = pool.behind(waiting, total_of(others, waiting.weights if waiting.weighted else None), others)
        if "target" in self._state:
            pool = pool.behind(held, *self._remembered(pool.target.device, seen))
        if self.seen + count <= self.capacity:
            coreset = choosing.everything(pool, self._own(held, waiting.followed_by(arrived)), seen)
        else:
            coreset = choosing.fitted(pool, total, seen, self.capacity - room)
        choice = pool.choice(coreset, seen, {**prepared.tensors, **forgotten_of(self._state)})
        if seen is not None or are_classes(pool.targets, embedding.loss):
            passed = pool.targets[:0] if arrivals is None else arrivals.classes.cpu()
            warn_of_lost_classes(torch.cat([pool.targets, passed]), pool.targets[choice.indices], self._classes[1])
        self._prepared = prepared
        return choice

    def _remembered(self, device: torch.device, seen: Tally | None) -> tuple[Tensor, Dictionary]:
        """The sum of all embeddings up to now, by all classes seen where they matter, and those of the chosen."""
        target, before = self._state["target"].to(device), tally_of(self._state)
        spread = target if seen is None or before is None else seen.spread(target, before)
        return spread, remembered(self._state, device)

    def _count(self, arrived: Batch) -> tuple[Tensor | None, Tally | None]:
        """The classes of what arrived, and how many of each were seen with it; None if classes do not matter."""
        if self._classes == (None, 0):
            return None, None
        labels = class_labels(arrived.targets, COUNTED).cpu()
        before, now = tally_of(self._state), Tally.of(labels, arrived.weights.cpu() if arrived.weighted else None)
        return labels, now if before is None else before.plus(now)

    def _take_in(self, held: Batch, arrived: Batch, count: int, candidates: Dictionary | None = None) -> None:
        """Let what arrived wait, if there is room, or choose; so many were seen."""
        if candidates is None and self._choosing.has_room(len(held), len(arrived)):
            self._let_wait(held, arrived, count)
        else:
            self._commit(held, arrived, self.revise(held, arrived, candidates), count)

    def _take_arrivals(self, before: Self, arrivals: Arrivals) -> None:
        """Choose, from what a copy holds as it was before these arrived, and from them."""
        held, arrived = before._beside_held(arrivals.candidates)
        choice = before.revise(held, arrived, arrivals=arrivals)
        before._commit(held, arrived, choice, arrivals.count, arrivals.count)
        self._batch, self._state, self.seen = before._batch, before._state, before.seen
        self._prepared = before._prepared

    def _let_wait(self, held: Batch, arrived: Batch, count: int) -> None:
        """Hold what arrived, as it came, without a look at its gradients until the next choice.

        Many small updates end here, so it is done without a detour by `revise`.
        """
        embedding, prepared = self._ready(arrived)
        embedding.check(arrived.inputs, arrived.targets, prepared)
        before = self._state.get("waiting")
        waiting = torch.tensor(len(arrived)).to(self.device) if before is None else before + len(arrived)
        state = {**self._state, "waiting": waiting}
        if not self.seen:
            state |= {name: value.detach().to(self.device) for name, value in prepared.tensors.items()}
            state["error"] = torch.zeros((), dtype=torch.float64).to(self.device)
        seen, kept = self.seen + count, held.followed_by(arrived)
        weighs = self._weighs(arrived)
        if weighs or TOTAL in state:
            state = self._with_weights(state, seen, self._total(arrived), self._own(held, arrived) if weighs else None)
        # From here on nothing can fail.
        self._state = state
        self._batch, self.seen, self._prepared = kept, seen, prepared

    def _thinned(
        self, held: Batch, arrived: Batch, embedding: GradientEmbedding, prepared: Prepared, total: float
    ) -> Choice | None:
        """Let some of those that came stay for all of them until the next choice; None if it is time for that."""
        found = self._choosing.stand_ins(len(held), arrived, total) if "target" in self._state else None
        if found is None:
            return None
        some, stand = found
        if are_classes(arrived.targets, embedding.loss):
            stay = torch.cat([held.targets, arrived.targets[some]])
            warn_of_lost_classes(torch.cat([held.targets, arrived.targets]), stay)
        rows = embedding.dictionary(arrived.inputs, arrived.targets, prepared=prepared)
        about = ("waiting", "factors", "error")  # which is told by what is held, whoever asks
        state = {name: value for name, value in self._state.items() if name not in about}
        everything, weights = torch.arange(len(rows), device=embedding.device), arrived.weights.double()
        state["target"] = state["target"] + weighted_sum(rows, everything, weights.to(embedding.device)).to(self.device)
        state |= self._here(remembering_more(self._state, taken(rows, some), embedding.device))
        self._prepared = prepared
        return Choice(
            torch.cat([torch.arange(len(held)), len(held) + some.cpu()]), torch.cat([held.weights, stand]), state
        )

    def take_pieces(self, pieces: Sequence[Piece], load: Load, processors: int) -> None:
        """As `update`, of examples that the workers of the cluster that is connected look at, wherever they are.

        Args:
            pieces: the examples, in order.
            load: makes examples of what a piece says.
            processors: how many the cluster has.
        """
        before, waiting = self._before_those_that_wait()
        count = len(waiting) + sum(piece.rows for piece in pieces)
        limit = before._limit(count)
        if count <= limit:  # all are candidates: they come here anyway
            held, arrived = self._beside_held(fetched(pieces, load, self.seen))
            self._take_in(held, arrived, len(arrived))
            return
        if len(waiting):  # as if they came now
            pieces, load = [Piece(waiting, len(waiting)), *pieces], partial(as_it_is, load)
        embedding, prepared = before._known()
        options: dict[str, Any] = {"seed": self.seed, "processors": processors, "progress": self.progress}
        arrivals = look_over(embedding, pieces, load, limit, first_id=before.seen, prepared=prepared, **options)
        self._take_arrivals(before, arrivals)

    def _before_those_that_wait(self) -> tuple[Self, Batch]:
        """A copy as it was before those came that wait for a choice, and these.

        Not if examples came with weights, which workers do not know of: then those that wait are left to the choice.
        """
        before = copy(self)
        if not len(self) or OWN in self._state:
            return before, Batch(torch.empty(0), torch.empty(0), torch.empty(0), torch.empty(0))
        chosen, waiting = self._divided(self.batch)
        before._batch, before.seen = chosen if len(chosen) else None, self.seen - len(waiting)
        before._state = {name: value for name, value in self._state.items() if name != "waiting"}
        if TOTAL in before._state:
            before._state[TOTAL] = self._total_without(len(waiting))
        return before, waiting

    def _take_stream(self, stream: Incoming) -> None:
        """Look at each example once, on the way in; if they are few, as if they had come whole."""
        batches = stream.batches(self.seen, like=self._batch)
        first = [next(batches)]
        count = len(first[0])
        while self._choosing.room(count) and (batch := next(batches, None)) is not None:
            first.append(batch)
            count += len(batch)
        if self._choosing.room(count):
            self._take_in(*self._beside_held(Batch.joined(first)), count)
            return
        before, waiting = self._before_those_that_wait()
        if len(waiting):  # as if they came now
            first.insert(0, waiting.to(first[0].ids.device))
        embedding, prepared = before._known()
        arrivals = one_pass(
            embedding,
            chain(first, batches),
            shortlist_length(self.capacity, self._shortlist),
            fewer=before._limit,
            seed=self.seed,
            length=stream.length,
            prepared=prepared,
            progress=self.progress,
        )
        self._take_arrivals(before, arrivals)

    def _limit(self, count: int) -> int:
        """How many of so many examples that arrive are candidates at most."""
        return self._choosing.limit(count, self.total_weight)

    def _divided(self, held: Batch) -> tuple[Batch, Batch]:
        """What has been chosen, and what came since and waits for the next choice."""
        waiting = int(self._state.get("waiting", 0))
        places = torch.arange(len(held))
        return held.take(places[: len(held) - waiting]), held.take(places[len(held) - waiting :])

    def _record(self, device: torch.device) -> Record:
        """What is known of everything seen, on this device."""
        settled = self._settled()
        held, state = settled.batch, settled._state
        own = settled._own(held, held.take(torch.arange(0))).to(device)
        target, rows = state["target"].to(device), remembered(state, device)
        return Record(held.to(device), own, rows, target, tally_of(state), draws_of(state))

    def _settled(self) -> Self:
        """The same, with the gradients of those that wait for a choice, all of them kept."""
        _, waiting = self._divided(self.batch)
        if not len(waiting):
            return self
        embedding, prepared = self._ready(waiting)
        rows = embedding.dictionary(waiting.inputs, waiting.targets, prepared=prepared)
        settled, state = copy(self), {k: v for k, v in self._state.items() if k not in ("waiting", "factors")}
        state["target"] = total_of(rows, waiting.weights if waiting.weighted else None).to(self.device)
        if "target" in self._state:
            state["target"] = self._state["target"] + state["target"]
            rows = joined(remembered(self._state, embedding.device), rows)
        settled._state = {**state, **self._here(to_remember(rows))}
        return settled

    def restore(self, description: Mapping[str, Any], tensors: Any) -> None:
        super().restore(description, tensors)
        self._prepared = None  # it was made on the first examples of another stream, perhaps

    def _here(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.to(self.device) for name, value in tensors.items()}

    def _ready(
        self, arrived: Batch, embedded: bool = False, arrivals: Arrivals | None = None
    ) -> tuple[GradientEmbedding, Prepared]:
        """The embedding and what was decided on the first examples of the stream, which may be these."""
        embedding, prepared = self._known()
        if prepared is None and embedded:
            raise ValueError("candidates must be made by the memory's own embedding, which has made none so far")
        if arrivals is not None:
            return embedding, arrivals.prepared
        return embedding, prepared or embedding.prepare(arrived.inputs, arrived.targets)

    def _known(self) -> tuple[GradientEmbedding, Prepared | None]:
        """The embedding, and what has been decided so far."""
        if self.embedding is None:
            raise ValueError("updating needs make_model, got None: pass it to load_memory")
        if self.seen:
            return self.embedding, self._prepared or self.embedding.restore(self._state)
        return self.embedding, self.embedding.prepared
