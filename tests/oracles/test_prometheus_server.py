"""A scenario from a Prometheus server: a real one on loopback, with a recorded past or scraping an exporter."""

import http.server
import json
import re
import shlex
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from capplan.errors import InputError
from capplan.recorded.traces.prometheus_server import KEY, observed
from capplan.scenario.scenario import read_scenario
from tests.prometheus import NEEDS_PROMETHEUS, Exporter, exposed, recorded, running, text_of
from tests.tables import table

ROOT = Path(__file__).resolve().parents[2]
DAY_S = 86_400.0
EVERY_S = 60
DAYS = 2
HOURLY = [1.0 + hour / 12 for hour in range(24)]
"""Requests per second of each hour of the day, in UTC."""


def past(end):
    """Return a line for each series and minute of two days, name after name; two ranks count the same requests."""
    stamps = np.arange(end - DAYS * DAY_S, end + EVERY_S, EVERY_S)
    rates = np.array([HOURLY[int(stamp // 3600 % 24)] for stamp in stamps])
    counted = 1000.0 + np.append(0.0, np.cumsum(rates[:-1] * EVERY_S))
    series = {}
    for stamp, requests in zip(stamps, counted, strict=True):
        for rank in (0, 1):
            for name, labels, value in exposed(requests, f',instance="a:1",tp_rank="{rank}"'):
                series.setdefault((name, labels), []).append(f"{name}{{{labels}}} {value:.6f} {stamp:.0f}\n")
        other = exposed(
            float(stamp - stamps[0]), ',instance="b:1"', means=(500.0, 70.0, 9.0, 9.0), model="other"
        )
        for name, labels, value in other:
            series.setdefault((name, labels), []).append(f"{name}{{{labels}}} {value:.6f} {stamp:.0f}\n")
    return (line for key in sorted(series) for line in series[key])


@pytest.fixture(scope="module")
def with_a_past(tmp_path_factory):
    folder = tmp_path_factory.mktemp("past")
    recorded(folder, past(time.time() // 3600 * 3600))
    with running(folder) as address:
        yield address


@NEEDS_PROMETHEUS
@pytest.mark.long
def test_two_days_give_the_daily_curve_lengths_hits_and_latencies_of_one_model(with_a_past):
    seen = observed(with_a_past, "--from", DAYS * DAY_S, "m", offline=False)
    found = seen.summary
    assert found.rate.by_hour == pytest.approx(HOURLY, rel=0.01)
    assert found.rate.mean == pytest.approx(np.mean(HOURLY), rel=0.005)
    assert found.rate.peak_60s == pytest.approx(max(HOURLY), rel=0.005)
    assert found.requests == pytest.approx(DAYS * DAY_S * np.mean(HOURLY), rel=0.005)
    assert found.input_tokens.mean == pytest.approx(400.0, rel=0.005)
    assert found.output_tokens.mean == pytest.approx(60.0, rel=0.005)
    assert found.prefix_hit_fraction == pytest.approx(0.25, rel=0.001)
    assert found.measured["ttft_s"] == pytest.approx(0.3, rel=0.001)
    assert found.measured["tpot_s"] == pytest.approx(0.02, rel=0.001)
    assert (seen.running, seen.waiting) == (3.0, 1.0)
    assert seen.share_within("ttft", 0.1) == pytest.approx(0.5, rel=0.001)
    assert seen.share_within("ttft", 0.3) == pytest.approx(0.75, rel=0.001)
    assert seen.percentile_s("ttft", 0.95) == pytest.approx(0.46, rel=0.001)
    left_out = [re.search(r"([\d.]+) % of the window has no samples", note) for note in found.notes]
    assert all(float(share[1]) < 1.0 for share in left_out if share)


@NEEDS_PROMETHEUS
@pytest.mark.long
def test_of_several_models_one_is_asked_for_by_name(with_a_past):
    with pytest.raises(InputError, match="the requests of 2 models: m, other"):
        observed(with_a_past, "--from", DAY_S, None, offline=False)
    with pytest.raises(InputError, match="unknown model 'M2'"):
        observed(with_a_past, "--from", DAY_S, "M2", offline=False)
    other = observed(with_a_past, "--from", DAY_S, "other", offline=False).summary
    assert other.rate.mean == pytest.approx(1.0, rel=0.005)
    assert other.input_tokens.mean == pytest.approx(500.0, rel=0.005)


@NEEDS_PROMETHEUS
@pytest.mark.long
def test_init_writes_a_scenario_that_is_read(with_a_past, tmp_path, capsys):
    from capplan.cli.main import main

    path = tmp_path / "seen.yaml"
    line = [
        "init",
        str(path),
        "--from",
        with_a_past,
        "--window",
        "2d",
        "--model-name",
        "m",
        "--model",
        "llama-3.1-8b",
    ]
    assert main(line) == 0, capsys.readouterr().err
    assert read_scenario(path).model == "llama-3.1-8b"
    (traffic,) = yaml.safe_load(path.read_text(encoding="utf-8"))["traffic"]
    assert float(traffic["request_rate"].split()[0]) == pytest.approx(max(HOURLY), rel=0.01)
    assert traffic["daily_curve"] == pytest.approx(HOURLY, rel=0.01)
    assert traffic["input_tokens"]["mean"] == pytest.approx(400.0, rel=0.005)
    assert traffic["shared_prefix"]["hit_fraction"] > 0.25


@NEEDS_PROMETHEUS
@pytest.mark.long
def test_check_and_replan_read_the_server(with_a_past, tmp_path, capsys):
    """Planned for 20 req/s at the peak of every hour; there were 1 to 2.9, with outputs of 60 tokens instead of 100."""
    from capplan.cli.main import main

    plan = str(tmp_path / "plan.json")
    assert main(["fleet", str(ROOT / "tests/golden/small.yaml"), "--offline", "-o", plan]) == 0
    asked = shlex.split(f"--plan {plan} --prometheus {with_a_past} --window 2d --model-name m --format json")
    capsys.readouterr()
    code = main(["check", *asked])
    checked = json.loads(capsys.readouterr().out)["result"]
    drift = {row["what"]: row for row in checked["drift"]}
    assert checked["observed"]["request_rate"] == pytest.approx(max(HOURLY), rel=0.005)
    assert not drift["request_rate"]["inside"]
    assert not drift["output_tokens"]["inside"]
    assert drift["input_tokens"]["inside"]
    assert drift["ttft_s.mean"]["observed"] == pytest.approx(0.3, rel=0.001)
    missed = {check["what"] for check in checked["failures"]}
    assert {"slo.ttft_p95 as measured", "slo.tpot_p95 as measured"} <= missed
    assert (code, checked["holds"]) == (4, False)
    assert main(["replan", *asked]) == 0
    again = json.loads(capsys.readouterr().out)["result"]
    assert not again["kept"]
    assert again["usd_per_month"]["after"] < again["usd_per_month"]["before"]
    assert again["changing"]["stopped_replicas"] >= 1
    main(["check", *asked[:-2]])
    printed = re.search(r"search again: capplan (replan .*)", capsys.readouterr().out)[1]
    assert main(shlex.split(printed)) == 0
    printed = re.search(r"keep it: capplan (fleet .*)", capsys.readouterr().out)[1]
    assert main([*shlex.split(printed), "--offline"]) == 0
    kept = json.loads(Path(plan).read_text(encoding="utf-8"))["result"]
    assert kept["demand"]["peak_requests_per_s"] == pytest.approx(max(HOURLY), rel=0.005)


@NEEDS_PROMETHEUS
@pytest.mark.long
def test_a_server_that_is_scraped_in_two_jobs_counts_once_under_any_prefix(tmp_path):
    start = time.monotonic()
    prefixes = ("vllm:", "ray_vllm:", "vllm_")

    def text():
        requests = 10.0 * (time.monotonic() - start)
        return "".join(
            text_of(exposed(requests, f',tp_rank="{rank}"', model=f"m{number}"), prefix=prefix)
            for number, prefix in enumerate(prefixes)
            for rank in (0, 1)
        )

    def whole(model):
        try:
            seen = observed(address, "--from", 15.0, model, offline=False)
        except InputError:
            return None
        rates = seen.summary.rate.by_window
        unseen = any("has no samples" in note for note in seen.summary.notes)
        return seen if not unseen and min(rates) > 0.9 * max(rates) else None

    with Exporter(text) as target, running(tmp_path, [target], ["pods", "services"]) as address:
        until = time.monotonic() + 90
        while whole("m0") is None and time.monotonic() < until:
            time.sleep(1.0)
        found = [whole(f"m{number}") for number in range(len(prefixes))]
    for seen in found:
        assert seen.summary.rate.mean == pytest.approx(10.0, rel=0.1)
        assert seen.summary.input_tokens.mean == pytest.approx(400.0, rel=0.01)
        assert seen.running == 3.0


@NEEDS_PROMETHEUS
@pytest.mark.long
def test_a_server_without_engines_says_what_is_expected(tmp_path):
    with (
        running(tmp_path) as address,
        pytest.raises(InputError, match="no requests of an engine in the last 3,600 s"),
    ):
        observed(address, "--from", 3600.0, None, offline=False)


REFUSED = (
    # address, window, --offline, environment, words
    ("http://127.0.0.1:1", 3600.0, True, {}, "--offline never connects"),
    ("http://127.0.0.1:1", 3600.0, False, {}, "cannot be asked"),
    ("http://user:secret@127.0.0.1:1", 3600.0, False, {}, f"environment variable {KEY}"),
    ("http://prometheus.invalid:9090", 3600.0, False, {KEY: "secret"}, "unencrypted"),
    ("http://127.0.0.1:1", 1.0, False, {}, "--window: 1 s is out of range"),
)


@pytest.mark.parametrize(("address", "window_s", "offline", "environment", "words"), REFUSED)
def test_addresses_that_are_not_asked(address, window_s, offline, environment, words, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as refused:
        observed(address, "--from", window_s, None, offline=offline)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value).replace("user:secret@", "")


NAMES = '{"status": "success", "data": ["vllm:request_prompt_tokens_count"]}'


@table
@pytest.mark.parametrize("names", [NAMES, None], ids=["of questions", "of names"])
def test_answers_that_are_none_are_said_with_the_token_hidden(names, status, body, words, monkeypatch):
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(200 if names else status, names or body)

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(status, body)

        def answer(self, code, text):
            asked.append(self.headers["Authorization"])
            self.send_response(code)
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    monkeypatch.setenv(KEY, "secret")
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with pytest.raises(InputError) as refused:
            observed(f"http://127.0.0.1:{server.server_address[1]}", "--from", 3600.0, None, offline=False)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert set(asked) == {"Bearer secret"}
    if names or "known" not in words:
        assert words in str(refused.value)
    assert "secret" not in str(refused.value)


def test_capplan_serve_never_asks_an_address_for_a_client():
    from capplan.cli.api.declared import offered

    commands = offered()
    assert "init" not in commands
    assert not [
        (name, flag.key)
        for name, command in commands.items()
        for flag in command.flags
        if flag.key == "prometheus"
    ]
