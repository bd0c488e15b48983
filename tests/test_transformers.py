"""Models of other people's libraries: their gradients are right, and on the fast path."""

import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import recollect as rc
from recollect.embedding.initialisations import plain_attention
from recollect.losses import IGNORED, cross_entropy
from tests.oracles import gradients_by_torch_func

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
transformers = pytest.importorskip("transformers")

N, LENGTH, WORDS = 8, 9, 50
IDS = torch.randint(0, WORDS, (N, LENGTH), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(LENGTH) < torch.tensor([9, 6, 9, 7] * 2)[:, None]).long()
LABELS = torch.arange(N) % 3
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}


def next_token(logits: Tensor, ids: Tensor) -> Tensor:
    return cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:])


def each_token(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.transpose(1, 2), labels)


def bert(kind: str = "BertForSequenceClassification") -> nn.Module:
    return getattr(transformers, kind)(transformers.BertConfig(**SMALL, num_labels=3))  # type: ignore[no-any-return]


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def llama() -> nn.Module:
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=1, tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config)  # type: ignore[no-any-return]


def vit() -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=3)
    return transformers.ViTForImageClassification(config)  # type: ignore[no-any-return]


def with_lora(rank: int = 2) -> nn.Module:
    peft = pytest.importorskip("peft")
    with torch.random.fork_rng():
        torch.manual_seed(0)  # a pretrained model is the same at each call
        model = bert()
    config = peft.LoraConfig(r=rank, target_modules=["query", "value"], modules_to_save=["classifier"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one library about the other
        return peft.get_peft_model(model, config)  # type: ignore[no-any-return]


BOTH = {"input_ids": IDS, "attention_mask": MASK}
WITHOUT_PADDING = torch.where(MASK.bool(), IDS, IGNORED)
CASES: dict[str, tuple[Callable[[], nn.Module], Any, Tensor, Any]] = {
    "BERT, classes": (bert, BOTH, LABELS, "cross_entropy"),
    "BERT, a class per token": (
        partial(bert, "BertForTokenClassification"),
        BOTH,
        torch.where(MASK.bool(), IDS % 3, IGNORED),
        each_token,
    ),
    "GPT-2, next token": (gpt2, BOTH, WITHOUT_PADDING, next_token),
    "Llama, next token": (llama, BOTH, WITHOUT_PADDING, next_token),
    "ViT": (vit, torch.randn(N, 3, 8, 8, generator=torch.Generator().manual_seed(0)), LABELS, "cross_entropy"),
    "BERT with LoRA": (with_lora, BOTH, LABELS, "cross_entropy"),
}


@pytest.fixture(autouse=True)
def plain_attention_everywhere() -> Iterator[None]:
    with plain_attention(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


@pytest.mark.parametrize("what", CASES)
def test_gradients_are_those_of_torch_func_on_the_fast_path(what: str) -> None:
    make_model, inputs, targets, loss = CASES[what]
    embedding = rc.GradientEmbedding(make_model, loss=loss, inits=2, projection=None)
    found = embedding.embed(inputs, targets)  # a warning would tell of the slow path
    assert embedding.prepared is not None and not embedding.prepared.plan.rest
    truth = gradients_by_torch_func(embedding, inputs, targets)
    assert found.shape == truth.shape
    assert float((found - truth).norm() / truth.norm()) < 1e-5
    total = embedding.total(inputs, targets)
    assert float((total - truth.double().sum(0)).norm() / total.norm()) < 1e-5


def test_adapters_are_matched_by_their_own_gradients_alone() -> None:
    embedding = rc.GradientEmbedding(with_lora, inits=2, projection=None)
    embedding.embed(BOTH, LABELS)
    with torch.random.fork_rng():
        trainable = {name: p for name, p in with_lora().named_parameters() if p.requires_grad}
    assert embedding.prepared is not None
    assert embedding.prepared.plan.shapes == {name: tuple(p.shape) for name, p in trainable.items()}
    assert all("lora" in name or "classifier" in name for name in trainable)
    assert len(rc.select(with_lora, BOTH, LABELS, 3, inits=2, dim=50)) == 3


def test_a_fresh_head_on_a_frozen_backbone_is_matched_by_the_head_alone() -> None:
    with torch.random.fork_rng():
        backbone = transformers.BertModel(transformers.BertConfig(**SMALL)).requires_grad_(False)

    class Headed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = backbone, nn.Linear(16, 3)

        def forward(self, **inputs: Tensor) -> Tensor:
            return self.head(self.backbone(**inputs).last_hidden_state[:, 0])  # type: ignore[no-any-return]

    before = {name: p.clone() for name, p in backbone.named_parameters()}
    embedding = rc.GradientEmbedding(Headed, inits=3, projection=None)
    found = embedding.embed(BOTH, LABELS)
    assert found.shape == (N, 3 * (16 * 3 + 3))
    truth = gradients_by_torch_func(embedding, BOTH, LABELS)
    assert float((found - truth).norm() / truth.norm()) < 1e-5
    assert all(torch.equal(p, before[name]) for name, p in backbone.named_parameters())


def test_dropout_is_off_and_the_model_is_left_in_its_mode() -> None:
    with torch.random.fork_rng():
        live = bert().train()
    embedding = rc.GradientEmbedding(lambda: live, inits=1, projection=None)
    assert torch.equal(embedding.embed(BOTH, LABELS), embedding.embed(BOTH, LABELS))
    assert live.training and all(p.requires_grad for p in live.parameters())


def test_models_in_bfloat16_are_matched_as_well_as_their_precision_allows() -> None:
    make = {dtype: lambda dtype=dtype: bert().to(dtype) for dtype in (torch.float32, torch.bfloat16)}
    rows = {}
    for dtype, make_model in make.items():
        embedding = rc.GradientEmbedding(make_model, inits=2, projection=None)
        rows[dtype] = embedding.embed(BOTH, LABELS).float()
        total = embedding.total(BOTH, LABELS)
        assert float((total - rows[dtype].double().sum(0)).norm() / total.norm()) < 0.02
    full, half = rows.values()
    assert float(nn.functional.cosine_similarity(full, half).min()) > 0.99
    coreset = rc.select(make[torch.bfloat16], BOTH, LABELS, 3, inits=2, dim=50)
    assert len(coreset) == 3 and coreset.weights.isfinite().all()
    memory = rc.GradientMatching(make[torch.bfloat16], 3, inits=2, dim=50)
    for _ in range(2):
        memory.update(BOTH, LABELS)
    assert len(memory) == 3


def test_labels_among_the_inputs_do_no_harm_as_the_logits_are_what_counts() -> None:
    plain = rc.GradientEmbedding(bert, inits=1, projection=None).embed(BOTH, LABELS)
    beside = rc.GradientEmbedding(bert, inits=1, projection=None).embed({**BOTH, "labels": LABELS}, LABELS)
    assert torch.allclose(plain, beside, atol=1e-7)


class OwnLoss(nn.Module):
    """Computes its own loss, as some libraries want it."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.layers, self.reduction = nn.Linear(4, 3), reduction

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.layers(x), labels, reduction=self.reduction)


def test_models_that_compute_their_loss_may_return_one_per_example_and_are_told_so() -> None:
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
    inputs = {"x": x, "labels": LABELS}
    options: dict[str, Any] = {"inits": 2, "projection": None}
    own = rc.GradientEmbedding(partial(OwnLoss, "none"), loss=lambda losses, _: losses, **options)
    usual = rc.GradientEmbedding(lambda: OwnLoss("none").layers, **options)
    assert torch.allclose(own.embed(inputs, LABELS), usual.embed(x, LABELS), atol=1e-6)
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        rc.GradientEmbedding(partial(OwnLoss, "mean")).embed(inputs, LABELS)
    assert "if it computes its own loss, let it return one per example" in str(caught.value)
    assert "pass loss=lambda losses, targets: losses" in str(caught.value)


def test_no_warning_is_given_by_whole_choices() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory = rc.GradientMatching(gpt2, 3, loss=next_token, inits=2, dim=100)
        for _ in range(2):
            memory.update({**BOTH, "labels": WITHOUT_PADDING}, target="labels")
    assert len(memory) == 3
