"""The commands for people with files: columns, select, init, set, update, export, inspect, recover."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from recollect.files import check_output, write_atomically
from recollect.tables.options import (
    CHOOSING,
    CHOOSING_ONCE,
    CLASSES,
    CLUSTER,
    COLUMNS,
    MODEL,
    READING,
    SAYING,
    DryRun,
    Files,
    Folder,
    Output,
    Size,
    SizeOnce,
    SomeFiles,
    Target,
    changed_settings,
    optional,
    reading_of,
    settings_of,
    settings_once,
    takes,
)
from recollect.tables.saying import added, matching, pace, remarks, scarce, sentences, told
from recollect.terminal import Interrupted, counted, say

if TYPE_CHECKING:
    from recollect.tables.account import Account
    from recollect.tables.memory import TableMemory
    from recollect.tables.networks import MakeNetwork
    from recollect.tables.reading import Reading, Source
    from recollect.tables.settings import Settings
    from recollect.tables.workers import Workers


def add_commands(app: typer.Typer) -> None:
    """Register them."""
    for command in (columns, select, init, set_, update, export, inspect, recover):
        app.command(command.__name__.rstrip("_"))(command)


@takes(COLUMNS, READING, SAYING)
def columns(
    files: Files, target: Annotated[str | None, typer.Option(help="The column to be predicted.")] = None, **options: Any
) -> None:
    """Show how tables are read. Says for each column what it is and how many features it becomes; writes nothing."""
    from recollect.tables.conforming import examine_files, read_as
    from recollect.tables.reading import opened

    settings = settings_of(target or "", 1, options)
    with opened(files, settings.reading) as sources:
        _, found = examine_files(settings, sources, target=target is not None, progress=_shown(options))
        account = found.account(read_as(sources))
        trouble = None
        try:
            if target is not None:
                found.encoding(drop_missing_target=settings.reading.drop_missing_target)
        except ValueError as error:
            trouble = str(error)
    _show(account, options, {"trouble": trouble})
    if trouble is not None and _speaks(options):
        say(f"It would be refused: {trouble}")


@takes(CHOOSING_ONCE, READING, CLUSTER, SAYING)
def select(
    files: Files,
    target: Target,
    size: SizeOnce,
    output: Annotated[Path | None, Output.__metadata__[0]] = None,
    dry_run: DryRun = False,
    **options: Any,
) -> None:
    """Choose a few rows of tables. They represent all rows, each with a weight, and are written to a table."""
    from recollect.tables import WRITTEN, export_table, select_rows
    from recollect.tables.documents import check_outside
    from recollect.tables.settings import parse_size

    number, share = parse_size(size)
    settings = settings_once(target, number, options)
    if output is None and not dry_run:
        raise ValueError("there must be a file to write to, got none: pass --output, or --dry-run to see the columns")
    network = _network(settings.model)
    with _sources(files, settings, settings.reading, options) as (sources, workers):
        if output is not None:
            check_output(output, WRITTEN, [source.path for source in sources])
            check_outside(output)
        if dry_run:
            _show(_examined(settings, sources, options, workers), options)
            return
        assert output is not None
        held, taken = select_rows(
            settings,
            sources,
            share=share,
            make_network=network,
            progress=_shown(options),
            say=_to_errors(options),
            workers=workers,
        )
        rows = export_table(held, output)
    answer = {"rows": taken.rows, "kept": rows, "output": str(output), **_about(held), **taken.as_data()}
    lines = [
        *held.account.notes(),
        f"{counted(rows, 'row')} of {taken.rows:,}, for {held.encoding.task} of {target!r}: {output}",
        f"{counted(held.encoding.n_features, 'feature')}{pace(taken)}{matching(taken)}",
        *remarks(taken, rows, held.settings, few=scarce(held, taken.class_counts)),
        *added(held),
    ]
    _answer(answer | {"account": held.account.as_data()}, lines, options)


@takes(CHOOSING, CLASSES, READING, SAYING)
def init(
    store: Folder, target: Target, size: Size, files: SomeFiles = None, dry_run: DryRun = False, **options: Any
) -> None:
    """Make a store: a memory in a folder. A store that has taken in nothing is replaced."""
    from recollect.tables import Store
    from recollect.tables.reading import opened

    settings = settings_of(target, size, options)
    _network(settings.model)  # says so now if it cannot be found
    account = None
    with opened(files or [], settings.reading) as sources:
        if sources:
            account = _examined(settings, sources, options)
    if account is not None and (dry_run or _speaks(options)):
        _show(account, options if not options["as_json"] or dry_run else {**options, "quiet": True})
    if dry_run:
        return
    Store.create(store, settings)
    lines = [
        f"A store for {counted(size, 'row')}, memory {settings.memory}: {store}",
        f"Next: recollect update {store} FILE",
    ]
    _answer({"store": str(store), **settings.as_data()}, lines, options)


_SETTABLE = {"target": (Target, ""), "size": (Size, 0), **CHOOSING, **CLASSES, **READING}


@takes(optional(_SETTABLE), SAYING)
def set_(store: Folder, **options: Any) -> None:
    """Change the settings of a new store. It must be empty still; columns are added to those that were named before."""
    from recollect.tables import Store

    opened = Store(store)
    settings = changed_settings(opened.settings, options)
    _network(options["model"])
    before = asdict(opened.settings)
    opened.change(settings)
    line = _settings_line(asdict(settings), before)
    _answer({"store": str(store), **settings.as_data()}, [f"{store}: {line}"], options)


def _settings_line(after: dict[str, Any], before: dict[str, Any]) -> str:
    """Target, size, memory and what is said of columns, then what has changed beside them."""
    told = [f"{name} {after.pop(name)}" for name in ("target", "size", "memory")]
    told += [f"ignore {', '.join(ignored)}"] if (ignored := after.pop("ignore")) else []
    told += [f"{name} as {kind}" for name, kind in after.pop("kinds").items()]
    after, before = ({**some.pop("reading"), **some} for some in (after, before))
    changed = [(name, value) for name, value in after.items() if value != before[name]]
    told += [f"{name.replace('_', ' ')} {'as usual' if value is None else value}" for name, value in changed]
    return ", ".join(told)


@takes(MODEL, READING, CLUSTER, SAYING)
def update(
    store: Folder,
    files: Files,
    ignore: Annotated[
        list[str] | None, typer.Option(help="A column to take as missing here, or to leave out; may be repeated.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Take in files again that were taken before.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait for another update to end.")] = True,
    **options: Any,
) -> None:
    """Take files into a store. A file that was taken in before is not counted twice."""
    from recollect.tables import Store

    memory, network = Store(store), _network(options["model"])
    reading = reading_of(options).over(memory.settings.reading)
    before = memory.number()
    answers: list[dict[str, Any]] = []
    with _sources(files, memory.settings, reading, options) as (sources, workers):
        done = memory.updates(
            sources, reading, ignore or (), network, force, wait, _to_errors(options), _shown(options), workers
        )
        try:
            for source in sources:
                first = not memory.number()
                taken = next(done)
                answers.append(told(source, taken))
                _answer(None, list(sentences(source, taken, memory.settings, first)), options)
        except KeyboardInterrupt:
            # What is in the store counts, not what there was time to say.
            count = memory.number() - before
            stopped = f"{count} of {counted(len(sources), 'file')} {'was' if count == 1 else 'were'} taken"
            raise Interrupted(stopped if count else "nothing was changed") from None
        finally:
            if options["as_json"]:  # what was taken is in the store, whatever became of the rest
                typer.echo(json.dumps(answers))


@takes(SAYING)
def export(store: Folder, output: Output, **options: Any) -> None:
    """Write the rows that a store keeps. They are unchanged, with two more columns: their weight and place."""
    from recollect.tables import WRITTEN, Store, export_table
    from recollect.tables.documents import check_outside

    check_output(output, WRITTEN)
    check_outside(output)
    held = Store(store).load()
    rows = export_table(held, output)
    answer = {"kept": rows, "seen": held.memory.seen, "output": str(output), "weight": held.weight_name}
    _answer(answer, [f"{counted(rows, 'row')}: {output}", *added(held)], options)


@takes(SAYING)
def inspect(
    store: Folder,
    html: Annotated[Path | None, typer.Option(help="Also write a page with plots.")] = None,
    **options: Any,
) -> None:
    """Show what a store has seen and keeps. By class and by file, with the matching error."""
    from recollect.tables import Store
    from recollect.tables.documents import check_outside
    from recollect.tables.inspecting import inspection, page, terminal_tables

    if html is not None:
        check_output(html, [".html"])
        check_outside(html)
    found = inspection(Store(store))
    if html is not None:
        write_atomically(html, page(found).encode())
    if options["as_json"]:
        typer.echo(json.dumps(found))
    elif _speaks(options):
        console = Console()
        for table in terminal_tables(found):
            console.print(table)
        say(*found["notes"])
        if html is not None:
            say(f"The page: {html}")


@takes(SAYING)
def recover(store: Folder, **options: Any) -> None:
    """Repair a damaged store. It goes back to its newest complete version."""
    from recollect.tables import Store

    found = Store.recover(store)
    what = "was whole, nothing was changed" if found.was_whole else f"goes on from generation {found.number}"
    kept = f"{counted(found.kept, 'row')} kept of {found.seen:,} seen in {counted(found.files, 'file')}"
    _answer({"store": str(store), **asdict(found)}, [f"{store} {what}: {kept}"], options)


# What commands have in common


@contextmanager
def _sources(
    files: list[str], settings: "Settings", reading: "Reading", options: dict[str, Any]
) -> "Iterator[tuple[list[Source], Workers | None]]":
    """The tables to be read, by this process or by the workers of a cluster."""
    from recollect.tables.reading import opened
    from recollect.tables.workers import check_settings, working

    if options["cluster"] is None:
        with opened(files, reading) as sources:
            yield sources, None
    else:
        check_settings(settings)
        with working(options["cluster"]) as workers:
            yield workers.sources(files, reading), workers


def _examined(
    settings: "Settings", sources: "list[Source]", options: dict[str, Any], workers: "Workers | None" = None
) -> "Account":
    """The account of columns that could be taken in; others are refused."""
    from recollect.tables.conforming import examine_files, read_as

    examine = examine_files if workers is None else workers.examine
    _, found = examine(settings, sources, progress=_shown(options))
    found.encoding(drop_missing_target=settings.reading.drop_missing_target)
    return found.account(read_as(sources))


def _show(account: "Account", options: dict[str, Any], more: dict[str, Any] | None = None) -> None:
    if options["as_json"]:
        typer.echo(json.dumps(account.as_data() | (more or {})))
    elif _speaks(options):
        for name, how in account.files.items():
            say(f"{name}: read as {how}")
        Console().print(account.table())


def _network(model: str | None) -> "MakeNetwork | None":
    from recollect.tables import load_network

    return None if model is None else load_network(model)


def _about(held: "TableMemory") -> dict[str, Any]:
    encoding = held.encoding
    about = {"task": encoding.task, "features": encoding.n_features, "classes": encoding.classes}
    return {**about, "weight": held.weight_name}


def _speaks(options: dict[str, Any]) -> bool:
    return not (options["quiet"] or options["as_json"])


_shown = _speaks


def _to_errors(options: dict[str, Any]) -> Any:
    return lambda text: None if options["quiet"] else say(text, err=True)


def _answer(answer: dict[str, Any] | None, lines: list[str], options: dict[str, Any]) -> None:
    if options["as_json"]:
        if answer is not None:
            typer.echo(json.dumps(answer))
    elif not options["quiet"]:
        say(*lines)
