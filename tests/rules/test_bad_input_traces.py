"""Traces that are not what they should be: a clear line, or a bounded behaviour that is said; nothing is left out silently."""

import gzip
import io
import tarfile

import pytest

from capplan.cli.main import main
from capplan.errors import InputError
from capplan.readers.traces.read import workload_of
from capplan.workload import statistics


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
    "empty": (b"", "is empty"),
    "only a header": (HEAD.encode(), "no request can be used"),
    "missing column": (b"time,prompt\n1,2\n", "has no column 'input_tokens'"),
    "one column without a header": (b"1\n2\n", "has no column"),
    "two columns without a header": (b"1,2\n2,3\n", "has no header"),
    "all rows broken": ((HEAD + "x,y,z\n" * 30).encode(), "line 2[0-9]: is not a request"),
    "cut gzip": (gzip.compress((HEAD + "0,1,1\n" * 9000).encode())[:60], "cannot be read"),
    "binary": (b"\x00\x01\x02" * 100, "binary data"),
    "tar": (tar_of("0,1,1\n"), "is a tar archive; unpack it"),
    "UTF-16": ("a,b".encode("utf-16"), "UTF-16"),
    "latin": ("zeit,länge\n".encode("latin-1"), "is not UTF-8"),
    "a json value": (b"[1, 2]\n", "not the result of a benchmark|holds no results"),
    "objects without lengths": (b'{"a": 1}\n{"a": 2}\n', "has no key 'arrival_s'"),
    "metrics without lengths": (b"up 1\nvllm:num_requests_running 3\n", "has no request lengths"),
    "lengths of ServeGen alone": (b"field,value,prob\ninput_tokens,3,1\n", "give its file of clients"),
    "clients of ServeGen alone": (b"client,start_s,rate_rps,cv\n0,0,1,1\n", "expected beside it"),
    "no output anywhere": ((HEAD + "0,5,0\n1,5,0\n").encode(), "2 rows left out: no output token"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_file_that_is_no_traffic_is_refused_in_one_line(mistake, tmp_path, capsys):
    content, says = REFUSED[mistake]
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        workload_of([path])
    assert main(["workload", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nope\.csv: no such file"):
        workload_of([tmp_path / "nope.csv"])
    with pytest.raises(InputError, match="is a folder"):
        workload_of([tmp_path])


def found_in(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    return workload_of([path])


def test_rows_that_are_left_out_are_counted_by_reason(tmp_path):
    found = found_in(
        tmp_path, HEAD + "0,10,5\n1,x,5\n-3,10,5\n2,10,0\n3,-1,5\n4,10,5\n5,10,5,\n6,10,99999999999\n"
    )
    assert found.requests == 3
    assert sorted(found.omissions) == [
        "1 row left out: a token count is negative (first in line 6)",
        "1 row left out: is not a request (first in line 3)",
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
