"""Requests as processes: each one is forked with everything loaded, has limits, and ends when nobody waits for it any more."""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from capplan.cli.api import worker
from capplan.errors import CapplanError

PROGRESS_EVERY_S = 0.25
_PRELOADED = "capplan.cli.api.warm"


class BusyError(CapplanError):
    """More requests wait than are taken."""


class TooLongError(CapplanError):
    """A request took longer than one may."""


class Lane(Enum):
    """How long a question may take."""

    QUICK = auto()
    """A second or less."""
    SEARCH = auto()
    """Seconds: one search."""
    SEARCHES = auto()
    """Tens of seconds: a search for each of many changes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request, and all of them together, may use."""

    running: int = os.cpu_count() or 1
    """Questions of each lane that run at a time."""
    waiting: int = 256
    seconds: float = 300.0
    body_bytes: int = 16_000_000
    held_bytes: int = 256_000_000
    """Most bytes of the bodies of all requests together."""
    read_s: float = 20.0
    """Longest time for a request to arrive, and for a client to read each part of an answer."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended, and what it printed."""

    code: int
    out: str
    errors: str


class Jobs:
    """Runs commands, each in a process and a folder of its own; those of one lane wait for each other only."""

    def __init__(self, limits: Limits, *, offline: bool, confined: bool = True) -> None:
        """Take the limits, whether commands may open no connection, and whether they may read no files but those of their request."""
        self.limits, self.offline, self._confined = limits, offline, confined
        self._lanes = {lane: asyncio.Semaphore(limits.running) for lane in Lane}
        self._taken = 0
        self._begun: set[asyncio.Task[Done]] = set()
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload([_PRELOADED])

    async def warm_up(self) -> None:
        """Start the process that workers are forked from."""
        from multiprocessing import forkserver

        await asyncio.to_thread(forkserver.ensure_running)

    async def run_alone(self, words: Sequence[str], *, lane: Lane) -> Done:
        """Run a command line; its process ends with a call that is cancelled, however often and by whom, and `ended` waits for that."""
        running = asyncio.ensure_future(self.run(lambda _: words, lambda _: None, lane=lane))
        self._begun.add(running)
        running.add_done_callback(self._begun.discard)
        try:
            return await asyncio.shield(running)
        finally:
            running.cancel()

    async def ended(self) -> None:
        """Wait until all that was cancelled has ended."""
        if self._begun:
            await asyncio.wait(self._begun)

    async def run(
        self,
        words: Callable[[Path], Sequence[str]],
        told: Callable[[Mapping[str, Any]], None],
        *,
        lane: Lane,
    ) -> Done:
        """Run a command; a cancelled call ends its process.

        Parameters
        ----------
        words : writes the files of the request to a folder and returns the command line
        told : takes the progress
        lane : how long it may take; it waits for others that may take as long
        """
        if self._taken >= self.limits.waiting:
            raise BusyError("the server has as many requests as it takes; try again in some seconds")
        self._taken += 1
        job = Path(tempfile.mkdtemp(prefix="capplan-"))
        try:
            (job / worker.WORK).mkdir()
            line = words(job / worker.WORK)
            async with self._lanes[lane]:
                return await self._answered(job, line, told)
        finally:
            self._taken -= 1
            shutil.rmtree(job, ignore_errors=True)

    async def _answered(
        self, job: Path, line: Sequence[str], told: Callable[[Mapping[str, Any]], None]
    ) -> Done:
        seconds = self.limits.seconds
        process = self._context.Process(
            target=worker.answer, args=(str(job), line, self.offline, self._confined, int(seconds) + 1)
        )
        starting = asyncio.ensure_future(asyncio.to_thread(process.start))
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(starting)
                await _ended(process, job / worker.PROGRESS, told)
        except TimeoutError:
            raise TooLongError(
                f"took longer than {seconds:g} s, the longest that this server computes"
            ) from None
        finally:
            await asyncio.shield(_stopped(starting, process))
        code = process.exitcode
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            raise TooLongError("used more time or memory than this server gives to a request")
        own = f"{(job / worker.WORK).resolve()}{os.sep}"
        errors = _text(job / worker.ERRORS).replace(own, "")
        return Done(1 if code is None or code < 0 else code, _text(job / worker.OUT), errors)


async def _stopped(starting: "asyncio.Future[None]", process: ForkServerProcess) -> None:
    """Wait until a process has started, and end it with all that it started."""
    await asyncio.wait([starting])
    if starting.exception() is not None or process.pid is None:
        return
    if process.is_alive():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    await asyncio.to_thread(process.join)


async def _ended(
    process: ForkServerProcess, progress: Path, told: Callable[[Mapping[str, Any]], None]
) -> None:
    """Wait for the end of a process, and say how far it is."""
    loop, end = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process.sentinel, end.set)
    seen = 0
    try:
        while not end.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(end.wait(), PROGRESS_EVERY_S)
            whole = _text(progress).rpartition("\n")[0].splitlines()
            steps = [json.loads(line) for line in whole[seen:]]
            seen = len(whole)
            for step in (
                *(one for one in steps if "found" in one),
                *[one for one in steps if "done" in one][-1:],
            ):
                told(step)
    finally:
        loop.remove_reader(process.sentinel)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def say_bug(done: Done) -> None:
    """Print the traceback of a command for who runs the server."""
    print(done.errors, file=sys.stderr)
