"""The traffic of a plan, sent to one running replica as one of its busy replicas gets it: classes, lengths, arrivals, users, sessions and prefixes."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from capplan.calibrate.endpoint.client import Answered, Endpoint, Question
from capplan.calibrate.endpoint.probe import Pieces, Prompts, prompts_for, served_model, summary
from capplan.calibrate.endpoint.series import Told, open_loop, shared_loop, together
from capplan.errors import InputError
from capplan.fleet.plan import Plan
from capplan.fleet.review import spec_of_layout
from capplan.fleet.simulation import Stream
from capplan.questions.fleet import AskedFleet
from capplan.questions.plans.plan_verification import SENT, planned_stream, refuse_drafts
from capplan.recorded.results.record import BenchmarkResult
from capplan.replica.replica import replica_of
from capplan.serving.requests import Requests

MINUTES = 5.0
"""Minutes of traffic that count, unless --minutes says how many."""
SEED = 4099
"""Seed of the requests that are sent; the prediction draws others."""
LEAST_REQUESTS = 20
"""Requests that arrive on average in the shortest traffic: at a low rate it lasts longer than --minutes."""
MOST_WRONG_SHARE = 0.02
"""Share of failed requests above which nothing is compared: a server that sheds load has other latencies."""
LINES = 10
"""Most lines of progress in one run."""


def measured_plan(
    server: Endpoint,
    asked: AskedFleet,
    plan: Plan,
    *,
    minutes: float | None,
    tell: Callable[[str], None],
) -> BenchmarkResult:
    """Return what a replica measured under the traffic of the plan.

    Parameters
    ----------
    server : one replica
    asked : the question of the plan
    plan : whose busy replicas share the load evenly
    minutes : [min]
        of traffic that counts; None: MINUTES
    tell : receives lines of progress

    Raises
    ------
    InputError
        nothing answers, requests failed, or completions are not what the plan's traffic asks for
    """
    _refuse_other_requests(asked, server.shown)
    refuse_drafts(plan, server.shown)
    server, _, notice, _ = served_model(server, asked.scenario.model)
    replica = replica_of(spec_of_layout(plan.single.layout, asked.question))
    demand, busy = asked.question.demand, plan.single.busy_replicas
    most_per_s = sum(demand.rates_per_s(0.0)) / busy
    seconds = max(60.0 * (minutes or MINUTES), LEAST_REQUESTS / most_per_s)
    stream = planned_stream(
        asked, replica, 1.0 / busy, seconds=seconds, replicas=1, seed=SEED, turns_wait=False
    )
    prompts = prompts_for(server, random.Random(SEED), whole_sessions=demand.has_sessions)
    traffic = _Traffic(server, prompts, stream.warm_up_s + seconds, tell)
    users = f", {stream.crowd.users} users" if stream.crowd else ""
    before = f"{stream.warm_up_s / 60:.3g} min in which sessions begin, and " if stream.warm_up_s else ""
    tell(f"{server.shown}: {before}{seconds / 60:.3g} min as one of {busy} replicas{users}")
    traffic.send(stream)
    wrong = [answer for answer in traffic.answers if answer.error]
    if len(wrong) > MOST_WRONG_SHARE * len(traffic.answers):
        raise InputError(
            f"--endpoint: {len(wrong)} of {len(traffic.answers)} requests failed: {wrong[0].error}\n"
            "  a replica that sheds load is not compared: give it less, or see its log"
        )
    notes = [notice] if notice else []
    notes += [f"{len(wrong)} requests failed: {wrong[0].error}"] if wrong else []
    if demand.has_sessions and prompts.takes_ids and not prompts.returns_ids:
        notes.append(
            "the server returns no token ids, so no turn repeats the response before it, and fewer tokens hit the prefix cache than in use"
        )
    bare = BenchmarkResult(
        SENT,
        server.shown,
        model=asked.scenario.model,
        request_rate_per_s=None if demand.users else most_per_s,
        notes=tuple(notes),
    )
    return traffic.measured(stream, bare)


def _refuse_other_requests(asked: AskedFleet, address: str) -> None:
    """Raise the error for traffic that is not completions of text."""
    for item in asked.question.demand.classes:
        kind = "ask for vectors or scores" if item.pooled else "hold images" if item.images else ""
        if kind:
            raise InputError(
                f"--endpoint: {address}: requests of {item.name} {kind}, and capplan sends completions of text\n"
                "  measure it with a benchmark tool, and give the file: --results FILE"
            )


class _Traffic:
    """A stream on its way to a server: requests at their times, and users who think and wait, all together."""

    def __init__(
        self, server: Endpoint, prompts: Prompts, seconds: float, tell: Callable[[str], None]
    ) -> None:
        self._server, self._prompts, self._seconds, self._tell = server, prompts, seconds, tell
        self._lock = threading.Lock()
        self._lines = 0
        self._begun_s = 0.0
        self.answers: list[Answered] = []

    def send(self, stream: Stream) -> None:
        """Send the stream; users send no request once its time is over."""
        said = Conversations(self._prompts, stream.block_tokens)
        parts: list[Callable[[], object]] = []
        self._begun_s = time.monotonic()
        if stream.requests is not None:
            asked, heard = said.of(stream.requests)
            times = stream.requests.times_s.tolist()
            parts.append(partial(open_loop, self._server, asked, times, self._ended(heard)))
        for crowd in stream.crowd.parts if stream.crowd else ():
            asked, heard = said.of(crowd.requests)
            thinks = [] if crowd.think_s is None else crowd.think_s.tolist()
            until_s = self._begun_s + self._seconds
            parts.append(
                partial(shared_loop, self._server, asked, crowd.users, self._ended(heard), until_s, thinks)
            )
        together(parts)

    def _ended(self, heard: Told) -> Told:
        """Return what notes an answer, and tells how far the traffic is."""

        def told(place: int, answer: Answered) -> None:
            heard(place, answer)
            with self._lock:
                self.answers.append(answer)
                spent_s = time.monotonic() - self._begun_s
                if spent_s * LINES >= (self._lines + 1) * self._seconds:
                    self._lines = int(spent_s / self._seconds * LINES)
                    self._tell(f"{spent_s / 60:.2g} min: {len(self.answers)} requests have ended")

        return told

    def measured(self, stream: Stream, bare: BenchmarkResult) -> BenchmarkResult:
        """Return the result of the requests that count: as in the prediction, the first ones warm the server up.

        Raises
        ------
        InputError
            none of them counts
        """
        sent_s = np.array([answer.sent_s for answer in self.answers]) - self._begun_s
        begin = max(stream.warm_up_s, float(np.quantile(sent_s, stream.warm_up_share)))
        end = self._seconds if stream.crowd else float(sent_s.max())
        good = [
            (at, answer) for at, answer in zip(sent_s.tolist(), self.answers, strict=True) if not answer.error
        ]
        counted = [answer for at, answer in good if begin <= at <= end]
        if not counted:
            raise InputError(
                "--endpoint: no request ended after the first ones, which warm it up; give it more --minutes"
            )
        done = [answer for _, answer in good if begin < answer.ended_s - self._begun_s <= end]
        tokens = sum(answer.output_tokens for answer in done)
        return replace(
            summary(counted, bare),
            requests_per_s=len(done) / (end - begin),
            output_tokens_per_s=tokens / (end - begin),
        )


class Conversations:
    """Prompts and responses so far, and the next prompts: those of a stream that share a prefix are sent with a common beginning.

    Examples
    --------
    >>> import numpy as np
    >>> two = np.array([4, 4])
    >>> said = Conversations(Prompts(takes_ids=True), 0)
    >>> asked, _ = said.of(Requests(two, two, cached_tokens=np.array([0, 2])))
    >>> again, _ = said.of(Requests(two, two, cached_tokens=np.array([2, 2])))
    >>> [asked[1]().prompt[:2] == other().prompt[:2] for other in (asked[0], *again)]
    [False, True, True]
    """

    def __init__(self, prompts: Prompts, block_tokens: int) -> None:
        """Begin without a prompt.

        Parameters
        ----------
        prompts : as the server takes them
        block_tokens : [tokens]
            of the blocks with equal ids; 0: the requests have none
        """
        self._prompts, self._block_tokens = prompts, block_tokens
        self._draw = random.Random(SEED)  # prompts
        self._said: dict[int, Pieces] = {}
        """Block id -> a prompt that holds the block, with the response to it if the block ends there."""
        self._lock = threading.Lock()

    def of(self, requests: Requests) -> tuple[list[Callable[[], Question]], Told]:
        """Return what writes each request when it is sent, and what hears its answer.

        A turn of a session waits for the response that it continues.
        """
        none = [np.zeros(0, dtype=np.int64)] * len(requests)
        prompts = [ids.tolist() for ids in requests.pieces("block_ids") or none]
        responses = [ids.tolist() for ids in requests.pieces("output_ids") or none]
        before = _responses_continued(prompts, responses)
        heard = [threading.Event() for _ in prompts]
        written: dict[int, Pieces] = {}
        columns = zip(
            requests.input_tokens.tolist(), requests.column("cached_tokens").tolist(),
            requests.column("class_index").tolist(), requests.output_tokens.tolist(), strict=True,
        )  # fmt: skip
        rows = list(columns)

        def asked(row: int) -> Question:
            if (turn := before[row]) is not None:
                heard[turn].wait()
            length, cached, of_class, output_tokens = rows[row]
            with self._lock:
                count = self._prompts.pieces_of(length)
                head = self._head(prompts[row], cached, of_class)[:count]
                written[row] = [*head, *self._prompts.drawn(self._draw, count - len(head))]
                for block in prompts[row]:
                    self._said.setdefault(block, written[row])
                return self._prompts.question(written[row], output_tokens)

        def answered(row: int, answer: Answered) -> None:
            with self._lock:
                together = [*written.pop(row), *self._prompts.pieces_of_response(answer)]
                self._said.update(dict.fromkeys(responses[row], together))
            heard[row].set()

        return [partial(asked, row) for row in range(len(rows))], answered

    def _head(self, blocks: Sequence[int], cached: int, of_class: int) -> Pieces:
        """Return what a prompt has in common with others: the blocks that were said before, or what its class shares."""
        known = [place for place, block in enumerate(blocks) if block in self._said]
        if known:
            end = self._prompts.pieces_of((known[-1] + 1) * self._block_tokens)
            return self._said[blocks[known[-1]]][:end]
        if not cached:
            return []
        shared = random.Random(f"class {of_class}")  # the same pieces for the same class
        return self._prompts.drawn(shared, self._prompts.pieces_of(cached))


def _responses_continued(
    prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
) -> list[int | None]:
    """Return the request whose response each prompt continues, by the ids of their blocks; None for first turns.

    Examples
    --------
    >>> _responses_continued([[0, 1], [0, 7], [0, 1, 2, 3]], [[2], [], []])
    [None, None, 0]
    """
    filled: dict[int, int] = {}
    before = []
    for row, (asked, answered) in enumerate(zip(prompts, responses, strict=True)):
        before.append(max((filled[block] for block in asked if block in filled), default=None))
        filled |= dict.fromkeys(answered, row)
    return before
