"""Run a series against a server and return results, as if a benchmark tool had written them."""

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from capplan.calibrate.endpoint.client import Answered, Endpoint, Question, answered, fetched
from capplan.calibrate.endpoint.own_counters import OwnCounters
from capplan.calibrate.endpoint.series import (
    MOST_REQUESTS,
    OPEN_SHARE,
    OPEN_TIME_SHARE,
    Point,
    Series,
    open_loop,
    shared_loop,
)
from capplan.errors import InputError
from capplan.readers.catalogue.models import called_alike, shipped_id
from capplan.recorded.results.record import BenchmarkResult, Latency, latency
from capplan.workload.statistics import LONGEST_TOKENS

TOOL = "capplan calibrate --endpoint"
IDS = (1000, 20000)
"""Range of the token ids that are sent: in the vocabulary of every model of today, and none of them special."""
WORDS = ("river", "stone", "cloud", "paper", "light", "garden", "winter", "metal", "harbor", "signal")
LLAMACPP = "llamacpp"
"""Owner that llama.cpp's server states for its models."""
MOST_WRONG_SHARE = 0.5
"""Share of failed requests above which a point does not count."""
LEAST_ANSWERS = 2


@dataclass(slots=True)
class Probed:
    """Results, streams and counters of a series."""

    results: list[BenchmarkResult] = field(default_factory=list)
    answers: list[tuple[str, list[Answered]]] = field(default_factory=list)
    """Name of each load of the series, and its streamed answers."""
    remarks: list[str] = field(default_factory=list)
    counted: dict[str, float] = field(default_factory=dict)
    """Growth of the server's own counters over the series."""
    fullest: dict[str, float] = field(default_factory=dict)
    """The highest numbers of running and waiting requests and share of the cache in use that the server stated."""
    stopped: bool = False
    """Ended by Ctrl-C."""
    stairs: list[list[Answered]] = field(default_factory=list)
    """Answers of each stairs, first those before the closed loops."""


def served_model(server: Endpoint, model: str) -> tuple[Endpoint, int | None, str, bool]:
    """Return what a server serves: the only model, or of several the one that is called like the expected one.

    Parameters
    ----------
    server : that lists its models
    model : that is expected there

    Returns
    -------
    the server with the name that it has for the model; its longest context, if it says so; what is uncertain about the model, empty if nothing
    is; whether it is llama.cpp's server

    Raises
    ------
    InputError
        nothing answers, or it serves another model
    """
    rows = _listed_models(fetched(server, "/v1/models"))
    if not rows:
        raise InputError(
            f"--endpoint: {server.shown}/v1/models does not answer, or names no model\n  give the address of an OpenAI-compatible server that runs"
        )
    named = [
        name for name, row in rows.items() if any(called_alike(word, model) for word in (name, row["root"]))
    ]
    if len(rows) > 1 and len(named) != 1:
        raise InputError(
            f"--endpoint: {server.shown} serves several models: {', '.join(list(rows)[:5])}\n"
            f"  {len(named) or 'none'} of them called like {model}; a series needs a server with one"
        )
    name = named[0] if named else next(iter(rows))
    known = shipped_id(name) or shipped_id(rows[name]["root"])
    if not named and known:
        raise InputError(
            f"--endpoint: {server.shown} serves {known}, and {model} is expected there\n  name the model that it serves, or give the address of another server"
        )
    notice = "" if named else f"the server calls its model {name!r}, which is taken for {model}"
    longest = rows[name]["longest"]
    stated = isinstance(longest, int) and not isinstance(longest, bool) and 0 < longest <= LONGEST_TOKENS
    has_slots = rows[name]["owner"] == LLAMACPP
    return replace(server, model=name), longest if stated else None, notice, has_slots


def _listed_models(text: str) -> dict[str, dict[str, Any]]:
    """Return the models of a list by their names: where each was loaded from, and its longest context."""
    try:
        return {
            str(row["id"]): {
                "root": str(row.get("root") or ""),
                "longest": row.get("max_model_len"),
                "owner": row.get("owned_by"),
            }
            for row in json.loads(text)["data"]
            if isinstance(row, dict) and "id" in row
        }
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


Pieces: TypeAlias = Sequence[int] | Sequence[str]
"""Pieces of a prompt: token ids, or words."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """How to write prompts for a server."""

    takes_ids: bool
    words_per_token: float = 1.0
    returns_ids: bool = False
    """The server returns the ids of what it generates."""

    def pieces_of(self, tokens: int) -> int:
        """Return the pieces that make up a number of tokens."""
        return tokens if self.takes_ids else max(round(tokens * self.words_per_token), 1)

    def drawn(self, draw: random.Random, pieces: int) -> Pieces:
        """Return random pieces."""
        if self.takes_ids:
            return [draw.randrange(*IDS) for _ in range(pieces)]
        return [draw.choice(WORDS) for _ in range(pieces)]

    def question(self, pieces: Pieces, output_tokens: int) -> Question:
        """Return a request with this prompt."""
        if self.takes_ids:
            return Question(tuple(map(int, pieces)), output_tokens, returns_ids=self.returns_ids)
        return Question(" ".join(map(str, pieces)), output_tokens)

    def unlike(self, draw: random.Random, point: Point) -> Question:
        """Return a request whose prompt is like no other."""
        return self.question(self.drawn(draw, self.pieces_of(point.input_tokens)), point.output_tokens)

    def pieces_of_response(self, answer: Answered) -> Pieces:
        """Return the pieces of a response; none if the server takes token ids and returns none."""
        return answer.ids if self.takes_ids else answer.text.split()


def prompts_for(server: Endpoint, draw: random.Random, *, whole_sessions: bool = False) -> Prompts:
    """Return how the server takes prompts; the requests that find it out also warm it.

    Parameters
    ----------
    server : with the name of its model
    draw : of prompts
    whole_sessions : turns continue responses, so the server is asked for the ids of what it generates

    Raises
    ------
    InputError
        it answers neither token ids nor text
    """
    point = Point(64, 8)
    ways = (Prompts(takes_ids=True, returns_ids=True), Prompts(takes_ids=True), Prompts(takes_ids=False))
    for way in ways if whole_sessions else ways[1:]:
        first = answered(server, way.unlike(draw, point))
        if first.error or (way.returns_ids and not first.ids):
            continue
        if way.takes_ids or not first.input_tokens:
            return way
        return replace(way, words_per_token=point.input_tokens / first.input_tokens)
    raise InputError(f"--endpoint: {server.shown} does not answer: {first.error}")


def probed(server: Endpoint, series: Series, tell: Callable[[str], None], seed: int = 0) -> Probed:
    """Send a series; what was measured before Ctrl-C is kept.

    Parameters
    ----------
    server : with the name of its model
    series : of `designed`
    tell : receives a line for each point
    seed : of prompts and arrivals

    Returns
    -------
    results by point, and what the server counted
    """
    draw = random.Random(seed)  # prompts and arrivals
    found = Probed()
    prompts = prompts_for(server, draw)
    if not prompts.takes_ids:
        found.remarks.append(
            "the server takes no token ids: prompts are words, and their lengths those that it counted"
        )
    start_s = time.monotonic()
    with OwnCounters(server) as own:
        try:
            _stairs(server, prompts, draw, series, found, tell)
            stairs_s = time.monotonic() - start_s
            for number, point in enumerate(series.points):
                tell(f"{number + 1} of {len(series.points) + 1}: {point.name}")
                _closed(server, point, prompts, draw, series, found)
                if _late(series, number, start_s, stairs_s):
                    skipped = len(series.points) - number - 1
                    found.remarks.append(
                        f"out of time: {skipped} of {len(series.points)} closed loops were left out"
                    )
                    break
            _open(server, prompts, draw, series, found, tell)
            _stairs(server, prompts, draw, series, found, tell)
        except KeyboardInterrupt:
            found.stopped = True
            found.remarks.append(
                f"stopped by Ctrl-C after {len(found.results)} of {len(series.points) + 1} points"
            )
    found.counted, found.fullest = own.counted, own.fullest
    return found


def _late(series: Series, number: int, start_s: float, stairs_s: float) -> bool:
    """Return whether too little time is left for the next point, half an open loop and the last stairs, given what the points so far took."""
    spent_s = time.monotonic() - start_s - stairs_s
    left = number + 1 < len(series.points)
    room_s = series.seconds * (1.0 - 0.5 * OPEN_TIME_SHARE) - 2.0 * stairs_s
    return left and spent_s + spent_s / (number + 1) > room_s


def _stairs(
    server: Endpoint,
    prompts: Prompts,
    draw: random.Random,
    series: Series,
    found: Probed,
    tell: Callable[[str], None],
) -> None:
    """Send requests together that end one after the other."""
    if not series.stairs:
        return
    asked = [prompts.unlike(draw, point) for point in series.stairs]
    tell(
        f"stairs: {len(asked)} requests at once, of {asked[-1].output_tokens} to {asked[0].output_tokens} tokens out"
    )
    found.stairs.append(shared_loop(server, asked, len(asked)))


def _closed(
    server: Endpoint, point: Point, prompts: Prompts, draw: random.Random, series: Series, found: Probed
) -> None:
    asked = [prompts.unlike(draw, point) for _ in range(point.most_requests)]
    answers = shared_loop(server, asked, point.concurrency, until_s=time.monotonic() + series.point_s)
    _keep(found, point.name, answers, BenchmarkResult(TOOL, point.name, concurrency=float(point.concurrency)))


def _open(
    server: Endpoint,
    prompts: Prompts,
    draw: random.Random,
    series: Series,
    found: Probed,
    tell: Callable[[str], None],
) -> None:
    """Send requests at random times, at a share of the highest rate that a closed loop with short prompts had."""
    rated = [result for result in found.results if result.requests_per_s]
    if not rated:
        return
    best = max(rated, key=lambda result: result.requests_per_s or 0.0)
    rate = OPEN_SHARE * (best.requests_per_s or 0.0)
    count = int(min(max(rate * series.seconds * OPEN_TIME_SHARE, LEAST_ANSWERS), MOST_REQUESTS))
    point = Point(round(best.input_tokens or 1), round(best.output_tokens or 1))
    name = f"{rate:.3g} requests per s, {point.input_tokens} tokens in, {point.output_tokens} out"
    tell(f"{len(series.points) + 1} of {len(series.points) + 1}: open loop, {name}")
    times = np.cumsum([draw.expovariate(rate) for _ in range(count)]).tolist()
    answers = open_loop(server, [prompts.unlike(draw, point) for _ in times], times)
    _keep(found, name, answers, BenchmarkResult(TOOL, name, request_rate_per_s=rate))


def _keep(found: Probed, name: str, answers: Sequence[Answered], bare: BenchmarkResult) -> None:
    """Keep the result of a point, unless too many of its requests failed."""
    good = [answer for answer in answers if not answer.error]
    wrong = [answer for answer in answers if answer.error]
    found.answers.append((name, list(answers)))
    if wrong:
        busy = sum(answer.busy for answer in wrong)
        limited = f", {busy} because the server limits its load" if busy else ""
        found.remarks.append(
            f"{name}: {len(wrong)} of {len(answers)} requests failed{limited}: {wrong[0].error}"
        )
    if len(good) < LEAST_ANSWERS or len(wrong) > MOST_WRONG_SHARE * len(answers):
        found.remarks.append(f"{name}: left out, {len(good)} of {len(answers)} requests count")
        return
    found.results.append(summary(good, bare))


def summary(good: Sequence[Answered], bare: BenchmarkResult) -> BenchmarkResult:
    """Return a result with the latencies and rates of answers.

    Parameters
    ----------
    good : answers without an error
    bare : the result without them
    """
    seconds = max(answer.ended_s for answer in good) - min(answer.sent_s for answer in good)
    outputs = sum(answer.output_tokens for answer in good)
    tpot = [
        (answer.token_s[-1] - answer.token_s[0]) / (answer.output_tokens - 1)
        for answer in good
        if answer.output_tokens > 1 and len(answer.token_s) > 1
    ]
    return replace(
        bare,
        requests=len(good),
        input_tokens=float(np.mean([answer.input_tokens for answer in good])) or None,
        output_tokens=outputs / len(good),
        ttft_s=_spread([answer.token_s[0] - answer.sent_s for answer in good]),
        tpot_s=_spread(tpot),
        e2e_s=_spread([answer.token_s[-1] - answer.sent_s for answer in good]),
        requests_per_s=len(good) / seconds if seconds > 0.0 else None,
        output_tokens_per_s=outputs / seconds if seconds > 0.0 else None,
    )


def _spread(values: Sequence[float]) -> Latency:
    if not values:
        return latency()
    return latency(float(np.mean(values)), *(float(np.percentile(values, part)) for part in (50, 90, 95, 99)))
