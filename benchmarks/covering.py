"""Coverage or matching, and which gradients? Settled on a validation part; the test part is never looked at.

A fifth of the training part is held out. From up to 8,000 rows of the rest, each rule chooses, once or batch by batch
of the paper's stream; two networks are trained on the chosen rows with their weights; accuracy is that on up to 5,000
of the rows held out. Beside it the error at fresh initialisations, all layers, by a projection of its own.
Networks are the paper's: the MLP for tables, the CNN for images, of which one is trained for each choice, as it takes
many times as long. (Lines without a network are of the MLP, also for images; those are shown apart.)
Results are appended to `results/coverage.jsonl`; what is there is not repeated.

`python benchmarks/covering.py SET [...] [--seeds 0 1] [--sizes 200 1000] [--rules NAME ...] [--modes once stream]`
`[--epochs 200]`
`python benchmarks/covering.py --table`
`python benchmarks/covering.py --cost`: seconds of the processor for one update with 60,000 rows of Covertype.
"""

import argparse
import fcntl
import json
import time
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor

import recollect as rc
from recollect.batch import Batch
from recollect.candidates import SHORTLIST, shortlisted
from recollect.datasets import Dataset, Examples
from recollect.embedding import draw_model
from recollect.experiments.stacking import train_together
from recollect.learners import Task, Training
from recollect.learners.training import predict
from recollect.memories.clustering import represent
from recollect.randomness import derive_seed, generator

RESULTS = Path(__file__).parent.parent / "results" / "coverage.jsonl"
SETS: dict[str, Callable[[Dataset], rc.streams.Stream]] = {
    "covertype": rc.streams.sorted_by_feature,
    "walking-activity": rc.streams.sorted_by_feature,
    "ldpa": rc.streams.sorted_by_feature,
    "fashion-mnist": rc.streams.class_incremental,
    "mnist": rc.streams.rotated,
}
IMAGES = ("fashion-mnist", "mnist")
ROWS, VALIDATION, TRAININGS = 8_000, 5_000, 2


class Problem:
    """Rows in the order of the stream, where its batches begin, the rows held out, and embeddings by setting."""

    def __init__(self, name: str, seed: int) -> None:
        dataset = rc.datasets.load(name)
        inputs, targets = dataset.train
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
        held_out, rest = order[: len(order) // 5][:VALIDATION], order[len(order) // 5 :]
        chosen = rest[torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed))[:ROWS]].sort().values
        part = Dataset(
            Examples(inputs[chosen], targets[chosen]), Examples(inputs[held_out], targets[held_out]), dataset.n_classes
        )
        stream = SETS[name](part)
        batches = [batch for batch in stream.batches if len(batch.targets)]
        self.inputs = torch.cat([batch.inputs for batch in batches])
        self.targets = torch.cat([batch.targets for batch in batches])
        self.cuts = [len(batch.targets) for batch in batches]
        self.validation = stream.test
        self.images = self.inputs.ndim > 2
        shape: Any = tuple(self.inputs.shape[1:]) if self.images else self.inputs.shape[1]
        self.make_model = partial(rc.models.cnn if self.images else rc.models.mlp, shape, dataset.n_classes)
        self.seed = seed
        self.seconds: dict[str, float] = {}

    @cache  # noqa: B019
    def rows(self, setting: str) -> Tensor:
        """Embeddings of all rows, as in "last 5 1000" for layers, S and d; "fresh" for draws that no rule sees.

        With "trained 100" half of the draws are trained for so many steps.
        """
        layers, inits, dim, *joined = setting.split()
        init: Any = "default"
        if joined[:1] == ["trained"]:
            init, joined = partial(self.train_half, int(joined[1])), []
        if joined:
            share, sharpness = map(float, joined)
            E = self.rows(f"{layers} {inits} {dim}")
            return torch.cat([E / E.square().sum(1).mean().sqrt(), share**0.5 * self.waves(sharpness)], dim=1)
        seed = self.seed + 1000 if layers == "fresh" else self.seed
        layers = "all" if layers == "fresh" else layers
        start = time.process_time()
        embedding = rc.GradientEmbedding(
            self.make_model, layers=layers, inits=int(inits), dim=int(dim), init=init, seed=seed
        )
        found = embedding.embed(self.inputs, self.targets)
        self.seconds[setting] = time.process_time() - start
        return found

    def train_half(self, steps: int, model: torch.nn.Module) -> None:
        """As a way to initialise: every second draw, by the toss of a coin, is trained on a few batches."""
        if float(torch.rand(())) < 0.5:
            return
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(steps):
            rows = torch.randint(len(self.targets), (100,))
            optimizer.zero_grad()
            with torch.enable_grad():
                loss = torch.nn.functional.cross_entropy(model(self.inputs[rows]), self.targets[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def waves(self, sharpness: float, count: int = 4000) -> Tensor:
        """Random Fourier features of the inputs, whose products estimate exp(-sharpness d^2 / mean d^2) in a class."""
        x = self.inputs.flatten(1)
        x = (x - x.mean(0)) / (x.var(0).mean().sqrt() if self.images else x.std(0).clamp(min=1e-6))
        within = mean(float(x[self.targets == c].var(0).sum()) for c in self.targets.unique())
        random = generator(self.seed, "waves")
        directions = torch.randn(x.shape[1], count, generator=random) * (sharpness / within) ** 0.5
        shifts = 2 * torch.pi * torch.rand(count, generator=random)
        signs = torch.randint(0, 2, (int(self.targets.max()) + 1, count), generator=random).float() * 2 - 1
        waves: Tensor = (x @ directions + shifts).cos_()
        return waves.mul_((2 / count) ** 0.5).mul_(signs[self.targets])


# Each rule is a function of the problem, the size and the batches as lists of row numbers, to rows and weights.
Chosen = tuple[Tensor, Tensor]
Rule = Callable[[Problem, int, list[Tensor]], Chosen]


def memory(make: Callable[..., rc.Memory], problem: Problem, size: int, parts: list[Tensor]) -> Chosen:
    one = make(size, seed=problem.seed)
    for part in parts:
        one.update(problem.inputs[part], problem.targets[part])
    return one.batch.ids, one.batch.weights.double()


def pursued(E: Tensor, candidates: Tensor, size: int, target: Tensor, seen: int, **options: Any) -> rc.Coreset:
    """The choice out of these candidates; all of them while there is room."""
    if seen <= size:
        return rc.Coreset(torch.arange(seen), torch.ones(seen, dtype=torch.float64), 0.0)
    return rc.pursue(E[candidates], min(size, len(candidates)), target=target, count=seen, **options)


def matching(setting: str, problem: Problem, size: int, parts: list[Tensor], **options: Any) -> Chosen:
    """As `GradientMatching`, on embeddings that are there already."""
    E = problem.rows(setting)
    held = torch.arange(0)
    target, seen = torch.zeros(E.shape[1], dtype=torch.float64), 0
    weights = torch.ones(0, dtype=torch.float64)
    for part in parts:
        target, seen = target + E[part].sum(0, dtype=torch.float64), seen + len(part)
        some = shortlisted(part, size, SHORTLIST, problem.seed)
        candidates = torch.cat([held, part if some is None else part[some]])
        coreset = pursued(E, candidates, size, target, seen, hold_count=len(parts) > 1, **options)
        held, weights = candidates[coreset.indices], coreset.weights
        held, order = held.sort()
        weights = weights[order]
    return held, weights


def centres_then_matching(setting: str, times: int, problem: Problem, size: int, parts: list[Tensor]) -> Chosen:
    """Candidates are what is held and the rows nearest to `times` as many centres of k-means per class."""
    E = problem.rows(setting)
    held, weights = torch.arange(0), torch.ones(0, dtype=torch.float64)
    target, seen = torch.zeros(E.shape[1], dtype=torch.float64), 0
    for part in parts:
        target, seen = target + E[part].sum(0, dtype=torch.float64), seen + len(part)
        near, _ = memory(rc.Clustering, problem, times * size, [part])
        candidates = torch.cat([held, part[near]])
        coreset = pursued(E, candidates, size, target, seen, hold_count=len(parts) > 1)
        held, order = candidates[coreset.indices].sort()
        weights = coreset.weights[order]
    return held, weights


def fitted(E: Tensor, rows: Tensor, sizes: Tensor, target: Tensor, pull: float) -> Tensor:
    """min |gamma G - g|^2 + lambda |gamma - sizes|^2 over gamma >= 0, lambda relative to the mean squared norm."""
    G = E[rows].double()
    lambda_ = pull * float(G.square().sum(1).mean())
    K = G @ G.T
    gamma, open_ = sizes.clone(), torch.ones(len(rows), dtype=torch.bool)
    for _ in range(10):
        some = open_.nonzero().flatten()
        A = K[some][:, some] + lambda_ * torch.eye(len(some), dtype=torch.float64)
        gamma = torch.zeros_like(sizes)
        gamma[some] = torch.linalg.solve(A, G[some] @ target + lambda_ * sizes[some])
        if bool((gamma >= 0).all()):
            break
        open_ &= gamma > 0
    return gamma.clamp(min=0)


def clusters_then_fit(setting: str, pull: float, problem: Problem, size: int, parts: list[Tensor]) -> Chosen:
    """The rows of `Clustering`, with weights that match."""
    E = problem.rows(setting)
    rows, sizes = memory(rc.Clustering, problem, size, parts)
    return rows, fitted(E, rows, sizes, E.sum(0, dtype=torch.float64), pull)


def gradient_clusters(
    setting: str, width: int, pull: float | None, by_class: bool, problem: Problem, size: int, parts: list[Tensor]
) -> Chosen:
    """k-means in a sketch of the embeddings, of all rows or of each class; weights by size, or matched."""
    E = problem.rows(setting)
    directions = torch.randn(E.shape[1], width, generator=generator(problem.seed, "sketch")) / width**0.5
    sketch = E @ directions
    if by_class:
        target = problem.targets
        held = rc.Clustering(size, features=lambda at: sketch[at[:, 0]], seed=problem.seed)
        for part in parts:
            held.update(part[:, None], target[part])
        rows, sizes = held.batch.ids, held.batch.weights.double()
    else:
        rows, sizes = torch.arange(0), torch.ones(0, dtype=torch.float64)
        for i, part in enumerate(parts):
            rows, sizes = torch.cat([rows, part]), torch.cat([sizes, torch.ones(len(part), dtype=torch.float64)])
            chosen, some = represent(sketch[rows].numpy(), sizes.numpy(), size, derive_seed(problem.seed, "kmeans", i))
            rows, sizes = rows[torch.from_numpy(chosen)], torch.from_numpy(np.asarray(some))
    if pull is None:
        return rows, sizes
    return rows, fitted(E, rows, sizes, E.sum(0, dtype=torch.float64), pull)


RULES: dict[str, Rule] = {
    "random": partial(memory, rc.Reservoir),
    "clustering": partial(memory, rc.Clustering),
    "all, S=10, d=1000": partial(matching, "all 10 1000"),
    "all, S=5, d=1000": partial(matching, "all 5 1000"),
    "all, S=10, d=250": partial(matching, "all 10 250"),
    "last, S=10": partial(matching, "last 10 1000"),
    "last, S=10, lambda 0.0001": partial(matching, "last 10 1000", regularization=0.0001),
    "last, unprojected": partial(matching, "last 10 100000"),
    "last, half the draws trained, 30": partial(matching, "last 10 100000 trained 30"),
    "last, half the draws trained, 100": partial(matching, "last 10 100000 trained 100"),
    "last, S=20": partial(matching, "last 20 1000"),
    "last, S=5": partial(matching, "last 5 1000"),
    "last, S=5, d=250": partial(matching, "last 5 250"),
    "joined to inputs, 1": partial(matching, "all 10 1000 1 1"),
    "joined to inputs, 1, sharper": partial(matching, "all 10 1000 1 4"),
    "joined to inputs, 0.1": partial(matching, "all 10 1000 0.1 1"),
    "last, joined to inputs, 1": partial(matching, "last 10 1000 1 1"),
    "last, joined to inputs, 0.1": partial(matching, "last 10 1000 0.1 1"),
    "3 times the centres, then matching": partial(centres_then_matching, "last 5 1000", 3),
    "clustering, weights matched, pull 0.1": partial(clusters_then_fit, "last 5 1000", 0.1),
    "clustering, weights matched, pull 0.01": partial(clusters_then_fit, "last 5 1000", 0.01),
    "clustering, weights matched, pull 1": partial(clusters_then_fit, "last 5 1000", 1.0),
    "gradient clusters": partial(gradient_clusters, "last 5 1000", 200, None, False),
    "gradient clusters, matched, pull 0.1": partial(gradient_clusters, "last 5 1000", 200, 0.1, False),
    "gradient clusters by class": partial(gradient_clusters, "last 5 1000", 200, None, True),
    "gradient clusters by class, matched, pull 0.1": partial(gradient_clusters, "last 5 1000", 200, 0.1, True),
    "gradient clusters by class, matched, pull 1": partial(gradient_clusters, "last 5 1000", 200, 1.0, True),
}


def measure(name: str, seed: int, size: int, mode: str, rules: list[str], epochs: int) -> None:
    key = {"dataset": name, "seed": seed, "size": size, "mode": mode, "epochs": epochs}
    if name in IMAGES:
        key["network"] = "cnn"
    done = {r["rule"] for r in read() if key.items() <= {"epochs": 200, **r}.items()}
    rules = [rule for rule in rules if rule not in done]
    if not rules:
        return
    problem = make_problem(name, seed)
    n = len(problem.targets)
    parts = [torch.arange(n)] if mode == "once" else list(torch.arange(n).split(problem.cuts))
    fresh = problem.rows("fresh 4 500")
    full = fresh.sum(0, dtype=torch.float64)
    told, tasks = [], []
    for rule in rules:
        start = time.process_time()
        rows, weights = RULES[rule](problem, size, parts)
        seconds = time.process_time() - start
        error = float((weights @ fresh[rows].double() - full).norm() / full.norm())
        told.append({"rule": rule, "kept": len(rows), "error": round(error, 5), "seconds": round(seconds, 2)})
        batch = Batch(problem.inputs[rows], problem.targets[rows], weights.float(), rows)
        trainings = []
        for t in range(1 if problem.images else TRAININGS):
            model = draw_model(problem.make_model, derive_seed(100 * seed + t, "initial model"))
            if problem.images:
                model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            trainings.append(Task(model, batch, generator(100 * seed + t, "training")))
        tasks.append(trainings)
        if problem.images:  # which are not trained as a stack
            finish(problem, {**key, **told[-1], "rows": n}, trainings, epochs)
    if not problem.images:
        train_together([task for trainings in tasks for task in trainings], Training(epochs=epochs))
        for line, trainings in zip(told, tasks, strict=True):
            finish(problem, {**key, **line, "rows": n}, trainings, 0)


def finish(problem: Problem, line: dict[str, Any], tasks: list[Task], epochs: int) -> None:
    """Train what is not trained yet, and write down how accurate it is."""
    if epochs:
        train_together(tasks, Training(epochs=epochs))
    inputs, targets = problem.validation
    right = [100 * float((predict(task.model, inputs).argmax(1) == targets).float().mean()) for task in tasks]
    write({**line, "validation_accuracies": [round(a, 3) for a in right]})


@cache
def make_problem(name: str, seed: int) -> Problem:
    return Problem(name, seed)


def write(result: dict[str, Any]) -> None:
    with RESULTS.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(result) + "\n")


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def column(result: dict[str, Any]) -> str:
    """The set, and the network where it is not the paper's."""
    return f"{result['dataset']}, MLP" if result["dataset"] in IMAGES and "network" not in result else result["dataset"]


def show() -> None:
    """All results in Markdown: accuracy, and the error at fresh initialisations in percent."""
    results = [{"epochs": 200, **r, "column": column(r)} for r in read()]
    for epochs, size, mode in product((200, 100), sorted({r["size"] for r in results}), ("once", "stream")):
        some = [r for r in results if (r["epochs"], r["size"], r["mode"]) == (epochs, size, mode)]
        present = {r["column"] for r in some}
        names = [name for name in (*SETS, *(f"{image}, MLP" for image in IMAGES)) if name in present]
        if not names:
            continue
        trained = "" if epochs == 200 else f", {epochs} epochs"
        print(f"\n{size} kept, {mode}{trained}:\n\n| | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
        for rule in RULES:
            cells = [_cell([r for r in some if r["column"] == name and r["rule"] == rule]) for name in names]
            if any(cells):
                print(f"| {rule} | {' | '.join(cells)} |")


def against_clustering() -> None:
    """What each rule gained over `Clustering` on the same rows, set by set, over the seeds that both have."""
    known: dict[tuple[Any, ...], dict[int, float]] = {}
    for r in read():
        key = (r.get("epochs", 200), r["size"], r["mode"], column(r), r["rule"])
        known.setdefault(key, {})[r["seed"]] = mean(r["validation_accuracies"])
    print(f"\n| kept | | rule | {' | '.join(SETS)} |\n|---|---|---|{'---|' * len(SETS)}")
    for size, mode, rule in product(sorted({key[1] for key in known}), ("once", "stream"), BESIDE_CLUSTERING):
        cells = []
        for name in SETS:
            epochs = 100 if name in IMAGES else 200
            ours, theirs = (known.get((epochs, size, mode, name, which), {}) for which in (rule, "clustering"))
            gains = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
            spread = f" ± {stdev(gains) / len(gains) ** 0.5:.1f}" if len(gains) > 1 else ""
            cells.append(f"{mean(gains):+.1f}{spread} ({len(gains)})" if gains else "")
        if any(cells):
            print(f"| {size} | {mode} | {rule} | {' | '.join(cells)} |")


BESIDE_CLUSTERING = (
    "all, S=10, d=1000",
    "last, S=10",
    "joined to inputs, 0.1",
    "last, joined to inputs, 0.1",
    "clustering, weights matched, pull 0.01",
)
PAIRS = [
    ("all, S=5, d=1000", "all, S=10, d=1000"),
    ("last, S=10", "all, S=10, d=1000"),
    ("last, unprojected", "last, S=10"),
    ("last, S=10, lambda 0.0001", "last, S=10"),
    ("last, S=5", "all, S=10, d=1000"),
    ("last, S=5, d=250", "last, S=5"),
    ("all, S=10, d=1000", "clustering"),
    ("last, S=10", "clustering"),
    ("last, unprojected", "clustering"),
    ("last, half the draws trained, 30", "last, unprojected"),
    ("last, half the draws trained, 100", "last, unprojected"),
    ("last, half the draws trained, 100", "clustering"),
    ("clustering, weights matched, pull 0.1", "clustering"),
    ("clustering, weights matched, pull 0.01", "clustering"),
    ("gradient clusters by class, matched, pull 0.1", "clustering"),
    ("joined to inputs, 0.1", "all, S=10, d=1000"),
    ("last, joined to inputs, 0.1", "last, S=10"),
]


def compare() -> None:
    """Rules side by side on the same rows: the mean difference over all runs that both were part of."""
    known = {(r["rule"], column(r), *(r.get(n, 200) for n in ("seed", "size", "mode", "epochs"))): r for r in read()}
    print("\n| | less | runs | accuracy | error, as a multiple |\n|---|---|---|---|---|")
    for first, second in PAIRS:
        pairs = [
            (r, known[second, *key[1:]]) for key, r in known.items() if key[0] == first and (second, *key[1:]) in known
        ]
        gains = [mean(a["validation_accuracies"]) - mean(b["validation_accuracies"]) for a, b in pairs]
        if len(gains) > 1:
            spread, ratio = stdev(gains) / len(gains) ** 0.5, mean(a["error"] / b["error"] for a, b in pairs)
            print(f"| {first} | {second} | {len(gains)} | {mean(gains):+.2f} ± {spread:.2f} | {ratio:.2f} |")


def _cell(results: list[dict[str, Any]]) -> str:
    if not results:
        return ""
    values = [mean(r["validation_accuracies"]) for r in results]
    spread = f" ± {stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{spread} ({len(values)}), {100 * mean(r['error'] for r in results):.1f}"


def cost() -> None:
    """What it takes both memories to choose once from many rows, by their defaults."""
    inputs, targets = rc.datasets.load("covertype").train
    some = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))[:60_000]
    make_model = partial(rc.models.mlp, inputs.shape[1], 7)
    print("\n| kept | clustering | gradient matching |\n|---|---|---|")
    for size in (200, 1000):
        seconds = []
        for memory in (rc.Clustering(size), rc.GradientMatching(make_model, size)):
            start = time.process_time()
            memory.update(inputs[some], targets[some])
            seconds.append(time.process_time() - start)
        print(f"| {size} | {seconds[0]:.1f} | {seconds[1]:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--modes", nargs="+", default=["once", "stream"])
    parser.add_argument("--rules", nargs="+", default=list(RULES))
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--cost", action="store_true")
    arguments = parser.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    torch.set_grad_enabled(True)
    for seed in arguments.seeds:
        for name in arguments.sets:
            for size in arguments.sizes:
                for mode in arguments.modes:
                    measure(name, seed, size, mode, arguments.rules, arguments.epochs)
    if arguments.cost:
        cost()
    elif arguments.table or not arguments.sets:
        against_clustering()
        show()
        compare()


if __name__ == "__main__":
    main()
