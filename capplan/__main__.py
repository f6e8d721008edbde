"""The program: `capplan` and `python -m capplan`. Nothing is imported before Ctrl-C ends it without a traceback."""

import os
import sys

signal = __import__("_signal")
"""What the module `signal` has, without the enumerations that it makes of it: those take longer than the rest of the way to the handler."""
INTERRUPTED = 130
OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Objects between two collections of cycles. The default of Python is 700, which takes a tenth of a command that mostly imports."""
LARGE_BLOCK_BYTES = 31 * 2**20
"""Largest block that the allocator of glibc keeps for what comes next once it is freed: the arrays of one simulation then lie where those of the last one
lay, instead of in new pages, which took a seventh of a search. Elsewhere freeing it changes nothing."""


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
    os.environ.setdefault(
        "PYDANTIC_DISABLE_PLUGINS", "__all__"
    )  # no plugin of other packages has a say here; the search for them is slow
    bytes(LARGE_BLOCK_BYTES)
    from capplan.cli.main import main as run

    try:
        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        gc.freeze()  # the interpreter ends without looking for cycles once more, which took a twentieth of a quick command
        if heard:
            signal.signal(signal.SIGINT, _leave)


if __name__ == "__main__":
    sys.exit(main())
