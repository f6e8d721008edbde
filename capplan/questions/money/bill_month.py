"""The month that a FOCUS bill is of."""

import re
from collections.abc import Sequence

from capplan.errors import InputError
from capplan.questions.money.price_age import current_day
from capplan.workload.request_class import RequestClass


def bill_month(text: str | None, classes: Sequence[RequestClass]) -> tuple[int, int]:
    """Return year and month of a bill; without a text those of the next month. A batch job has no bill of a month.

    Examples
    --------
    >>> bill_month("2026-12", ())
    (2026, 12)
    """
    if any(item.job_requests is not None for item in classes):
        raise InputError(
            "--focus: a batch job is paid for once, and a FOCUS bill is of a month; leave --focus out"
        )
    if text is None:
        today = current_day()
        return today.year + today.month // 12, today.month % 12 + 1
    if re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", text) is None:
        raise InputError(f"--month: {text[:40]!r} is not a month; write it as 2026-12")
    year, month = text.split("-")
    return int(year), int(month)
