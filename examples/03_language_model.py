"""Fine-tune a language model on stories; keep 2 % of the instructions that it knows, with weights."""

import copy
import random
import sys

import torch
from datasets import Dataset, disable_progress_bars
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, TrainingArguments

from recollect import Coreset
from recollect.integrations.huggingface import WeightedTrainer, mix, next_token_loss, select, tensors, weighted

disable_progress_bars()
seed = int(sys.argv[1]) if sys.argv[1:] else 0
animals, homes = "cat dog fox owl hen pig cow bee ant elk", "hill lake barn road wood city farm cave port tent"
HOMES = dict(zip(animals.split(), homes.split(), strict=True))
OLD = {"where does the {a} live ? the {a} lives in the {home} .": 60, "is the {a} at home ? yes , in the {home} .": 25}
OLD |= {"spell {a} : {letters} .": 10, "which comes first , {a} or {c} ? {first} .": 5}  # rarer ones
NEW = {"one day the {a} met the {c} near the {c} of the {a} and they sang all night .": 1}
NUMBERS: dict[str, int] = {}  # of the words


def texts(kinds: dict[str, int], n: int, draw: random.Random) -> Dataset:
    rows = []
    for kind in draw.choices([*kinds], [*kinds.values()], k=n):
        a, c = draw.sample([*HOMES], 2)
        words = kind.format(a=a, c=c, home=HOMES[a], first=min(a, c), letters=" ".join(a)).split()
        rows.append([NUMBERS.setdefault(word, len(NUMBERS) + 1) for word in words] + [0] * (20 - len(words)))
    return Dataset.from_dict({"input_ids": rows, "labels": [[i or -100 for i in row] for row in rows]})


def make_model() -> GPT2LMHeadModel:
    ends = {"bos_token_id": None, "eos_token_id": None}
    return GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=20, n_embd=64, n_layer=2, n_head=2, **ends))


def trained(model: GPT2LMHeadModel, data: Dataset) -> GPT2LMHeadModel:
    options = {"learning_rate": 1e-3, "per_device_train_batch_size": 32, "num_train_epochs": 4, "seed": seed}
    quiet = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none", "disable_tqdm": True}
    arguments = TrainingArguments(remove_unused_columns=False, use_cpu=True, **options, **quiet)
    trainer = WeightedTrainer(copy.deepcopy(model), arguments, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer.model.eval()


torch.manual_seed(seed)
old, new, test = (texts(kinds, n, random.Random(seed + n)) for kinds, n in ((OLD, 2000), (NEW, 500), (OLD, 501)))
chosen = select(make_model, old, size=40, columns=["input_ids"], seed=seed)
uniform = weighted(old, Coreset(torch.randperm(2000)[:40], torch.full((40,), 50.0), error=0.0))
model = trained(make_model(), old.add_column("weight", [1.0] * 2000))
print("loss on old text")
after = {"no replay": uniform.select([]), "uniform replay": uniform, "chosen and weighted": chosen}
for name, kept in {"before": None, **after}.items():
    now = model if kept is None else trained(model, mix(new, kept))
    inputs, labels = tensors(test, columns=["input_ids"])
    loss = next_token_loss(now(**inputs).logits, labels).sum() / (labels[:, 1:] != -100).sum()
    print(f"{name:20} {loss.item():.3f}")
