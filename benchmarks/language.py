"""What models of the transformers library cost: gradient embeddings beside plain passes, and a whole selection.

Seconds are those of the processor on one thread, so that others at work on the machine do not count.
`python benchmarks/language.py [passes] [selection]`
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from table import print_table
from torch import Tensor, nn

import recollect as rc
from recollect.embedding import draw_model
from recollect.losses import cross_entropy

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
WORDS, LENGTH, WIDTH = 1000, 64, 64
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 4 * WIDTH,
    "max_position_embeddings": LENGTH,
}


def bert() -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, num_labels=3))  # type: ignore[no-any-return]


def gpt2() -> nn.Module:
    sizes = {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": LENGTH}
    sizes |= {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))  # type: ignore[no-any-return]


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=4))  # type: ignore[no-any-return]


def next_token(logits: Tensor, ids: Tensor) -> Tensor:
    return cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:])


def plain(model: nn.Module, ids: Tensor, targets: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A forward and a backward pass to all parameters, in batches as ours."""
    for x, y in zip(ids.split(128), targets.split(128), strict=True):
        model.zero_grad()
        loss(model(input_ids=x).logits, y).sum().backward()


def seconds(call: Callable[[], object], times: int = 3) -> float:
    best = float("inf")
    for _ in range(times):
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return best


def words(n: int) -> Tensor:
    return torch.randint(0, WORDS, (n, LENGTH), generator=torch.Generator().manual_seed(0))


def passes(n: int = 256) -> None:
    ids, rows = words(n), []
    models: dict[str, tuple[Any, Tensor, Any]] = {
        "BERT classifier": (bert, torch.arange(n) % 3, cross_entropy),
        "GPT-2, next token": (gpt2, ids, next_token),
        "Llama, next token": (llama, ids, next_token),
    }
    for title, (make_model, targets, loss) in models.items():
        model = draw_model(make_model, 0)
        embedding = rc.GradientEmbedding(make_model, loss=loss, inits=1)
        embedding.embed({"input_ids": ids[:8]}, targets[:8])
        base = seconds(lambda m=model, t=targets, f=loss: plain(m, ids, t, f))  # type: ignore[misc]
        embed = seconds(lambda e=embedding, t=targets: e.embed({"input_ids": ids}, t))  # type: ignore[misc]
        total = seconds(lambda e=embedding, t=targets: e.total({"input_ids": ids}, t))  # type: ignore[misc]
        rows.append([title, base, embed / base, total / base])
        print(rows[-1], flush=True)
    header = ["two layers of width 64", "a plain pass [s]", "embed, times that", "total, times that"]
    print_table(f"transformers: {n} sequences of {LENGTH} tokens, d=1000", header, rows)


def selection(n: int = 10_000, size: int = 1000, S: int = 2) -> None:
    ids = words(n)
    model = draw_model(gpt2, 0)
    base = S * 10 * seconds(lambda: plain(model, ids[: n // 10], ids[: n // 10], next_token), 2)  # of a tenth
    began = time.process_time()
    rc.select(gpt2, {"input_ids": ids}, ids, size, loss=next_token, inits=S)
    took = time.process_time() - began
    header = ["", f"{S} plain passes [s]", "select [s]", "times S plain passes"]
    print_table(
        f"{size} of {n} sequences of {LENGTH} tokens, GPT-2 of two layers", header, [["", base, took, took / base]]
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or ["passes", "selection"]:
        globals()[name]()
