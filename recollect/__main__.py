"""`python -m recollect` is `recollect`."""

import sys


def main() -> None:
    """Run a command, which may be interrupted while what it needs is loaded."""
    try:
        from recollect.cli import main as run
    except KeyboardInterrupt:
        print("recollect: interrupted: nothing was changed", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
