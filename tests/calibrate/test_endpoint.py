"""A running server is measured with requests; whatever it does wrong costs single requests, and never more than the time."""

import json
import random
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from capplan.calibrate.endpoint.client import Question, answered, endpoint_of
from capplan.calibrate.endpoint.own_counters import OwnCounters
from capplan.calibrate.endpoint.probe import probed, prompts_for, served_model
from capplan.calibrate.endpoint.series import Point, Series, designed, open_loop, shared_loop
from capplan.errors import InputError
from capplan.readers.calibration.file import read_calibration_file
from tests.calibrate.endpoint_stub import stub
from tests.tables import rows, table

ASKED = Question(tuple(range(1000, 1010)), 6)


def of(server, **limits):
    return replace(endpoint_of(server.url), model="tiny", **limits)


@pytest.mark.parametrize("behaviour", ["", "chat", "other lines", "no usage", "no end"])
def test_every_format_of_a_stream_gives_the_same_tokens(behaviour):
    with stub(behaviour, prompt_s=0.05, token_s=0.01) as server:
        answer = answered(of(server), ASKED)
    assert answer.error == ""
    assert (len(answer.token_s), answer.output_tokens) == (6, 6)
    assert answer.text.split() == [f"w{place}" for place in range(6)]
    assert 0.05 <= answer.token_s[0] - answer.sent_s < 0.5
    assert answer.token_s[-1] - answer.sent_s >= 0.1


@table
def test_a_fault_of_the_server_is_an_error_of_its_request_and_ends_in_time(behaviour, words):
    endless = behaviour in ("hangs", "drips")
    with stub(behaviour) as server:
        answer = answered(of(server, answer_s=0.4 if endless else 20.0), ASKED)
        still_sending = not server.spans
    assert re.search(words, answer.error, re.IGNORECASE), answer.error
    assert still_sending or not endless
    assert answer.busy == (behaviour == "busy")


def test_a_redirect_is_not_followed():
    with stub() as other, stub("redirects", elsewhere=other.server_address[1]) as server:
        assert answered(of(server), ASKED).error
        assert other.seen == []


def test_the_key_comes_from_the_environment_goes_to_the_server_and_is_shown_nowhere(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with stub("fails") as server:
        endpoint = of(server)
        answer = answered(endpoint, ASKED)
        assert server.seen[0][0]["Authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in repr(endpoint) + repr(answer) + endpoint.shown
    with pytest.raises(InputError, match="unencrypted"):
        endpoint_of("http://example.org:8000")


@pytest.mark.parametrize(
    ("behaviour", "words"), [("echoes", "status 401: .*bad key"), ("reports the key", "no such key")]
)
def test_a_key_that_the_server_repeats_is_not_shown(behaviour, words, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with stub(behaviour) as server:
        answer = answered(of(server), ASKED)
    assert re.search(words, answer.error), answer.error
    assert "sk-secret" not in repr(answer)


@table
def test_an_address_that_cannot_be_used_is_refused(url, words):
    with pytest.raises(InputError, match=words):
        endpoint_of(url)


@table
def test_an_address_is_read_with_or_without_scheme_and_version(url, parts):
    server = endpoint_of(url)
    assert (server.host, server.port, server.secure, server.path) == tuple(parts)


@table
def test_a_server_without_the_model_is_refused(behaviour, model, words):
    with stub(behaviour) as server, pytest.raises(InputError, match=words):
        served_model(endpoint_of(server.url), model)


@table
def test_the_expected_model_of_a_server_is_found_by_its_name(behaviour, name, notice):
    with stub(behaviour) as server:
        found, longest, said, _ = served_model(endpoint_of(server.url), "qwen3-8b")
    assert (found.model, longest, said) == (name, 600, notice)


@pytest.mark.parametrize(("behaviour", "has_slots"), [("serves tiny", False), ("llama.cpp", True)])
def test_the_server_of_llama_cpp_is_known_by_what_it_says_of_its_models(behaviour, has_slots):
    with stub(behaviour) as server:
        assert served_model(endpoint_of(server.url), "tiny")[3] == has_slots


@pytest.mark.parametrize("behaviour", ["true", "10" * 200, '"600"', "-5"])
def test_a_context_that_no_model_has_is_not_stated(behaviour):
    with stub(f"context {behaviour}") as server:
        assert served_model(endpoint_of(server.url), "tiny")[1] is None


def test_an_answer_that_is_nested_beyond_reason_does_not_count():
    with stub("nested") as server:
        answer = answered(of(server), ASKED)
    assert answer.error
    assert not answer.token_s


def test_text_is_sent_to_servers_that_take_no_ids():
    with stub("text only") as server:
        prompts = prompts_for(of(server), random.Random(0))
    assert (prompts.takes_ids, prompts.words_per_token) == (False, 1.0)


def test_a_closed_loop_keeps_its_concurrency_and_an_open_one_its_times():
    with stub(prompt_s=0.05) as server:
        answers = shared_loop(of(server), [ASKED] * 9, 3)
        starts = sorted(answer.sent_s for answer in answers)
        ends = sorted(answer.ended_s for answer in answers)
        assert all(starts[place + 3] >= ends[place] - 1e-3 for place in range(6))
        times = [0.0, 0.02, 0.3]
        sent = [answer.sent_s for answer in open_loop(of(server), [ASKED] * 3, times)]
        assert [at - sent[0] for at in sent] == pytest.approx(times, abs=0.05)
        heard = []
        turns = [ASKED, lambda: Question(f"again after {heard[0].output_tokens}", 2)]
        told = shared_loop(of(server), turns, 1, lambda _place, answer: heard.append(answer))
        assert [row.output_tokens for row in told] == [6, 2]
        assert server.seen[-1][1]["prompt"] == "again after 6"


def test_users_think_before_each_request_and_send_none_when_time_is_over(monkeypatch):
    events, skipped = [], [0.0]

    def think(seconds):
        events.append(seconds)
        skipped[0] += seconds

    clock = SimpleNamespace(sleep=think, monotonic=lambda: time.monotonic() + skipped[0])
    monkeypatch.setattr("capplan.calibrate.endpoint.series.time", clock)
    with stub(prompt_s=0.01) as server:
        answers = shared_loop(
            of(server),
            [ASKED] * 9,
            1,
            lambda *_: events.append("answered"),
            until_s=clock.monotonic() + 60.0,
            think_s=[0.05, 0.2, 0.1, 300.0] * 3,
        )
    assert events[:-1] == [0.05, "answered", 0.2, "answered", 0.1, "answered"]
    assert 0.0 < events[-1] < 60.0
    assert len(answers) == 3


def test_a_series_grows_with_the_concurrency_and_fits_the_context():
    for most in (1, 2, 3, 7, 8, 64, 100):
        points = designed(3.0, most).points
        assert points[0].concurrency == 1
        assert max(point.concurrency for point in points) == most
        assert sorted({point.input_tokens for point in points}) == [1, 128, 1024]
        assert [point.concurrency for point in points if point.input_tokens == 1] == [1]
    assert all(p.input_tokens + p.output_tokens <= 300 for p in designed(3.0, 8, 300).points)
    series = designed(2.0, 8)
    assert series.point_s * len(series.points) < series.seconds == 120.0


def test_a_series_sends_no_less_than_each_user_needs_and_no_more_than_it_says():
    for most in (1, 16, 500):
        series = designed(3.0, most)
        assert all(few <= many for few, many in zip(series.least_tokens, series.most_tokens, strict=True))
        assert all(3 * point.concurrency <= point.most_requests for point in series.points)


def test_a_series_returns_results_counts_failures_and_keeps_to_its_time():
    points = tuple(Point(16, 4, users) for users in (1, 2, 3, 4))
    series = Series(points, seconds=3.0)
    with stub(lambda number: "busy" if number % 7 == 3 else "") as server:
        start_s = time.monotonic()
        found = probed(of(server), series, lambda _line: None)
        took_s = time.monotonic() - start_s
        seen = len(server.seen)
    assert took_s < 3.0 * series.seconds
    assert len(found.results) >= 4
    assert found.results[0].ttft_s.mean > 0.004
    assert found.results[-1].request_rate_per_s
    assert any("status 429" in remark and "limits its load" in remark for remark in found.remarks)
    assert found.counted["steps"] == seen - 1


def test_a_server_that_stops_answering_costs_its_points_and_no_more():
    series = designed(0.02, 2, 600)
    with stub(lambda number: "fails" if number > 5 else "") as server:
        found = probed(of(server), series, lambda _line: None)
    assert any("left out" in remark for remark in found.remarks)


ENGINES = rows("traces")["engines"]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_server_says_of_itself_is_read_by_the_names_of_its_engine(engine):
    """Three requests later every counter has grown by three of its units; the highest number that was running is kept."""
    path, page, counted, fullest = (ENGINES[engine][key] for key in ("path", "page", "counted", "fullest"))
    pages = {path: lambda count: page.format(count, 7 if count == 1 else 0)}
    with stub(pages=pages) as server, OwnCounters(of(server), every_s=0.01) as own:
        for sent in range(1, 4):
            answered(of(server), ASKED)
            while fullest and sent == 1 and own.fullest.get("running", 0.0) < 7.0:
                time.sleep(0.01)
    assert own.counted == counted
    assert own.fullest == fullest


@pytest.mark.parametrize("page", ["", "not numbers", "vllm:num_requests_running 1e\n", '{"iter": [1]}'])
def test_a_page_without_counters_brings_none(page):
    with stub(pages={"/metrics": lambda _: page}) as server, OwnCounters(of(server), every_s=0.01) as own:
        answered(of(server), ASKED)
    assert (own.counted, own.fullest) == ({}, {})


def test_ctrl_c_keeps_what_was_measured():
    lines = []

    def tell(line):
        lines.append(line)
        if len(lines) == 4:  # after stairs and two closed loops
            raise KeyboardInterrupt

    with stub() as server:
        found = probed(of(server), designed(0.1, 4, 600), tell)
    assert found.stopped
    assert len(found.results) == 2
    assert any("Ctrl-C after 2 of" in remark for remark in found.remarks)


@pytest.mark.long
def test_the_command_writes_a_calibration_that_estimate_uses(capplan, tmp_path, monkeypatch):
    """The key reaches the server, and neither the file nor the terminal."""
    path = tmp_path / "made.calibration.yaml"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    model = ("--model", "qwen3-0.6b", "--hardware", "h100-sxm", "--offline")
    with stub(prompt_s=0.03, token_s=0.004) as server:
        ran = capplan(
            "calibrate --endpoint",
            server.url,
            *model,
            "--minutes",
            "0.05",
            "--max-concurrency",
            "4",
            "-o",
            path,
        )
        assert ran.code == 0, ran.err
        assert {sent["Authorization"] for sent, _ in server.seen} == {"Bearer sk-secret"}
    assert "sk-secret" not in path.read_text() + ran.out + ran.err
    assert "closed loops and an open loop" in ran.err
    refit = read_calibration_file(path).host
    assert refit.hardware == "h100-sxm"
    assert refit.after_median_ape < refit.before_median_ape
    load = ("--concurrency", "2", "--input-tokens", "128", "--output-tokens", "64", "--format", "json")
    ran = capplan("estimate qwen3-0.6b --hardware h100-sxm --calibration", path, "--offline", *load)
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)["result"]["tpot_s"]["mean"]
    assert 0.9 * min(server.took_s) < said < 1.1 * max(server.took_s), "4 ms and a little on an idle machine"


@pytest.mark.long
def test_ctrl_c_writes_a_calibration_of_what_was_measured(capplan, tmp_path, monkeypatch):
    path = tmp_path / "made.calibration.yaml"

    def tell(line):
        if line.startswith("2 of"):
            raise KeyboardInterrupt

    monkeypatch.setattr("capplan.cli.calibrate._tell", tell)
    words = ("--model", "qwen3-0.6b", "--hardware", "h100-sxm", "--offline", "--minutes", "0.1", "-o", path)
    with stub(prompt_s=0.03, token_s=0.004) as server:
        ran = capplan("calibrate", "--endpoint", server.url, *words, "--format", "json")
    found = json.loads(ran.out)["result"]
    assert found["interrupted"]
    assert (len(found["measured"]), read_calibration_file(path).host.results) == (1, 1)


TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "calibrate-and-compare.md"


@pytest.mark.long
def test_the_commands_of_the_tutorial_run_against_a_server(capplan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^capplan calibrate --endpoint .*", TUTORIAL.read_text(), re.MULTILINE)
    assert [("--dry-run" in line, "-o " in line) for line in lines] == [(True, False), (False, True)]
    with stub(prompt_s=0.03, token_s=0.004) as server:
        for line in lines:
            here = line.replace("http://localhost:8000", server.url).replace("--minutes 3", "--minutes 0.1")
            here = re.sub(
                r"--model \S+", "--model qwen3-0.6b", here
            )  # an H100 is no faster than this server with 8 B
            ran = capplan(*here.split()[1:], "--offline")
            assert ran.code == 0, ran.err
    assert read_calibration_file(tmp_path / "server.calibration.yaml").host.hardware == "h100-sxm"


def test_a_dry_run_sends_nothing_and_needs_no_server(capplan):
    with stub() as server:
        ran = capplan("calibrate", "--endpoint", server.url, "--dry-run", "--minutes", "2")
        assert server.seen == []
    assert ran.code == 0
    assert "nothing was sent" in ran.out
    assert "bills at most" in ran.out
    assert "tokens" in ran.out
