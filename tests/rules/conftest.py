"""What the tests of keys and flags share: small scenarios, traces and results, and no hub, processes or device behind them."""

import csv
import json
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from capplan.cli.main import main
from capplan.engine.lookup import profile
from capplan.errors import InputError
from capplan.questions.validation import BUILT_IN_POINTS
from capplan.recorded.traces.prometheus_server import observed
from tests.observed import seen_of
from tests.plan_files import with_changes
from tests.sweeps import size_on_few_requests

ROOT = Path(__file__).resolve().parents[2]
TORCH = find_spec("torch") is not None
"""Only a calibration needs it: everything else is tested without."""
SMALL = {
    "name": "small",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "traffic": [
        {"request_rate": "2 req/s", "input_tokens": {"mean": 400, "p95": 900}, "output_tokens": {"mean": 60, "p95": 150}}
    ],
    "slo": {"ttft_p95": "2 s"},
    "fleet": {"hardware": ["h100-sxm"], "tensor_parallel": 1, "pipeline_parallel": 1},
}  # fmt: skip
NARROW = {"gpu_memory_utilization": 0.25, "max_model_len": 4096}
SCENARIOS = {
    "small": SMALL,
    "busy": SMALL | {"max_num_seqs": 4, "traffic": [SMALL["traffic"][0] | {"request_rate": "9 req/s"}]},
    "two": SMALL | {"fleet": SMALL["fleet"] | {"hardware": ["l4", "l40s"]}},
    "tight": SMALL | NARROW | {"traffic": [{"request_rate": "30 req/s", "input_tokens": 400, "output_tokens": 900}]},
    "hub": SMALL | {"model": "tiny/unknown"},
    "shared": SMALL | {"commitments": {"reserved_1y": {"discount": "30 %"}}},
    "chats": SMALL | NARROW | {"traffic": [{"trace": "chats.jsonl"}]},
}  # fmt: skip
MINUTES = {"day": (3, 3, 30, 5, 3, 50, 3, 3), "night": (3, 3, 12, 5, 3, 20, 3, 3)}
"""Trace -> requests of each minute."""
BUCKETS = [
    f'vllm:request_{name}_tokens_bucket{{le="{bound}"}} {count}'
    for name in ("prompt", "generation")
    for bound, count in ((100, 10), (500, 40), ("+Inf", 50))
]
SUMS = [
    f"vllm:request_{name}_tokens_{what}"
    for name in ("prompt", "generation")
    for what in ("sum 9000", "count 50")
]
RESULT = {
    "request_throughput": "requests/sec",
    "output_sequence_length": "tokens",
    "inter_token_latency": "ms",
}
SERVED = {
    "backend": "vllm", "num_prompts": 50, "completed": 50, "duration": 25.0, "total_input_tokens": 20_000, "total_output_tokens": 3000,
    "request_rate": 2.0, "mean_ttft_ms": 40.0, "p95_ttft_ms": 60.0, "mean_tpot_ms": 10.0,
}  # fmt: skip
OFFER = {"device": "h100-sxm", "provider": "Own", "commitment": "on-demand", "price": "2 $/h", "date": "2026", "source": "page"}  # fmt: skip
PRICES = {"sources": {"page": {"title": "page", "url": "https://example.org"}}, "prices": [OFFER]}
VMS = """InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
gpu_8x_h100,192,2048,H100,8,,24.0,12.8,east,east-a
"""
TOKENS = {
    "sources": PRICES["sources"],
    "prices": [
        {"provider": "openai", "model": "gpt-5-mini", "input": "1 $/Mtok", "output": "7 $/Mtok", "date": "2026-11-01", "source": "page"}
    ],
}  # fmt: skip
PAID = (
    "ChargePeriodStart,ChargePeriodEnd,ChargeCategory,EffectiveCost,PricingQuantity,PricingUnit,SkuId\n"
    "2026-12-01T00:00:00Z,2026-12-02T00:00:00Z,Usage,70,24,Hours,h100-sxm\n"
)
LITELLM = {
    "sample_spec": {"input_cost_per_token": 0.0},
    "gpt-5-mini": {"litellm_provider": "openai", "input_cost_per_token": 3e-7, "output_cost_per_token": 2.5e-6,
                   "cache_read_input_token_cost": 3e-8, "max_input_tokens": 272000},
}  # fmt: skip


class Opened(NamedTuple):
    """What a device was opened with."""

    device: str
    threads: int
    force: bool
    machine: str = "this"


def write_traces(folder):
    for name, minutes in MINUTES.items():
        rows = [f"{60 * m + 60 * i / n},900,{180 + i % 7}" for m, n in enumerate(minutes) for i in range(n)]
        (folder / f"{name}.csv").write_text(
            "\n".join(["arrival_s,input_tokens,output_tokens", *rows, "480,900,200"])
        )
    chats = [
        {"timestamp": 500 * i, "input_length": 2048, "output_length": 20, "hash_ids": [100 * (i * 7 % 60) + b for b in range(4)]}
        for i in range(240)
    ]  # fmt: skip
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    counters = [*BUCKETS, *SUMS, "vllm:request_success_total 50"]
    (folder / "scrape.txt").write_text("\n".join(counters) + "\n")
    waits = ["vllm:time_to_first_token_seconds_sum 5", "vllm:time_to_first_token_seconds_count 50"]
    (folder / "latencies.txt").write_text("\n".join([*counters, *waits]) + "\n")


def write_results(folder):
    for name in ("bare", "more", "third"):
        values = {key: {"avg": 20.0, "unit": unit} for key, unit in RESULT.items()}
        (folder / f"{name}.json").write_text(json.dumps({"schema_version": "1.4", **values}))
    for name, ttft_ms in (("served", 40.0), ("slow", 90.0)):
        (folder / f"{name}.json").write_text(json.dumps(SERVED | {"mean_ttft_ms": ttft_ms}))
    with BUILT_IN_POINTS.open() as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["gpu"], row["engine"], row["kind"]) == ("h100-sxm", "vllm", "online_conc")
        ]
    for name, part in (("points", rows[:1]), ("more", rows[1:2])):
        with (folder / f"{name}.csv").open("w") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(row | {"engine_version": profile("vllm").version} for row in part)
    (folder / "batch.json").write_text('{"avg_latency": 2.5, "latencies": [2.5]}')
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 320,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "starts.csv").write_text(
        "gpu,model_hf_id,engine,engine_version,tp,gpu_memory_utilization,kv_cache_tokens\nh100-sxm,meta-llama/Llama-3.1-8B,vllm,0.9.0,1,0.9,400000\n"
    )


@pytest.fixture(scope="session")
def small_files(tmp_path_factory, host_file):
    """Return a folder with small files of every kind."""
    folder = tmp_path_factory.mktemp("small")
    for name, scenario in SCENARIOS.items():
        (folder / f"{name}.yaml").write_text(json.dumps(scenario))
    for name, accepted in (("drafts", 1200), ("better", 2400)):
        counts = {"drafts": 1000, "draft_tokens": 3000, "accepted_tokens": accepted}
        (folder / f"{name}.txt").write_text(
            "".join(f"vllm:spec_decode_num_{key}_total {count}\n" for key, count in counts.items())
        )
    (folder / "prices.yaml").write_text(json.dumps(PRICES))
    (folder / "tokens.yaml").write_text(json.dumps(TOKENS))
    (folder / "vms.csv").write_text(VMS)
    (folder / "litellm.json").write_text(json.dumps(LITELLM))
    (folder / "paid.csv").write_text(PAID)
    for name, usd in (("offers", 9), ("other", 12)):
        (folder / f"{name}.csv").write_text(f"provider,hardware,gpus,price\nAcme,gaudi2,8,{usd}\n")
    (folder / "host.calibration.yaml").write_text(host_file)
    write_traces(folder)
    write_results(folder)
    plan = [
        "fleet",
        str(folder / "small.yaml"),
        "--hardware",
        "h200-sxm",
        "--offline",
        "-o",
        str(folder / "plan.json"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        size_on_few_requests(patch)
        assert main(plan) == 0
    prices = json.loads((folder / "plan.json").read_text())["result"]["plan_file"]["inputs"]["prices"]
    dear = [{**row, "usd_per_gpu_hour": 2 * row["usd_per_gpu_hour"]} for row in prices]
    with_changes(folder / "plan.json", folder / "dear-plan.json", inputs={"prices": dear})
    with_changes(
        folder / "plan.json", folder / "hub-plan.json", inputs={"content": {"model": "tiny/unknown"}}
    )
    return folder


@pytest.fixture
def stand_ins(monkeypatch):
    """Put a line that says what it was told in the place of hub, processes, cluster and device."""

    monkeypatch.setattr("capplan.report.safe_text.LONGEST_LINE", 10**6)  # what was told is read whole

    def says(write):
        def told(*args, **named):
            error = InputError()
            error.args = ("told: " + write(*args, **named),)  # whole, however long
            raise error

        return told

    def opened(measuring):
        return Opened(measuring.device, measuring.threads, measuring.force)

    def run_of(pair):
        result, spec = pair
        projection = spec.network.layers[0].projections[0]
        return (
            f"{result} on {spec.device.name}, {spec.network.name} with weights in {projection.weight_format}, cache in "
            f"{spec.kv_format}, {spec.sharding}, served by {spec.profile.engine} {spec.profile.version}, {spec.profile.host.step_s} s a step, "
            f"limits {spec.max_model_len} {spec.max_num_seqs} {spec.max_num_batched_tokens} {spec.gpu_memory_utilization}"
        )

    def watched(url, option, window_s, model, *, offline):
        if offline:
            return observed(url, option, window_s, model, offline=offline)
        if url != "http://seen":
            return says(lambda *asked: " ".join(map(str, asked)))(url, option, window_s, model)
        return seen_of(rate=9.0 if model is None else 18.0, seconds=window_s)

    def no_cluster(*_, **__):
        raise OSError("nobody")

    machine = SimpleNamespace(device="cpu", threads=None, name="this")
    hub, calibrate = "capplan.readers.catalogue.models", "capplan.cli.calibrate"
    timed = {
        "capplan.calibrate.measure.calibrated": says(lambda target, **asked: f"{target} {asked}"),
        "capplan.calibrate.measure.planned_run": says(lambda target, **asked: f"a plan for {target} {asked}"),
        "capplan.calibrate.verify.engine_proofs": says(lambda pairs: "; ".join(map(run_of, pairs))),
        "capplan.calibrate.refit.refitted": says(lambda pairs: "; ".join(map(run_of, pairs))),
    }  # fmt: skip
    for place, stand_in in {
        **(timed if TORCH else {}),
        f"{hub}._fetched": says(lambda *_, **__: "the hub"),
        "capplan.fleet.search.workers.ProcessPoolExecutor": says(lambda count, *_, **__: f"{count} processes"),
        "capplan.cli.mcp._serve": says(lambda *words, **named: " ".join(map(str, words)) + f" {named}"),
        "capplan.cli.serve._serve": says(lambda *words, **named: " ".join(map(str, words)) + f" {named}"),
        f"{calibrate}._opened": opened,
        f"{calibrate}._proof": says(lambda network, target, path, *, quick: f"{network.name} on {target.device}, {path.name}, quick={quick}"),
        "capplan.recorded.traces.prometheus_server.observed": watched,
        "capplan.readers.calibration.file.read_calibration": lambda _: SimpleNamespace(machine=machine, remarks=()),
        "capplan.readers.calibration.measured_device.refuse_other_machine": lambda *_: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(place, stand_in)
    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=no_cluster))


@pytest.fixture
def line(small_files, monkeypatch, capsys, stand_ins, shared_runs):
    """Run a command line among the small files; a line that was run before is not run again."""
    size_on_few_requests(monkeypatch)
    monkeypatch.chdir(small_files)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(small_files / "config"))

    def run(words, *, anew=False):
        key = tuple(words)
        if anew or key not in SEEN:
            capsys.readouterr()
            code = main(list(words))
            caught = capsys.readouterr()
            SEEN[key] = SimpleNamespace(code=code, out=caught.out, err=caught.err)
        return SEEN[key]

    return run


SEEN = {}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Build the wheel with the build backend that is already here, without the network."""
    pytest.importorskip("hatchling", reason="the build backend comes with the test extra")
    folder = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
    """Unpack the wheel where nothing else of the project can be imported."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site
