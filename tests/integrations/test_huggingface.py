"""Hugging Face: the weights come out of the choice as a column, and arrive in the loss of a real `Trainer`."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict, Value, load_from_disk
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import recollect as rc
from recollect.integrations.huggingface import WeightedTrainer, loss_of, mix, next_token_loss, select, tensors, weighted
from recollect.randomness import seeded

BERT = BertConfig(
    vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3
)
GPT = GPT2Config(
    vocab_size=20, n_positions=12, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
)
LLAMA = LlamaConfig(
    vocab_size=20, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
)
BERT.hidden_dropout_prob = BERT.attention_probs_dropout_prob = 0.0


def bert() -> BertForSequenceClassification:
    return BertForSequenceClassification(BERT)


def gpt() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT)


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(LLAMA)


def sentences(n: int = 40, ragged: bool = False) -> Dataset:
    """Token numbers with some places of the labels ignored, and a column that no model takes."""
    g = torch.Generator().manual_seed(n)
    lengths = [10 - (i % 4 if ragged else 0) for i in range(n)]
    ids = [torch.randint(20, (length,), generator=g).tolist() for length in lengths]
    labels = [[-100 if i < k % 5 else token for i, token in enumerate(row)] for k, row in enumerate(ids)]
    text = [f"row {i}" for i in range(n)]
    return Dataset.from_dict(
        {"input_ids": ids, "attention_mask": [[1] * len(r) for r in ids], "labels": labels, "text": text}
    )


def classified(n: int = 40) -> Dataset:
    rows = sentences(n).remove_columns("labels")
    return rows.add_column("label", [i % 3 for i in range(n)])


def pad(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A collator as people have them; it keeps what it does not know."""
    longest = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    padded = {
        name: torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])
        for name, value in fill.items()
    }
    extra = {"weight": torch.tensor([row["weight"] for row in rows])} if "weight" in rows[0] else {}
    return padded | extra


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    settings: dict[str, Any] = {"remove_unused_columns": False, "report_to": "none", "use_cpu": True, "max_steps": 1}
    settings |= {"save_strategy": "no", "disable_tqdm": True, "per_device_train_batch_size": 4, "optim": "sgd"}
    settings |= {"lr_scheduler_type": "constant", "max_grad_norm": 0.0, "learning_rate": 1.0, "logging_steps": 1}
    return TrainingArguments(str(folder), **{**settings, **options})


def first(model: Any) -> torch.Tensor:
    parameter: torch.Tensor = next(model.parameters())
    return parameter.detach().clone()


def step_of(trainer: Trainer, model: Any) -> torch.Tensor:
    """The gradient of the first parameter that one step of plain descent used."""
    before = first(model)
    with seeded(0):
        trainer.train()
    return (before - first(model)) / float(trainer.args.learning_rate)


def test_choosing_from_a_dataset_equals_choosing_from_its_tensors() -> None:
    rows = sentences()
    with seeded(0):
        kept = select(gpt, rows, 8, inits=2, dim=100)
        inputs, targets = tensors(rows)
        coreset = rc.select(gpt, inputs, targets, 8, loss=next_token_loss, inits=2, dim=100, hold_count=True)
    assert kept["text"][:] == [f"row {i}" for i in sorted(coreset.indices.tolist())]
    order = coreset.indices.argsort()
    assert kept["weight"][:] == coreset.weights[order].tolist()


def test_the_column_called_label_may_be_named() -> None:
    rows, columns = classified(), ["input_ids", "attention_mask"]
    for options in ({}, {"collator": lambda some: {name: torch.tensor([r[name] for r in some]) for name in some[0]}}):
        if options:
            rows = rows.remove_columns("text")
        inputs, targets = tensors(rows, columns=columns, target="label", **options)
        assert list(inputs) == columns and targets.tolist() == [i % 3 for i in range(40)]
        assert torch.equal(targets, tensors(rows, columns=columns)[1])


def test_kept_rows_stand_for_all_beside_new_ones_of_weight_one() -> None:
    rows = Dataset.from_dict({"input_ids": [[i % 20, i % 7, i % 11] for i in range(300)], "labels": [*range(3)] * 100})
    kept = select(bert, rows, 40, columns=["input_ids"], inits=2)
    assert sum(kept["weight"]) == pytest.approx(300, rel=0.1)


def test_rows_of_several_lengths_need_a_collator() -> None:
    rows = sentences(ragged=True)
    with pytest.raises(ValueError, match="must have one length, got several: pass a collator"):
        select(gpt, rows, 5)
    kept = select(gpt, rows, 5, collator=pad, inits=2, dim=100)
    assert len(kept) == 5 and kept["input_ids"][0] in rows["input_ids"][:]


def test_padding_changes_no_choice() -> None:
    rows = sentences()

    def pad_more(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = pad(items)
        return {
            name: F.pad(batch[name], (0, 2), value=-100 if name == "labels" else 0)
            for name in ("input_ids", "attention_mask", "labels")
        }

    plain = select(gpt, rows, 5, inits=2, dim=100)
    padded = select(gpt, rows, 5, collator=pad_more, inits=2, dim=100)
    assert plain["text"][:] == padded["text"][:]
    assert plain["weight"][:] == pytest.approx(padded["weight"][:], rel=1e-2)


def test_saving_keeps_the_weights(tmp_path: Path) -> None:
    coreset = rc.Coreset(torch.tensor([3, 1]), torch.tensor([2.5, 7.0], dtype=torch.float64), 0.0)
    weighted(sentences(), coreset).save_to_disk(tmp_path)
    back = load_from_disk(tmp_path)
    assert back["weight"][:] == [7.0, 2.5] and back["text"][:] == ["row 1", "row 3"]


def test_the_loss_of_a_language_model_equals_the_one_by_hand(tmp_path: Path) -> None:
    rows = sentences(4)
    weights = [1.0, 5.0, 0.5, 3.0]
    with seeded(1):
        model = gpt()
    inputs, labels = tensors(rows)
    total = count = torch.tensor(0.0)
    logits = model(**inputs).logits
    for i, w in enumerate(weights):  # each place is asked for the next label
        for place in range(9):
            if labels[i, place + 1] != -100:
                total = total + w * F.cross_entropy(logits[i, place], labels[i, place + 1])
                count = count + w
    by_hand = total / count
    (gradient,) = torch.autograd.grad(by_hand, next(model.parameters()))
    data = rows.remove_columns("text").add_column("weight", weights)
    with seeded(0):
        trainer = WeightedTrainer(model, arguments(tmp_path), train_dataset=data)
    torch.testing.assert_close(step_of(trainer, model), gradient, rtol=1e-4, atol=1e-6)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(by_hand.item(), rel=1e-4)


def test_the_loss_of_a_classifier_equals_the_one_by_hand(tmp_path: Path) -> None:
    rows, weights = classified(4), torch.tensor([1.0, 5.0, 0.5, 3.0])
    with seeded(1):
        model = bert()
    inputs, labels = tensors(rows)
    losses = F.cross_entropy(model(**inputs).logits, labels, reduction="none")
    (gradient,) = torch.autograd.grad((weights * losses).sum() / weights.sum(), next(model.parameters()))
    data = rows.remove_columns("text").add_column("weight", weights.tolist())
    with seeded(0):
        trainer = WeightedTrainer(model, arguments(tmp_path), train_dataset=data)
    torch.testing.assert_close(step_of(trainer, model), gradient, rtol=1e-4, atol=1e-6)


def test_several_quantities_are_asked_for_by_squared_error_where_the_model_says_so() -> None:
    """Of several labels that are no whole numbers transformers thinks as of yes-or-no questions, unless told."""
    logits, labels = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.5]])
    with seeded(1):
        model = bert()
    questions = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    assert loss_of(model)(logits, labels).item() == pytest.approx(questions.item())
    model.config = copy.deepcopy(model.config)
    model.config.problem_type = "regression"
    assert loss_of(model)(logits, labels).tolist() == [3.25]


@pytest.mark.parametrize("kind", [int, float])
def test_a_model_of_one_output_is_asked_for_a_quantity_as_in_transformers(kind: type, tmp_path: Path) -> None:
    """Of a single class nothing can be learnt; the draws' outputs are scaled to the targets, as for any regression."""
    config = copy.deepcopy(BERT)
    config.num_labels = 1
    rows = sentences(40).remove_columns(["labels", "text"]).add_column("labels", [kind(i % 5 + 1) for i in range(40)])
    make = partial(BertForSequenceClassification, config)
    inputs, targets = tensors(rows)
    options: dict[str, Any] = {"inits": 2, "dim": 60, "seed": 3}
    by_name = rc.select(make, inputs, targets.float(), 6, loss="squared_error", hold_count=True, **options)
    assert select(make, rows, 6, **options)["weight"][:] == weighted(rows, by_name)["weight"][:]
    steps = []
    for kind_of_trainer, data in ((Trainer, rows), (WeightedTrainer, rows.add_column("weight", [3.0] * 40))):
        data = data.cast_column("labels", Value("float32")) if kind_of_trainer is Trainer else data
        with seeded(1):
            model = make()
        with seeded(0):
            steps.append(step_of(kind_of_trainer(model, arguments(tmp_path), train_dataset=data), model))
    torch.testing.assert_close(*steps, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [gpt, bert])
def test_accumulating_batches_gives_the_step_of_one_large_batch(make: Any, tmp_path: Path) -> None:
    rows = (sentences if make is gpt else classified)(8).remove_columns("text")
    data = rows.add_column("weight", [float(2**i) for i in range(8)])
    steps = []
    for size, parts in ((8, 1), (2, 4), (3, 3)):
        with seeded(1):
            model = make()
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": parts}
        with seeded(0):
            trainer = WeightedTrainer(model, arguments(tmp_path, **options), train_dataset=data)
        steps.append(step_of(trainer, model))
    torch.testing.assert_close(steps[1], steps[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(steps[2], steps[0], rtol=1e-4, atol=1e-6)


def test_equal_weights_give_the_loss_that_transformers_has(tmp_path: Path) -> None:
    rows = sentences(8).remove_columns("text")
    options = {"gradient_accumulation_steps": 2}
    steps = []
    for kind, data in ((Trainer, rows), (WeightedTrainer, rows.add_column("weight", [3.0] * 8))):
        with seeded(1):
            model = llama()
        with seeded(0):
            trainer = kind(model, arguments(tmp_path, **options), train_dataset=data, eval_dataset=rows)
            steps.append((step_of(trainer, model), trainer.evaluate()["eval_loss"]))
    torch.testing.assert_close(steps[0][0], steps[1][0], rtol=1e-4, atol=1e-6)
    assert steps[0][1] == pytest.approx(steps[1][1], rel=1e-4)


def test_what_would_drop_the_weights_is_refused(tmp_path: Path) -> None:
    data = mix(sentences(8), weighted(sentences(8), rc.Coreset(torch.tensor([0]), torch.tensor([9.0]).double(), 0.0)))
    assert data["weight"][:] == [1.0] * 8 + [9.0]
    with seeded(0):
        with pytest.raises(ValueError, match="remove_unused_columns must be False, got True"):
            WeightedTrainer(gpt(), arguments(tmp_path, remove_unused_columns=True), train_dataset=data)
        with pytest.raises(ValueError, match="the loss must be given as loss="):
            WeightedTrainer(gpt(), arguments(tmp_path, label_smoothing_factor=0.1), train_dataset=data)
        lost = WeightedTrainer(gpt(), arguments(tmp_path), train_dataset=data.remove_columns(["text", "weight"]))
        with pytest.raises(ValueError, match="each batch must hold the column 'weight'"):
            lost.train()


def test_columns_that_are_not_there_are_named() -> None:
    with pytest.raises(ValueError, match="dataset must have the column 'labels', got 'input_ids'"):
        select(gpt, sentences().select_columns(["input_ids", "attention_mask"]), 5)
    with pytest.raises(ValueError, match="no column may be called 'text'"):
        weighted(sentences(), rc.Coreset(torch.tensor([0]), torch.tensor([9.0]), 0.0), weight="text")
    with pytest.raises(ValueError, match=r"dataset must be a datasets\.Dataset, got IterableDataset"):
        select(gpt, sentences().to_iterable_dataset(), 5)
    with pytest.raises(ValueError, match="got DatasetDict: pass one of its splits"):
        select(gpt, DatasetDict(train=sentences()), 5)
    with pytest.raises(ValueError, match=r"kept must have the column 'weight', .* got none: pass it second"):
        mix(sentences().add_column("weight", [1.0] * 40), sentences())


@pytest.mark.parametrize("iterable", [False, True])
def test_a_dataset_of_numbers_is_chosen_from_as_it_is(iterable: bool) -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    dataset = Dataset.from_dict({"input": x.tolist(), "label": (torch.arange(60) % 3).tolist()})
    make_model = partial(rc.models.mlp, 3, 3, hidden=(8,))
    plain = rc.select(make_model, {"input": x}, torch.arange(60) % 3, 9, inits=2)
    found = rc.select(
        make_model, dataset.to_iterable_dataset() if iterable else dataset, size=9, target="label", inits=2
    )
    assert torch.equal(found.indices, plain.indices)
