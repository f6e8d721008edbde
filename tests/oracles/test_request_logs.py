"""What people bring as request logs: input, expected, source of the format, one row each."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from capplan.errors import InputError
from capplan.recorded.traces.request_logs import log_formats
from capplan.recorded.traces.rows import seconds_of
from capplan.recorded.traces.trace import format_of, read_trace, workload_of
from tests.tables import rows

ROOT = Path(__file__).resolve().parents[2]
ROWS = rows("request_logs")


def each(kind):
    return pytest.mark.parametrize("row", ROWS[kind], ids=[row["name"] for row in ROWS[kind]])


@pytest.fixture
def path(row, tmp_path):
    """Write the file of a row, whose last line may stand there many times."""
    before, _, last = row["text"].rpartition("\n")
    file = tmp_path / row["file"]
    file.write_text(
        "\n".join([before] * bool(before) + [last] * row.get("last_line_times", 1)), encoding="utf-8"
    )
    return file


@each("read")
def test_request_logs_are_read(row, path):
    found = workload_of([path])
    seconds = found.rate.seconds
    assert (found.format, found.requests, 2 / seconds) == (row["format"], 2, 0.5)
    assert [found.input_tokens.mean, found.output_tokens.mean] == row.get("means", [200, 20])
    measured = found.measured or {"ttft_s": None, "e2e_s": None}
    assert (measured["ttft_s"], measured["e2e_s"]) == pytest.approx((row.get("ttft_s"), row.get("e2e_s")))
    omitted = row.get("omitted", [])
    assert len(found.omissions) == len(omitted)
    for words in omitted:
        assert any(words in line for line in found.omissions), words
    replayed = read_trace(path, strict=False)
    assert replayed.arrival_s.tolist() == pytest.approx([0.0, seconds])


@each("usage")
def test_usage_exports_give_rates_by_window_and_mean_lengths(row, path):
    found = workload_of([path])
    assert [found.requests, found.rate.mean, found.rate.peak_60s] == row["rates"]
    assert [found.input_tokens.mean, found.output_tokens.mean] == row["means"]
    hits = row.get("hits")
    assert found.prefix_hit_fraction == (None if hits is None else pytest.approx(hits))
    assert any("means only" in note for note in found.notes)
    with pytest.raises(InputError, match="the sums of hours or days, not individual requests"):
        read_trace(path)


@each("two_requests")
def test_a_row_that_is_no_request_says_nothing_of_the_others(row, path):
    found = workload_of([path])
    assert (found.requests, found.rate.seconds, found.input_tokens.mean) == (2, 4.0, 5)
    left_out = row["left_out"]
    assert [line.split()[0] for line in found.omissions] == [str(left_out)] * bool(left_out)


@each("refused")
def test_what_is_no_request_log_says_so(row, path):
    with pytest.raises(InputError) as refused:
        workload_of([path])
    assert row["says"] in str(refused.value)


EPOCH = datetime(2026, 3, 30, 2, 0, 0, 500000, tzinfo=UTC).timestamp()
TIMES = (
    # as written, source
    ("2026-03-30 02:00:00.5 UTC", "BigQuery"),
    ("2026-03-30 02:00:00.500000 +0000 UTC", "Go"),
    ("2026-03-30 04:00:00.5 +0200 CEST", "Go"),
    ("2026-03-30T02:00:00.5Z", "ISO 8601"),
    ("2026-03-30 02:00:00.5+00", "PostgreSQL"),
    ("2026-03-29 22:00:00.5 America/New_York", "SQL with a zone"),
    ("2026-03-30T04:00:00.5+02:00", "ISO 8601"),
    ("2026-03-30 02:00:00.500 GMT", "HTTP"),
)


@pytest.mark.parametrize("written", [row[0] for row in TIMES])
def test_dates_name_their_zone_in_any_way(written):
    assert seconds_of(written) == pytest.approx(EPOCH, abs=1e-6)


@pytest.mark.parametrize("per_second", [1, 10**3, 10**6, 10**9])
@pytest.mark.parametrize("quote", ["", '"'])
def test_epochs_in_seconds_to_nanoseconds(per_second, quote, tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [
        f'{{"startTime": {quote}{(1774836000 + s) * per_second}{quote}, "prompt_tokens": 5, "completion_tokens": 5}}'
        for s in (0, 4)
    ]
    path.write_text("\n".join(rows), encoding="utf-8")
    assert workload_of([path]).rate.seconds == pytest.approx(4.0, abs=1e-5)


def test_every_format_has_its_source():
    formats = json.loads((ROOT / "capplan/recorded/traces/logs.json").read_text(encoding="utf-8"))
    assert set(formats) == set(log_formats())
    assert all(keys["source"].startswith("https://") for keys in formats.values())


@pytest.mark.long
def test_parquet_is_read_as_the_same_log_in_csv(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    path = tmp_path / "logs.parquet"
    start = datetime(2026, 3, 30, 2, tzinfo=UTC)
    table = pa.table(
        {
            "startTime": pa.array([start, start.replace(second=4)], pa.timestamp("us", "UTC")),
            "messages": ["not", "read"],
            "prompt_tokens": [100, 300],
            "completion_tokens": [10, 30],
        }
    )
    parquet.write_table(table, path)
    found = workload_of([path])
    assert (found.format, found.requests, found.rate.seconds) == ("LiteLLM", 2, 4.0)
    assert (found.input_tokens.mean, found.output_tokens.mean) == (200, 20)
    plain = pa.table(
        {
            "arrival_ms": [0, 4000],
            "input_tokens": [100, 300],
            "output_tokens": [10, 30],
            "hash_ids": [[1], [1, 2]],
        }
    )
    parquet.write_table(plain, path)
    found = workload_of([path])
    assert (found.format, found.requests, found.rate.seconds) == ("table of requests", 2, 4.0)
    assert any("hash_ids" in note for note in found.notes)
    parquet.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InputError, match="name them arrival_s, input_tokens and output_tokens"):
        workload_of([path])
    whole = path.read_bytes()
    path.write_bytes(whole[:200])
    with pytest.raises(InputError, match="cannot be read"):
        format_of(path)
    dates = pa.table(
        {"arrival_s": pa.array([-(2**31)], pa.date32()), "input_tokens": [1], "output_tokens": [1]}
    )
    parquet.write_table(dates, path)
    with pytest.raises(InputError, match="row 1: cannot be read"):  # found by make fuzz
        workload_of([path])


def test_parquet_without_its_reader_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "logs.parquet"
    path.write_bytes(b"PAR1 and so on PAR1")
    with pytest.raises(InputError, match=r"pip install 'capplan\[parquet\]'"):
        workload_of([path])
