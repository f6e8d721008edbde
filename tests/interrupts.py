"""Programs that a test interrupts with Ctrl-C, whatever the caller of the tests does with that signal."""

import signal
import subprocess


def _hear():
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _ignore():
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def started(command, *, hears=True, **more):
    """Start a program that Ctrl-C reaches.

    Shells ignore SIGINT in a job of the background, and every process that such a job starts ignores it too: the tests
    and their children. `hears=False` starts a program as those shells do.
    """
    return subprocess.Popen(command, preexec_fn=_hear if hears else _ignore, **more)  # noqa: PLW1509 - no thread waits
