"""Files of every kind with small faults, read: they are used or refused in one line, and what is read is finite.

    python -m tests.fuzz.readers --seconds 600 --seed 1 [--kind config]

A finding is printed with the file that shows it and the line that repeats it.
"""

import gzip
import io
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from capplan import __version__
from capplan.errors import InputError
from capplan.questions.gguf_speeds import gguf_row_predictions
from capplan.readers.calibration.file import _checksum, read_calibration_file
from capplan.readers.catalogue.efficiency import shipped_intervals
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import read_model
from capplan.readers.catalogue.price_exports import offers_in
from capplan.readers.catalogue.prices import read_prices, skypilot_prices
from capplan.readers.catalogue.token_prices import litellm_prices, read_token_prices
from capplan.readers.plan_file import read_plan_file, result_digest
from capplan.readers.point_file import PointFile
from capplan.readers.yaml_file import parse_yaml
from capplan.recorded.measured import measured_table
from capplan.recorded.paid import read_paid
from capplan.recorded.results.read import read_results
from capplan.recorded.traces.trace import read_trace, workload_of
from capplan.scenario.scenario import read_scenario
from capplan.scenario.workload_file import read_workload
from tests.fuzz.turns import asked_until_time_is_over
from tests.gguf_files import header, llama

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests" / "data" / "results"
LONGEST_S = 10.0
"""That one small file may take."""
LONGEST_LINE = 700
EXAMPLES = 2000
"""Of one kind and seed, at most."""
TURN_S = 1.0
"""Processor time of one kind and seed, at most."""

HOSTILE = (
    None, True, -1, 0, 1, 2**63, 10**400, 1e308, 5e-324, -0.0, math.inf, math.nan, "", "abc", "1" * 400, "1e999", "nan", "-5 s",
    "\x1b[31m<b>", "~nosuchuser/x", "a\0b", "\udcff", "2023-99-99", "٣", "x" * 5000, [], {}, [[]], [None], {"a": None}, [1, "b"],
)  # fmt: skip
TOKENS = (
    b"", b"-1", b"0", b"1e15", b"1e308", b"1e999", b"nan", b"inf", b"abc", b"9" * 400, b'"', b"'", b",", b";", b"\t", b"\r", b"\x00",
    b"\xff", b"{", b"[[[[[[", b"}", b":", b"&a", b"*a", b"<<: *a", b"!!int", b"---", b"2023-99-99", b"\n\n", b"\xd9\xa3", b"#", b"+Inf",
)  # fmt: skip

CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 384, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 128, "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": ["lm_head"]},
}  # fmt: skip
SCENARIO = {
    "name": "s", "model": "llama-3.2-1b", "weight_dtype": "bf16", "max_model_len": 4096, "gpu_memory_utilization": 0.9,
    "traffic": [{
        "name": "c", "request_rate": "2 req/s", "input_tokens": {"mean": 400, "p95": 900}, "output_tokens": 60,
        "shared_prefix": {"tokens": 100, "hit_fraction": 0.5}, "daily_curve": "office",
    }],
    "slo": {"ttft_p95": "2 s", "tpot_p95": "50 ms"},
    "fleet": {"hardware": ["l4"], "headroom": "20 %", "tensor_parallel": [1], "spare_replicas": 1},
    "prices": {"commitment": "on-demand", "electricity": "0.2 $/kWh"},
}  # fmt: skip
OFFER = {"device": "l4", "provider": "Own", "commitment": "on-demand", "price": "2 $/h", "date": "2026", "source": "page", "devices": 8}  # fmt: skip
PRICES = {"sources": {"page": {"title": "page", "url": "https://example.org"}}, "prices": [OFFER]}
TABLE = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{i}.5,{90 + i},{9 + i % 3}\n" for i in range(30))
HASHED = "".join(
    json.dumps({"timestamp": 300 * i, "input_length": 900, "output_length": 9, "hash_ids": [1, i]}) + "\n"
    for i in range(15)
)
_TURNS = [{"t": 3 * i, "type": "s", "in": 64 * i, "out": 9, "hash_ids": [*range(i)]} for i in range(1, 5)]
AGENTS = "".join(
    json.dumps(
        {
            "id": name,
            "block_size": 64,
            "hash_id_scope": "local",
            "requests": [*_TURNS, {"t": 20, "type": "subagent", "requests": _TURNS}],
        }
    )
    + "\n"
    for name in "ab"
)
SESSIONS = "".join(
    json.dumps(
        {
            "session_id": i % 3,
            "input_length": 512 * (1 + i // 3),
            "output_length": 9,
            "hash_ids": [*range(1 + i // 3)],
            ("delay" if i > 2 else "timestamp"): 500 * i,
        }
    )
    + "\n"
    for i in range(9)
)
CLIENTS = "client,start_s,rate_rps,cv\n0,0,1,1\n1,600,2,1.5\n"
LENGTHS = "field,value,prob\ninput_tokens,30,0.5\ninput_tokens,90,0.5\noutput_tokens,9,1\n"
MONEY = ("api-or-own", "commitments", "drafts", "energy", "growing", "who-pays")
"""Shipped scenarios with sections that the others lack."""
BESIDE = {"a_clients.csv": ("a_length_hist.csv", LENGTHS), "b_length_hist.csv": ("b_clients.csv", CLIENTS)}
"""What lies beside a file of a pair."""
LLAMA = {
    "n_prompt": 512,
    "n_gen": 0,
    "avg_ns": 1e9,
    "avg_ts": 512.0,
    "model_type": "llama 8B",
    "gpu_info": "x",
}
LITELLM = {
    "sample_spec": {"input_cost_per_token": 0.0},
    "gpt-5-mini": {
        "litellm_provider": "openai", "input_cost_per_token": 3e-7, "output_cost_per_token": 2.5e-6,
        "cache_read_input_token_cost": 3e-8, "input_cost_per_token_above_200k_tokens": 6e-7, "max_input_tokens": 272000,
    },
}  # fmt: skip
MACHINES = (
    "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
    "gpu_8x_h100,192,2048,H100,8,,24.0,12.8,east,east-a\ngpu_1x_l4,8,32,L4,1,,0.8,,east,east-a\n"
)
DAY = "2026-11-01"
MEASURED = (
    "id,engine,engine_version,model_hf_id,gpu,num_gpus,tp,isl,osl,concurrency,tpot_ms_mean,kind,notes\n"
    "a,vllm,0.11.0,meta-llama/Llama-3.1-8B,h100-sxm,1,1,500,60,4,9,online_conc,n_requests=20\n"
)

OFFERS = "provider,machine,hardware,gpus,commitment,region,price,discount,date\nacme,acme-8,h100-sxm,8,on-demand,east,30,10%,2026-11-20\n"
AWS = {
    "PriceList": [{
        "product": {"attributes": {"instanceType": "p5.48xlarge", "regionCode": "us-west-2", "operatingSystem": "Linux", "tenancy": "Shared",
                                   "preInstalledSw": "NA", "capacitystatus": "Used"}},
        "publicationDate": "2026-11-25T10:00:00Z",
        "terms": {
            "OnDemand": {"a": {"priceDimensions": {"b": {"unit": "Hrs", "pricePerUnit": {"USD": "50"}}}}},
            "Reserved": {"c": {"termAttributes": {"LeaseContractLength": "1yr", "OfferingClass": "standard"}, "priceDimensions": {
                "d": {"unit": "Hrs", "pricePerUnit": {"USD": "20"}}, "e": {"unit": "Quantity", "pricePerUnit": {"USD": "87600"}}}}},
        },
    }],
}  # fmt: skip
_AZURE = {"currencyCode": "USD", "armRegionName": "eastus", "armSkuName": "Standard_ND96isr_H100_v5", "unitOfMeasure": "1 Hour", "productName": "Virtual Machines NDsr"}  # fmt: skip
AZURE = {"Items": [_AZURE | {"type": "Consumption", "retailPrice": 98.0, "skuName": "ND96isr H100 v5"},
                   _AZURE | {"type": "Reservation", "retailPrice": 525600.0, "reservationTerm": "3 Years", "skuName": "ND96isr"}]}  # fmt: skip
GCP = {"skus": [
    {"description": f"{part} running in Americas", "category": {"usageType": "OnDemand"}, "serviceRegions": ["us-central1"],
     "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": [{"unitPrice": {"currencyCode": "USD", "units": "2", "nanos": 500000000}}]}}]}
    for part, unit in (("Nvidia Tesla A100 GPU", "h"), ("A2 Instance Core", "h"), ("A2 Instance Ram", "GiBy.h"))
]}  # fmt: skip
FOCUS = (
    "ChargePeriodStart,ChargePeriodEnd,ChargeCategory,BillingCurrency,SkuPriceDetails,PricingUnit,PricingQuantity,EffectiveCost,Tags,ResourceName,AllocatedMethodDetails\n"
    '2026-12-01T00:00:00Z,2027-01-01T00:00:00Z,Usage,USD,"{""InstanceType"": ""p5.48xlarge""}",Hours,744,44640,"{""team"": ""chat""}",x,\n'
    '2026-12-01T00:00:00Z,2027-01-01T00:00:00Z,Usage,USD,"{""InstanceType"": ""p5.48xlarge""}",1000000 Tokens,4,40,{},x,"{""Elements"": [{""UsageQuantity"": 8}]}"\n'
)
CUR = (
    "line_item_usage_start_date,line_item_usage_end_date,line_item_line_item_type,line_item_usage_amount,line_item_unblended_cost,reservation_effective_cost,product_instance_type,resource_tags_user_class\n"
    "2026-12-01T00:00:00Z,2026-12-01T01:00:00Z,Usage,1,55,,p5.48xlarge,chat\n2026-12-01T01:00:00Z,2026-12-01T02:00:00Z,DiscountedUsage,2,0,60,p5.48xlarge,mail\n"
)
OPENCOST = {"code": 200, "data": [{"chat": {
    "window": {"start": "2026-12-01T00:00:00Z", "end": "2027-01-01T00:00:00Z"}, "gpuHours": 44.0, "totalCost": 220.0, "properties": {"labels": {"class": "chat"}},
}}]}  # fmt: skip
BENCH = (
    "  Device 0: NVIDIA GeForce RTX 4090, compute capability 8.9, VMM: yes\n"
    "| model | size | params | backend | ngl | fa | test | t/s |\n| --- | ---: | ---: | --- | --: | -: | ---: | ---: |\n"
    "| llama 8B Q4_K - Medium | 4.58 GiB | 8.03 B | CUDA | 99 | 1 | pp512 | 12800.00 ± 25.50 |\n"
    "| llama 8B Q4_K - Medium | 4.58 GiB | 8.03 B | CUDA | 99 | 1 | tg128 @ d4096 | 128.00 ± 0.50 |\n\nbuild: 6f7a1bc0 (7421)\n"
)
SPEEDS = (
    "id,source,tool,build,backend,device,device_count,model,quant,model_size_gib,test,prompt_tokens,depth_tokens,gen_tokens,n_gpu_layers,n_cpu_moe,flash_attention,kv_type,parallel,tok_s,notes\n"
    "a,x,llama-bench,b7421,cuda,RTX 4090,1,LLaMA 3 8B,Q4_K_M,4.58,pp512,512,0,0,99,,1,f16,1,12800,\n"
    "b,x,llama-bench,b7421,cuda,RTX 4090,1,LLaMA 3 8B,Q4_K_M,4.58,tg128,0,4096,128,99,,1,f16,1,128,\n"
)


def _speeds(path: Path) -> object:
    """Return the predictions of published speeds of GGUF models."""
    return list(gguf_row_predictions(measured_table(path, "llamacpp")[1], shipped_intervals()))


def _result(name: str) -> bytes:
    return (RESULTS / name).read_bytes()


def _traffic(path: Path) -> object:
    return workload_of([path])


@dataclass(frozen=True)
class Kind:
    """A kind of file: sound ones, and what reads it."""

    name: str
    read: Callable[[Path], object]
    sound: Callable[[], Sequence[Any]]
    """Values that are written as JSON (which YAML contains), or the bytes of a file."""


def _json(name: str) -> Any:
    return json.loads(_result(name))


def _yaml(path: Path) -> Any:
    return parse_yaml(path.read_text(), path.name).value


KINDS = (
    Kind("scenario.yaml", read_scenario, lambda: [SCENARIO]),
    Kind("hardware.yaml", lambda path: device(str(path)), lambda: [_yaml(ROOT / "hardware_specs" / "l4.yaml")]),
    Kind("prices.yaml", read_prices, lambda: [PRICES]),
    Kind("tokens.yaml", read_token_prices, lambda: [_short(_yaml(ROOT / "hardware_specs" / "token_prices.yaml"))]),
    Kind("litellm.json", lambda path: litellm_prices(path, DAY), lambda: [LITELLM]),
    Kind("machines.csv", lambda path: skypilot_prices(path, DAY), lambda: [MACHINES.encode()]),
    Kind("points.jsonl", lambda path: PointFile(path).rows, lambda: [_points()]),
    Kind("money.yaml", read_scenario, lambda: [_yaml(ROOT / "scenarios" / f"{name}.yaml") for name in MONEY]),
    Kind("text.yaml", read_scenario, lambda: [(ROOT / "scenarios" / "support-chat.yaml").read_bytes()]),
    Kind("workload.yaml", lambda path: read_workload(str(path)), lambda: [_workload()]),
    Kind("c.calibration.yaml", read_calibration_file, lambda: [_calibration()]),
    Kind("config.json", lambda path: read_model(str(path)), lambda: [CONFIG, *_configs()]),
    Kind("model.gguf", lambda path: read_model(str(path)), lambda: [_gguf(0), _gguf(200)]),
    Kind("plan.json", read_plan_file, lambda: [_plan()]),
    Kind("results.json", read_results, lambda: [LLAMA, *(_json(path.name) for path in sorted(RESULTS.glob("*.json")))]),
    Kind("results.yaml", read_results, lambda: [_yaml(path) for path in sorted(RESULTS.glob("*.yaml"))]),
    Kind("results.csv", read_results, lambda: [_result("aiperf_profile_export_aiperf.csv")]),
    Kind("log.jsonl", _traffic, lambda: [_result("aiperf_profile_export_first3.jsonl"), HASHED.encode()]),
    Kind("agents.jsonl", _traffic, lambda: [AGENTS.encode(), SESSIONS.encode()]),
    Kind("log.json", _traffic, lambda: [_json("vllm_bench_serve_detailed.json"), _json("guidellm_report_v2_fixture.json")]),
    Kind("table.csv", _traffic, lambda: [TABLE.encode(), gzip.compress(TABLE.encode(), mtime=0)]),
    Kind("replayed.csv", read_trace, lambda: [TABLE.encode()]),
    Kind("scrape.txt", _traffic, lambda: [_result("vllm_0.33.0_metrics_exposition.txt")]),
    Kind("a_clients.csv", _traffic, lambda: [CLIENTS.encode()]),
    Kind("b_length_hist.csv", lambda path: _traffic(path.with_name("b_clients.csv")), lambda: [LENGTHS.encode()]),
    Kind("measured.csv", measured_table, lambda: [MEASURED.encode()]),
    Kind("offers.csv", lambda path: offers_in(path, DAY), lambda: [OFFERS.encode()]),
    Kind("cloud.json", lambda path: offers_in(path, DAY), lambda: [AWS, AZURE, GCP]),
    Kind("paid.csv", lambda path: read_paid(path, {"USD": 1.0}), lambda: [FOCUS.encode(), CUR.encode()]),
    Kind("opencost.json", lambda path: read_paid(path, {"USD": 1.0}), lambda: [OPENCOST]),
    Kind("bench.md", read_results, lambda: [BENCH.encode()]),
    Kind("speeds.csv", _speeds, lambda: [SPEEDS.encode()]),
)  # fmt: skip
NAMED = {kind.name: kind for kind in KINDS}


def _written(name: str, text: str, command: str, *words: str) -> bytes:
    """Return the file that a command about a file writes."""
    from capplan.cli.main import main

    with tempfile.TemporaryDirectory() as folder:
        asked, out = Path(folder) / name, Path(folder) / f"out{Path(words[-1]).suffix}"
        asked.write_text(text)
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            assert main([command, str(asked), *words[:-1], str(out)]) == 0
        return out.read_bytes()


def _workload() -> Any:
    return parse_yaml(_written("t.csv", TABLE, "workload", "-o", "w.yaml").decode(), "w.yaml").value


@lru_cache(maxsize=1)
def _plan() -> Any:
    """Return the result in a plan file of the tiny scenario; `sealed` makes a file of it."""
    return json.loads(_written("s.yaml", json.dumps(SCENARIO), "fleet", "--offline", "-o", "plan.json"))[
        "result"
    ]


def _points() -> bytes:
    words = ("--hardware", "l4", "--concurrency", "1,2", "--input-tokens", "50", "--output-tokens", "8")
    return _written("config.json", json.dumps(CONFIG), "sweep", *words, "--offline", "--points", "p.jsonl")


def _calibration() -> Any:
    found = sorted((ROOT / "calibrate").rglob("*.calibration.yaml"), key=lambda path: path.stat().st_size)
    return _short(_yaml(found[0])) if found else {"schema_version": 1, "machine": {}}


def _short(value: Any) -> Any:
    """Return a value with the first items of long lists alone."""
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    return [_short(inner) for inner in value[:3]] if isinstance(value, list) else value


def _gguf(tail: int) -> bytes:
    """Return a small GGUF file, or its header and the beginning of its data."""
    raw, data = header(*llama())
    return raw + bytes(tail or data)


def _configs() -> list[Any]:
    """Return one shipped config of each kin."""
    by_kin: dict[str, Any] = {}
    for path in sorted((ROOT / "model_configs").rglob("config.json")):
        config = json.loads(path.read_text())
        by_kin.setdefault(str(config.get("model_type")), config)
    return list(by_kin.values())


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in lists and mappings; of a long list the first ones."""
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    )
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: object) -> Any:
    """Return a copy with another value at a path, which shares the rest; KeyError itself takes it away."""
    if not path:
        return new if new is not KeyError else {}
    copied = value.copy()
    if len(path) > 1:
        copied[path[0]] = changed(value[path[0]], path[1:], new)
    elif new is KeyError:
        del copied[path[0]]
    else:
        copied[path[0]] = new
    return copied


def faulty(kind: Kind, random: Random) -> bytes:
    """Return the bytes of a file with one to three faults."""
    number = random.randrange(len(SOUND[kind.name]))
    sound = SOUND[kind.name][number]
    for turn in range(random.randint(1, 3)):
        if isinstance(sound, bytes):
            sound = _spoilt(random, sound)
        elif isinstance(sound, (dict, list)):
            paths = PLACES[kind.name][number] if turn == 0 else places(sound)
            sound = changed(sound, random.choice(paths), random.choice(NEW))
    if isinstance(sound, bytes):
        return sound
    if kind.name == "plan.json" and isinstance(sound, dict):
        return json.dumps(sealed(sound)).encode()
    if kind.name == "c.calibration.yaml" and isinstance(sound, dict) and random.random() < 0.9:
        body = {key: value for key, value in sound.items() if key not in ("schema_version", "checksum")}
        sound = {**sound, "checksum": _checksum(body)}
    return json.dumps(sound).encode()


def _spoilt(random: Random, content: bytes) -> bytes:
    place = random.randint(0, len(content))
    length = random.choice((0, 1, 1, 3, 20))
    if random.random() < 0.5:  # a whole word rather than some bytes
        ends = [content.find(mark, place) for mark in b" ,\n:}"]
        length = min((end - place for end in ends if end >= 0), default=length)
    return content[:place] + random.choice(TOKENS) + content[place + length :]


def sealed(result: dict[str, Any]) -> dict[str, Any]:
    """Return a plan file whose digest is that of its content, whatever it holds."""
    try:
        origin = {**result["plan_file"], "result_sha256": result_digest(result)}
    except (KeyError, TypeError, AttributeError, OverflowError, UnicodeError):
        origin = {}
    return {"capplan": __version__, "command": "fleet", "result": {**result, "plan_file": origin}}


class _Sound(dict[str, Sequence[Any]]):
    """Sound files by kind, made when they are asked for."""

    def __missing__(self, name: str) -> Sequence[Any]:
        self[name] = NAMED[name].sound()
        return self[name]


class _Places(dict[str, list[list[tuple[Any, ...]]]]):
    """Paths of all values of the sound files of a kind."""

    def __missing__(self, name: str) -> list[list[tuple[Any, ...]]]:
        self[name] = [[] if isinstance(value, bytes) else places(value) for value in SOUND[name]]
        return self[name]


SOUND = _Sound()
PLACES = _Places()
NEW = (KeyError, *HOSTILE)
UNLIMITED = {"high_tokens"}
"""Fields in which an endless number says that there is no limit."""
UNKNOWN = {"Row", "TracePart", "SamplePath"}
"""Records in which nan stands for what is not known."""


def not_finite(value: object, path: str = "", depth: int = 0) -> str:
    """Return where a record holds a number that is not finite; empty where it holds none."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{path} is {value}"
    if isinstance(value, np.ndarray):
        return "" if value.dtype.kind != "f" or np.isfinite(value).all() else f"{path} is not finite"
    if depth > 8 or type(value).__name__ in UNKNOWN:
        return ""
    if is_dataclass(value):
        inner = [
            (field.name, getattr(value, field.name)) for field in fields(value) if field.name not in UNLIMITED
        ]
    elif isinstance(value, Mapping):
        inner = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        inner = [(str(index), item) for index, item in enumerate(value[:200])]
    else:
        return ""
    return next(filter(None, (not_finite(item, f"{path}.{name}", depth + 1) for name, item in inner)), "")


def check(kind: Kind, content: bytes, folder: Path) -> None:
    """Read one file; AssertionError, or whatever the reader lets through, is a finding."""
    path = folder / kind.name
    if kind.name in BESIDE:
        beside, text = BESIDE[kind.name]
        (folder / beside).write_text(text)
    path.write_bytes(content)
    began = time.process_time()
    try:
        found = kind.read(path)
    except InputError as error:
        first = str(error).split("\n", 1)[0].replace(str(folder), "")
        assert first
        assert len(first) < LONGEST_LINE, f"a line of {len(first)} letters: {first[:200]}"
    else:
        where = not_finite(found)
        assert not where, where
    took = time.process_time() - began
    assert took < LONGEST_S, f"took {took:.1f} s"


def fuzz(kind: Kind, folder: Path, number: int, examples: int = EXAMPLES) -> None:
    """Read so many files of a kind and make the smallest one of a finding; the same number gives the same files."""

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )
    @given(st.randoms())
    def one(random: Random) -> None:
        check(kind, faulty(kind, random), folder)

    one()


def some(kind: Kind, folder: Path, number: int) -> int:
    """Read files of a kind for a moment of processor time, and return how many; the same number gives the same files."""
    random, until, read = Random(f"{kind.name} {number}"), time.process_time() + TURN_S, 0
    latest = time.monotonic() + 10.0 * TURN_S  # on a machine that others use
    while read < EXAMPLES and time.process_time() < until and time.monotonic() < latest:
        check(kind, faulty(kind, random), folder)
        read += 1
    return read


if __name__ == "__main__":
    sys.exit(
        asked_until_time_is_over(
            "readers",
            __doc__,
            {name: partial(some, NAMED[name]) for name in NAMED},
            lambda name, folder: [path.read_bytes() for path in folder.glob(name)],
        )
    )
