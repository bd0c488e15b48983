import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import recollect as rc
from recollect import files
from recollect.memories import storage


def filled() -> rc.Reservoir:
    memory = rc.Reservoir(5)
    memory.update(torch.arange(20.0)[:, None], torch.arange(20))
    return memory


def damage(folder: Path, how: str) -> None:
    tensors = next(folder.glob("*.safetensors"))
    document = json.loads((folder / "memory.json").read_text())
    match how:
        case "no json":
            (folder / "memory.json").unlink()
        case "truncated json":
            (folder / "memory.json").write_bytes((folder / "memory.json").read_bytes()[:40])
        case "other json":
            (folder / "memory.json").write_text("[1, 2]")
        case "no tensors":
            tensors.unlink()
        case "truncated tensors":
            tensors.write_bytes(tensors.read_bytes()[:-3])
        case "changed tensors":
            content = bytearray(tensors.read_bytes())
            content[-1] ^= 1
            tensors.write_bytes(content)
        case _:
            changes: dict[str, dict[str, object]] = {
                "newer version": {"version": 99},
                "no version": {"version": None},
                "a path": {"tensors": "../../secret.safetensors"},
                "unknown memory": {"memory": "os.system"},
                "missing field": {"options": None},
                "bad capacity": {"capacity": "many"},
            }
            (folder / "memory.json").write_text(json.dumps(document | changes[how]))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no json", "must hold a file memory.json, got none"),
        ("truncated json", "must be a JSON file"),
        ("other json", "must describe a recollect memory"),
        ("no tensors", "which is missing: it is incomplete"),
        ("truncated tensors", "damaged or truncated"),
        ("changed tensors", "damaged or truncated"),
        ("newer version", "must be of format version 1 or older, got 99: update recollect"),
        ("no version", "must be of format version 1 or older, got None"),
        ("a path", "must name a tensor file of its folder, got '../../secret.safetensors'"),
        ("unknown memory", "does not fit together"),
        ("missing field", "does not fit together"),
        ("bad capacity", "capacity must be a whole number"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_sentence(tmp_path: Path, how: str, message: str) -> None:
    filled().save(tmp_path)
    damage(tmp_path, how)
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        rc.load_memory(tmp_path)
    assert message in str(caught.value)


def test_a_folder_holds_no_pickle(tmp_path: Path) -> None:
    filled().save(tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".safetensors"]


def test_saving_to_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ValueError, match="a memory is saved to a folder, got the file"):
        filled().save(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("fail_at", [0, 1])
def test_a_failure_while_writing_leaves_the_old_state(
    tmp_path: Path, fail_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = filled()
    memory.save(tmp_path)
    memory.update(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long))
    calls = []
    write = files.write_atomically

    def failing(path: Path, content: bytes) -> None:
        calls.append(path)
        if len(calls) > fail_at:
            raise OSError("disk full")
        write(path, content)

    monkeypatch.setattr(storage, "write_atomically", failing)
    with pytest.raises(OSError, match="disk full"):
        memory.save(tmp_path)
    monkeypatch.undo()
    assert rc.load_memory(tmp_path).seen == 20
    memory.save(tmp_path)
    assert rc.load_memory(tmp_path).seen == 23
    assert len(list(tmp_path.iterdir())) == 2


_SAVE_FOREVER = """
import sys, torch, recollect as rc
memory = rc.Reservoir(200)
while True:
    memory.update(torch.full((10, 50), float(memory.seen)), torch.arange(10))
    memory.save(sys.argv[1])
    print("saved", flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_whole_state(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    seen = 0
    for delay in (0.0, 0.011, 0.003, 0.017, 0.007):
        process = subprocess.Popen(
            [sys.executable, "-c", _SAVE_FOREVER, str(folder)], stdout=subprocess.PIPE, env={**os.environ}
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        memory = rc.load_memory(folder)
        seen = memory.seen
        assert seen > 0
        assert len(memory) == min(200, seen)
        assert isinstance(memory.batch.inputs, torch.Tensor)
        assert torch.equal(memory.batch.inputs[:, 0].long(), memory.batch.ids // 10 * 10)
