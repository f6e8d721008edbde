"""The acceptance of drafts from the metrics of an engine: one scrape, or the difference of two."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capplan.errors import InputError
from capplan.phases.speculation import acceptance_of_round
from capplan.recorded.traces import prometheus
from capplan.recorded.traces.prometheus import ACCEPTED, ACCEPTED_BY_POSITION, DRAFTED, DRAFTS, Scrape
from capplan.workload.statistics import Omissions

MOST_POSITIONS = 64


@dataclass(frozen=True, slots=True)
class AcceptedDrafts:
    """How likely drafts are accepted, given that all before them were."""

    fractions: tuple[float, ...]
    """One for all positions, or one for each."""
    draft_tokens: float
    """Drafted in a round, on average."""
    counted: str
    """What the engine counted, in words."""


def accepted_drafts(paths: Sequence[Path], draft_tokens: int | None = None) -> AcceptedDrafts:
    """Return the acceptance that an engine measured.

    Parameters
    ----------
    paths : Prometheus text of one scrape, or of two, the earlier one first
    draft_tokens : [tokens]
        drafted in a round, for gauges that do not tell

    Raises
    ------
    InputError
        no drafts were counted, or more were accepted than drafted
    """
    scrape, path = prometheus.counted(paths, Omissions()), paths[-1]
    rounds, drafted = scrape.values.get(DRAFTS, 0.0), scrape.values.get(DRAFTED, 0.0)
    if rounds > 0 and drafted > 0:
        words = f"{rounds:,.0f} rounds with {drafted:,.0f} drafts"
        if scrape.accepted:
            fractions = _by_position(scrape.accepted, rounds, path)
            return AcceptedDrafts(fractions, drafted / rounds, words)
        accepted = _at_most(scrape.values.get(ACCEPTED, 0.0), drafted, f"{ACCEPTED}, {DRAFTED}", path)
        fraction = acceptance_of_round(1.0 + accepted / rounds, drafted / rounds)
        return AcceptedDrafts((fraction,), drafted / rounds, words)
    return _of_gauges(scrape, draft_tokens, path)


def _by_position(accepted: Mapping[int, float], rounds: float, path: Path) -> tuple[float, ...]:
    """Return the conditional acceptances: each count over the one before it, the first over the rounds."""
    if sorted(accepted) != list(range(len(accepted))) or len(accepted) > MOST_POSITIONS:
        raise InputError(
            f"{path}: {ACCEPTED_BY_POSITION} has {len(accepted)} positions up to {max(accepted)}; "
            f"all from 0 on are expected, at most {MOST_POSITIONS}"
        )
    reached, fractions = rounds, []
    for position in range(len(accepted)):
        words = f"{ACCEPTED_BY_POSITION} at position {position}, the drafts before it"
        count = _at_most(accepted[position], reached, words, path)
        if reached > 0:
            fractions.append(count / reached)
        reached = count
    return tuple(fractions)


def _of_gauges(scrape: Scrape, draft_tokens: int | None, path: Path) -> AcceptedDrafts:
    """Return the acceptance from the mean tokens of a round, or from the accepted share of the drafts."""
    share, tokens = (
        _mean(scrape, names) for names in (prometheus.ACCEPTANCE_GAUGES, prometheus.LENGTH_GAUGES)
    )
    if share is None and tokens is None:
        raise InputError(
            f"{path}: counts no drafts: the server did not speculate, or its metrics were scraped before any request\n"
            f"  expected: {DRAFTS} and {DRAFTED}, or one of {', '.join((*prometheus.LENGTH_GAUGES, *prometheus.ACCEPTANCE_GAUGES))}"
        )
    drafts = float(draft_tokens or 0)
    if not drafts and share and tokens is not None:
        drafts = (tokens - 1.0) / share
    if drafts < 1.0:
        raise InputError(f"{path}: does not tell how many drafts a round has; give speculation.draft_tokens")
    accepted = tokens - 1.0 if tokens is not None else (share or 0.0) * drafts
    _at_most(accepted, drafts, "accepted tokens of a round, drafts", path)
    words = f"{1.0 + accepted:.3g} tokens a round of {drafts:.3g} drafts"
    return AcceptedDrafts((acceptance_of_round(1.0 + accepted, drafts),), drafts, words)


def _mean(scrape: Scrape, names: Sequence[str]) -> float | None:
    """Return the mean of a gauge over engines; None where none has drafted yet."""
    values = [value for name in names for value in scrape.gauges.get(name, ()) if value > 0.0]
    return float(np.mean(values)) if values else None


def _at_most(part: float, whole: float, words: str, path: Path) -> float:
    """Return a count that cannot exceed another."""
    if not 0.0 <= part <= whole:
        raise InputError(f"{path}: {words}: {part:,.6g} of {whole:,.6g} cannot be accepted")
    return part
