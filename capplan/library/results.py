"""Results of the library: the JSON of the command that asks the same, typed where people reach in, and as a data frame."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capplan.errors import TargetError
from capplan.fleet.plan import FleetAnswer, Plan
from capplan.report.answer import Answer, flattened
from capplan.report.data_text import plain

if TYPE_CHECKING:
    from pandas import DataFrame


LINES = 24
"""Lines of a result as Python prints it."""
COLUMNS = 100


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """The answer to one question, in base units: seconds, bytes, tokens, dollars."""

    answer: Answer

    def __repr__(self) -> str:
        """Return the first screen of the command, cut at a screen."""
        from capplan.report.tables import plain_text

        lines = plain_text(self.answer.first_screen or self.answer, COLUMNS).rstrip().splitlines()
        return "\n".join(lines if len(lines) <= LINES else [*lines[: LINES - 1], "…"])

    def _repr_html_(self) -> str:
        """Return the headline and the first table, as a notebook shows them."""
        from html import escape

        from capplan.report.tables import grid_of

        answer = self.answer.first_screen or self.answer
        grid = grid_of(answer.tables[0])
        rows = [
            "".join(
                f'<{tag} style="text-align:{"right" if right else "left"}">{escape(cell)}</{tag}>'
                for cell, right in zip(cells, grid.right, strict=True)
            )
            for tag, lines in (("th", [grid.headings]), ("td", grid.cells))
            for cells in lines
        ]
        return f"<p>{escape(answer.headline)}</p><table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    @property
    def data(self) -> Mapping[str, Any]:
        """Return what the command prints as `result` with `--format json`."""
        data: Mapping[str, Any] = plain(self.answer.result)
        return data

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Return what the command prints with `--format csv`, a mapping for each line."""
        return [flattened(plain(row)) for row in self.answer.csv_rows or self.answer.tables[0].rows]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return what was assumed, each with the key or flag that replaces it."""
        return tuple(f"{item.what}; replace with {item.replace}" for item in self.answer.assumptions)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what is probably a mistake."""
        return self.answer.warnings

    def to_pandas(self) -> "DataFrame":
        """Return the rows as a data frame, a column for each key."""
        from pandas import DataFrame

        return DataFrame(self.rows)


@dataclass(frozen=True, slots=True, repr=False)
class FleetResult(Result):
    """The fleets that serve a scenario, cheapest first."""

    found: FleetAnswer

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Return the plans, cheapest first, those with separate pools among them; empty where none meets the targets."""
        return self.found.plans

    @property
    def chosen(self) -> Plan:
        """Return the recommended plan, whether identical replicas or separate pools.

        Raises
        ------
        TargetError
            no plan meets the targets; `plans` is empty then
        """
        if self.found.chosen is None:
            raise TargetError(self.answer.headline)
        return self.found.chosen
