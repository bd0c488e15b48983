"""Results on file: each once, whoever writes, and whenever they are killed."""

import json
import subprocess
import sys
import threading
from pathlib import Path

from recollect.experiments import Results

APPENDING = """
import sys
from recollect.experiments import Results
results = Results(sys.argv[1], key=("seed",))
print("ready", flush=True)
sys.stdin.readline()
for seed in range(100):
    results.append({"seed": seed, "by": sys.argv[2]})
"""


def test_a_result_is_kept_once_though_several_processes_come_to_it(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    command = [sys.executable, "-c", APPENDING, str(path)]
    processes = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name in "ab"
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        process.communicate("go\n")
        assert process.returncode == 0
    assert sorted(json.loads(line)["seed"] for line in path.read_text().splitlines()) == list(range(100))


def test_threads_and_one_call_keep_a_result_once_too(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl", key=("seed",))
    assert results.append({"seed": 0, "x": 1}, {"seed": 0, "x": 2}, {"seed": 1, "x": 3}) == 2
    added: list[int] = []
    threads = [
        threading.Thread(target=lambda: added.extend(results.append({"seed": seed}) for seed in range(30)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(added) == 28
    assert sorted(result["seed"] for result in results.read()) == list(range(30))
    assert results.find({"seed": 0}) == {"seed": 0, "x": 1}


def test_a_torn_line_of_any_length_is_cut_off(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl", key=("seed",))
    results.append({"seed": 0})
    with results.path.open("ab") as file:
        file.write(b'{"seed": 1, "x": "' + b"x" * 200_000)
    results.append({"seed": 2})
    assert results.path.read_text() == '{"seed": 0}\n{"seed": 2}\n'
