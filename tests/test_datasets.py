import gzip
import hashlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
import torch

import recollect as rc
from recollect import datasets
from tests.conftest import needs_data


class RecordedOpenML:
    """Answers as OpenML does, for one small table: its description, features, qualities and ARFF file."""

    def __init__(self, data_id: int, arff: str, features: list[str], classes: list[str]) -> None:
        self.requests: list[str] = []
        description = {
            "id": str(data_id), "name": "small", "version": "1", "format": "ARFF", "file_id": "77", "status": "active",
            "url": "https://api.openml.org/data/v1/download/77/small.arff", "default_target_attribute": "class",
            "processing_date": "2020-01-01 00:00:00", "md5_checksum": hashlib.md5(arff.encode()).hexdigest(),
        }  # fmt: skip
        columns: list[dict[str, Any]] = [
            {"index": str(i), "name": name, "data_type": "numeric", "is_target": "false", "is_ignore": "false",
             "is_row_identifier": "false", "number_of_missing_values": "0"}
            for i, name in enumerate(features)
        ]  # fmt: skip
        target = {"index": str(len(features)), "name": "class", "data_type": "nominal", "nominal_value": classes}
        columns.append({**columns[0], **target, "is_target": "true"})
        self._answers = {
            rf"api/v1/json/data/{data_id}$": json.dumps({"data_set_description": description}),
            rf"api/v1/json/data/features/{data_id}$": json.dumps({"data_features": {"feature": columns}}),
            rf"api/v1/json/data/qualities/{data_id}$": json.dumps({"data_qualities": {"quality": []}}),
            r"data/v1/download/77": arff,
        }

    def __call__(self, request: Any, *_: Any, **__: Any) -> Any:
        url = request if isinstance(request, str) else request.get_full_url()
        self.requests.append(url)
        for pattern, answer in self._answers.items():
            if re.search(pattern, url):
                response = io.BytesIO(gzip.compress(answer.encode()))
                response.info = lambda: {"Content-Encoding": "gzip"}  # type: ignore[attr-defined]
                return response
        raise HTTPError(url, 412, "Unknown dataset", {}, io.BytesIO(b'{"error": {}}'))  # type: ignore[arg-type]


def arff(rows: list[str], features: list[str], classes: list[str]) -> str:
    header = ["@RELATION small", *(f"@ATTRIBUTE {name} NUMERIC" for name in features)]
    return "\n".join([*header, f"@ATTRIBUTE class {{{','.join(classes)}}}", "@DATA", *rows, ""])


@pytest.fixture
def small_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RecordedOpenML:
    """Walking Activity as OpenML would send it, were it 40 rows with 4 classes."""
    features = ["V1", "V2", "V3", "V4"]
    rows = [f"{i},{i * 0.5},{-i},{i % 7},{i % 4 + 1}" for i in range(40)]
    openml = RecordedOpenML(1509, arff(rows, features, ["1", "2", "3", "4"]), features, ["1", "2", "3", "4"])
    source = replace(datasets.SOURCES["walking-activity"], rows=40, n_classes=4)
    monkeypatch.setitem(datasets.SOURCES, "walking-activity", source)
    monkeypatch.setattr("sklearn.datasets._openml.urlopen", openml)
    monkeypatch.setenv("RECOLLECT_DATA", str(tmp_path))
    return openml


def test_a_missing_set_is_fetched_verified_and_kept(small_table: RecordedOpenML, tmp_path: Path) -> None:
    dataset = rc.datasets.load("walking-activity")
    assert dataset.train.inputs.shape == (32, 4)
    assert sorted(torch.cat([dataset.train.targets, dataset.test.targets]).tolist()) == sorted([0, 1, 2, 3] * 10)
    with np.load(tmp_path / "walking-activity.npz") as arrays:
        assert arrays["inputs"][3].tolist() == [3.0, 1.5, -3.0, 3.0]
        assert arrays["targets"][3] == 3
    requests = len(small_table.requests)
    again = rc.datasets.load("walking-activity")
    assert torch.equal(again.train.inputs, dataset.train.inputs)
    assert len(small_table.requests) == requests


def test_images_are_cut_where_the_provided_split_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    features = [f"pixel{i}" for i in range(4)]
    rows = [f"{i},0,255,{i},{i % 2}" for i in range(10)]
    openml = RecordedOpenML(554, arff(rows, features, ["0", "1"]), features, ["0", "1"])
    source = datasets.Source(554, 10, 2, (1, 2, 2), 8)
    monkeypatch.setitem(datasets.SOURCES, "mnist", source)
    monkeypatch.setattr("sklearn.datasets._openml.urlopen", openml)
    dataset = rc.datasets.load("mnist", tmp_path)
    assert dataset.train.inputs.shape == (8, 1, 2, 2)
    assert dataset.test.inputs.shape == (2, 1, 2, 2)
    assert dataset.test.inputs[0].flatten().tolist() == pytest.approx([8 / 255, 0, 1, 8 / 255])


def test_what_is_not_as_expected_is_not_kept(small_table: RecordedOpenML, tmp_path: Path) -> None:
    datasets.SOURCES["walking-activity"] = replace(datasets.SOURCES["walking-activity"], rows=41)
    with pytest.raises(OSError, match="must have 41 rows in 4 classes, got 40 in 4 from OpenML: it was not saved"):
        rc.datasets.load("walking-activity")
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline(*_: Any, **__: Any) -> Any:
        raise OSError("no route to host")

    monkeypatch.setattr("sklearn.datasets._openml.urlopen", offline)
    with pytest.raises(OSError, match=r"covertype.npz must be in .* or at OpenML"):
        rc.datasets.load("covertype", tmp_path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(ValueError, match="must hold the arrays of mnist"):
        rc.datasets.load("mnist", tmp_path)
    np.savez(tmp_path / "ldpa.npz", other=np.zeros(3))
    with pytest.raises(ValueError, match="must hold the arrays of ldpa"):
        rc.datasets.load("ldpa", tmp_path)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the data set must be one of digits, covertype, .*, got 'imagenet'"):
        rc.datasets.load("imagenet")


def test_digits_are_split_in_80_and_20_percent_by_class() -> None:
    digits = rc.datasets.load("digits")
    assert len(digits.train.targets) == 1437
    shares = torch.bincount(digits.train.targets) / (
        torch.bincount(digits.train.targets) + torch.bincount(digits.test.targets)
    )
    assert ((shares - 0.8).abs() < 0.01).all()
    assert float(digits.train.inputs.max()) == 1.0


@needs_data("ldpa")
def test_tables_are_standardised_by_the_training_part() -> None:
    ldpa = rc.datasets.load("ldpa")
    assert torch.allclose(ldpa.train.inputs.mean(0), torch.zeros(6), atol=1e-3)
    assert torch.allclose(ldpa.train.inputs.std(0), torch.ones(6), atol=1e-3)
    assert not torch.allclose(ldpa.test.inputs.mean(0), torch.zeros(6), atol=1e-6)
    assert len(ldpa.train.targets) + len(ldpa.test.targets) == 164_860


@pytest.mark.parametrize(
    ("name", "shape", "n_train"),
    [
        pytest.param(name, shape, n_train, marks=needs_data(name))
        for name, shape, n_train in [
            ("covertype", (54,), 464_809),
            ("walking-activity", (4,), 119_465),
            ("mnist", (1, 28, 28), 60_000),
            ("fashion-mnist", (1, 28, 28), 60_000),
            ("cifar-10", (3, 32, 32), 50_000),
        ]
    ],
)
def test_the_papers_sets_are_as_described(name: str, shape: tuple[int, ...], n_train: int) -> None:
    dataset = rc.datasets.load(name)
    assert dataset.input_shape == shape
    assert len(dataset.train.targets) == n_train
    assert int(dataset.train.targets.max()) + 1 == dataset.n_classes == datasets.SOURCES[name].n_classes
    if len(shape) == 3:
        assert float(dataset.train.inputs.max()) == 1.0
        assert float(dataset.train.inputs.min()) == 0.0
