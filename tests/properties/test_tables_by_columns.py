"""A table read by columns gives what reading it line by line gives: the same numbers to the bit, the same omissions and errors."""

import gzip
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import InputError
from capplan.readers.text_file import numbered_blocks
from capplan.recorded.traces import rows as delimited
from capplan.recorded.traces.rows import (
    KIND,
    Columns,
    TableLayout,
    blocks_of,
    columns_of_block,
    lines_of,
    parts_of,
    seconds_of,
)
from capplan.recorded.traces.trace import read_trace
from capplan.workload import statistics
from capplan.workload.statistics import Omissions, TracePart
from tests.files import written_to
from tests.sweeps import examples

ODD = ("", " ", "nan", "inf", "-inf", "-1", "1_0", "0x10", "1e400", "x", "\uff11", '"3"', '"3', "1.5.2", "1,5", "1e3", "True", "NA", "\x00", "5\x0c", "7\r", "#")  # fmt: skip
DATES = (
    "2023-11-16 18:17:03.9799600", "2024-05-10 00:00:00+00:00", "2024-05-10T00:00:00.009930+00:00", "2024-02-29 23:59:59",
    "2023-02-29 23:59:59", "2024-05-10 24:00:00", "2024-05-10 00:00:60", "1969-12-31 23:59:59", "2024-05-10 00:00:00Z",
    "2024-05-10 00:00:00.5Z", "2024-05-10 00:00:00.", "2024-05-10 00:00:00+02:00", "2024-05-10", "0000-00-00 00:00:00",
    "2024-13-10 00:00:00", "2400-01-01 00:00:00.123456", "2024-05-10 00:00:00.1234567890123456789012", "2024-05-10 00:00",
)  # fmt: skip


def number(rng, kind: str) -> str:
    if kind == "whole":
        return str(int(rng.integers(1, 4000)))
    if kind == "few":
        return str(int(rng.integers(-1, 3)))
    value = float(rng.exponential(10.0 ** rng.integers(-3, 8)))
    return {
        "decimal": repr(value),
        "long": f"{value:.20f}",
        "short": f"{value:.3f}",
        "power": f"{value:.12e}",
    }[kind]


def stamp(rng, kind: str) -> str:
    if kind != "date":
        return number(rng, kind)
    second = int(rng.integers(0, 3 * 10**9))
    text = str(np.datetime64(second, "s")).replace("T", " ")
    return text + (f".{rng.integers(0, 10**7):07d}" if rng.random() < 0.9 else "")


def random_table(seed: int) -> bytes:
    """Mostly plain lines; in some files a few cells, marks or line ends are not."""
    rng = np.random.default_rng(seed)
    mark = str(rng.choice([",", ";", "\t", "|"]))
    extra = int(rng.integers(0, 3))
    names = ["arrival_s", "input_tokens", "output_tokens", "model", "note"][: 3 + extra]
    if rng.random() < 0.3:
        names[0] = "timestamp_ms"
    order = rng.permutation(len(names))
    kinds = [
        str(rng.choice(["decimal", "long", "short", "power", "whole", "date"])),
        *rng.choice(["whole", "whole", "few", "decimal"], 2),
    ]
    odd_share = float(rng.choice([0.0, 0.0, 0.01, 0.1, 0.6]))
    lines = [mark.join(names[place] for place in order)]
    if rng.random() < 0.1:
        lines = []
        order = np.arange(3)
    for _ in range(int(rng.integers(0, 80))):
        cells = [
            stamp(rng, kinds[0]),
            number(rng, kinds[1]),
            number(rng, kinds[2]),
            "m",
            str(rng.choice(["", "b"])),
        ]
        cells = [cells[place] for place in order]
        if mark == ";" and rng.random() < 0.7:
            cells = [cell.replace(".", ",") for cell in cells]
        if rng.random() < odd_share:
            what = int(rng.integers(0, 6))
            if what <= 2:
                cells[int(rng.integers(0, len(cells)))] = str(
                    rng.choice(ODD if rng.random() < 0.6 else DATES)
                )
            elif what == 3:
                cells.append("9")
            elif what == 4:
                cells.pop()
            else:
                cells = [" "] if rng.random() < 0.5 else []
        lines.append(mark.join(cells))
    end = "\r\n" if rng.random() < 0.2 else "\n"
    content = end.join(lines) + ("" if rng.random() < 0.3 else end)
    result = content.encode()
    if rng.random() < 0.1:
        result = b"\xef\xbb\xbf" + result
    if rng.random() < 0.05:
        result += b"\xff\xfe,1\n"
    if rng.random() < 0.2:
        result = gzip.compress(result)
        if rng.random() < 0.4:
            result = result[: max(len(result) - int(rng.integers(1, 40)), 3)]
    return result


def everything(path) -> tuple:
    """Return all that a reader says of a file: columns, omissions, notes, or its error."""
    omissions = Omissions()
    parts, error = [], ""
    try:
        parts = list(parts_of(delimited.table_rows(path, omissions), omissions, "t"))
    except InputError as refused:
        error = str(refused)
    except RuntimeError:
        error = "nothing but empty lines"
    columns = [tuple(getattr(part, field.name).tobytes() for field in fields(TracePart)) for part in parts]
    return error, columns, omissions.counts, omissions.first_line, omissions.broken, omissions.notes


def no_blocks(path):
    raise InputError("read line by line")
    yield


@settings(max_examples=examples(100, 400), deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 3000))
def test_columns_are_what_lines_are(seed: int, size: int, tmp_path_factory) -> None:
    """To the bit, whatever the size of the blocks; a failure to read comes after the same rows."""
    path = tmp_path_factory.mktemp("tables", numbered=True) / "t.csv"
    path.write_bytes(random_table(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capplan.recorded.traces.rows.PART_REQUESTS", 7)
        patch.setattr(delimited, "blocks_of", no_blocks)
        expected = everything(path)
        patch.setattr(delimited, "blocks_of", lambda path: numbered_blocks(path, kind=KIND, size=size))
        assert everything(path) == expected


def test_most_plain_files_are_read_by_columns(tmp_path) -> None:
    """The first line tells the unit and is read alone; everything behind it is one block of columns."""
    count = 5000
    for form in (
        "{i}.25,{i},7",
        "2024-05-10 00:{m:02d}:{s:02d}.{i:07d},{i},7",
        "2024-05-10 00:00:00+00:00,{i},7",
    ):
        path = tmp_path / "t.csv"
        rows = [form.format(i=i, m=i // 60 % 60, s=i % 60) for i in range(1, count + 1)]
        path.write_text("\n".join(["timestamp,input_tokens,output_tokens", *rows, ""]))
        found = list(delimited.table_rows(path, Omissions()))
        assert [type(item) for item in found[1:]] == [Columns]
        assert len(found[1]) == count - 1
        assert found[1].arrival_s.tolist() == [seconds_of(row.split(",")[0]) for row in rows[1:]]


@pytest.mark.parametrize("text", DATES)
def test_a_date_is_read_alike_or_not_at_all(text: str) -> None:
    layout = TableLayout(",", 0, 0, 1, 2, ("arrival", "input", "output"))
    found = columns_of_block(f"{text},1,2\n".encode(), 1, layout, 1.0)
    if found is not None:
        assert found.arrival_s.tolist() == [seconds_of(text)]


def test_a_failure_to_read_names_what_the_lines_before_it_say(tmp_path) -> None:
    """Thirty rows that are no requests in a gzip file that is cut: the rows come first."""
    packed = gzip.compress(
        b"arrival_s,input_tokens,output_tokens\n" + b"x,y,z\n" * 30 + bytes(range(32, 127)) * 9000
    )
    path = tmp_path / "t.csv.gz"
    path.write_bytes(packed[: len(packed) - 12])
    with pytest.raises(InputError, match=r"line 2: is not a request"):
        list(delimited.table_rows(path, Omissions()))


def test_parts_have_the_size_that_is_promised(tmp_path) -> None:
    count = 3 * statistics.PART_REQUESTS + 5
    path = written_to(tmp_path / "t.csv", "arrival_s,input_tokens,output_tokens\n" + "1,2,3\n" * count)
    omissions = Omissions()
    sizes = [len(part) for part in parts_of(delimited.table_rows(path, omissions), omissions, "t")]
    assert sizes == [statistics.PART_REQUESTS] * 3 + [5]
    assert sum(1 for _ in lines_of(path)) == count + 1


@pytest.mark.parametrize("row", ['"' + "9" * 200_000 + '",1,2', '"1\r",2\r,3'])
def test_a_quoted_cell_that_csv_refuses_is_a_row_that_is_no_request(row: str, tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"arrival_s,input_tokens,output_tokens\n1,2,3\n{row}\n2,3,4\n", newline="")
    omissions = Omissions()
    assert [len(part) for part in parts_of(delimited.table_rows(path, omissions), omissions, "t")] == [2]
    assert omissions.lines() == ["1 row left out: is not a request (first in line 3)"]


def test_a_header_that_csv_refuses_is_split_at_its_marks() -> None:
    assert delimited.columns_of("a,b\rc,d") == ("a", "b\rc", "d")


def test_a_trace_is_read_once_until_its_file_changes(tmp_path, monkeypatch) -> None:
    opened = []
    monkeypatch.setattr(delimited, "blocks_of", lambda path: opened.append(path) or blocks_of(path))
    path = written_to(tmp_path / "t.csv", "arrival_s,input_tokens,output_tokens\n0,1,2\n1,2,3\nx,2,3\n")
    loose = read_trace(path, strict=False)
    assert loose.remarks == (
        "1 row left out: is not a request (first in line 4: 'x' is no time: write a number, or a date such as 2026-03-30 02:00:00)",
    )
    monkeypatch.chdir(tmp_path)
    again = read_trace("t.csv", strict=False)
    assert (again.name, len(opened)) == ("t.csv", 1)
    assert again.arrival_s.tolist() == loose.arrival_s.tolist()
    with pytest.raises(InputError, match="line 4: is not a request"):
        read_trace(path)
    path.write_text("arrival_s,input_tokens,output_tokens\n0,1,2\n1,2,3\n4,2,3\n")
    assert read_trace(path).arrival_s.tolist() == [0.0, 1.0, 4.0]
    assert len(opened) == 2
    path.unlink()
    with pytest.raises(InputError, match="no such file"):
        read_trace(path)
