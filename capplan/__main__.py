"""The program: `capplan` and `python -m capplan`. Nothing is imported before Ctrl-C ends it without a traceback."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

signal = __import__("_signal")
"""What the module `signal` has, without the enumerations that it makes of it: those take longer than the rest of the way to the handler."""
INTERRUPTED = 130
OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Objects between two collections of cycles. The default of Python is 700, which takes a tenth of a command that mostly imports."""
LARGE_BLOCK_BYTES = 31 * 2**20
"""Largest block that the allocator of glibc keeps for what comes next once it is freed: the arrays of one simulation then lie where those of the last one
lay, instead of in new pages, which took a seventh of a search. Elsewhere freeing it changes nothing."""


AGAIN_S = 0.02
"""Time until Ctrl-C is looked at again that came while a module was imported."""
_AGAIN = getattr(signal, "ITIMER_REAL", None)
"""The timer that looks again; none on Windows."""


def _leave(*_: object) -> None:
    """End at once: while modules are imported or the interpreter ends, nothing is half done."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _interrupt(_number: int, frame: "FrameType | None") -> None:
    """Raise KeyboardInterrupt, but not inside an import: what runs there may take it for an error of its own, or swallow it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib") and _AGAIN is not None:
            signal.setitimer(_AGAIN, AGAIN_S)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether a library made an error of its own of Ctrl-C."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


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
            if _AGAIN is not None:
                signal.signal(signal.SIGALRM, _interrupt)
            signal.signal(signal.SIGINT, _interrupt)
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if not _is_interrupt(error):
            raise
        os.write(2, b"interrupted\n")
        return INTERRUPTED
    finally:
        gc.freeze()  # the interpreter ends without looking for cycles once more, which took a twentieth of a quick command
        if heard:
            signal.signal(signal.SIGINT, _leave)
            if _AGAIN is not None and any(signal.setitimer(_AGAIN, 0.0)):
                _leave()  # Ctrl-C came in the last import


if __name__ == "__main__":
    sys.exit(main())
