"""A folder that is always in its old or its new state, read without trusting it.

    FOLDER/memory.json                    what is saved, sealed by a checksum; names the tensor file
    FOLDER/tensors-<hash>.safetensors     named by the hash of its content
    FOLDER/lock                           held while writing

Writing puts the new tensor file beside the old one, then replaces the JSON file, which is the one atomic step; what the
JSON does not name is left over, and removed. Readers need no lock: a tensor file that is gone when they come for it
has been replaced by another, which they then read.
"""

import re
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from recollect.files import checksum, locked, remove_temporaries, seal, sync_folder, unseal, write_atomically
from recollect.forms import parse

FORMAT = "recollect memory"
VERSION = 3
JSON_NAME = "memory.json"

_TENSOR_NAME = re.compile(r"tensors-[0-9a-f]{64}\.safetensors")


@dataclass(frozen=True)
class InputsForm:
    """How the inputs are put together from tensors."""

    kind: Literal["tensor", "dict", "tuple"]
    names: list[str]


@dataclass(frozen=True)
class Description:
    """What every memory says of itself; a memory may add plain data of its own under other names."""

    memory: str
    capacity: int
    seed: int
    seen: int
    inputs: InputsForm | None
    options: dict[str, Any]


def write_folder(folder: str | PathLike[str], description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Replace what the folder holds, all at once; several may write and read at once."""
    folder = Path(folder)
    if folder.is_file():
        raise ValueError(f"a memory is saved to a folder, got the file {str(folder)!r}")
    content = save_tensors({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    name = f"tensors-{checksum(content)}.safetensors"
    try:
        document = seal({"format": FORMAT, "version": VERSION, **description, "tensors": name})
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the options of a memory must be plain data to be saved, got another thing: {error}"
        ) from None
    _check(_described(document, "the memory"), tensors, "the memory")  # what cannot be read again is not written
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        remove_temporaries(folder)
        write_atomically(folder / name, content)
        write_atomically(folder / JSON_NAME, document)
        for other in folder.iterdir():
            if other.name != name and _TENSOR_NAME.fullmatch(other.name):
                other.unlink(missing_ok=True)
    sync_folder(folder.parent)


def read_folder(folder: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `write_folder` wrote; refused in one sentence if anything about it is off."""
    folder = Path(folder)
    path = folder / JSON_NAME
    if not path.is_file():
        raise ValueError(f"a saved memory must hold a file {JSON_NAME}, got none in {str(folder)!r}")
    while True:
        document = path.read_bytes()
        described = _described(document, repr(str(path)))
        name = described["tensors"]
        try:
            content = (folder / name).read_bytes()
            break
        except FileNotFoundError:
            if path.read_bytes() == document:
                raise ValueError(
                    f"{str(folder)!r} must hold the file {name}, which is missing: it is incomplete"
                ) from None
    if f"tensors-{checksum(content)}.safetensors" != name:
        raise ValueError(f"{str(folder / name)!r} must have the content it was saved with: it is damaged or truncated")
    try:
        tensors = load_tensors(content)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"{str(folder / name)!r} must be a safetensors file: {error}") from None
    _check(described, tensors, repr(str(path)))
    return described, tensors


def _described(content: bytes, what: str) -> dict[str, Any]:
    """The document, with all that every memory has, in its form."""
    unsealed = b'"version": 1,' in content[:100]  # as the first version was
    document = {"format": FORMAT, "version": 1} if unsealed else unseal(content, what)
    if document.get("format") != FORMAT:
        raise ValueError(f"{what} must describe a {FORMAT}, got something else")
    version = document.get("version")
    if isinstance(version, int) and 0 < version < VERSION:
        raise ValueError(
            f"{what} must be of format version {VERSION}, got {version}: an older recollect wrote it, whose choices "
            "this one cannot go on with: make the memory anew"
        )
    if version != VERSION:
        raise ValueError(f"{what} must be of format version {VERSION}, got {version!r}: update recollect")
    known = Description.__dataclass_fields__
    described = parse(Description, {name: value for name, value in document.items() if name in known}, what)
    if described.capacity < 1 or described.seed < 0 or described.seen < 0:
        raise ValueError(f"{what} must hold a capacity of at least 1, a seed and a count, got others: it is damaged")
    # A name from outside is only ever one of ours: nothing that could lead out of the folder.
    name = document.get("tensors")
    if not isinstance(name, str) or not _TENSOR_NAME.fullmatch(name):
        raise ValueError(f"{what} must name a tensor file of its folder, got {name!r}")
    return {**document, **asdict(described)}


def _check(document: dict[str, Any], tensors: dict[str, Tensor], what: str) -> None:
    """Refuse tensors that are not those that the document speaks of."""
    form, needed = document["inputs"], ["generator"]
    if form is not None:
        needed += ["targets", "weights", "ids", *(f"inputs.{name}" for name in form["names"])]
    for name in needed:
        if name not in tensors:
            raise ValueError(f"{what} must come with the tensor {name!r}, which is missing: it is damaged")
    lengths = {len(tensors[name]) if tensors[name].ndim else None for name in needed[1:]}
    if form is not None and (len(lengths) != 1 or None in lengths or not form["names"]):
        raise ValueError(f"{what} must come with tensors of one length, got {sorted(map(str, lengths))}: it is damaged")
