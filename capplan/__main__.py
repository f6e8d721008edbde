"""The program: `capplan` and `python -m capplan`. Nothing is imported before Ctrl-C ends it without a traceback."""

import os
import sys

signal = __import__("_signal")
"""What the module `signal` has, without the enumerations that it makes of it: those take longer than the rest of the way to the handler."""
INTERRUPTED = 130
OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Objects between two collections of cycles. The default of Python is 700, which takes a tenth of a command that mostly imports."""


def _leave(*_: object) -> None:
    """End at once: while modules are imported or the interpreter ends, nothing is half done."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def main() -> int:
    """Run the program and return its exit code."""
    heard = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # not where it is ignored, as by nohup
    if heard:
        signal.signal(signal.SIGINT, _leave)
    import gc

    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    from capplan.cli.main import main as run

    try:
        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if heard:
            signal.signal(signal.SIGINT, _leave)


if __name__ == "__main__":
    sys.exit(main())
