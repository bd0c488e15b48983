import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

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
    path = folder / "memory.json"
    match how:
        case "no json":
            path.unlink()
        case "truncated json":
            path.write_bytes(path.read_bytes()[:40])
        case "other json":
            path.write_text("[1, 2]")
        case "older version":
            path.write_text(json.dumps({"format": "recollect memory", "version": 1, "memory": "Reservoir"}, indent=2))
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
                "version before": {"version": 2},
                "newer version": {"version": 99},
                "no version": {"version": None},
                "another document": {"format": "recollect store"},
                "a path": {"tensors": "../../secret.safetensors"},
                "unknown memory": {"memory": "os.system"},
                "no options": {"options": None},
                "bad capacity": {"capacity": "many"},
                "no capacity": {"capacity": 0},
                "a boolean": {"seen": True},
                "another form": {"inputs": {"kind": "tensor", "names": [7]}},
                "other inputs": {"inputs": {"kind": "dict", "names": ["x"]}},
            }
            path.write_bytes(files.seal(files.unseal(path.read_bytes(), "it") | changes[how]))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no json", "must hold a file memory.json, got none"),
        ("truncated json", "its checksum says otherwise"),
        ("other json", "its checksum says otherwise"),
        ("no tensors", "which is missing: it is incomplete"),
        ("truncated tensors", "damaged or truncated"),
        ("changed tensors", "damaged or truncated"),
        ("older version", "must be of format version 3, got 1: an older recollect wrote it"),
        ("version before", "must be of format version 3, got 2: an older recollect wrote it"),
        ("newer version", "must be of format version 3, got 99: update recollect"),
        ("no version", "must be of format version 3, got None"),
        ("another document", "must describe a recollect memory, got something else"),
        ("a path", "must name a tensor file of its folder, got '../../secret.safetensors'"),
        ("unknown memory", "os.system"),
        ("no options", "must hold an object at options, got None"),
        ("bad capacity", "must hold a whole number at capacity, got 'many'"),
        ("no capacity", "must hold a capacity of at least 1"),
        ("a boolean", "must hold a whole number at seen, got True"),
        ("another form", "must hold text at inputs.names[0], got 7"),
        ("other inputs", "must come with the tensor 'inputs.x', which is missing"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_sentence(tmp_path: Path, how: str, message: str) -> None:
    filled().save(tmp_path)
    damage(tmp_path, how)
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        rc.load_memory(tmp_path)
    assert message in str(caught.value)


def test_no_flipped_bit_is_accepted(tmp_path: Path) -> None:
    filled().save(tmp_path)
    path = tmp_path / "memory.json"
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), 7):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match=r"^[^\n]*$"):
            rc.load_memory(tmp_path)


def test_what_could_not_be_read_again_is_not_saved(tmp_path: Path) -> None:
    class Odd(rc.Reservoir):
        def options(self) -> dict[str, object]:
            return {"odd": {1, 2}}

    memory = Odd(5)
    memory.update(torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(ValueError, match="as plain data to be saved"):
        memory.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_folder_holds_no_pickle(tmp_path: Path) -> None:
    filled().save(tmp_path)
    assert sorted(path.suffix or path.name for path in tmp_path.iterdir()) == [".json", ".safetensors", "lock"]


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
    assert len(list(tmp_path.iterdir())) == 3


_SAVE_FOREVER = """
import sys, torch, recollect as rc
memory = rc.Reservoir(200)
while True:
    memory.update(torch.full((10, 50), float(memory.seen)), torch.arange(10))
    memory.save(sys.argv[1])
    print("saved", flush=True)
"""


_FORK_SAVERS = """
import itertools, os, sys, torch, recollect as rc
torch.set_num_threads(1)
for _ in sys.stdin:  # each line asks for one child that saves for ever, and says who it is once it has
    child = os.fork()
    if child == 0:
        memory = rc.Reservoir(200)
        for saves in itertools.count():
            memory.update(torch.full((10, 50), float(memory.seen)), torch.arange(10))
            memory.save(sys.argv[1])
            if saves == 0:
                print(os.getpid(), flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_whole_state(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    command = [sys.executable, "-c", _FORK_SAVERS, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as driver:
        assert driver.stdin is not None and driver.stdout is not None
        for delay in (0.0, 0.011, 0.003, 0.017, 0.007, 0.001, 0.023, 0.005):
            driver.stdin.write("\n")
            child = int(driver.stdout.readline())
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
            assert driver.stdout.readline() == "gone\n"
            memory = rc.load_memory(folder)
            assert memory.seen > 0
            assert len(memory) == min(200, memory.seen)
            assert isinstance(memory.batch.inputs, torch.Tensor)
            assert torch.equal(memory.batch.inputs[:, 0].long(), memory.batch.ids // 10 * 10)


def test_saves_and_loads_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Threads and processes save to one folder, while others read it without a lock."""
    memories = [rc.Reservoir(50, seed=seed) for seed in range(3)]
    for seed, memory in enumerate(memories):
        memory.update(torch.full((100 + seed, 4), float(seed)), torch.arange(100 + seed))
    memories[0].save(tmp_path)
    command = [sys.executable, "-c", _SAVE_FOREVER, str(tmp_path)]
    stop = threading.Event()
    failures: list[BaseException] = []

    def repeat(action: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                action()
        except BaseException as error:
            failures.append(error)
            stop.set()

    saves = [partial(memory.save, tmp_path) for memory in memories]
    threads = [
        threading.Thread(target=repeat, args=(action,)) for action in [*saves, partial(rc.load_memory, tmp_path)]
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        for thread in threads:
            thread.start()
        for _ in range(60):
            assert rc.load_memory(tmp_path).seen
            other.stdout.readline()
        stop.set()
        other.kill()
    for thread in threads:
        thread.join()
    assert not failures
    memories[1].save(tmp_path)
    assert rc.load_memory(tmp_path).seen == 101
    assert len(list(tmp_path.iterdir())) == 3


def test_a_reader_that_comes_late_reads_what_was_saved_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled().save(tmp_path)
    later = filled()
    later.update(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long))
    described = storage._described
    saved: list[bool] = []

    def interrupted(content: bytes, what: str) -> dict[str, object]:
        if not saved:
            saved.append(True)
            later.save(tmp_path)
        return described(content, what)

    monkeypatch.setattr(storage, "_described", interrupted)
    assert rc.load_memory(tmp_path).seen == 23


# Files


def test_a_temporary_file_follows_no_link_and_is_never_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the name could be foreseen, a link that lies there is not followed."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(files.secrets, "token_hex", lambda n: "0" * 2 * n)
    (tmp_path / f".recollect-{'0' * 16}.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        files.write_atomically(tmp_path / "out", b"new")
    assert victim.read_text() == "precious"
    monkeypatch.undo()
    with files.replacing(tmp_path / "out") as one, files.replacing(tmp_path / "out") as two:
        assert one.name != two.name
        one.write(b"1")
        two.write(b"2")
    assert (tmp_path / "out").read_bytes() == b"1"


def test_the_mode_of_what_is_replaced_is_kept(tmp_path: Path) -> None:
    private, shared = tmp_path / "private", tmp_path / "shared"
    for path, mode in ((private, 0o600), (shared, 0o664)):
        path.touch()
        path.chmod(mode)
        files.write_atomically(path, b"new")
        assert path.stat().st_mode & 0o777 == mode
    files.write_atomically(tmp_path / "fresh", b"new")
    (tmp_path / "plain").touch()
    assert (tmp_path / "fresh").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_what_a_kill_left_behind_goes_with_the_next_writing(tmp_path: Path) -> None:
    old, young, other = (
        tmp_path / name for name in (f".recollect-{'a' * 16}.tmp", f".recollect-{'b' * 16}.tmp", ".x.tmp")
    )
    for path in (old, young, other):
        path.touch()
    os.utime(old, (0, 0))
    files.write_atomically(tmp_path / "out", b"new")
    assert not old.exists()
    assert young.exists() and other.exists()  # one may still be written to, the other is not ours


def test_names_of_any_length_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 251 + ".csv")
    files.write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_lock_is_no_link_and_ends_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match="a lock must be a plain file, got the link"), files.locked(tmp_path / "link"):
        pass
    assert not (tmp_path / "outside").exists()
    code = "import sys, time\nfrom pathlib import Path\nfrom recollect.files import locked\n"
    code += "with locked(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        told: list[bool] = []

        def busy() -> None:
            told.append(True)
            other.kill()

        with files.locked(tmp_path / "lock", busy):
            assert told


def test_deep_json_is_refused_in_one_sentence() -> None:
    content = b'{\n "a": ' + b"[" * 200_000 + b"]" * 200_000
    sealed = content + b',\n "checksum": "' + files.checksum(content).encode() + b'"\n}\n'
    with pytest.raises(ValueError, match="it must hold a JSON object"):
        files.unseal(sealed, "it")


def test_options_that_were_saved_cannot_be_changed_on_loading(tmp_path: Path) -> None:
    memory = rc.GradientMatching(lambda: rc.models.mlp(4, 3), 5)
    memory.update(torch.zeros(6, 4), torch.arange(6) % 3)
    memory.save(tmp_path / "m")
    wrong: dict[str, dict[str, Any]] = {
        "loss must be as the memory was saved, with 'cross_entropy', got another": {"loss": lambda o, t: o[:, 0]},
        "features must be as the memory was saved, with none, got another": {"features": lambda x: x},
    }
    for sentence, options in wrong.items():
        with pytest.raises(ValueError, match=sentence):
            rc.load_memory(tmp_path / "m", **options)
    assert len(rc.load_memory(tmp_path / "m")) == 5


def test_a_file_sets_no_option_that_is_not_saved(tmp_path: Path) -> None:
    memory = rc.GradientMatching(lambda: rc.models.mlp(4, 3), 5)
    memory.save(tmp_path)
    path = tmp_path / "memory.json"
    document = files.unseal(path.read_bytes(), "it")
    for name, value in {"cluster": "203.0.113.1:6379", "progress": True}.items():
        path.write_bytes(files.seal(document | {"options": document["options"] | {name: value}}))
        with pytest.raises(ValueError, match=f"must hold no options but those that are saved, got '{name}'"):
            rc.load_memory(tmp_path)
