"""The commands, thin."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import recollect

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
    """Watch two memories of handwritten digits: under a minute, no downloads."""
    from recollect.demo import draw_demo, print_demo, run_demo

    _check_output(output, (".png", ".svg", ".pdf"))
    result = run_demo()
    console = Console()
    print_demo(result, console)
    draw_demo(result, output)
    console.print(f"The kept digits and the curves: {output}", soft_wrap=True)


def _check_output(path: Path, suffixes: tuple[str, ...]) -> None:
    """Refuse a place that cannot be written to before any work is done."""
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"the output must end in {' or '.join(suffixes)}, got {str(path)!r}")
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise ValueError(f"the output must be a file in an existing folder, got {str(path)!r}")


def main(arguments: list[str] | None = None) -> None:
    """Run a command; bad input ends with exit code 2 and one line."""
    try:
        code = app(args=(sys.argv[1:] if arguments is None else arguments) or ["--help"], standalone_mode=False)
    except UsageError as error:
        typer.echo(f"recollect: {error.format_message()}", err=True)  # type: ignore[attr-defined]
        code = 2
    except (ValueError, OSError) as error:
        typer.echo(f"recollect: {error}", err=True)
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("recollect: stopped", err=True)
        code = 130
    sys.exit(code or 0)
