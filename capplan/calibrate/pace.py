"""How long shapes take on a processor, timed before a run is announced, and which of them the time of the run allows.

One call of a slow shape may take as long as all quick ones together: where a format is emulated, or the machine is old. So a
few shapes of each kind are run once, the time of all others follows from their work, and what does not fit is left out.
"""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from capplan.calibrate.kernels import KERNELS, calls_of, case_bytes, ways_of
from capplan.calibrate.kernels.case import Case, Shape, Way
from capplan.calibrate.machine import Target
from capplan.calibrate.timing import LEAST_SLOW_REPEATS, TRIAL, Effort

Kind = tuple[str, str, str]
BYTE_WORK = 4.0
"""Work of a moved byte, in FLOP: processors move about a byte in the time of four."""
ENOUGH_CALL_S = 5e-3
"""A call that takes this long shows the rate of a kind; shorter ones show what it costs to start."""
NEXT_CALL_FRACTION = 1e-3
"""The next shape to be tried is expected to take at most this share of the time of the run."""
MOST_TRIED = 5
"""Shapes of a kind that are tried."""
MOST_OF_BUDGET = 0.02
"""Share of the time of a run that one shape may take in one pass."""
LEAST_OF_KIND = 8
"""Shapes of a kind that are never too slow by themselves, so that every kind has a fit and held-out shapes."""
STARTED_CALLS = 2
"""Calls of a slow shape before its repeats: the first touch, and one that shows how often to repeat."""

LINE = 100
"""Characters of the progress line."""


@dataclass(slots=True)
class Pace:
    """How long the shapes of each kind take, from the slowest of them that was timed."""

    shown: dict[Kind, tuple[float, float]] = field(default_factory=dict)
    """Work of the slowest shape of each kind, and the time of one call [s]."""
    build_s: float = 0.0
    """Time to make the operands of a shape."""

    def learn(self, case: Case, call_s: float) -> None:
        """Keep the time of one call, if none of the kind with more work is known."""
        work, known = case_work(case), self.shown.get(case.kind)
        if known is None or work >= known[0]:
            self.shown[case.kind] = work, call_s

    def call_s(self, case: Case) -> float:
        """Return the expected time of one call; 0 for a kind of which nothing was timed [s]."""
        work, seconds = self.shown.get(case.kind, (1.0, 0.0))
        return seconds * max(case_work(case) / work, 1e-3) if work else seconds

    def pass_s(self, case: Case, ways: int, effort: Effort) -> float:
        """Return the expected time of a shape in one pass, the trials of its ways included [s].

        Parameters
        ----------
        case : the shape
        ways : to run it; where there are several, all are tried
        effort : of this pass
        """
        call_s = self.call_s(case)
        calls = STARTED_CALLS + LEAST_SLOW_REPEATS
        one_s = self.build_s + max(effort.seconds, calls * call_s)
        return one_s + (ways * (self.build_s + TRIAL.seconds + calls * call_s) if ways > 1 else 0.0)


@dataclass(frozen=True, slots=True)
class Announced:
    """What fits into the time of a run."""

    kept: tuple[int, ...]
    """Places in the plan, in its order."""
    pass_s: float
    """Expected time of one pass over them."""
    pace: Pace


def announced(
    target: Target, chosen: Sequence[Case], effort: Effort, budget_s: float, room_bytes: float
) -> Announced:
    """Return which shapes are measured and how long one pass takes; on a processor their kinds are timed for it.

    Parameters
    ----------
    target : the device
    chosen : the shapes, in the order in which they are measured
    effort : of one pass
    budget_s : time for measuring [s]
    room_bytes : memory that one shape may use besides the arenas

    Returns
    -------
    all shapes on a card, whose calls are short; those that fit on a processor
    """
    if target.is_cuda:
        return Announced(tuple(range(len(chosen))), 0.0, Pace())
    begin = time.monotonic()
    pace = _probed(target, chosen, room_bytes, NEXT_CALL_FRACTION * budget_s)
    left_s = budget_s - (time.monotonic() - begin)
    costs = [pace.pass_s(case, len(ways_of(case, target.abilities)), effort) for case in chosen]
    kept, total_s = [], 0.0
    limits = _limits(chosen, costs, MOST_OF_BUDGET * budget_s)
    for place, (case, cost_s) in enumerate(zip(chosen, costs, strict=True)):
        if cost_s <= limits[case.kind] and total_s + cost_s <= left_s:
            kept.append(place)
            total_s += cost_s
    return Announced(tuple(kept), total_s, pace)


def _limits(chosen: Sequence[Case], costs: Sequence[float], most_s: float) -> dict[Kind, float]:
    """Return by kind the longest time of a shape: the quickest few of a kind are never too slow."""
    limits: dict[Kind, float] = {}
    for kind in dict.fromkeys(case.kind for case in chosen):
        own = sorted(cost for case, cost in zip(chosen, costs, strict=True) if case.kind == kind)
        limits[kind] = max(most_s, own[min(LEAST_OF_KIND, len(own)) - 1])
    return limits


def _probed(target: Target, chosen: Sequence[Case], room_bytes: float, longest_s: float) -> Pace:
    """Return the pace after one call of a few shapes of each kind: from the smallest up, until a call takes long enough."""
    pace = Pace()
    builds: list[float] = []
    for kind in dict.fromkeys(case.kind for case in chosen):
        cases = [case for case in chosen if case.kind == kind and case_bytes(case, 0.0) <= room_bytes]
        cases.sort(key=case_work)
        for _ in range(MOST_TRIED):
            known = pace.shown.get(kind)
            open_cases = [
                case
                for case in cases
                if known is None or (case_work(case) > known[0] and pace.call_s(case) <= longest_s)
            ]
            if not open_cases or (known and known[1] >= min(ENOUGH_CALL_S, longest_s)):
                break
            trial = open_cases[0] if known is None else open_cases[-1]
            timed = _one_call(target, trial)
            if timed is None:
                break
            builds.append(timed[0])
            pace.learn(trial, timed[1])
    pace.build_s = sum(builds) / len(builds) if builds else 0.0
    return pace


def _one_call(target: Target, case: Case) -> tuple[float, float] | None:
    """Return the time to make the operands of a case and that of its second call; None where it does not run."""
    ways: list[Way] = list(ways_of(case, target.abilities).values())
    begin = time.monotonic()
    try:
        calls = calls_of(case, ways[0], target.device, target.cold_bytes)
        built = time.monotonic()
        calls[0]()
        first = time.monotonic()
        if first - built > ENOUGH_CALL_S:  # so long that what comes only once does not matter
            return built - begin, first - built
        calls[-1]()
    except Exception:  # noqa: BLE001 - whatever a library raises: the run itself says so
        return None
    return built - begin, time.monotonic() - first


def case_work(case: Case) -> float:
    """Return the work of one call in FLOP, moved bytes included; only ratios between shapes of one kind count.

    Examples
    --------
    >>> case_work(Case("matmul", "fp32", {"rows": 2.0, "inputs": 10.0, "outputs": 10.0}))
    2640.0
    """
    kernel = KERNELS[case.operator]
    moved = (kernel.touched_bytes or kernel.operand_bytes)(case.shape, case.dtype)
    return _flop(case.operator, case.shape) + BYTE_WORK * moved


def _flop(operator: str, shape: Shape) -> float:
    """Return the arithmetic of one call; 0 for what only moves bytes."""
    s = {name: float(size) for name, size in shape.items()}
    if operator == "matmul":
        return 2.0 * s["rows"] * s["inputs"] * s["outputs"]
    if operator == "latent_bmm":
        return 2.0 * s["tokens"] * s["query_heads"] * s["inputs"] * s["outputs"]
    if operator == "experts":
        return 6.0 * s["tokens"] * s["experts_per_token"] * s["inputs"] * s["intermediate"]
    if operator == "prefill_attention":
        keys = s["new_tokens"] + s.get("past_tokens", 0.0)
        return 4.0 * s["sequences"] * s["query_heads"] * s["head_dim"] * s["new_tokens"] * keys
    if operator == "latent_prefill":
        widths = s["nope"] + s["rope"] + s["value"]
        return 2.0 * s["sequences"] * s["query_heads"] * widths * s["new_tokens"] ** 2
    if operator == "latent_decode":
        widths = 2.0 * s["latent"] + s["rope"]
        return 2.0 * s["sequences"] * s["query_heads"] * widths * s["context_tokens"]
    if operator == "decode_attention":
        queries = s["query_heads"] * s.get("query_tokens", 1.0)
        return 4.0 * s["sequences"] * queries * s["head_dim"] * s["context_tokens"]
    return 0.0


def left_out(planned: Sequence[Case], untried: Sequence[Case]) -> str:
    """Return how many shapes of each kind were planned and left out, in words; empty for none.

    Parameters
    ----------
    planned : all shapes of the run
    untried : those that were not tried
    """
    every = Counter(case.kind_title for case in planned)
    lacking = Counter(case.kind_title for case in untried)
    return ", ".join(f"{count} of {every[kind]} shapes of {kind}" for kind, count in lacking.items())


@dataclass(slots=True)
class Progress:
    """Progress of a run with a time budget."""

    expected_s: float
    started: float = field(default_factory=time.monotonic)
    shown: bool = field(default_factory=lambda: sys.stderr.isatty())

    def show(self, done_fraction: float, title: str) -> None:
        """Rewrite the line."""
        if not self.shown:
            return
        left = self.remaining_s(done_fraction)
        bar = "#" * round(20 * done_fraction)
        text = f"[{bar:<20}] {done_fraction:4.0%} {int(left) // 60:d}:{int(left) % 60:02d} left  {title}"
        sys.stderr.write("\r" + text[:LINE].ljust(LINE))
        sys.stderr.flush()

    def remaining_s(self, done_fraction: float) -> float:
        """Return the remaining time at the pace so far, at most the rest of the budget [s]."""
        elapsed = time.monotonic() - self.started
        left = max(self.expected_s - elapsed, 0.0)
        return min(elapsed * (1.0 - done_fraction) / done_fraction, left) if done_fraction >= 0.02 else left

    def close(self) -> None:
        """Clear the line."""
        if self.shown:
            sys.stderr.write("\r" + " " * LINE + "\r")
            sys.stderr.flush()
