"""What `capplan what-if` shows: the cheapest fleet along each axis through the scenario as it is; JSON and CSV have every point."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from capplan.assumption import Assumption
from capplan.questions.fleet import AskedFleet
from capplan.questions.what_if import Point, Surface
from capplan.report.answer import Answer, Table, row_of
from capplan.report.answers.fleet_words import purchase_text
from capplan.report.show import RowProgress

_FLEET = ("hardware", "gpus", "usd_per_month")
_TITLES = {"ttft_limit_s": "TTFT target"}
_SEARCHED = Assumption(
    "each point is searched as fleet does with identical replicas; separate pools, mixes and commitments are not tried there",
    "capplan fleet --set",
)
_KEPT = Assumption(
    "separate pools and groups keep their layouts, and are sized for other traffic only; for other targets",
    "capplan fleet --set",
)


def what_if_answer(asked: AskedFleet, surface: Surface | None) -> Answer:
    """Return the grid, and a table for each of its axes; exit code 4 without a plan."""
    name = asked.scenario.name
    if surface is None:
        return Answer(
            "what-if",
            {"scenario": name, "hardware": None, "target": None, "points": []},
            (Table([], shown=_FLEET),),
            f"{name}: no plan meets the targets",
            assumptions=asked.assumptions,
            warnings=asked.warnings,
            exit_code=4,
        )
    rows = [asdict(point) for point in surface.points]
    return Answer(
        "what-if",
        {"scenario": name, **row_of(surface, "hardware target"), "points": rows},
        tuple(_tables(asked, surface)),
        f"{name}: {purchase_text(surface.plan)} as it is; the cheapest fleet where one thing is another",
        closing=("--format json has all points, where several things are others together",),
        assumptions=(*asked.assumptions, _SEARCHED if surface.layouts_searched else _KEPT),
        warnings=asked.warnings,
        csv_rows=rows,
    )


def points_found(progress: RowProgress) -> Callable[[Sequence[Point]], None]:
    """Return what tells points as they are found."""
    return lambda points: progress.found("", points=[asdict(point) for point in points])


def _tables(asked: AskedFleet, surface: Surface) -> Iterator[Table]:
    """Yield a table for each axis that has several values; the other ones stay as they are."""
    today = _as_it_is(asked, surface)
    axes: tuple[tuple[str, str, Callable[[Point], float | None]], ...] = (
        ("request_rate", "At another load", lambda point: point.traffic_ratio),
        ("ttft_limit_s", "At another TTFT target", lambda point: point.ttft_limit_s),
        ("required_confidence_fraction", "At another required confidence", lambda point: point.confidence),
        ("gpu_price_ratio", f"At another price of {surface.hardware}", lambda point: point.gpu_price_ratio),
    )
    for axis, title, _ in axes:
        others = [of for name, _, of in axes if name != axis]
        line = [point for point in surface.points if all(of(point) == of(today) for of in others)]
        rows = [{**asdict(point), "required_confidence_fraction": point.confidence} for point in line]
        if len(rows) > 1:
            yield Table(rows, title=title, shown=(axis, *_FLEET), titles=_TITLES)


def _as_it_is(asked: AskedFleet, surface: Surface) -> Point:
    """Return the point of the scenario."""
    slo = asked.question.slo
    stated = next((item.stated_s for item in slo.targets if item.metric == "ttft"), None)
    return next(
        point
        for point in surface.points
        if point.traffic_ratio == point.gpu_price_ratio == 1.0
        and point.ttft_limit_s == stated
        and point.confidence == slo.confidence
    )
