"""Pursuit against the peers people would use instead, and against one pick per scan.

The bars, of which docs/performance.md tells how far they are met: 1000 of 12,000 real Fashion-MNIST embeddings of
10,000 numbers at least 5 times faster than scikit-learn's `orthogonal_mp`, with an error at fresh initialisations at
most 1.03 of that of `exact=True`, mean of three seeds; 5000 of 46,000 Covertype embeddings at least 5 times faster than
`exact=True`, with less than 1.5 GB beside the embeddings; time linear in the number of candidates; the same choice from
a file, in bounded memory.

`python benchmarks/pursuit.py [fashion] [picks] [covertype] [growth] [disk]`; all of them by default.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

import torch
from measure import bandwidth, measure, multiplications, peer
from sklearn.linear_model import orthogonal_mp, orthogonal_mp_gram
from table import print_row, print_table
from torch import Tensor

import recollect as rc
from recollect.dictionary import InMemory, OnDisk
from recollect.pursuit.proposals import CHOSEN_PER_PICK


def sample(
    name: str, rows: int, make_model: "partial[torch.nn.Module]", seed: int
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Random training examples and their embeddings with the library's own settings."""
    train = rc.datasets.load(name).train
    chosen = torch.randperm(len(train.targets), generator=torch.Generator().manual_seed(0))[:rows]
    data = (train.inputs[chosen], train.targets[chosen])
    return data, rc.GradientEmbedding(make_model, inits=10, dim=1000, seed=seed).embed(*data)


class Counting(InMemory):
    """Counts how often all candidates are looked at."""

    scans = 0

    def products(self, vectors: Tensor) -> Tensor:
        self.scans += 1
        return super().products(vectors)


def counted_scans(G: Tensor, size: int) -> int:
    dictionary = Counting(G)
    rc.pursue(dictionary, size)
    return dictionary.scans


def as_coreset(weights: Tensor, G: Tensor) -> rc.Coreset:
    indices = weights.nonzero().flatten()
    g = G.sum(0, dtype=torch.float64)
    residual = g - weights[indices].double() @ G[indices].double()
    return rc.Coreset(indices, weights[indices].double(), float(residual.norm() / g.norm()))


def fashion(size: int = 1000, seeds: int = 3) -> None:
    """Rows are printed as they are known: ours first, then the peers, then one pick per scan, which takes longest."""
    make_model = partial(rc.models.cnn, (1, 28, 28), 10)
    print(f"{size} of 12,000 Fashion-MNIST embeddings\n")
    print_row("", "seconds", "of processor time", "times ours", "fitted error", "fresh error", "peak MB beside")
    print_row(*["---"] * 7)
    ratios: list[float] = []
    for seed in range(seeds):
        data, G = sample("fashion-mnist", 12_000, make_model, seed)
        functions: dict[str, Callable[[], rc.Coreset]] = {
            "recollect": lambda: rc.pursue(G, size),
            "recollect, inner product": lambda: rc.pursue(G, size, rule="inner-product"),
        }
        if seed == 0:
            X, y = G.numpy().T, G.numpy().sum(0)  # Fortran order: the peer's best case

            def by_gram() -> Tensor:
                K = (G @ G.T).numpy()
                return torch.from_numpy(orthogonal_mp_gram(K, K.sum(1), n_nonzero_coefs=size))

            functions |= {
                "sklearn orthogonal_mp (no lambda)": lambda: as_coreset(
                    torch.from_numpy(orthogonal_mp(X, y, n_nonzero_coefs=size)), G
                ),
                "sklearn orthogonal_mp_gram, with its Gram matrix": lambda: as_coreset(by_gram(), G),
            }
        functions["recollect, exact=True"] = lambda: rc.pursue(G, size, exact=True)
        errors: dict[str, float] = {}
        ours = 0.0
        for name, function in functions.items():
            run = measure(function)
            ours = ours or run.processor_seconds
            errors[name] = rc.matching_error(make_model, data, run.result, inits=3)
            times = run.processor_seconds / ours
            seconds = (run.seconds, run.processor_seconds)
            print_row(f"{name}, seed {seed}", *seconds, times, run.result.error, errors[name], run.peak_megabytes)
        ratios.append(errors["recollect"] / errors["recollect, exact=True"])
        if seed == 0:
            for row in cords_rows(G):
                print_row(*row)
            scans = counted_scans(G, size)
            limit = scans * G.nbytes / bandwidth() + size**2 / 2 * G.shape[1] / multiplications()
            note = f"{scans} scans at the measured bandwidth and the chosen rows' Gram matrix at peak: {limit:.2f} s"
    print(f"\nThe limit for recollect, seed 0: {note}.")
    print(f"Fresh error of recollect over that of exact=True, mean of {seeds} seeds: {sum(ratios) / seeds:.3f}\n")


def picks() -> None:
    """How many rows the paper's rule may pick per scan, on real rows and on such without structure."""
    _, real = sample("fashion-mnist", 12_000, partial(rc.models.cnn, (1, 28, 28), 10), 0)
    alike = [torch.randn(3000, 400, generator=torch.Generator().manual_seed(seed)) + 0.3 for seed in range(8)]
    exact = [rc.pursue(G, 200, rule="inner-product", exact=True).error for G in alike]
    print_row("chosen per pick", "seconds of processor time", "scans", "fitted error", "without structure, of exact")
    print_row(*["---"] * 5)
    usual = CHOSEN_PER_PICK["inner-product"]
    for chosen in (usual, 16, 2):
        CHOSEN_PER_PICK["inner-product"] = chosen
        dictionary, start = Counting(real), time.process_time()
        coreset = rc.pursue(dictionary, 1000, rule="inner-product")
        seconds = time.process_time() - start
        errors = [rc.pursue(G, 200, rule="inner-product").error for G in alike]
        ratio = sum(a / b for a, b in zip(errors, exact, strict=True)) / len(alike)
        print_row(chosen, seconds, dictionary.scans, coreset.error, ratio)
    CHOSEN_PER_PICK["inner-product"] = usual


def cords_rows(G: Tensor, size: int = 100) -> list[list[object]]:
    """CORDS refits from scratch at every pick, so it is compared at a size it can do."""
    solvers = peer("cords.selectionstrategies.helpers.omp_solvers")
    name = f"CORDS OrthogonalMP_REG_Parallel, size {size}"
    if isinstance(solvers, str):
        return [[name, solvers, "", "", "", "", ""]]
    ours = measure(lambda: rc.pursue(G, size))
    target = G.sum(0)
    theirs = measure(lambda: solvers.OrthogonalMP_REG_Parallel(G.T, target, nnz=size, positive=True, lam=0.002))
    errors = {f"recollect, size {size}": (ours, ours.result.error), name: (theirs, as_coreset(theirs.result, G).error)}
    return [
        [title, run.seconds, run.processor_seconds, run.processor_seconds / ours.processor_seconds, error, "",
         run.peak_megabytes]
        for title, (run, error) in errors.items()
    ]  # fmt: skip


def covertype(size: int = 5000) -> None:
    _, G = sample("covertype", 46_000, partial(rc.models.mlp, 54, 7), 0)
    ours = measure(lambda: rc.pursue(G, size, progress=True))
    exact = measure(lambda: rc.pursue(G, size, exact=True, progress=True))
    scans = counted_scans(G, size)
    limit = scans * G.nbytes / bandwidth() + size**2 / 2 * G.shape[1] / multiplications()
    rows: list[list[object]] = [
        ["recollect", ours.seconds, 1.0, ours.result.error, len(ours.result), ours.peak_megabytes],
        [
            "recollect, exact=True",
            exact.seconds,
            exact.seconds / ours.seconds,
            exact.result.error,
            len(exact.result),
            exact.peak_megabytes,
        ],
        [f"limit: {scans} scans, and the Gram matrix at peak", limit, limit / ours.seconds, "", "", ""],
    ]
    header = ["", "seconds", "times ours", "fitted error", "kept", "peak MB beside"]
    print_table(f"{size} of 46,000 Covertype embeddings x {G.shape[1]:,}", header, rows)


def growth(size: int = 500) -> None:
    _, G = sample("covertype", 48_000, partial(rc.models.mlp, 54, 7), 0)
    rows: list[list[object]] = []
    before = 0.0
    for n in (6_000, 12_000, 24_000, 48_000):
        part = G[:n]
        seconds = min(measure(lambda part=part: rc.pursue(part, size)).seconds for _ in range(3))  # type: ignore[misc]
        rows.append([f"{n:,}", seconds, seconds / before if before else "", counted_scans(part, size)])
        before = seconds
    print_table(f"Growth: {size} of n Covertype embeddings", ["n", "seconds", "times half as many", "scans"], rows)


def disk(size: int = 500) -> None:
    _, G = sample("covertype", 40_000, partial(rc.models.mlp, 54, 7), 0)
    with tempfile.TemporaryDirectory() as folder:
        here = measure(partial(rc.pursue, G, size))
        on_disk = OnDisk.write(f"{folder}/embeddings.npy", G.split(2000))
        bytes_held = G.nbytes
        del G
        there = measure(lambda: rc.pursue(on_disk, size))
    same = torch.equal(here.result.indices, there.result.indices)
    rows: list[list[object]] = [
        ["in memory", here.seconds, here.peak_megabytes, bytes_held / 1e6, ""],
        ["on disk", there.seconds, there.peak_megabytes, 0.0, "the same" if same else "another"],
    ]
    header = ["", "seconds", "peak MB while choosing", "MB held before", "choice"]
    print_table(f"{size} of 40,000 Covertype embeddings, from a file", header, rows)


if __name__ == "__main__":
    for name in sys.argv[1:] or ["fashion", "picks", "covertype", "growth", "disk"]:
        globals()[name]()
