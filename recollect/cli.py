"""The commands, thin."""

import errno
import shlex
import sys
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import recollect
from recollect.files import check_output
from recollect.tables.commands import add_commands
from recollect.tables.wording import in_shell
from recollect.terminal import Interrupted, cell, say, warnings_as_lines

# Newer versions of typer carry their own copy of click; the class of usage errors is reached through what they export.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    help="A small weighted memory of everything a model has been trained on.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"recollect {recollect.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """A small weighted memory of everything a model has been trained on."""


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to save the picture.")] = Path(
        "recollect-demo.png"
    ),
) -> None:
    """See it work on handwritten digits. Takes under a minute, and downloads nothing."""
    from recollect.demo import draw_demo, print_demo, run_demo

    check_output(output, (".png", ".svg", ".pdf"))
    result = run_demo()
    console = Console()
    print_demo(result, console)
    draw_demo(result, output)
    say(f"The kept digits and the curves: {output}")


@app.command()
def run(
    dataset: Annotated[str, typer.Option(help="A data set; `recollect datasets` lists them.")] = "digits",
    learner: Annotated[str, typer.Option(help="gdumb, er, er-drawn, der, finetune or joint.")] = "gdumb",
    memory: Annotated[
        str, typer.Option(help="recollect, gmc, gmc-last-layer, gmc-local, reservoir, ...")
    ] = "recollect",
    size: Annotated[int, typer.Option(help="How many examples the memory keeps.")] = 200,
    seed: Annotated[list[int] | None, typer.Option(help="A seed; may be repeated.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data at each training.")] = 200,
    stream: Annotated[str, typer.Option(help="class-incremental, rotated or sorted; the paper's by default.")] = "",
    rows: Annotated[int | None, typer.Option(help="Use only this many training rows.")] = None,
    every_task: Annotated[bool, typer.Option("--every-task", help="Test after every batch of the stream.")] = False,
    results: Annotated[Path, typer.Option(help="A file of JSON lines to append to.")] = Path("results.jsonl"),
) -> None:
    """Run one experiment and show its result. What the file of results holds already is not run again."""
    from recollect.experiments import Experiment, open_store
    from recollect.experiments import run as run_experiment

    store = open_store(results)
    store.read()  # says now, not after hours, if the file is not one of results
    experiments = [Experiment(learner, dataset, memory, size, s, epochs, stream, rows, every_task) for s in seed or [0]]
    table = Table(title=f"{learner} with {experiments[0].memory} on {dataset}, {experiments[0].stream}")
    for name in ("size", "seed", "accuracy after each test [%]", "final [%]", "seconds"):
        table.add_column(name, justify="right")
    console = Console()
    for experiment in experiments:
        result = store.find(experiment.key())
        if result is None:
            result = run_experiment(experiment, progress=True)
            store.append(result)
        curve = " ".join(f"{accuracy:.1f}" for accuracy in result["accuracies"])
        final = f"{result['final_accuracy']:.2f}"
        table.add_row(str(experiment.size), str(experiment.seed), curve, final, f"{result['seconds']:.1f}")
    console.print(table)
    say(f"Kept in {results}")


@app.command()
def reproduce(
    target: Annotated[str, typer.Argument(help="table-gdumb, table-er, tables, figure-sensitivity, ...")],
    dataset: Annotated[list[str] | None, typer.Option(help="Only these data sets; may be repeated.")] = None,
    memory: Annotated[list[str] | None, typer.Option(help="Only these memories; may be repeated.")] = None,
    size: Annotated[list[int] | None, typer.Option(help="Only these sizes; may be repeated.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds, from 0 on; 5 for tables, 3 for figures of settings by default.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes at each training; cells of fewer than 200 say so.")] = 200,
    rows: Annotated[
        int | None, typer.Option(help="Only this many training rows, at random; figures of settings say so.")
    ] = None,
    workers: Annotated[int, typer.Option(help="How many processes.")] = 1,
    results: Annotated[Path, typer.Option(help="A file of JSON lines to append to.")] = Path("results/paper.jsonl"),
    cheapest_first: Annotated[
        bool, typer.Option("--cheapest-first", help="Begin with what takes the least time for each result.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what is left, and how long it may take.")] = False,
    cluster: Annotated[str | None, typer.Option(help="Run on a Ray cluster: auto, or its address.")] = None,
) -> None:
    """Run the paper's tables and figures. You may stop it and continue at any time."""
    from recollect.experiments import TARGETS, estimate_seconds, in_words, open_store, outstanding
    from recollect.experiments import reproduce as reproduce_experiments

    if target not in TARGETS:
        raise ValueError(f"the target must be one of {', '.join(TARGETS)}, got {target!r}")
    if (seeds is not None and seeds < 1) or workers < 1:
        raise ValueError(f"seeds and workers must be at least 1, got {seeds} and {workers}")
    narrowed = {"datasets": dataset, "memories": memory, "sizes": size, "seeds": seeds and range(seeds)}
    experiments = TARGETS[target](
        epochs=epochs, rows=rows, **{name: value for name, value in narrowed.items() if value}
    )
    store = open_store(results)
    todo = outstanding(experiments, store)
    left = estimate_seconds(experiments, store)
    time_left = "no stored run to estimate the time by" if left is None else f"about {in_words(left / workers)} left"
    say(f"{target}: {len(experiments)} experiments, {len(experiments) - len(todo)} done, {time_left}")
    if not dry_run:
        added = reproduce_experiments(
            experiments, store, workers=workers, cheapest_first=cheapest_first, cluster=cluster
        )
        say(f"{added} results added to {results}")


@app.command()
def report(
    results: Annotated[Path, typer.Option(help="Results of `reproduce` or `run`.")] = Path("results/paper.jsonl"),
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to save the page: html or md.")] = Path(
        "recollect.html"
    ),
) -> None:
    """Write results as a web page or Markdown. The page shows them beside the paper's and needs no network."""
    from recollect.datasets import find
    from recollect.experiments import coverage, open_store
    from recollect.files import write_atomically
    from recollect.report import PICTURED, build_page, write_document

    check_output(output, (".html", ".md"))
    found = open_store(results).read()
    if not found:
        raise ValueError(f"there must be results in {str(results)!r}, got none: run `recollect reproduce` first")
    kind = output.suffix.lower()
    text = write_document(found, output) if kind == ".md" else build_page(found)
    write_atomically(output, text.encode())
    say(f"The paper's tables: {coverage(found)}")
    say(f"The page: {output}")
    if absent := [name for name in PICTURED[kind] if find(name) is None]:
        say(
            f"Left out: pictures of {', '.join(absent)}, found nowhere: set RECOLLECT_DATA to the folder with the files"
        )


@app.command()
def datasets() -> None:
    """List the data sets. Shows which are here, and where."""
    from recollect.datasets import NAMES, SOURCES, find

    table = Table()
    for name in ("data set", "rows", "classes", "where"):
        table.add_column(name, overflow="fold")
    for name in NAMES:
        path = None if name == "digits" else find(name)
        where = "bundled" if name == "digits" else str(path) if path else "fetched from OpenML when first used"
        source = SOURCES.get(name)
        rows, classes = (f"{source.rows:,}", str(source.n_classes)) if source else ("1,797", "10")
        table.add_row(name, rows, classes, cell(where))
    Console().print(table)


add_commands(app)


_STOPPED = {
    **dict.fromkeys(("run", "reproduce"), "results so far are kept: the same command goes on from there"),
    "update": "the store is as it was before this file",
}
_NO_MEMORY = "there must be memory enough for this, got no more: pass a smaller --memory-limit or a smaller --size"


def main(arguments: list[str] | None = None) -> None:
    """Run a command; bad input ends with exit code 2 and one line, an interrupt with 130 and one line."""
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    stopped = _STOPPED.get(arguments[0], "nothing was changed")
    wrong: str | None = None
    code = 2
    try:
        with in_shell(), warnings_as_lines():
            code = app(args=arguments, standalone_mode=False) or 0
    except UsageError as error:
        wrong = _usage(error, arguments)
    except (ValueError, OSError, ModuleNotFoundError) as error:  # a module that is not installed says what to install
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        large = isinstance(error, OSError) and error.errno == errno.EFBIG
        wrong = str(error)
        if full or large:
            what, do = ("on the disk", "free some") if full else ("for files so large", "raise the limit (ulimit -f)")
            wrong = f"there must be room {what}, got no more: {do} and try again; {stopped}"
        wrong += _repeating(wrong, arguments)
    except MemoryError:
        wrong = _NO_MEMORY
    except RuntimeError as error:
        if "DefaultCPUAllocator" not in str(error):  # which is how torch says that there is no memory
            raise
        wrong = _NO_MEMORY
    except Interrupted as stop:
        code, stopped = _INTERRUPT, str(stop)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPT
    if code == _INTERRUPT:
        wrong = f"interrupted: {stopped}"
    if wrong is not None:
        say(f"recollect: {wrong}", err=True)
    sys.exit(code)


_INTERRUPT = 130  # what a shell calls it, and typer answers with


def _usage(error: Exception, arguments: list[str]) -> str:
    """What is wrong with the arguments, and what to do."""
    message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    message = f"{message[:1].lower()}{message[1:]}"
    parameter: Any = getattr(error, "param", None)
    if parameter is not None and "valid integer" in message:
        given = [value for places in _given(parameter.opts, arguments) for value in places[:1]]
        message = f"{parameter.opts[0]} must be a whole number, got {', '.join(map(repr, given))}"
    command = f"{arguments[0]} " if arguments[0] in _commands() else ""
    answer = "" if message.endswith("?") else f": see `recollect {command}--help`"
    return message + (_repeating(message, arguments) or answer)


def _repeating(message: str, arguments: list[str]) -> str:
    """What to do if the message is about one of several values that were given to an option that takes one."""
    command = _commands().get(arguments[0])
    for name in (name for p in getattr(command, "params", ()) if getattr(p, "multiple", False) for name in p.opts):
        for first, *others in filter(None, _given([name], arguments)):
            listed = "," in first and (repr(first) in message or repr(first.rpartition("=")[0]) in message)
            taken = any(f"a file {other!r}, got none" in message or f"({other}" in message for other in others)
            if listed or taken:
                values = first.split(",") if listed else [first, *others]
                written = " ".join(f"{name} {shlex.quote(value.strip())}" for value in values if value.strip())
                return f": {name} takes one value and may be repeated, as in {written}"
    return ""


def _given(names: list[str], arguments: list[str]) -> list[list[str]]:
    """What stands behind an option, up to the next, for each time that it was given."""
    found = []
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names:
            rest = takewhile(lambda text: not text.startswith("-"), arguments[place + 1 :])
            found.append([*([value] if equals else []), *rest])
    return found


def _commands() -> dict[str, Any]:
    return getattr(typer.main.get_command(app), "commands", {})
