"""Traces that are not what they should be: a clear line, or a bounded behaviour that is said; nothing is left out silently."""

import gzip
import io
import tarfile

import pytest

from capplan.cli.main import main
from capplan.errors import InputError
from capplan.readers import text_file
from capplan.recorded.traces import trace
from capplan.recorded.traces.trace import read_trace, workload_of
from capplan.workload import statistics
from tests.files import written_to
from tests.tables import table


def tar_of(text):
    """A packed folder of one small file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("requests.csv")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


HEAD = "arrival_s,input_tokens,output_tokens\n"
REFUSED = {
    "all rows broken": ((HEAD + "x,y,z\n" * 30).encode(), "line 2: is not a request"),
    "cut gzip": (gzip.compress((HEAD + "0,1,1\n" * 9000).encode())[:60], "cannot be read"),
    "binary": (b"\x00\x01\x02" * 100, "binary data"),
    "tar": (tar_of("0,1,1\n"), "is a tar archive; unpack it"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_file_that_is_no_traffic_is_refused_in_one_line(mistake, tmp_path, capplan):
    content, says = REFUSED[mistake]
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        workload_of([path])
    assert "Traceback" not in capplan.refused("workload", path)


def found_in(tmp_path, text):
    path = written_to(tmp_path / "t.csv", text)
    return workload_of([path])


def test_rows_that_are_left_out_are_counted_by_reason(tmp_path):
    found = found_in(
        tmp_path, HEAD + "0,10,5\n1,x,5\n-3,10,5\n2,10,0\n3,-1,5\n4,10,5\n5,10,5,\n6,10,99999999999\n"
    )
    assert found.requests == 3
    assert sorted(found.omissions) == [
        "1 row left out: a token count is negative (first in line 6)",
        "1 row left out: is not a request (first in line 3: 'x' is not a number)",
        "1 row left out: more than 10,000,000 tokens (first in line 9)",
        "1 row left out: no output token (first in line 5)",
        "1 row left out: the time stamp is negative (first in line 4)",
    ]


def test_what_is_left_out_is_a_warning_of_the_command(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(HEAD + "0,10,5\n1,10,0\n2,10,5\n")
    assert main(["workload", str(tmp_path / "t.csv")]) == 0
    assert "warning: 1 row left out: no output token" in capsys.readouterr().err


def test_unsorted_requests_are_sorted_and_that_is_said(tmp_path):
    found = found_in(tmp_path, HEAD + "3,10,5\n0,20,5\n1,30,5\n9,10,5\n")
    assert found.rate.seconds == 9.0
    assert "2 requests were out of order; sorted by arrival" in found.notes


def test_one_request_has_no_rate(tmp_path):
    found = found_in(tmp_path, HEAD + "0,10,5\n")
    assert (found.requests, found.rate.mean, found.rate.cv) == (1, None, None)


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_other_delimiters_are_read(mark, tmp_path):
    found = found_in(tmp_path, (HEAD + "0,10,5\n1,20,5\n").replace(",", mark))
    assert found.input_tokens.mean == 15.0


@pytest.mark.parametrize(("stamp", "unit"), [(1_700_000_000_000, "ms"), (1_700_000_000_000_000_000, "ns")])
def test_epochs_are_told_by_their_size(stamp, unit, tmp_path):
    step = {"ms": 1000, "ns": 10**9}[unit]
    found = found_in(tmp_path, HEAD + "".join(f"{stamp + i * step},10,5\n" for i in range(5)))
    assert found.rate.seconds == pytest.approx(4.0, abs=1e-3)
    assert f"time stamps are in {unit} since 1970" in found.notes


def test_a_trace_longer_than_what_is_kept_is_read_in_parts(tmp_path, monkeypatch):
    """Rates and lengths count every request; only the times between arrivals are those of the first ones."""
    monkeypatch.setattr(statistics, "KEPT_ARRIVALS", 1000)
    found = found_in(tmp_path, HEAD + "".join(f"{i / 2},{10 + i % 3},5\n" for i in range(200_000)))
    assert found.requests == 200_000
    assert found.rate.mean == pytest.approx(2.0, rel=1e-4)
    assert found.rate.peak_60s == 2.0
    assert found.input_tokens.mean == pytest.approx(11.0, abs=1e-4)
    assert any("inter-arrival times are those of the first" in note for note in found.notes)


def test_a_server_that_was_started_anew_between_two_scrapes_is_refused(tmp_path):
    text = "vllm:request_prompt_tokens_sum 90\nvllm:request_prompt_tokens_count 9\nvllm:request_generation_tokens_sum 90\nvllm:request_generation_tokens_count 9\n"
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_text(text.replace("90", "40"))
    with pytest.raises(InputError, match="restarted between them"):
        workload_of([tmp_path / "a.txt", tmp_path / "b.txt"])


HASHED = '{"timestamp": %s, "input_length": %s, "output_length": %s, "hash_ids": %s}'
SOUND = [HASHED % (300 * i, 1000, 5, [1, i]) for i in range(6)]
NO_REQUESTS = {
    "a word for a length": HASHED % (9, '"abc"', 5, [1, 2]),
    "no length": '{"timestamp": 9, "output_length": 5, "hash_ids": [1, 2]}',
    "one number for the hashes": HASHED % (9, 600, 5, 1.5),
    "a text for the hashes": HASHED % (9, 600, 5, '"12"'),
    "a part of a hash": HASHED % (9, 600, 5, [1.5]),
    "a hash of 70 bits": HASHED % (9, 600, 5, [2**70]),
    "an endless length": HASHED % (9, "Infinity", 5, [1, 2]),
    "a length of 400 digits": HASHED % (9, "9" * 400, 5, [1, 2]),
    "a number of 5,000 digits": HASHED % ("9" * 5000, 600, 5, [1, 2]),
    "a time that is not a number": HASHED % ("NaN", 600, 5, [1, 2]),
    "a date that is none": HASHED % ('"2023-99-99"', 600, 5, [1, 2]),
    "lists in lists": "[" * 100_000,
}


@pytest.mark.parametrize("mistake", NO_REQUESTS)
@pytest.mark.parametrize("place", [1, 6])
def test_a_line_of_hashes_that_is_no_request_is_counted(mistake, place, tmp_path):
    found = found_in(tmp_path, "\n".join([*SOUND[:place], NO_REQUESTS[mistake], *SOUND[place:]]))
    assert found.requests == 6
    assert sum("1 row left out" in line for line in found.omissions) == 1
    assert found.prefix.block_tokens == 512


def test_latencies_that_cannot_be_are_unknown(tmp_path):
    rows = [f'{{"arrival_s": {i}, "input_tokens": 9, "output_tokens": 9, "ttft": {ttft}}}' for i, ttft in enumerate(("NaN", -1, "Infinity", 2))]  # fmt: skip
    assert found_in(tmp_path, "\n".join(rows)).measured["ttft_s"] == 2.0


def served(tmp_path, clients, lengths="input_tokens,3,1\noutput_tokens,3,1\n"):
    (tmp_path / "a_clients.csv").write_text("client,start_s,rate_rps,cv\n" + clients)
    (tmp_path / "a_length_hist.csv").write_text("field,value,prob\n" + lengths)
    return workload_of([tmp_path / "a_clients.csv"])


@pytest.mark.parametrize("row", ["0,0", "0,0,1,-1", "0,1e15,1,1", "0,0,1e30,1", "0,0,nan,1", "0,0,x,1"])
def test_rates_of_clients_that_cannot_be_are_left_out(row, tmp_path):
    found = served(tmp_path, f"0,0,1,1\n{row}\n")
    assert (found.rate.mean, len(found.omissions)) == (1.0, 1)


@table
def test_clients_without_a_sense_are_refused(mistake, clients, lengths, says, tmp_path):
    with pytest.raises(InputError, match=says):
        served(tmp_path, clients, lengths or "input_tokens,3,1\noutput_tokens,3,1\n")


@pytest.mark.parametrize(
    "text", [HEAD.replace(",", ",\r", 1) + "0,5,5\n", HEAD.replace("\n", "\r") + "0,5,5\r1,5,5\r"]
)
def test_line_ends_of_an_old_machine_are_named(text, tmp_path):
    (tmp_path / "t.csv").write_bytes(text.encode())
    with pytest.raises(InputError, match=r"contains a carriage return|has no column"):
        workload_of([tmp_path / "t.csv"])


def test_a_trace_over_thousands_of_years_is_summed_up_and_not_replayed(tmp_path):
    path = written_to(tmp_path / "t.csv", HEAD + "0,5,5\n1,5,5\n1e11,5,5\n")
    assert workload_of([path]).requests == 3
    with pytest.raises(InputError, match="span 3,169 years; at most ten"):
        read_trace(path)


def test_a_table_of_too_many_lines_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = written_to(tmp_path / "t.csv", HEAD + "0,5,5\n" * 100)
    monkeypatch.setattr(trace, "MOST_LINES", 50)
    monkeypatch.setattr(trace.TraceFile, "parts", lambda _: pytest.fail("rows were read"))
    with pytest.raises(InputError, match="more than 2,000,000 requests"):
        read_trace(path)


@pytest.mark.parametrize("filling", [b"\n", b" ", b"0,5,5\n"])
def test_a_packed_file_that_is_nothing_but_large_is_refused(filling, tmp_path, monkeypatch):
    monkeypatch.setattr(text_file, "FREE_BYTES", 2**20)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(HEAD.encode() + filling * (2**23 // len(filling))))
    with pytest.raises(InputError, match="unpacks to more than 200 times its size"):
        workload_of([path])
