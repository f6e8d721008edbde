"""Offers in a catalogue CSV of SkyPilot, `catalogs/v8/PROVIDER/vms.csv`."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from capplan.errors import InputError
from capplan.fleet.price import PriceRecord
from capplan.readers.catalogue.hardware import catalogue_name
from capplan.readers.csv_file import csv_rows
from capplan.readers.text_file import read_text

COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
_NAMES = {
    "a100": "a100-sxm-40gb", "a100-80gb": "a100-sxm-80gb", "a100-80gb-sxm": "a100-sxm-80gb", "h100": "h100-sxm",
    "h100-80gb": "h100-sxm", "h100-sxm": "h100-sxm", "h100-mega-80gb": "h100-sxm", "h200": "h200-sxm", "h200-sxm": "h200-sxm",
    "gh200": "gh200-96gb", "v100-32gb": "v100-sxm-32gb", "rtx6000-ada": "rtx-6000-ada", "rtxa6000": "rtx-a6000",
}  # fmt: skip
"""SkyPilot's accelerator -> ours, where they differ; without a word on the form, it is the SXM module."""
_MAX_BYTES = 64_000_000
_OTHER_MEMORY = {"v100"}
"""Names that may be a device of another memory size than ours."""


def skypilot_prices(
    path: str | os.PathLike[str], day: str
) -> tuple[tuple[PriceRecord, ...], tuple[str, ...]]:
    """Return the offers of a catalogue, on demand and spot, and what was left out.

    Parameters
    ----------
    path : path; the folder it lies in names the provider, as in SkyPilot's repository
    day : of the prices, which the file does not state

    Returns
    -------
    offers per device and hour; remarks on accelerators that the catalogue of devices lacks
    """
    name = os.fspath(path)
    rows = csv_rows(read_text(path, kind="a catalogue CSV of SkyPilot", max_bytes=_MAX_BYTES), name)
    missing = [column for column in COLUMNS if rows and column not in rows[0]]
    if missing:
        raise InputError(
            f"{name}: has no column {missing[0]}; a catalogue CSV of SkyPilot has {', '.join(COLUMNS)}"
        )
    folder = Path(path).resolve().parent.name
    records: list[PriceRecord] = []
    unknown: Counter[str] = Counter()
    for number, row in enumerate(rows, start=2):
        accelerator = (row["AcceleratorName"] or "").strip()
        device = _device_name(accelerator) if accelerator else None
        if accelerator and device is None:
            unknown[accelerator] += 1
        elif device is not None:
            records += _offers(
                row, device, f"{name}: line {number}", {"provider": folder, "day": day, "source": name}
            )
    if not records:
        raise InputError(f"{name}: has no offer of a device in the catalogue; capplan hardware lists them")
    most = ", ".join(accelerator for accelerator, _ in unknown.most_common(6))
    left_out = (
        f"{name}: {unknown.total():,} offers of devices that are not in the catalogue are left out: {most}"
    )
    return tuple(records), (left_out,) if unknown else ()


def _device_name(accelerator: str) -> str | None:
    """Return the catalogue name of an accelerator; None where it is not known."""
    lower = accelerator.lower()
    return None if lower in _OTHER_MEMORY else catalogue_name(_NAMES.get(lower, lower))


def _offers(
    row: Mapping[str, str | None], device: str, place: str, of: Mapping[str, str]
) -> Iterator[PriceRecord]:
    count = _number(row["AcceleratorCount"], f"{place}: AcceleratorCount")
    if count is None or not count.is_integer():
        return  # a part of a device is no device
    for column, commitment in (("Price", "on-demand"), ("SpotPrice", "spot")):
        usd = _number(row[column], f"{place}: {column}")
        if usd is not None:
            yield PriceRecord(
                device=device, provider=of["provider"], commitment=commitment, usd_per_hour=usd / count, source=of["source"],
                sku=row["InstanceType"], devices=int(count), region=row["Region"] or None, date=of["day"],
            )  # fmt: skip


def _number(text: str | None, place: str) -> float | None:
    """Return a price or a count above zero; None for an empty cell or a zero."""
    if text is None or not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{place}: {text[:40]!r} is not a number") from None
    if not 0.0 <= value < 1e6:
        raise InputError(f"{place}: {text[:40]!r} is out of range")
    return value or None
