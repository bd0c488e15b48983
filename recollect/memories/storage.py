"""A folder that is always in its old or its new state, read without trusting it.

A folder holds `memory.json` and the tensor file that it names by the hash of its content. Writing puts the
new tensor file beside the old one, then replaces the JSON file, which is the one atomic step; what the JSON does not
name is left over from a crash, and removed by the next writing.
"""

import hashlib
import json
import re
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from recollect.files import is_temporary, write_atomically

FORMAT = "recollect memory"
VERSION = 1
JSON_NAME = "memory.json"

_TENSOR_NAME = re.compile(r"tensors-[0-9a-f]{64}\.safetensors")


def write_folder(folder: str | PathLike[str], description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Replace what the folder holds, all at once."""
    folder = Path(folder)
    if folder.is_file():
        raise ValueError(f"a memory is saved to a folder, got the file {str(folder)!r}")
    folder.mkdir(parents=True, exist_ok=True)
    content = save_tensors({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    name = f"tensors-{hashlib.sha256(content).hexdigest()}.safetensors"
    document = {"format": FORMAT, "version": VERSION, **description, "tensors": name}
    write_atomically(folder / name, content)
    write_atomically(folder / JSON_NAME, json.dumps(document, indent=2).encode())
    for other in folder.iterdir():
        if other.name != name and (_TENSOR_NAME.fullmatch(other.name) or is_temporary(other)):
            other.unlink(missing_ok=True)


def read_folder(folder: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `write_folder` wrote; refused in one sentence if anything about it is off."""
    folder = Path(folder)
    path = folder / JSON_NAME
    if not path.is_file():
        raise ValueError(f"a saved memory must hold a file {JSON_NAME}, got none in {str(folder)!r}")
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        raise ValueError(f"{str(path)!r} must be a JSON file, got something else: it is damaged") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{str(path)!r} must describe a {FORMAT}, got something else")
    version = document.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise ValueError(
            f"{str(folder)!r} must be of format version {VERSION} or older, got {version!r}: update recollect"
        )
    name = document.get("tensors")
    # A name from outside is only ever one of ours: nothing that could lead out of the folder.
    if not isinstance(name, str) or not _TENSOR_NAME.fullmatch(name):
        raise ValueError(f"{str(path)!r} must name a tensor file of its folder, got {name!r}")
    tensor_path = folder / name
    if not tensor_path.is_file():
        raise ValueError(f"{str(folder)!r} must hold the file {name}, which is missing: it is incomplete")
    content = tensor_path.read_bytes()
    if f"tensors-{hashlib.sha256(content).hexdigest()}.safetensors" != name:
        raise ValueError(f"{str(tensor_path)!r} must have the content it was saved with: it is damaged or truncated")
    try:
        tensors = load_tensors(content)
    except SafetensorError as error:
        raise ValueError(f"{str(tensor_path)!r} must be a safetensors file: {error}") from None
    return document, tensors
