"""Where the figures of a catalogue file come from, as its `sources` state it."""

from typing import Literal

from capplan.hardware.device import Source
from capplan.readers.record import Record

ASSUMED = "assumed"
"""Source of a figure for which none is known."""


class SourceRecord(Record):
    """A page or a measurement that figures come from."""

    title: str
    url: str | None = None
    label: Literal["spec", "measured", "announced"] = "spec"
    checked: str | None = None
    """The day when the figures were compared with the page."""
    note: str | None = None


def source_of(key: str, source: SourceRecord) -> Source:
    """Return a source of a catalogue file, by its key there."""
    return Source(key, source.title, source.url, source.checked, source.note)
