"""The options that several commands share, each said once."""

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from recollect.tables.reading import Reading
    from recollect.tables.settings import Settings

Options = dict[str, tuple[Any, Any]]

Files = Annotated[
    list[str],
    typer.Argument(help="Tables: files, globs, folders, addresses (s3://...) or - for standard input."),
]
SomeFiles = Annotated[
    list[str] | None, typer.Argument(help="Tables to check the settings with; they are not taken in.")
]
Folder = Annotated[Path, typer.Argument(help="The store's folder.")]
Target = Annotated[str, typer.Option(help="The column to be predicted.")]
Size = Annotated[int, typer.Option(help="How many rows to keep.")]
SizeOnce = Annotated[
    str, typer.Option("--size", metavar="<int|share>", help="How many rows to keep, or a part of all, such as 1%.")
]
Output = Annotated[Path, typer.Option("--output", "-o", help="A table to write: csv, parquet, ndjson or arrow.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what columns were read as, and write nothing.")]

_MEMORIES = "recollect (gradient matching), clustering, reservoir, class-balanced or sliding-window; auto is"
_Memory = Annotated[str, typer.Option(help=f"{_MEMORIES} recollect.")]
_MemoryOnce = Annotated[
    str,
    typer.Option(help=f"{_MEMORIES} clustering, or recollect with --class-weight, --min-per-class or --model."),
]
_Task = Annotated[str | None, typer.Option(help="classification or regression; inferred by default.")]
_As = Annotated[
    list[str] | None,
    typer.Option("--as", help="NAME=KIND: number, date, date-dmy, date-mdy, category or ignored; may be repeated."),
]
_Ignore = Annotated[list[str] | None, typer.Option(help="A column to keep but not use for choosing; may be repeated.")]
_ClassWeight = Annotated[str | None, typer.Option(help="balanced: all classes count the same, however rare.")]
_MinPerClass = Annotated[int, typer.Option(help="Keep at least this many rows of each class.")]
_WeightName = Annotated[str | None, typer.Option(help="The name of the column of weights; weight by default.")]
_Model = Annotated[str | None, typer.Option(help="Your own network, as module:function of (features, outputs).")]
_Classes = Annotated[int | None, typer.Option(help="How many classes there can be; twice the first file's by default.")]
_Seed = Annotated[int, typer.Option(help="The same seed gives the same choice.")]
_Limit = Annotated[str, typer.Option(help="How much memory to use at most.")]

_Format = Annotated[
    str | None, typer.Option(help="csv, parquet, arrow, ndjson, json, npz or xlsx; recognised by default.")
]
_Delimiter = Annotated[str | None, typer.Option(help="The character between values, or tab; recognised by default.")]
_Decimal = Annotated[str | None, typer.Option(help="The decimal mark: a point or a comma; recognised by default.")]
_Encoding = Annotated[
    str | None, typer.Option(help="The encoding of characters, such as latin-1; recognised by default.")
]
_Sheet = Annotated[str | None, typer.Option(help="A sheet of an xlsx file; the first that is not hidden by default.")]
_SkipBad = Annotated[bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read, and count them.")]
_DropMissing = Annotated[
    bool, typer.Option("--drop-missing-target", help="Leave out rows without a target, and count them.")
]
_Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing unless something is wrong.")]
_Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, for scripts.")]

_Cluster = Annotated[str | None, typer.Option(help="Let the workers of a Ray cluster read: auto, or an address.")]

CLUSTER: Options = {"cluster": (_Cluster, None)}
MODEL: Options = {"model": (_Model, None)}
COLUMNS: Options = {"task": (_Task, None), "kinds": (_As, None), "ignore": (_Ignore, None)}
CHOOSING: Options = {
    "memory": (_Memory, "auto"),
    **COLUMNS,
    "class_weight": (_ClassWeight, None),
    "min_per_class": (_MinPerClass, 0),
    "weight_name": (_WeightName, None),
    **MODEL,
    "seed": (_Seed, 0),
    "memory_limit": (_Limit, "4GB"),
}
CHOOSING_ONCE: Options = {**CHOOSING, "memory": (_MemoryOnce, "auto")}
CLASSES: Options = {"classes": (_Classes, None)}
READING: Options = {
    "format": (_Format, None),
    "delimiter": (_Delimiter, None),
    "decimal": (_Decimal, None),
    "encoding": (_Encoding, None),
    "sheet": (_Sheet, None),
    "skip_bad_rows": (_SkipBad, False),
    "drop_missing_target": (_DropMissing, False),
}
SAYING: Options = {"quiet": (_Quiet, False), "as_json": (_Json, False)}


def takes(*groups: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take groups of options beside its own, as `**options`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for group in groups
            for name, (kind, default) in group.items()
        ]
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        command.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
        command.__annotations__ |= {p.name: p.annotation for p in more}
        return command

    return decorate


def optional(options: Options) -> Options:
    """The same options, of which None says that nothing was said."""
    return {name: (kind if default is None else _or_none(kind), None) for name, (kind, default) in options.items()}


def _or_none(kind: Any) -> Any:
    return Annotated[kind.__origin__ | None, *kind.__metadata__]


def settings_of(target: str, size: int, options: dict[str, Any]) -> "Settings":
    """What is asked for, from the options of a command."""
    from recollect.tables.settings import Settings

    return Settings(target, size, **_plain(options), reading=reading_of(options))


def settings_once(target: str, size: int, options: dict[str, Any]) -> "Settings":
    """The same where a table is chosen from once."""
    from recollect.tables.settings import memory_once

    needs_gradients = (options["class_weight"], options["min_per_class"], options["model"])
    return settings_of(target, size, {**options, "memory": memory_once(options["memory"], *needs_gradients)})


def changed_settings(settings: "Settings", options: dict[str, Any]) -> "Settings":
    """Settings with what was said; columns are added to those that were named before."""
    said = _plain({name: value for name, value in options.items() if value is not None})
    said["ignore"] = tuple(dict.fromkeys([*settings.ignore, *said.get("ignore", ())]))
    said["kinds"] = {**settings.kinds, **said.get("kinds", {})}
    said["reading"] = reading_of(options).over(settings.reading)
    return replace(settings, **said)


def reading_of(options: dict[str, Any]) -> "Reading":
    """How files are to be read."""
    from recollect.tables.reading import Reading

    return Reading(**{name: options[name] for name in READING if options.get(name) is not None})


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    from recollect.tables.settings import Settings, parse_bytes

    known = {field.name for field in fields(Settings)} - {"reading"}
    said = {name: value for name, value in options.items() if name in known}
    if "ignore" in said:
        said["ignore"] = tuple(said["ignore"] or ())
    if "kinds" in said:
        said["kinds"] = dict(_pair(text) for text in said["kinds"] or ())
    if "memory_limit" in said:
        said["memory_limit"] = parse_bytes(said["memory_limit"])
    return said


def _pair(text: str) -> tuple[str, str]:
    name, equals, kind = text.rpartition("=")
    if not equals or not name:
        raise ValueError(f"a column and what it is must be written as NAME=KIND, got {text!r}")
    return name, {"ignore": "ignored", "text": "ignored"}.get(kind, kind)
