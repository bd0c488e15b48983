"""Whatever mode, random state or model surrounds a call, data and state stay as they were and results are the same."""

import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import recollect as rc
from recollect.embedding.initialisations import plain_attention
from recollect.randomness import seeded

LEARNERS: dict[str, Callable[..., rc.learners.Learner]] = {
    "gdumb": lambda make, **options: rc.GDumb(make, rc.Reservoir(20), **options),
    "er": lambda make, **options: rc.ExperienceReplay(make, rc.Reservoir(20), **options),
    "er, halves": lambda make, **options: rc.ExperienceReplay(make, rc.Reservoir(20), mix="halves", **options),
    "der": lambda make, **options: rc.DarkExperienceReplay(make, rc.Reservoir(20), **options),
    "fine-tune": rc.FineTune,
    "joint": rc.Joint,
}


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))


def in_place() -> nn.Module:
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 3))


def examples(n: int = 120, seed: int = 0) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(n, 8, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs[:, :3].argmax(1)


def taught(kind: str, make: Callable[[], nn.Module] = make_model) -> Tensor:
    learner = LEARNERS[kind](make, epochs=2, seed=3)
    inputs, targets = examples()
    for part in torch.arange(120).split(60):
        learner.observe(inputs[part], targets[part])
    return learner.predict(inputs)


def randomness() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # type: ignore[index]  # noqa: NPY002


@pytest.mark.parametrize("kind", LEARNERS)
def test_what_a_model_draws_while_training_follows_from_the_seed(kind: str) -> None:
    before = randomness()
    first = taught(kind, with_dropout)
    assert randomness() == before
    with torch.random.fork_rng():
        torch.rand(3)
        assert torch.equal(taught(kind, with_dropout), first)


@pytest.mark.parametrize("kind", LEARNERS)
def test_dropout_is_not_the_same_at_each_step(kind: str) -> None:
    masks: list[Tensor] = []

    class Noting(nn.Dropout):
        def forward(self, input: Tensor) -> Tensor:
            out = super().forward(torch.ones_like(input))
            if self.training:
                masks.append(out[0].clone())
            return input * out

    inputs, targets = examples()
    learner = LEARNERS[kind](lambda: nn.Sequential(nn.Linear(8, 16), Noting(0.5), nn.Linear(16, 3)), epochs=2)
    learner.observe(inputs[:60], targets[:60])
    learner.observe(inputs[60:], targets[60:])
    learner.predict(inputs)
    assert len({tuple(mask.tolist()) for mask in masks}) == len(masks) > 1


@pytest.mark.parametrize("kind", LEARNERS)
def test_learners_train_where_gradients_are_off(kind: str) -> None:
    wanted = taught(kind)
    with torch.no_grad():
        assert torch.equal(taught(kind), wanted)
    learner, (inputs, targets) = LEARNERS[kind](make_model, epochs=2), examples()
    learner.observe(inputs, targets)
    wanted = learner.predict(inputs)
    again = LEARNERS[kind](make_model, epochs=2)
    again.observe(inputs, targets)
    with torch.inference_mode():  # as people evaluate
        assert torch.equal(again.predict(inputs), wanted)


def single_precision() -> nn.Module:
    layers = (nn.Linear(8, 16, dtype=torch.float32), nn.Linear(16, 3, dtype=torch.float32))
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])


def kept_of_each_memory(inputs: Tensor, targets: Tensor) -> list[Tensor]:
    quantities = inputs[:, :3] * 100
    memories: list[tuple[rc.Memory, Tensor]] = [
        (rc.GradientMatching(single_precision, 9, inits=2, layers="all"), targets),
        (rc.GradientMatching(single_precision, 9, inits=2, class_weight="balanced"), targets),
        (rc.GradientMatching(single_precision, 9, inits=2, loss="squared_error"), quantities),
        *((make(9), targets) for make in (rc.Clustering, rc.Reservoir, rc.ClassBalanced, rc.Herding, rc.SlidingWindow)),
    ]
    for memory, y in memories:
        for part in torch.arange(200).split(130):
            memory.update(inputs[part], y[part])
        memory.forget(memory.batch.ids[:1])
    return [found for memory, _ in memories for found in (memory.batch.ids, memory.batch.weights)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.filterwarnings("ignore::recollect.LostClassWarning")
def test_what_is_kept_does_not_depend_on_the_type_that_new_tensors_have(dtype: torch.dtype) -> None:
    data = examples(200)
    wanted = kept_of_each_memory(*data)
    torch.set_default_dtype(dtype)
    try:
        assert all(map(torch.equal, kept_of_each_memory(*data), wanted))
    finally:
        torch.set_default_dtype(torch.float32)


def test_inference_mode_is_refused_in_one_sentence_where_gradients_are_needed() -> None:
    sentence, data = "gradients must be possible where examples are chosen or learned from", examples()
    learner = rc.FineTune(make_model, epochs=1)
    learner.observe(*data)
    begun, local = rc.GradientMatching(make_model, 20), rc.LocalGradientMatching(20)
    begun.update(*data)
    local.update(*data, model=learner.model)
    with torch.inference_mode():
        for call in (
            lambda: begun.update(*data),
            lambda: begun.update(*examples(1)),
            lambda: local.update(*data, model=learner.model),
            lambda: rc.select(make_model, *data, 20),
            lambda: rc.matching_error(make_model, data, rc.Coreset(torch.arange(3), torch.ones(3), 0.0)),
            lambda: rc.GradientMatching(make_model, 20).update(*data),
            lambda: learner.observe(*data),
        ):
            with pytest.raises(ValueError, match=sentence):
                call()


@pytest.mark.parametrize("soft", [False, True])
def test_labels_that_were_made_in_inference_mode_are_as_others(soft: bool) -> None:
    inputs, targets = examples()
    targets = nn.functional.one_hot(targets, 3).float() if soft else targets
    with torch.inference_mode():  # as a teacher's are
        made = inputs.clone(), targets.clone()
    wanted = rc.select(make_model, inputs, targets, 20, inits=3)
    assert torch.equal(rc.select(make_model, *made, 20, inits=3).indices, wanted.indices)
    memory = rc.LocalGradientMatching(20)
    with torch.random.fork_rng():
        memory.update(*made, model=make_model())
    assert not memory.batch.targets.is_inference()


def test_choosing_and_measuring_are_the_same_where_gradients_are_off() -> None:
    data = examples()
    chosen = rc.select(make_model, *data, 20, inits=3)
    error = rc.matching_error(make_model, data, chosen, inits=3)
    assert 0 < error < 1
    with torch.no_grad():
        again = rc.select(make_model, *data, 20, inits=3)
        assert torch.equal(again.indices, chosen.indices)
        assert rc.matching_error(make_model, data, again, inits=3) == pytest.approx(error)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_model_that_works_in_place_changes_nobodys_examples(layers: str) -> None:
    inputs, targets = examples()
    given = inputs.clone()
    with torch.random.fork_rng():
        live = in_place()
    memories = [
        rc.GradientMatching(in_place, 20, inits=2, layers=layers),
        rc.LocalGradientMatching(20),
        rc.GSS(20),
        rc.Herding(20),
    ]
    for memory in memories:
        for part in (*torch.arange(100).split(50), *torch.arange(100, 120).split(1)):
            memory.update(given[part], targets[part], model=live if memory.needs_model else None)
        assert torch.equal(memory.batch.inputs, inputs[memory.batch.ids])
    assert torch.equal(given, inputs)
    rc.select(in_place, given, targets, 20, inits=2, layers=layers)
    rc.matching_error(in_place, (given, targets), memories[0].batch, inits=1)
    assert torch.equal(given, inputs)
    for make in LEARNERS.values():
        learner = make(in_place, epochs=1)
        learner.observe(given, targets)
        learner.predict(given)
        if learner.memory is not None:
            assert torch.equal(learner.memory.batch.inputs, inputs[learner.memory.batch.ids])
        assert torch.equal(given, inputs)


def test_a_dataset_of_a_memory_gives_copies() -> None:
    memory = rc.Reservoir(5)
    memory.update(*examples(5))
    for tensor in memory.dataset[0]:
        assert isinstance(tensor, Tensor)
        tensor.fill_(9)
    assert torch.equal(memory.batch.inputs, examples(5)[0])


def test_truth_values_are_classes() -> None:
    inputs, targets = examples()
    small: dict[str, Any] = {"inits": 2}
    chosen = rc.select(lambda: nn.Linear(8, 2), inputs, targets > 0, 20, **small)
    numbered = rc.select(lambda: nn.Linear(8, 2), inputs, (targets > 0).long(), 20, **small)
    assert torch.equal(chosen.indices, numbered.indices)
    for options in ({}, {"class_weight": "balanced"}, {"min_per_class": 2}):
        memory = rc.GradientMatching(lambda: nn.Linear(8, 2), 20, **small, **options)  # type: ignore[arg-type]
        for part in (*torch.arange(90).split(45), *torch.arange(90, 120).split(1)):
            memory.update(inputs[part], targets[part] > 0)
        assert memory.batch.targets.dtype == torch.bool and len(memory) >= 15


def test_a_class_that_make_model_defines_itself_will_do() -> None:
    def make() -> nn.Module:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

            def forward(self, x: Tensor) -> Tensor:
                return self.second(self.first(x).relu())  # type: ignore[no-any-return]

        return Net()

    data = examples()
    chosen = rc.select(make, *data, 20, inits=3)
    assert rc.matching_error(make, data, chosen, inits=2) < 1
    memory = rc.GradientMatching(make, 20, inits=3)
    memory.update(*data)
    copied = rc.GradientMatching(make, 20, inits=3)
    copied.load_state_dict(memory.state_dict())
    copied.update(*examples(seed=1))
    memory.update(*examples(seed=1))
    assert torch.equal(copied.batch.ids, memory.batch.ids)


def test_packed_sequences_have_the_gradients_that_autograd_gives() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 1)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return self.head(self.recurrent(packed)[1][-1])  # type: ignore[no-any-return]

    x, lengths = torch.randn(9, 5, 4, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 5 + 1
    targets = torch.linspace(-1, 1, 9)[:, None]
    options: dict[str, Any] = {"inits": 1, "projection": None, "scale_outputs": False}
    embedding = rc.GradientEmbedding(Packed, loss="squared_error", layers="all", **options)
    with warnings.catch_warnings():  # the library's own, and torch's of a rule that it has not
        warnings.simplefilter("ignore")
        rows = embedding.embed((x, lengths), targets)
    assert embedding.prepared is not None and embedding.prepared.draws is not None
    model = embedding.prepared.draws[0].model.requires_grad_(True)
    norms = []
    for i in range(9):
        loss = ((model(x[i : i + 1], lengths[i : i + 1]) - targets[i]) ** 2).sum()
        norms.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*model.parameters()])]).norm())
    assert torch.allclose(rows.norm(dim=1), torch.stack(norms), rtol=1e-4)


def test_parts_that_the_model_shields_from_gradients_have_none() -> None:
    class Shielded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                features = self.body(x).relu()
            return self.head(features)  # type: ignore[no-any-return]

    rows = rc.GradientEmbedding(Shielded, inits=1, projection=None, layers="all").embed(*examples(10))
    head = rc.GradientEmbedding(Shielded, inits=1, projection=None, layers="last").embed(*examples(10))
    assert torch.allclose(rows.norm(dim=1), head.norm(dim=1)) and bool((head.norm(dim=1) > 0).all())


def test_learners_refuse_at_once_what_they_could_not_be_trained_on() -> None:
    inputs, targets = examples()
    for kind in LEARNERS:
        learner = LEARNERS[kind](make_model, epochs=1)
        with pytest.raises(ValueError, match="the model must accept examples of"):
            learner.observe(inputs[:, :3], targets)
        learner.observe(inputs, targets)
        with pytest.raises(ValueError, match="targets must be class numbers from 0 to 2"):
            learner.observe(inputs[:1], torch.tensor([9]))
        assert learner.predict(inputs).shape == (120, 3)


def test_predictions_take_what_observing_takes() -> None:
    learner = rc.FineTune(make_model, epochs=1)
    inputs, targets = examples(10)
    learner.observe(inputs.numpy(), targets.tolist())
    wanted = learner.predict(inputs)
    for same in (inputs.numpy(), inputs.tolist()):
        assert torch.equal(learner.predict(same), wanted)
    assert learner.predict(inputs[:0]).shape == (0, 3)
    with pytest.raises(ValueError, match="inputs must be a tensor or an array, got NoneType"):
        learner.predict(None)


def test_an_optimizer_that_asks_for_the_loss_itself_will_do() -> None:
    learner = rc.FineTune(make_model, epochs=3, optimizer=lambda p: torch.optim.LBFGS(p, lr=0.5))
    inputs, targets = examples()
    learner.observe(inputs, targets)
    assert float((learner.predict(inputs).argmax(1) == targets).float().mean()) > 0.8


def test_a_learner_says_so_if_all_that_its_memory_held_was_forgotten() -> None:
    learner = rc.GDumb(make_model, rc.Reservoir(5), epochs=1)
    learner.observe(*examples(5))
    assert len(learner.memory.forget([])) == 0 and len(learner.memory) == 5
    learner.memory.forget(range(5))
    with pytest.raises(ValueError, match="the memory must hold examples to be trained on, got none"):
        learner.predict(examples(5)[0])


def test_lazy_layers_are_refused_in_one_sentence() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 3))

    data, sentence = examples(), "make_model must return a model whose parameters are there, got one with lazy layers"
    with pytest.raises(ValueError, match=sentence):
        rc.select(make, *data, 20)
    with pytest.raises(ValueError, match=sentence):
        rc.matching_error(make, data, rc.Coreset(torch.arange(3), torch.ones(3), 0.0))


def test_merging_with_what_has_seen_nothing_changes_nothing() -> None:
    for memory, other in (
        (rc.Reservoir(5), rc.Reservoir(5, seed=1)),
        (rc.GradientMatching(make_model, 5, inits=2), rc.GradientMatching(make_model, 5, inits=2)),
    ):
        memory.update(*examples(30))
        merged = memory.merge(other)
        assert merged.seen == 30 and torch.equal(merged.batch.ids, memory.batch.ids)
        merged.update(*examples(30))
        assert memory.seen == 30


def test_weights_of_more_classes_than_places_add_up_to_what_was_seen() -> None:
    memory = rc.Herding(5)
    memory.update(examples(300)[0], torch.arange(300) % 50)
    assert float(memory.batch.weights.sum()) == pytest.approx(300)


def test_the_first_clustering_of_a_process_leaves_pythons_random_numbers_alone() -> None:
    code = (
        "import random, torch, recollect as rc; before = random.getstate(); "
        "rc.Clustering(3).update(torch.randn(20, 2), torch.arange(20) % 2); assert random.getstate() == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("size", [None, "10", float("nan")])
def test_a_size_that_is_no_number_is_told_so(size: Any) -> None:
    with pytest.raises(
        ValueError, match="size must be a whole number of at least 1, or a fraction of all up to 1, got"
    ):
        rc.select(make_model, *examples(), size)


def test_candidates_that_are_none_are_told_so() -> None:
    memory = rc.GradientMatching(make_model, 5, inits=2)
    memory.update(*examples(30))
    with pytest.raises(ValueError, match="candidates must be what the memory's embedding"):
        memory.update(*examples(30), candidates=examples(30)[0])  # type: ignore[arg-type]


def test_choosing_and_measuring_are_the_same_within_autocast() -> None:
    data = examples(300)
    rows = torch.randn(200, 50, generator=torch.Generator().manual_seed(0))

    def results() -> list[Any]:
        options: dict[str, Any] = {"inits": 2, "dim": 50, "layers": "all"}
        memory, other = rc.GradientMatching(make_model, 20, **options), rc.GradientMatching(make_model, 20, **options)
        memory.update(*data)
        other.update(*examples(100, seed=1))
        clusters = rc.Clustering(20)
        clusters.update(*data)
        merged = memory.merge(other)
        merged.forget(merged.batch.ids[:3])
        coreset = rc.select(make_model, *data, 20, inits=2)
        batches = [memory.batch, clusters.batch, merged.batch]
        return [
            *(part.tolist() for batch in batches for part in (batch.ids, batch.weights)),
            *(part.tolist() for part in (coreset.indices, coreset.weights, rc.pursue(rows, 20).weights)),
            rc.matching_error(make_model, data, coreset, inits=2),
            rc.GradientEmbedding(make_model, inits=2).embed(*data).tolist(),
        ]

    wanted = results()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert results() == wanted
        assert torch.is_autocast_enabled("cpu")


class Keeping(nn.Module):
    """Keeps an activation of its last pass, as models do for people who look into them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.first(x).relu()
        return self.last(self.hidden)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", LEARNERS)
def test_models_that_keep_an_activation_are_trained_again(kind: str) -> None:
    data = examples(30)
    learner = LEARNERS[kind](Keeping, epochs=1)
    learner.observe(*data)
    learner.observe(*data)
    assert learner.predict(data[0]).shape == (30, 3)


@pytest.mark.parametrize("memory", [rc.GSS(5), rc.LocalGradientMatching(5)])
def test_memories_look_at_models_that_have_been_in_use(memory: rc.Memory) -> None:
    data = examples(30)
    with torch.random.fork_rng():
        model = Keeping()
    model(data[0])
    memory.update(*data, model=model)
    assert len(memory) == 5 and model.hidden.requires_grad


def test_learners_refuse_lazy_layers_which_draw_from_the_global_state() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))

    for kind in LEARNERS:
        with pytest.raises(ValueError, match="got one with lazy layers"):
            LEARNERS[kind](make, epochs=1).observe(*examples(30))


def test_matching_error_refuses_what_is_random_as_select_does() -> None:
    class Random(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(super().forward(x))

    everything = rc.Coreset(torch.arange(30), torch.ones(30), 0.0)
    with pytest.raises(ValueError, match="draw no random numbers in evaluation mode"):
        rc.matching_error(lambda: Random(8, 3), examples(30), everything)


def test_a_single_number_is_no_input() -> None:
    with pytest.raises(ValueError, match="inputs must have one row per example, got a single number"):
        rc.FineTune(make_model).predict(torch.tensor(1.0))


def test_threads_that_seed_wait_for_one_another() -> None:
    before, both_inside, drawn = randomness(), Event(), dict[int, Tensor]()

    def draw(seed: int) -> None:
        with seeded(seed):
            if drawn:
                both_inside.set()
            drawn[seed] = torch.empty(0)
            both_inside.wait(0.05)
            drawn[seed] = torch.rand(3)

    threads = [Thread(target=draw, args=(seed,)) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert randomness() == before
    assert all(torch.equal(drawn[i], torch.rand(3, generator=torch.Generator().manual_seed(i))) for i in (0, 1))


def test_what_several_threads_switch_off_is_on_again_after_the_last() -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(plain_attention())
    second.enter_context(plain_attention())
    first.close()
    assert not torch.backends.mha.get_fastpath_enabled()
    second.close()
    assert torch.backends.mha.get_fastpath_enabled()
