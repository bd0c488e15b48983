"""The commands for people with files: select, init, update, export, inspect, recover."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console

from recollect.files import check_output, write_atomically
from recollect.terminal import Interrupted, say

if TYPE_CHECKING:
    from recollect.tables.encoding import Task
    from recollect.tables.memory import MakeNetwork, Settings, TableMemory
    from recollect.tables.store import Update

Files = Annotated[list[str], typer.Argument(help="Tables: csv, parquet, ndjson, arrow or npz; globs are fine.")]
Folder = Annotated[Path, typer.Argument(help="The store's folder.")]
Target = Annotated[str, typer.Option(help="The column to be predicted.")]
Size = Annotated[int, typer.Option(help="How many rows to keep.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="A table to write: csv, parquet, ndjson or arrow.")]
MemoryName = Annotated[str, typer.Option(help="recollect, clustering, reservoir, class-balanced or sliding-window.")]
TaskName = Annotated[str | None, typer.Option(help="classification or regression; inferred by default.")]
Ignore = Annotated[list[str] | None, typer.Option(help="A column to keep but not look at; may be repeated.")]
Classes = Annotated[int | None, typer.Option(help="How many classes there can be; twice the first file's by default.")]
Model = Annotated[str | None, typer.Option(help="Your own network, as module:function of (features, outputs).")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same choice.")]
Limit = Annotated[str, typer.Option(help="How much memory to use at most.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing unless something is wrong.")]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, for scripts.")]


def add_commands(app: typer.Typer) -> None:
    """Register them."""
    for command in (select, init, update, export, inspect, recover):
        app.command()(command)


def select(
    files: Files,
    target: Target,
    size: Size,
    output: Output,
    memory: MemoryName = "recollect",
    task: TaskName = None,
    ignore: Ignore = None,
    model: Model = None,
    seed: Seed = 0,
    memory_limit: Limit = "4GB",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Choose the few rows of tables whose weighted loss gradients add up to those of all, and write them."""
    from recollect.tables import WRITTEN, export_table, find_files, select_rows

    settings = _settings(target, size, memory, task, ignore, None, model, seed, memory_limit)
    paths = find_files(files)
    check_output(output, WRITTEN, paths)
    held, taken = select_rows(settings, paths, make_network=_network(model), progress=not (quiet or as_json))
    rows = export_table(held, output)
    answer = {"rows": taken.rows, "kept": rows, "output": str(output), **_about(held), **taken.as_data()}
    _answer(
        answer,
        [
            f"{rows} of {taken.rows:,} rows, for {held.encoding.task} of {target!r}: {output}",
            f"{held.encoding.n_features} features; {taken.rows / taken.seconds:,.0f} rows per second, "
            f"{taken.reading_seconds / taken.seconds:.0%} of the time for reading and encoding"
            + ("" if taken.error is None else f"; matching error {taken.error:.4f}"),
        ],
        quiet,
        as_json,
    )


def init(
    store: Folder,
    target: Target,
    size: Size,
    memory: MemoryName = "recollect",
    task: TaskName = None,
    ignore: Ignore = None,
    classes: Classes = None,
    model: Model = None,
    seed: Seed = 0,
    memory_limit: Limit = "4GB",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make an empty store, a memory in a folder."""
    from recollect.tables import Store

    settings = _settings(target, size, memory, task, ignore, classes, model, seed, memory_limit)
    _network(model)  # says so now if it cannot be found
    Store.create(store, settings)
    lines = [f"A store for {size} rows: {store}", f"Next: recollect update {store} FILE"]
    _answer({"store": str(store), **settings.as_data()}, lines, quiet, as_json)


def update(
    store: Folder,
    files: Files,
    model: Model = None,
    force: Annotated[bool, typer.Option("--force", help="Take in files again that were taken before.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait for another update to end.")] = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Take files into a store; a file that was taken before is not counted twice."""
    from recollect.tables import Store, find_files

    opened, paths, network = Store(store), find_files(files), _network(model)
    before = opened.number()
    answers: list[dict[str, Any]] = []
    try:
        for path in paths:
            [done] = opened.update(
                [path],
                make_network=network,
                force=force,
                wait=wait,
                say=lambda text: None if quiet else say(text, err=True),
                progress=not (quiet or as_json),
            )
            answers.append(_told(path, done))
            _answer(None, _sentences(path, done), quiet, as_json)
    except KeyboardInterrupt:
        # What is in the store counts, not what there was time to say.
        taken = opened.number() - before
        raise Interrupted(f"{taken} of {len(paths)} files were taken" if taken else "nothing was changed") from None
    finally:
        if as_json:  # what was taken is in the store, whatever became of the rest
            typer.echo(json.dumps(answers))


def _told(path: Path, done: "Update") -> dict[str, Any]:
    about = {"file": str(path), "taken": done.taken is not None, "seen": done.seen, "kept": done.kept}
    return about if done.taken is None else about | done.taken.as_data()


def _sentences(path: Path, done: "Update") -> list[str]:
    if done.taken is None:
        return [f"{path}: taken before, not counted again (--force does)"]
    text = f"{path}: {done.taken.rows:,} rows, {done.kept} kept of {done.seen:,} seen"
    text += "" if done.taken.error is None else f", matching error {done.taken.error:.4f}"
    return [text, *(f"  {sentence}" for sentence in done.taken.drift.sentences())]


def export(store: Folder, output: Output, quiet: Quiet = False, as_json: Json = False) -> None:
    """Write the rows that a store keeps, as they came, with their weights and places in the stream."""
    from recollect.tables import WRITTEN, Store, export_table

    check_output(output, WRITTEN)
    held = Store(store).load()
    rows = export_table(held, output)
    _answer({"kept": rows, "seen": held.memory.seen, "output": str(output)}, [f"{rows} rows: {output}"], quiet, as_json)


def inspect(
    store: Folder,
    html: Annotated[Path | None, typer.Option(help="Also write a page with plots.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show what a store has seen and keeps, by class and by file, and how well it matches."""
    from recollect.tables import Store
    from recollect.tables.inspecting import inspection, page, terminal_tables

    if html is not None:
        check_output(html, [".html"])
    found = inspection(Store(store))
    if html is not None:
        write_atomically(html, page(found).encode())
    if as_json:
        typer.echo(json.dumps(found))
    elif not quiet:
        console = Console()
        for table in terminal_tables(found):
            console.print(table)
        if html is not None:
            say(f"The page: {html}")


def recover(store: Folder, quiet: Quiet = False, as_json: Json = False) -> None:
    """Point a damaged store at its newest generation that is whole."""
    from recollect.tables import Store

    found = Store.recover(store)
    what = "was whole, nothing was changed" if found.was_whole else f"goes on from generation {found.number}"
    text = f"{store} {what}: {found.kept} rows kept of {found.seen:,} seen in {found.files} files"
    _answer({"store": str(store), **asdict(found)}, [text], quiet, as_json)


def _settings(
    target: str,
    size: int,
    memory: str,
    task: str | None,
    ignore: list[str] | None,
    classes: int | None,
    model: str | None,
    seed: int,
    memory_limit: str,
) -> "Settings":
    from recollect.tables import Settings, parse_bytes

    limit = parse_bytes(memory_limit)
    return Settings(target, size, memory, cast("Task | None", task), tuple(ignore or ()), classes, model, seed, limit)


def _network(model: str | None) -> "MakeNetwork | None":
    from recollect.tables import load_network

    return None if model is None else load_network(model)


def _about(held: "TableMemory") -> dict[str, Any]:
    encoding = held.encoding
    return {"task": encoding.task, "features": encoding.n_features, "classes": encoding.classes}


def _answer(answer: dict[str, Any] | None, lines: list[str], quiet: bool, as_json: bool) -> None:
    if as_json:
        if answer is not None:
            typer.echo(json.dumps(answer))
    elif not quiet:
        say(*lines)
