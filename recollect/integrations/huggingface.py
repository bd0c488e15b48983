"""Hugging Face: choose from a `datasets.Dataset`, and train with the weights in a `Trainer`.

    kept = select(make_model, old, size=200)                    # a Dataset with a column "weight"
    WeightedTrainer(model, args, train_dataset=mix(new, kept))  # whose loss counts it

The loss of a batch is sum_i w_i L_i / sum_i w_i n_i, where L_i adds up the losses of the n_i labelled places of example
i: with equal weights it is the loss that transformers has. Under gradient accumulation both sums go over all batches
of a step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.candidates import SHORTLIST
from recollect.embedding import MakeModel
from recollect.integrations.extras import needed_for
from recollect.losses import IGNORED, LossFunction, check_losses, squared_error
from recollect.pursuit import Coreset
from recollect.randomness import derive_seed, seeded
from recollect.selection import select as select_examples

with needed_for("huggingface"):
    from datasets import Dataset, concatenate_datasets
    from transformers import Trainer
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

Collator: TypeAlias = Callable[[list[dict[str, Any]]], Mapping[str, Any]]
"""From rows to a batch of tensors, padded to one length."""

COLUMNS = ("input_ids", "attention_mask")
TARGET = "labels"
WEIGHT = "weight"


def select(
    make_model: MakeModel,
    dataset: Dataset,
    size: int,
    *,
    columns: Sequence[str] = COLUMNS,
    target: str = TARGET,
    collator: Collator | None = None,
    weight: str = WEIGHT,
    loss: str | LossFunction | None = None,
    inits: int = 10,
    dim: int = 1000,
    layers: str | Sequence[str] = "auto",
    batch_size: int = 128,
    device: str | torch.device = "cpu",
    shortlist: float | None = SHORTLIST,
    seed: int = 0,
    progress: bool = False,
) -> Dataset:
    """Choose a few rows, with weights, whose loss gradients add up to those of all.

    The weights add up to about the number of all rows, so that the chosen ones can be mixed with new rows of weight
    one. This calls `tensors`, `recollect.select(..., hold_count=True)` and `weighted`: call these for other options.

    Args:
        make_model: returns a freshly initialised model at each call, such as one made from its configuration. If
            nothing in it is random, as in a pretrained model, pass `inits=1`.
        dataset: the rows to choose from.
        size: how many to keep.
        columns: what the model is called with.
        target: the column of labels; a column "label" is found too.
        collator: pads rows to one length; not needed if they have one.
        weight: the name of the new column.
        loss: a name, or a function of logits and labels that returns one loss per row; by default the loss of the
            model's kind, added up over the labelled places of a row.
        inits: S, the number of initialisations at which gradients are matched.
        dim: d, how many numbers a gradient is reduced to at each initialisation.
        layers: whose gradients are matched: "last" (the last linear layer), "all", names of modules, or "auto": the
            last one where labels are class numbers and the model ends in a linear layer, otherwise all.
        batch_size: rows per pass; bounds memory and changes nothing else.
        device: where to compute.
        shortlist: how many candidates there are for each row that is kept, drawn at random; None makes all rows
            candidates.
        seed: the same seed gives the same choice.
        progress: show progress bars in a terminal.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        ...                     intermediate_size=8)
        >>> rows = {"input_ids": [[i % 9, i % 7] for i in range(30)], "labels": [0, 1] * 15}
        >>> kept = select(lambda: BertForSequenceClassification(config), Dataset.from_dict(rows), size=5,
        ...               columns=["input_ids"], inits=2)
        >>> kept.column_names, len(kept)
        (['input_ids', 'labels', 'weight'], 5)
    """
    inputs, targets = tensors(dataset, columns=columns, target=target, collator=collator, seed=seed)
    if loss is None:
        with seeded(derive_seed(seed, "look at the model")):
            loss = loss_of(make_model())
        if loss is squared_error:
            targets = targets.float()  # whole numbers would be taken for classes
    coreset = select_examples(
        make_model,
        inputs,
        targets,
        size,
        loss=loss,
        inits=inits,
        dim=dim,
        layers=layers,
        batch_size=batch_size,
        device=device,
        shortlist=shortlist,
        hold_count=True,
        seed=seed,
        progress=progress,
    )
    return weighted(dataset, coreset, weight=weight)


def tensors(
    dataset: Dataset,
    *,
    columns: Sequence[str] = COLUMNS,
    target: str = TARGET,
    collator: Collator | None = None,
    seed: int = 0,
) -> tuple[dict[str, Tensor], Tensor]:
    """The rows as inputs and targets, as `recollect.select` and `memory.update` take them.

    Args:
        dataset: the rows.
        columns: what the model is called with.
        target: the column of labels; a column "label" is found too.
        collator: pads rows to one length; not needed if they have one.
        seed: for collators that draw, such as masks.

    Example:
        >>> rows = Dataset.from_dict({"input_ids": [[1, 2], [3, 4]], "label": [0, 1]})
        >>> tensors(rows, columns=["input_ids"])
        ({'input_ids': tensor([[1, 2], [3, 4]])}, tensor([0, 1]))
    """
    if not isinstance(dataset, Dataset):
        answer = "pass one of its splits" if isinstance(dataset, Mapping) else "make one that can be indexed"
        raise ValueError(f"dataset must be a datasets.Dataset, got {type(dataset).__name__}: {answer}")
    found = [name for name in dict.fromkeys((*columns, target, "label")) if name in dataset.column_names]
    rows = dataset.select_columns(found).with_format("torch" if collator is None else None)[:]
    if collator is not None:
        with seeded(derive_seed(seed, "collate")):
            rows = collator([dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)])
    rows = dict(rows)
    if target not in rows and "label" in rows:
        rows[target] = rows.pop("label")
    for name in (*columns, target):
        if name not in rows:
            raise ValueError(f"dataset must have the column {name!r}, got {', '.join(map(repr, dataset.column_names))}")
        if not isinstance(rows[name], Tensor):
            raise ValueError(f"the rows of {name!r} must have one length, got several: pass a collator that pads them")
    return {name: rows[name] for name in columns}, rows[target]


def weighted(dataset: Dataset, coreset: Coreset, *, weight: str = WEIGHT) -> Dataset:
    """The chosen rows, in order, with a column of weights, which is kept when they are saved or pushed to the Hub.

    Args:
        dataset: the rows that were chosen from.
        coreset: row numbers and weights.
        weight: the name of the new column.
    """
    if weight in dataset.column_names:
        raise ValueError(
            f"no column may be called {weight!r}, as one of this name is added: rename it, or pass weight="
        )
    rows, order = coreset.indices.cpu().sort()
    return dataset.select(rows.tolist()).add_column(weight, coreset.weights.cpu()[order].tolist())


def mix(new: Dataset, kept: Dataset, *, weight: str = WEIGHT) -> Dataset:
    """Join new rows, each with weight one, and kept rows with their weights, to train on both.

    Args:
        new: rows with the columns of the kept ones but for the weight.
        kept: what `select` returned.
        weight: the name of the column of weights.

    Example:
        >>> kept = Dataset.from_dict({"x": [1], "weight": [20.0]})
        >>> mix(Dataset.from_dict({"x": [2, 3]}), kept)["weight"][:]
        [1.0, 1.0, 20.0]
    """
    if weight not in kept.column_names:
        raise ValueError(f"kept must have the column {weight!r}, as what select returned has, got none: pass it second")
    if weight not in new.column_names:
        new = new.add_column(weight, [1.0] * len(new))
    return concatenate_datasets([new, kept])


def loss_of(model: nn.Module) -> LossFunction:
    """One loss per row, as models of this kind are trained by: the sum over its labelled places."""
    if _asks_for_quantities(_inner(model)):
        return squared_error
    return next_token_loss if _shifts(model) else place_loss


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Language models: each place is asked for the label of the next; logits are (n, places, words)."""
    return place_loss(logits[:, :-1], labels[:, 1:])


def place_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Labels for each row, or each place of it; squared error where they are no whole numbers.

    Example:
        >>> place_loss(torch.zeros(1, 3, 2), torch.tensor([[0, 1, -100]]))  # two labelled places, log 2 each
        tensor([1.3863])
    """
    if not labels.is_floating_point():
        losses = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none", ignore_index=IGNORED)
        return losses.reshape(len(labels), -1).sum(1)
    if labels.shape == logits.shape and logits.shape[1:].numel() > 1:
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").flatten(1).sum(1)
    return squared_error(logits, labels)


def _inner(model: nn.Module) -> Any:
    """The model itself, without what peft puts around it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def _asks_for_quantities(model: Any) -> bool:
    """Whether transformers trains it by squared error, whatever the type of the labels is."""
    kind = getattr(getattr(model, "config", None), "problem_type", None)
    one_output = getattr(model, "loss_type", None) == "ForSequenceClassification" and model.config.num_labels == 1
    return kind == "regression" or (kind is None and one_output)


def _shifts(model: nn.Module) -> bool:
    """Whether the loss asks each place for the next, as in language models that read from left to right."""
    inner = _inner(model)
    # Older models, such as GPT-2, have no loss_type.
    causal = getattr(inner, "loss_type", None) == "ForCausalLM" or type(inner).__name__ in CAUSAL.values()
    return causal and not getattr(getattr(inner, "config", None), "is_encoder_decoder", False)


class WeightedTrainer(Trainer):  # type: ignore[misc]
    """A `Trainer` whose loss uses the column of weights.

    Args:
        *args: as for `Trainer`.
        weight: the name of the column of weights.
        loss: a function of logits and labels that returns one loss per row; by default the loss of the model's kind.
        **kwargs: as for `Trainer`; the `TrainingArguments` need `remove_unused_columns=False`, or the weights would be
            dropped.
    """

    loss_is_scaled_for_ga = True  # compute_loss divides by what all batches of a step hold

    def __init__(self, *args: Any, weight: str = WEIGHT, loss: LossFunction | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.remove_unused_columns:
            raise ValueError(
                "remove_unused_columns must be False, got True, which would drop the weights: "
                "pass it to TrainingArguments"
            )
        if self.compute_loss_func is not None or self.label_smoother is not None:
            raise ValueError("the loss must be given as loss=, one value per row, got another way to compute it")
        self.weight, self.loss, self._shifted = weight, loss or loss_of(self.model), _shifts(self.model)
        self.model_accepts_loss_kwargs = True  # or transformers divides by the number of accumulated batches again

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The weighted sum of losses over the weighted count of labelled places in all batches of the step."""
        if num_items_in_batch is None:
            num_items_in_batch = self._get_num_items_in_batch([inputs], self.args.device)
        inputs = dict(inputs)
        weights, labels = self._weights(inputs), inputs.pop(TARGET)
        inputs.pop(self.weight, None)
        outputs = model(**inputs)
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        losses = check_losses(self.loss(logits, labels), len(labels))
        loss = (losses * weights.to(losses)).sum() / num_items_in_batch
        if self.args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes  # each process has a part of the sum, and the mean is taken
        return (loss, {"loss": loss, "logits": logits}) if return_outputs else loss

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor:
        """The weighted count of labelled places, which transformers asks for once for all batches of a step."""
        counts = []
        for batch in batch_samples:
            labels = batch[TARGET]
            places = labels[:, 1:] if self._shifted else labels
            if labels.is_floating_point():
                count = torch.ones(len(labels))
            else:
                count = places.ne(IGNORED).reshape(len(labels), -1).sum(1)
            counts.append((self._weights(batch) * count.to(labels.device)).sum())
        total = torch.stack(counts).sum().to(device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            total = self.accelerator.gather(total).sum()
        return total.clamp(min=torch.finfo(total.dtype).tiny)

    def _weights(self, batch: Mapping[str, Any]) -> Tensor:
        """One weight per row; where models are evaluated there need be none."""
        if self.weight in batch:
            return batch[self.weight].float()  # type: ignore[no-any-return]
        if self.model.training:
            raise ValueError(
                f"each batch must hold the column {self.weight!r}, got {', '.join(map(repr, batch))}: "
                "let the collator keep it, and give new rows the weight 1, as mix does"
            )
        return torch.ones(len(batch[TARGET]), device=batch[TARGET].device)
