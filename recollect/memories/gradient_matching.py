"""Continual gradient matching (Alg. 2)."""

from typing import Any, TypeVar, Unpack

import torch
from torch import Tensor, nn

from recollect.batch import Batch
from recollect.dictionary import InMemory, Joined
from recollect.embedding import GradientEmbedding, MakeModel
from recollect.memories.memory import Choice, Memory, plain_options
from recollect.pursuit import pursue
from recollect.selection import MatchingOptions, split_options

SomeEmbedding = TypeVar("SomeEmbedding", bound=GradientEmbedding)


class GradientMatching(Memory):
    """Keeps the weighted examples whose loss gradients add up to those of everything seen.

    The target, the sum of all embeddings, is tracked exactly, because embeddings depend on the
    initialisation distribution and not on training. The dictionary at each step is what was kept and what arrived,
    so old examples can be dropped or reweighted. Until the capacity is reached, everything is kept with weight one.

    Args:
        make_model: returns a freshly initialised model at each call; may be None to read a loaded memory.
        capacity: how many examples are kept at most.
        seed: the same seed gives the same memory.
        progress: show progress bars in a terminal.
        **options: keyword arguments of `GradientEmbedding` and `pursue`; `PAPER` holds the paper's.

    Example:
        >>> from recollect import models
        >>> memory = GradientMatching(lambda: models.mlp(2, 2), capacity=5)
        >>> for _ in range(3):
        ...     memory.update(torch.randn(20, 2), torch.arange(20) % 2)
        >>> memory.seen, len(memory)
        (60, 5)
    """

    def __init__(
        self,
        make_model: MakeModel | None,
        capacity: int,
        *,
        seed: int = 0,
        progress: bool = False,
        **options: Unpack[MatchingOptions],
    ) -> None:
        super().__init__(capacity, seed=seed)
        self._embedding_options, self._pursuit_options = split_options(options)
        self.progress = progress
        self.embedding: GradientEmbedding | None = None
        if make_model is not None:
            self.embedding = GradientEmbedding(make_model, seed=seed, **self._embedding_options)

    def share(self, kind: type[SomeEmbedding]) -> SomeEmbedding:
        """An embedding of another kind with this memory's settings, to be set as `embedding` of several memories."""
        if self.embedding is None:
            raise ValueError("sharing needs make_model, got None")
        return kind(self.embedding.make_model, seed=self.seed, **self._embedding_options)

    @property
    def target(self) -> Tensor:
        """The sum of the embeddings of everything seen, in float64."""
        self.batch  # noqa: B018  # says so if there is nothing yet
        return self._state["target"]

    @property
    def error(self) -> float:
        """How far the kept are from the target, relative to it, at the initialisations they were chosen for."""
        self.batch  # noqa: B018
        return float(self._state["error"])

    def choose(self, held: Batch, arrived: Batch, model: nn.Module | None) -> Choice:
        embedding = self._checked_embedding()
        dictionary = embedding.dictionary(arrived.inputs, arrived.targets, progress=self.progress)
        target = dictionary.sum()
        if len(held):
            target += self._state["target"]  # Alg. 2: g <- g + sum_i g_i
            dictionary = Joined(InMemory(self._state["embeddings"]), dictionary)  # Alg. 2: G <- [C, G]

        if self.seen + len(arrived) <= self.capacity:
            indices, weights, error = torch.arange(len(dictionary)), torch.ones(len(dictionary)), 0.0
        else:
            size = min(self.capacity, len(dictionary))
            count = self.seen + len(arrived)
            coreset = pursue(
                dictionary, size, target=target, count=count, progress=self.progress, **self._pursuit_options
            )
            indices, order = coreset.indices.cpu().sort()
            weights, error = coreset.weights.cpu()[order], coreset.error
        state = {"target": target, "embeddings": dictionary.rows(indices)}
        state["error"] = torch.tensor(error, dtype=torch.float64)
        state["fingerprint"] = self._state["fingerprint"] if len(held) else embedding.fingerprint()
        for s, statistics in enumerate(embedding.statistics or []):
            state |= {f"statistics.{s}.{name}": value for name, value in statistics.items()}
        return Choice(indices, weights, state)

    def _checked_embedding(self) -> GradientEmbedding:
        """The embedding, with what was saved of it, once it is known to be the same as before."""
        if self.embedding is None:
            raise ValueError("updating needs make_model, got None: pass it to load_memory")
        if not self._state:
            self.embedding.forget()  # an update that failed may have left its statistics behind
        elif self.embedding.statistics is None:
            now, before = self.embedding.fingerprint(), self._state["fingerprint"]
            if now.shape != before.shape or not torch.allclose(now, before, rtol=1e-4):
                raise ValueError(
                    "make_model must draw the models that the memory was made with, got others: "
                    "use the same architecture, options and torch version, or start a new memory"
                )
            statistics: list[dict[str, Tensor]] = [{} for _ in range(self.embedding.inits)]
            for key, value in self._state.items():
                if key.startswith("statistics."):
                    _, s, name = key.split(".", 2)
                    statistics[int(s)][name] = value
            self.embedding.statistics = statistics
        return self.embedding

    def options(self) -> dict[str, Any]:
        return plain_options({**self._embedding_options, **self._pursuit_options})
