"""Time and peak memory of a call, and the bandwidth and speed of this machine to set them against."""

import importlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch

Result = TypeVar("Result")


@dataclass(frozen=True)
class Measured(Generic[Result]):
    result: Result
    seconds: float
    processor_seconds: float  # of all threads: tells more than the clock where others use the machine
    peak_megabytes: float  # resident memory at its highest, beyond what there was before


def measure(function: Callable[[], Result]) -> Measured[Result]:
    """Run once; a thread watches resident memory."""
    before = peak = _resident()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, _resident())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    start, processor_start = time.perf_counter(), time.process_time()
    try:
        result = function()
    finally:
        seconds, processor_seconds = time.perf_counter() - start, time.process_time() - processor_start
        done.set()
        watcher.join()
    return Measured(result, seconds, processor_seconds, (peak - before) / 1e6)


def best_seconds(
    functions: dict[str, Callable[[], object]], repeats: int = 3, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The best time of each, run in turns, so that a busy moment of the machine does not hit one alone."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            start = clock()
            function()
            best[name] = min(best[name], clock() - start)
    return best


def bandwidth() -> float:
    """Bytes per second of a matrix-vector product that does not fit the cache."""
    matrix, vector = torch.ones(8000, 10_000), torch.ones(10_000)
    return matrix.nbytes / best_seconds({"": lambda: matrix @ vector}, 5)[""]


def multiplications() -> float:
    """Multiply-adds per second of a large float32 matrix product."""
    matrix = torch.ones(3000, 3000)
    return 3000**3 / best_seconds({"": lambda: matrix @ matrix}, 3)[""]


def peer(module: str) -> Any:
    """A peer's module, or a sentence that says why it is not here."""
    state = np.geterr()
    try:
        return importlib.import_module(module)
    except Exception as error:  # whatever a peer does when it is imported
        return f"did not import: {type(error).__name__}: {error}"
    finally:
        np.seterr(**state)  # cords changes it


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
