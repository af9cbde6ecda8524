"""python -m kvcore."""

import gc
import sys

OBJECTS_PER_COLLECTION = 50_000
"""Of those made since the last one. A start makes hundreds of thousands that stay, and hardly a cycle."""


def main() -> int:
    """The program: its exit status."""
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    try:
        from kvcore.cli import main as run

        gc.freeze()
        status = run()
    except KeyboardInterrupt:
        sys.excepthook = _say_nothing
        raise  # so that Python ends by the signal itself, and a shell ends the loop around it too
    if "_duckdb" in sys.modules:  # DuckDB reports on standard error what is not collected at the end
        gc.unfreeze()
    else:
        gc.freeze()  # what is left ends with the process: nothing of it is looked through for cycles
    return status


def _say_nothing(*_: object) -> None:
    """In place of a stack trace after Ctrl-C."""


if __name__ == "__main__":
    sys.exit(main())
