"""The traffic of a plan, sent to one running replica: its classes, lengths, arrivals and prefixes, at the planned rate of a replica."""

import random
from collections.abc import Callable

from capplan.calibrate.endpoint.client import Endpoint, Question
from capplan.calibrate.endpoint.probe import IDS, Prompts, prompts_for, served_model, summary
from capplan.calibrate.endpoint.series import Point, open_loop
from capplan.errors import InputError
from capplan.fleet.plan import Plan
from capplan.fleet.question import spec_of_layout
from capplan.questions.fleet import AskedFleet
from capplan.questions.plans.plan_verification import planned_stream
from capplan.recorded.results.record import BenchmarkResult
from capplan.replica.replica import replica_of
from capplan.serving.requests import Requests

TOOL = "capplan verify-plan --endpoint"
MINUTES = 5.0
SEED = 4099
"""Seed of the requests that are sent; the prediction draws others."""
LEAST_REQUESTS = 20
MOST_WRONG_SHARE = 0.02
"""Share of failed requests above which nothing is compared: a server that sheds load has other latencies."""


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
        for the traffic; None: as usual
    tell : receives lines of progress

    Raises
    ------
    InputError
        nothing answers, the plan has users who wait for each response, or requests failed
    """
    server, _ = served_model(server)
    replica = replica_of(spec_of_layout(plan.single.layout, plan.single.weight_dtype, asked.question))
    rate = sum(asked.question.demand.rates_per_s(0.0)) / plan.single.busy_replicas
    seconds = 60.0 * (minutes or MINUTES)
    count = max(round(rate * seconds), LEAST_REQUESTS)
    requests = planned_stream(asked, replica, rate, count, 1, SEED).requests
    if requests is None or asked.question.demand.users:
        raise InputError(
            "--endpoint: the plan has users who wait for each response, and their traffic is not sent yet\n"
            "  measure it with a benchmark tool at their number, and give the file: --results FILE"
        )
    draw = random.Random(SEED)  # prompts
    prompts, _ = prompts_for(server, draw)
    times = requests.times_s - requests.times_s[0]
    tell(
        f"{server.shown}: {len(requests)} requests in {times[-1] / 60:.3g} min, {rate:.3g} per s, as one of {plan.single.busy_replicas} replicas"
    )
    answers = open_loop(
        server,
        questions(requests, prompts, draw),
        times.tolist(),
        lambda ended: _told(ended, len(requests), tell),
    )
    wrong = [answer for answer in answers if answer.error]
    if len(wrong) > MOST_WRONG_SHARE * len(answers):
        raise InputError(
            f"--endpoint: {len(wrong)} of {len(answers)} requests failed: {wrong[0].error}\n"
            "  a replica that sheds load is not compared: give it less, or see its log"
        )
    notes = (f"{len(wrong)} requests failed: {wrong[0].error}",) if wrong else ()
    bare = BenchmarkResult(
        TOOL, server.shown, model=asked.scenario.model, request_rate_per_s=rate, notes=notes
    )
    return summary([answer for answer in answers if not answer.error], bare)


def _told(ended: int, count: int, tell: Callable[[str], None]) -> None:
    if ended % max(count // 10, 1) == 0:
        tell(f"{ended} of {count} requests have ended")


def questions(requests: Requests, prompts: Prompts, draw: random.Random) -> list[Question]:
    """Return prompts that share what the requests share: blocks with the same id, or the cached tokens of a class.

    Examples
    --------
    >>> import numpy as np
    >>> two = np.array([4, 4])
    >>> first, second = questions(Requests(two, two, cached_tokens=np.array([0, 2])), Prompts(takes_ids=True), random.Random(0))
    >>> len(first.prompt), first.prompt[:2] == second.prompt[:2]
    (4, True)
    """
    lengths, outputs = requests.input_tokens.tolist(), requests.output_tokens.tolist()
    if not prompts.takes_ids:
        return [prompts.question(draw, Point(1, *sizes)) for sizes in zip(lengths, outputs, strict=True)]
    blocks = requests.pieces("block_ids")
    classes = requests.column("class_index").tolist()
    sizes = (
        []
        if blocks is None
        else [length // max(len(part), 1) for length, part in zip(lengths, blocks, strict=True)]
    )
    block_tokens = max(
        min((size for size, part in zip(sizes, blocks or [], strict=True) if len(part)), default=1), 1
    )
    shared = max(requests.column("cached_tokens").tolist(), default=0)
    asked = []
    for place, (length, output) in enumerate(zip(lengths, outputs, strict=True)):
        head: list[int] = []
        if blocks is not None:
            for block in blocks[place].tolist():
                head += _tokens(f"block {block}", block_tokens)
        elif shared:
            head = _tokens(f"class {classes[place]}", min(shared, length - 1))
        rest = [draw.randrange(*IDS) for _ in range(max(length - len(head), 0))]
        asked.append(Question(tuple((head + rest)[:length]), output))
    return asked


def _tokens(name: str, count: int) -> list[int]:
    draw = random.Random(name)  # the same tokens for the same name
    return [draw.randrange(*IDS) for _ in range(count)]
