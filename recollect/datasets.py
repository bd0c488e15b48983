"""The paper's data sets, ready to train on.

scikit-learn, which takes seconds to import, is imported where it is used.
"""

import io
import os
import warnings
import zipfile
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.files import write_atomically

SPLIT_SEED = 0  # the one split of sets that come without: fixed, whatever else is seeded


class Examples(NamedTuple):
    """Inputs and targets of one part."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Dataset:
    """A classification problem: a part to train on and a part to test on.

    Attributes:
        train: inputs and targets to train on.
        test: inputs and targets to test on.
        n_classes: how many classes there are.
    """

    train: Examples
    test: Examples
    n_classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.inputs.shape[1:])


@dataclass(frozen=True)
class Source:
    """Where a set comes from: its number at OpenML and what its rows look like."""

    openml_id: int
    rows: int
    n_classes: int
    image_shape: tuple[int, int, int] | None = None
    n_train: int | None = None  # rows of the provided training part, which come first


SOURCES = {
    "covertype": Source(1596, 581_012, 7),
    "ldpa": Source(1483, 164_860, 11),
    "walking-activity": Source(1509, 149_332, 22),
    "mnist": Source(554, 70_000, 10, (1, 28, 28), 60_000),
    "fashion-mnist": Source(40996, 70_000, 10, (1, 28, 28), 60_000),
    "cifar-10": Source(40927, 60_000, 10, (3, 32, 32), 50_000),
}

NAMES = ("digits", *SOURCES)


def load(name: str, folder: str | PathLike[str] | None = None) -> Dataset:
    """Load a data set, from a file or from OpenML.

    The file `<name>.npz` is looked for in `folder`, else in `$RECOLLECT_DATA`, else in the user's cache folder. If it
    is nowhere, the data set is fetched from OpenML and written to the first of these places.

    Images are scaled to [0, 1]; tables are standardised by the training part's statistics. Sets that come without a
    split get one fixed, stratified split in 80 and 20 percent.

    Args:
        name: "digits" (which comes with scikit-learn), "covertype", "ldpa", "walking-activity", "mnist",
            "fashion-mnist" or "cifar-10".
        folder: where the file is, or is to be written.

    Returns:
        A `Dataset`: `train` and `test`, each with `inputs` and `targets`, and `n_classes`.

    Example:
        >>> digits = load("digits")
        >>> digits.train.inputs.shape, digits.n_classes
        (torch.Size([1437, 1, 8, 8]), 10)
    """
    if name == "digits":
        from sklearn.datasets import load_digits

        images, targets = load_digits(return_X_y=True)
        return _split_images(images.reshape(-1, 1, 8, 8).astype(np.float32) / 16, targets)
    if name not in SOURCES:
        raise ValueError(f"the data set must be one of {', '.join(NAMES)}, got {name!r}")
    path = find(name, folder) or download(name, _places(folder)[0])
    try:
        # Opened here, so that it is closed also if numpy refuses it.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _from_arrays(dict(arrays), SOURCES[name].n_classes)
    except (ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(
            f"{str(path)!r} must hold the arrays of {name}, got {error}: delete it to fetch it anew"
        ) from None


def download(name: str, folder: Path) -> Path:
    """Fetch a data set from OpenML into a folder: checked, written whole or not at all."""
    from rich.console import Console
    from sklearn.datasets import fetch_openml

    source = SOURCES[name]
    with Console(stderr=True).status(f"downloading {name} from OpenML"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn tells of retries; what counts is how it ends
        try:
            inputs, targets = fetch_openml(
                data_id=source.openml_id, as_frame=False, return_X_y=True, parser="liac-arff", cache=False
            )
        except (OSError, ValueError) as error:
            raise OSError(
                f"{name}.npz must be in {str(folder)!r} or at OpenML (number {source.openml_id}), "
                f"got neither ({error}): put the file there or check the network"
            ) from None
    classes, targets = np.unique(targets.astype(np.float64), return_inverse=True)
    if len(inputs) != source.rows or len(classes) != source.n_classes:
        raise OSError(
            f"{name} must have {source.rows} rows in {source.n_classes} classes, got {len(inputs)} in {len(classes)} "
            "from OpenML: it was not saved"
        )
    arrays: dict[str, NDArray[np.generic]] = {"inputs": inputs.astype(np.float32), "targets": targets.astype(np.int64)}
    if source.image_shape is not None:
        images = inputs.reshape(-1, *source.image_shape).astype(np.uint8)
        n = source.n_train
        arrays = {"train_inputs": images[:n], "train_targets": targets[:n]}
        arrays |= {"test_inputs": images[n:], "test_targets": targets[n:]}
    folder.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    write_atomically(folder / f"{name}.npz", content.getvalue())
    return folder / f"{name}.npz"


def find(name: str, folder: str | PathLike[str] | None = None) -> Path | None:
    """The file of a data set, if it is there."""
    return next((path for place in _places(folder) if (path := place / f"{name}.npz").is_file()), None)


def cache_folder() -> Path:
    """Where downloads are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "recollect"


def _places(folder: str | PathLike[str] | None) -> list[Path]:
    if folder is not None:
        return [Path(folder)]
    named = os.environ.get("RECOLLECT_DATA")
    return [Path(named), cache_folder()] if named else [cache_folder()]


def _from_arrays(arrays: dict[str, NDArray[np.generic]], n_classes: int) -> Dataset:
    if "train_inputs" not in arrays:
        return _split_table(arrays["inputs"].astype(np.float32), arrays["targets"], n_classes)
    parts = [
        Examples(torch.from_numpy(arrays[f"{part}_inputs"]).float() / 255, _targets(arrays[f"{part}_targets"]))
        for part in ("train", "test")
    ]
    return Dataset(parts[0], parts[1], n_classes)


def _targets(values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _stratified(targets: NDArray[np.generic]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(np.arange(len(targets)), test_size=0.2, random_state=SPLIT_SEED, stratify=targets)
    return np.sort(train), np.sort(test)


def _split_images(images: NDArray[np.float32], targets: NDArray[np.generic]) -> Dataset:
    train, test = _stratified(targets)
    parts = [Examples(torch.from_numpy(images[rows]), _targets(targets[rows])) for rows in (train, test)]
    return Dataset(parts[0], parts[1], int(targets.max()) + 1)


def _split_table(inputs: NDArray[np.float32], targets: NDArray[np.generic], n_classes: int) -> Dataset:
    train, test = _stratified(targets)
    mean = inputs[train].mean(0, dtype=np.float64)
    deviation = inputs[train].std(0, dtype=np.float64)
    deviation[deviation == 0] = 1
    parts = [
        Examples(torch.from_numpy(((inputs[rows] - mean) / deviation).astype(np.float32)), _targets(targets[rows]))
        for rows in (train, test)
    ]
    return Dataset(parts[0], parts[1], n_classes)
