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
_RAISED: list[bool] = []
"""Something once Ctrl-C was raised: a library may make an error of its own of it."""


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
    _RAISED.append(True)
    raise KeyboardInterrupt


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
    except Exception:
        if not _RAISED:
            raise
        os.write(2, b"interrupted\n")
        return INTERRUPTED
    finally:
        gc.freeze()  # the interpreter ends without looking for cycles once more, which took a twentieth of a quick command
        if heard:
            signal.signal(signal.SIGINT, _leave)


if __name__ == "__main__":
    sys.exit(main())
