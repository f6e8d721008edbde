"""The log of llama.cpp's server at its highest verbosity, as requests and steps."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import nan
from statistics import fmean, median
from typing import Any

from calibrate.live.queueing import NEVER_IDLE_S, RecordedStep
from calibrate.live.step_logs import LoggedRequest, Step, StepLog

_LINE = re.compile(r"(?:.*\.)?(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) [A-Z] (.*)")
"""Time and text; a message that ends without a new line may stand before."""
_EVENTS = {
    "sent": re.compile(r"^res  add_waiting_: add task (\d+) to waiting list"),
    "taken": re.compile(r"^que  process_new_: processing task, id = (\d+)"),
    "declined": re.compile(r"^que  process_new_: task declined, id = (\d+)"),
    "prompt": re.compile(
        r"^slot   operator\(\): id +\d+ \| task (\d+) \| new prompt,.* task.n_tokens = (\d+)"
    ),
    "piece": re.compile(
        r"^slot   operator\(\): id +\d+ \| task (\d+) \| cached n_tokens = (\d+), memory_seq_rm"
    ),
    "decode": re.compile(
        r"^slot handle_last_: id +\d+ \| task (\d+) \| slot decode token,.* n_tokens = (\d+)"
    ),
    "token": re.compile(r"^slot process_toke: id +\d+ \| task (\d+) \| n_gen = .* next token: +(\d+)"),
    "step": re.compile(r"^srv        decode: n_batch \(effective\) = \d+, off = 0()"),
    "computed": re.compile(r"^que  yield_to_que: done yielding to queue()"),
}
"""Lines that are read, by what they tell; a batch that is computed in parts is one step."""


def telling(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a log that are read here; the server also queues tasks for itself, which are left out."""
    requests: set[str] = set()
    for line in lines:
        stamp = _LINE.match(line)
        found = (
            next((pattern.match(stamp[5]) for pattern in _EVENTS.values() if pattern.match(stamp[5])), None)
            if stamp
            else None
        )
        if found is None:
            continue
        if found.re is _EVENTS["sent"]:
            requests.add(found[1])
        if not found[1] or found[1] in requests:
            yield line


@dataclass(slots=True)
class _Task:
    """A request as the log has it."""

    sent_s: float
    place: int | None = None
    """In the order in which the scheduler took them from its queue and did not put them back."""
    from_step: int = 0
    """Steps that had begun then."""
    prompt_tokens: int = 0
    outputs: list[int] = field(default_factory=list)
    pieces: list[tuple[int, int]] = field(default_factory=list)
    """(step, tokens in the cache before) of each piece of its prompt."""
    decodes: list[tuple[int, int]] = field(default_factory=list)
    """(step, tokens in the cache before) of each of its further tokens."""

    def chunks(self) -> Iterable[tuple[int, int, int]]:
        """Yield step, new tokens and tokens in the cache before of each piece of the prompt."""
        ends = [*(before for _, before in self.pieces[1:]), self.prompt_tokens]
        for (step, before), after in zip(self.pieces, ends, strict=True):
            yield step, after - before, before


class ServerLog:
    """What a server did while it wrote a log, or a part of one in which it was idle before and after."""

    def __init__(self, lines: Iterable[str]) -> None:
        """Read the log."""
        self._tasks: dict[int, _Task] = {}
        self._taken = 0
        self.begun_s: list[float] = []
        self.ended_s: list[float] = []
        for text in lines:
            stamp = _LINE.match(text)
            if stamp:
                minutes, seconds, milli, micro = (int(part) for part in stamp.groups()[:4])
                at_s = 60.0 * minutes + seconds + 1e-3 * milli + 1e-6 * micro
                self._line(stamp[5], at_s)

    @property
    def requests(self) -> list[_Task]:
        """Return the requests in the order in which the scheduler took them."""
        placed = {task.place: task for task in self._tasks.values() if task.place is not None and task.pieces}
        return [placed[place] for place in sorted(placed)]

    def _line(self, text: str, at_s: float) -> None:
        for kind, pattern in _EVENTS.items():
            found = pattern.match(text)
            if found is None:
                continue
            if kind == "step":
                self.begun_s.append(at_s)
                self.ended_s.append(at_s)
            elif kind == "computed":
                if self.ended_s:
                    self.ended_s[-1] = at_s
            else:
                self._event(kind, at_s, *map(int, found.groups()))
            return

    def _event(self, kind: str, at_s: float, name: int, number: int = 0) -> None:
        if kind == "sent":
            self._tasks[name] = _Task(at_s)
        task, step = self._tasks.get(name), len(self.begun_s)
        if task is None:
            return
        if kind == "taken" and task.place is None:
            task.place, task.from_step = self._taken, step
            self._taken += 1
        elif kind == "declined":
            task.place = None
        elif kind == "prompt":
            task.prompt_tokens = number
        elif kind == "piece":
            task.pieces.append((step, number))
        elif kind == "decode":
            task.decodes.append((step, number))
        elif kind == "token":
            task.outputs.append(number)

    def step_log(
        self, limits: dict[str, Any], spoken: Iterable[tuple[Sequence[int], Sequence[int]]] = ()
    ) -> StepLog:
        """Return requests and steps.

        Parameters
        ----------
        limits : of the server, as the simulator takes them
        spoken : prompt and response of each request in tokens, for what prompts find in their slots; the log holds only responses
        """
        prefixes = _Prefixes(spoken)
        prompts, decodes = defaultdict(list), defaultdict(list)
        for number, task in enumerate(self.requests):
            for step, new, before in task.chunks():
                prompts[step].append((number, new, before))
            for step, _ in task.decodes:
                decodes[step].append(number)
        steps = (
            Step(tuple(sorted(prompts[place])), tuple(sorted(decodes[place])), ())
            for place in range(len(self.begun_s))
        )
        requests = (
            LoggedRequest(task.from_step, task.prompt_tokens, len(task.outputs), 0, *prefixes.of(task))
            for task in self.requests
        )
        return StepLog(limits, tuple(requests), tuple(steps))

    def recorded_steps(self) -> list[RecordedStep]:
        """Return the steps with their times after the first request, each up to the next one where the server stays busy."""
        chunks, contexts = defaultdict(list), defaultdict(list)
        for task in self.requests:
            for step, new, before in task.chunks():
                chunks[step].append((new, before))
            for step, before in task.decodes:
                contexts[step].append(before)
        first_s = min((task.sent_s for task in self.requests), default=nan)
        nexts = [*self.begun_s[1:], nan]
        found = []
        for place, (begun, ended, after) in enumerate(zip(self.begun_s, self.ended_s, nexts, strict=True)):
            until = after if after - ended < NEVER_IDLE_S else ended
            found.append(
                RecordedStep(
                    begun - first_s, sum(new for new, _ in chunks[place]), len(contexts[place]), until - begun,
                    fmean(contexts[place]) if contexts[place] else 0.0, tuple(chunks[place]),
                )
            )  # fmt: skip
        return found

    def outside_s(self, ttfts: Sequence[float]) -> float:
        """Return the median time that a request spends outside the steps before its first token; `ttfts` [s] in the same order."""
        inside = [self.ended_s[task.pieces[-1][0]] - task.sent_s for task in self.requests]
        return median(ttft - seconds for ttft, seconds in zip(ttfts, inside, strict=True))


class _Prefixes:
    """Numbers prefixes of token sequences: equal numbers stand for equal tokens up to there."""

    def __init__(self, spoken: Iterable[tuple[Sequence[int], Sequence[int]]]) -> None:
        self._prompts = {(len(prompt), *said): prompt for prompt, said in spoken}
        self._numbers: dict[tuple[int, int], int] = {}

    def of(self, task: _Task) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the numbers after each token of a request's prompt, and of its response but for the last token."""
        prompt = self._prompts.get((task.prompt_tokens, *task.outputs), ())
        ids, before = [], -1
        for token in (*prompt, *task.outputs[:-1]) if prompt else ():
            before = self._numbers.setdefault((before, token), len(self._numbers))
            ids.append(before)
        return tuple(ids[: len(prompt)]), tuple(ids[len(prompt) :])
