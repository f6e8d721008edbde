"""What is written into a calibration file comes back as it was, whatever the names and hashes in it look like."""

import hashlib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.profile import HostOverhead
from capplan.errors import InputError
from capplan.readers.calibration.file import calibration_text, read_calibration_file
from capplan.readers.calibration.record import (
    Calibration,
    Conditions,
    FittedNumber,
    HostRefit,
    KernelFit,
    Machine,
    Measurement,
    Peaks,
    Range,
    ResultPoint,
    Score,
    StepPoint,
    Sustained,
)
from capplan.readers.catalogue.efficiency import efficiency_folder, read_efficiency
from capplan.readers.yaml_file import parse_yaml, yaml_text
from tests.files import written_to
from tests.sweeps import examples
from tests.tables import table

LOOKALIKES = (
    "250518e642860173",
    "1234567e8",
    "1e5",
    "0x1f",
    "1_000",
    "null",
    "~",
    "no",
    "2026-11-21",
    "1:30",
    ".inf",
    "-.5",
    "",
)
"""Texts that one or another reader of YAML takes for something else."""
TEXTS = st.sampled_from(LOOKALIKES) | st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
HASHES = st.from_regex("[0-9]{4,7}e[0-9]{4,7}", fullmatch=True).filter(
    lambda t: len(t) == 12
) | st.from_regex("[0-9a-f]{12}", fullmatch=True)
"""The first kind is one hash in three hundred: digits around one e."""
ROUNDED = st.floats(1e-9, 1e15).map(lambda x: float(f"{x:.6g}"))
SIZES = st.floats(1.0, 1e13) | st.integers(1, 10**9).map(float)
ERRORS = st.just(0.0) | ROUNDED
COUNTS = st.integers(1, 5000)


def named(values, most=3):
    return st.dictionaries(TEXTS, values, max_size=most)


def rows(record, most=3):
    return st.lists(record, max_size=most).map(tuple)


NUMBERS = st.builds(FittedNumber, ROUNDED, ROUNDED, ROUNDED, st.booleans())
SCORES = st.builds(Score, COUNTS, COUNTS, ERRORS, st.none() | ERRORS, rows(TEXTS))
RANGES = st.none() | st.builds(Range, ERRORS, ERRORS, ERRORS)
CONDITIONS = st.builds(
    Conditions, COUNTS, RANGES, RANGES, RANGES, RANGES, named(ERRORS), COUNTS, COUNTS, COUNTS,
    st.none() | st.builds(Sustained, ROUNDED, ROUNDED, ROUNDED, TEXTS),
)  # fmt: skip
KERNELS = st.builds(
    Calibration,
    date=TEXTS,
    seconds=ERRORS,
    quick=st.booleans(),
    partial=st.booleans(),
    machine=st.builds(
        Machine, TEXTS, TEXTS, HASHES, st.none() | TEXTS, st.none() | TEXTS, TEXTS, st.none() | COUNTS, SIZES, COUNTS,
        SIZES, named(SIZES), named(TEXTS), TEXTS, st.none() | SIZES, rows(TEXTS),
    ),
    peaks=st.builds(Peaks, ROUNDED, named(ROUNDED), st.none() | ROUNDED, COUNTS, COUNTS),
    fitted=named(st.builds(KernelFit, named(NUMBERS), named(SCORES), rows(TEXTS)), most=2),
    remarks=rows(TEXTS),
    measurements=rows(
        st.builds(Measurement, TEXTS, TEXTS, named(SIZES), ROUNDED, ERRORS, COUNTS, st.booleans(), st.none() | ROUNDED, TEXTS, st.booleans())
    ),
    missing=rows(TEXTS),
    conditions=st.none() | CONDITIONS,
)  # fmt: skip
TIMES = [*HostOverhead().named]
HOSTS = st.builds(
    HostRefit,
    engine=TEXTS,
    engine_version=TEXTS,
    hardware=TEXTS,
    tools=rows(TEXTS),
    models=rows(TEXTS),
    numbers=st.fixed_dictionaries(
        dict.fromkeys(TIMES[:4], NUMBERS),
        optional=dict.fromkeys(("rows_6_ratio", "rows_1024_ratio"), NUMBERS),
    ),
    kept=st.fixed_dictionaries(dict.fromkeys(TIMES[4:], SIZES)),
    before_median_ape=ERRORS,
    after_median_ape=ERRORS,
    left_out_median_ape=ERRORS,
    date=TEXTS,
    remarks=rows(TEXTS),
    points=rows(
        st.builds(ResultPoint, TEXTS, TEXTS, TEXTS, st.none() | SIZES, ROUNDED, ROUNDED, ROUNDED, ROUNDED)
    ),
    steps=rows(st.builds(StepPoint, ROUNDED, ERRORS, ROUNDED, ROUNDED)),
    pace=RANGES,
)


@pytest.mark.long
@settings(max_examples=examples(100, 2000), deadline=None)
@given(kernels=st.none() | KERNELS, host=st.none() | HOSTS)
def test_a_calibration_comes_back_equal_and_is_written_the_same_again(tmp_path_factory, kernels, host):
    if kernels is None and host is None:
        return
    path = tmp_path_factory.getbasetemp() / "any.calibration.yaml"
    text = calibration_text(kernels, host)
    path.write_text(text, encoding="utf-8", newline="")
    read_calibration_file.__globals__[
        "_read"
    ].cache_clear()  # written faster than the clock of the file system ticks
    back = read_calibration_file(path)
    assert (back.kernels, back.host) == (kernels, host)
    assert calibration_text(back.kernels, back.host) == text


@pytest.mark.parametrize("text", LOOKALIKES)
def test_a_text_that_looks_like_something_else_stays_a_text(text):
    assert parse_yaml(yaml_text({"checksum": text, "more": {"rows": [text]}}), "x.yaml").value == {
        "checksum": text,
        "more": {"rows": [text]},
    }


def test_a_rounded_figure_keeps_six_digits_and_an_exact_one_all(tmp_path):
    machine = Machine("cpu", "c", "0" * 12, None, None, "2", 1, 25276502016.0, 1, 2097152.0)
    row = Measurement("copy", "bf16", {"moved_bytes": 123456789.0}, 1.23456789e-5, 0.0, 3)
    path = tmp_path / "digits.calibration.yaml"
    path.write_text(
        calibration_text(
            Calibration("2026-11-21", 1.0, False, False, machine, Peaks(1e9, {}), {}, (), (row,))
        )
    )
    back = read_calibration_file(path).kernels
    assert back.machine.memory_bytes == 25276502016.0
    assert back.measurements[0].shape["moved_bytes"] == 123456789.0
    assert back.measurements[0].median_s == 1.23457e-5


@table
def test_a_mistake_in_a_calibration_is_one_line_with_its_key(said, old, new, tmp_path):
    machine = Machine("cpu", "c", "0" * 12, None, None, "2", 1, 1e9, 1, 1e6, tile_rows={"bf16": 16.0})
    fit = KernelFit({"floor_s": FittedNumber(2e-6, 1e-6, 3e-6)}, {"matmul": Score(3, 1, 0.1, None)})
    row = Measurement("copy", "bf16", {"moved_bytes": 1.0}, 1e-5, 0.0, 3)
    made = Calibration("today", 1.0, False, False, machine, Peaks(1e9, {}), {"matmul/bf16": fit}, (), (row,))
    text = calibration_text(made)
    assert text.count(old) == 1, text
    path = written_to(tmp_path / "wrong.calibration.yaml", text.replace(old, new))
    with pytest.raises(InputError) as raised:
        read_calibration_file(path)
    first = str(raised.value).splitlines()[0]
    assert first.startswith(f"{path}: line ")
    assert said in first


@table
def test_a_mistake_in_an_efficiency_file_is_one_line_with_its_key(old, new, said, tmp_path):
    text = (efficiency_folder() / "l40s.yaml").read_text()
    assert old in text
    path = written_to(tmp_path / "wrong.yaml", text.replace(old, new, 1))
    with pytest.raises(InputError, match=rf"wrong\.yaml: line [0-9]+: {said}"):
        read_efficiency(path)


@pytest.mark.long
def test_ten_thousand_hashes_are_quoted_and_come_back():
    """One in 230 used to be read as a number: digits around an e. Other readers of YAML must not take one for a number either."""
    hashes = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(10_000)]
    for length in (12, 16):
        text = yaml_text({f"hash{place}": digest[:length] for place, digest in enumerate(hashes)})
        assert all(line.endswith("'") for line in text.splitlines())
        wanted = [digest[:length] for digest in hashes]
        assert list(parse_yaml(text, "x.yaml").value.values()) == wanted
        assert list(yaml.safe_load(text).values()) == wanted


def test_a_file_of_a_newer_capplan_says_so(tmp_path):
    path = tmp_path / "newer.calibration.yaml"
    path.write_text("schema_version: 99\nchecksum: 'ab'\nmachine: {}\n")
    with pytest.raises(InputError, match=r"schema_version 99 is that of a newer capplan; this one reads 4"):
        read_calibration_file(path)
