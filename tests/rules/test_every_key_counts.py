"""No key of a scenario is accepted and ignored: a change of it changes numbers of an answer, or is refused with a reason.

Every key has one case here. Keys that only name something must be shown. A new key fails the first test until it has a case.
"""

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from capplan.readers.record import keys_of as record_keys
from capplan.readers.record import record_of
from capplan.scenario.scenario_file import ScenarioFile

BASE = {
    "name": "small",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "traffic": [{"request_rate": "2 req/s", "input_tokens": 400, "output_tokens": 60}],
    "fleet": {"hardware": ["h100-sxm"], "tensor_parallel": 1, "pipeline_parallel": 1},
}
ASKS = {
    "fleet": "fleet scenario.yaml --offline --format json",
    "simulate": "simulate scenario.yaml --hardware h100-sxm --until 20s --offline --format json",
    "replay": "simulate scenario.yaml --hardware h100-sxm --offline --format json",
    "compare": "compare scenario.yaml --api openai/gpt-5-mini --offline --format json",
    "claude": "compare scenario.yaml --api anthropic/claude-opus-5-5 --offline --format json",
    "bill": "bill scenario.yaml --offline --format json",
    "december": "bill scenario.yaml --offline --format json --month 2026-12",
    "page": "report scenario.yaml --offline --format markdown",
}


class Case(NamedTuple):
    """A key, before and after: everything else is the same."""

    value: Any
    """After."""
    before: Mapping[str, Any] = MappingProxyType({})
    """Added to the base scenario on both sides; None takes a key away."""
    ask: str = "fleet"
    shown: bool = False
    """The key is a label: its value must be shown, and changes nothing else."""
    refused: str = ""
    """Words of the reason, where the change is refused."""


EMPLOYEES = {
    "traffic.request_rate": None,
    "traffic.users": {"employees": 200, "active": "20 %"},
    "traffic.think_time": "10 s",
}
USERS = {"traffic.request_rate": None, "traffic.users": 40, "traffic.think_time": "10 s"}
JOB = {"traffic.request_rate": None, "traffic.requests": 10_000, "traffic.within": "1 h"}
TRACE = {"traffic": [{"trace": "day.csv"}], "fleet.hardware": ["l4"], "fleet.spare_replicas": 0}
PREFIXES = {"traffic": [{"trace": "chats.jsonl"}], "gpu_memory_utilization": 0.25, "max_model_len": 4096}
CASCADE = {"cascade": {"model": "Qwen/Qwen3-4B", "escalated": "20 %"}}
BESIDE = {
    "name": "guard",
    "model": "Qwen/Qwen3-0.6B",
    "gpu_memory_utilization": 0.3,
    "changes": {"traffic": [BASE["traffic"][0]]},
}
SHARING = {"gpu_memory_utilization": 0.5, "sharing": {"by": "device", "models": [BESIDE]}}
TIER = PREFIXES | {"kv_offload": [{"name": "host", "capacity": "40 GB"}]}
TURNS = {"traffic.turns": 4, "traffic.added_tokens": 100, "traffic.think_time": "2 s"}
DRAFT = {"speculation": {"acceptance": 0.7, "draft_tokens": 3, "draft_step_time": "1 ms"}}
CROWD = {"traffic.request_rate": "20 req/s", "max_num_seqs": 2}
TWO = CROWD | {"traffic": [{"name": name, **BASE["traffic"][0], "request_rate": "10 req/s"} for name in "ab"]}
SPARSE = {"model": "Qwen/Qwen3-30B-A3B", "fleet.tensor_parallel": 2}
WIDE = {"model": "Qwen/Qwen3-30B-A3B", "fleet.data_parallel": [16]}
APART = {"fleet.disaggregation": "allowed", "fleet.kv_link": "network"}
OWN = {"prices.electricity": "0.1 $/kWh"}
CURVE = {"traffic.request_rate": "200 req/s", "traffic.daily_curve": "office"}
OWNED = {"capex": "20000 $", "electricity": "0.1 $/kWh"}
CACHED = {
    "traffic.input_tokens": 4000,
    "traffic.request_rate": "0.01 req/s",
    "traffic.shared_prefix": {"tokens": 3000, "hit_fraction": 1},
}
WAITS = {
    "traffic.outside": {"time": "10 ms", "tool_calls": 2, "tool_time": "5 ms", "usd_per_tool_call": 0.01}
}
PLACES = {
    "traffic": [{**BASE["traffic"][0], "request_rate": "200 req/s", "daily_curve": "office", "name": name, "region": name} for name in "ab"],
    "regions": [{"name": "a", "utc_offset": 0, "delay": {"b": "1 ms"}}, {"name": "b", "utc_offset": 9}],
    "slo": {"ttft_p95": "600 ms"},
    "energy": {"grid": "400 g/kWh"},
}  # fmt: skip
AWS = {"prices.provider": "aws", "prices.commitment": "spot"}


def lengths(kind: str, scale: int = 1, before: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Case]:
    """Return the cases of the ways to write a length, or one of so many times less; turns are asked in a simulation."""
    ways = {
        "fixed": ({"fixed": 300}, 500),
        "mean": ({"mean": 300, "p95": 800}, 450),
        "p50": ({"p50": 300, "p95": 800}, 450),
        "p90": ({"mean": 300, "p90": 600}, 500),
        "p95": ({"mean": 300, "p95": 800}, 900),
        "p99": ({"mean": 300, "p99": 900}, 1200),
        "min": ({"min": 100, "max": 500}, 300),
        "max": ({"min": 100, "max": 500}, 700),
        "values": ({"values": [100, 200]}, [100, 900]),
    }

    def scaled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: scaled(part) for key, part in value.items()}
        return [part // scale for part in value] if isinstance(value, list) else value // scale

    return {
        f"traffic.{kind}.{key}": Case(
            scaled(after), {**before, f"traffic.{kind}": scaled(first)}, "simulate" if before else "fleet"
        )
        for key, (first, after) in ways.items()
    }


CASES = {
    "name": Case("another", shown=True),
    "description": Case("for the support desk", ask="page", shown=True),
    "model": Case("Qwen/Qwen3-4B"),
    "revision": Case("v1", refused="not in the local Hugging Face cache"),
    "runner": Case("pooling", refused="output_tokens: is about outputs"),
    "weight_dtype": Case("fp8"),
    "kv_dtype": Case("fp8"),
    "engine": Case("sglang"),
    "engine_version": Case("0.6.0"),
    "backend": Case("cuda", refused="has no backends"),
    "max_model_len": Case(512, {"traffic.input_tokens": {"mean": 400, "p95": 900}}),
    "max_num_seqs": Case(4),
    "max_num_batched_tokens": Case(1024),
    "gpu_memory_utilization": Case(0.5),
    "cuda_graphs": Case(0),
    "calibration": Case("host.calibration.yaml"),
    "chunked_prefill": Case(False, {"max_num_seqs": 4, "traffic.input_tokens": 3000}, ask="simulate"),
    "traffic.outside.time": Case("20 ms", WAITS),
    "traffic.outside.usd_per_request": Case(0.1, WAITS),
    "traffic.outside.tool_calls": Case(3, WAITS),
    "traffic.outside.tool_time": Case("9 ms", WAITS),
    "traffic.outside.usd_per_tool_call": Case(0.02, WAITS),
    "slo.outside": Case("excluded", {"slo": {"ttft_p95": "900 ms"}, "traffic.outside": {"time": "800 ms"}}),
    "prefix_caching": Case(False, {"traffic.shared_prefix": {"tokens": 300, "hit_fraction": 0.9}}),
    "kv_offload.name": Case("remote", TIER),
    "kv_offload.capacity": Case("10 GB", TIER),
    "kv_offload.bandwidth": Case("1 GB/s", TIER),
    "speculation.acceptance": Case(0.9, DRAFT, "simulate"),
    "speculation.metrics": Case(
        "better.txt",
        {"speculation": {"metrics": "drafts.txt", "draft_tokens": 3, "draft_step_time": "1 ms"}},
        "simulate",
    ),
    "speculation.draft_tokens": Case(5, DRAFT, "simulate"),
    "speculation.draft_step_time": Case("4 ms", DRAFT, "simulate"),
    "speculation.method": Case(
        "ngram", {"speculation": {"acceptance": 0.7, "draft_tokens": 3, "method": "eagle"}}
    ),
    "speculation.verified_tokens": Case(64, DRAFT),
    "speculation.exit_layers": Case(
        8, {"speculation": {"acceptance": 0.7, "draft_tokens": 3, "method": "early-exit", "exit_layers": 4}}
    ),
    "speculation.draft": Case(
        "meta-llama/Llama-3.2-3B",
        {"speculation": {"acceptance": 0.7, "draft_tokens": 3, "draft": "meta-llama/Llama-3.2-1B"}},
        "simulate",
    ),
    **{
        f"lora.{key}": Case(
            value, {"lora": {"adapters": 40, "max_loras": 30, "share": "60 %"}, "fleet.tensor_parallel": 2}
        )
        for key, value in {
            "adapters": 90,
            "max_loras": 8,
            "max_lora_rank": 64,
            "modules": ["q_proj", "v_proj"],
            "fully_sharded": True,
            "share": "5 %",
        }.items()
    },
    "cascade.model": Case("Qwen/Qwen3-8B", CASCADE),
    "cascade.revision": Case("v1", CASCADE, refused="not in the local Hugging Face cache"),
    "cascade.escalated": Case("60 %", CASCADE),
    "cascade.after": Case("router", CASCADE),
    "cascade.verdict_time": Case("200 ms", CASCADE),
    "cascade.changes": Case({"weight_dtype": "fp8"}, CASCADE),
    "cascade.part": Case("second", CASCADE),
    "sharing.by": Case("mig", SHARING, refused="is for by: device; each model has slices of its own"),
    "sharing.models.name": Case("filter", SHARING, shown=True),
    "sharing.models.model": Case("Qwen/Qwen3-4B", SHARING),
    "sharing.models.revision": Case("v1", SHARING, refused="not in the local Hugging Face cache"),
    "sharing.models.gpu_memory_utilization": Case(0.4, SHARING),
    "sharing.models.changes": Case({"traffic": [BASE["traffic"][0]], "weight_dtype": "fp8"}, SHARING),
    "sharing.part": Case("guard", SHARING),
    "traffic.name": Case("chat", ask="simulate", shown=True),
    "traffic.request_rate": Case("80 req/s"),
    "traffic.users.employees": Case(9000, EMPLOYEES),
    "traffic.users.active": Case("90 %", EMPLOYEES),
    "traffic.think_time": Case("100 ms", USERS),
    "traffic.requests": Case(1_000_000, JOB),
    "traffic.within": Case("1 min", JOB),
    "traffic.trace": Case("night.csv", TRACE),
    "traffic.mean_rate": Case("0.5 req/s"),
    "traffic.daily_curve": Case("office"),
    "traffic.active_hours": Case("10 h"),
    **lengths("input_tokens"),
    **lengths("output_tokens"),
    **lengths("reasoning_tokens"),
    **{
        f"traffic.images.{key}": Case(
            value, {"model": "Qwen/Qwen3-VL-2B-Instruct", "traffic.images": {"width": 800, "height": 600}}
        )
        for key, value in {"count": 3, "width": 1900, "height": 1200, "max_pixels": 100_000}.items()
    },
    "traffic.documents": Case(8),
    "traffic.samples": Case(8),
    "traffic.retries.invalid": Case("50 %", {"traffic.retries": {"invalid": "5 %", "attempts": 3}}),
    "traffic.retries.attempts": Case(9, {"traffic.retries": {"invalid": "60 %", "attempts": 2}}),
    "traffic.padded_batch": Case(64, JOB | {"traffic.input_tokens": {"min": 100, "max": 700}}),
    **lengths("turns", 100, TURNS),
    **lengths("added_tokens", 1, TURNS),
    "traffic.shared_prefix.tokens": Case(
        350, {"traffic.shared_prefix": {"tokens": 100, "hit_fraction": 0.9}}
    ),
    "traffic.shared_prefix.hit_fraction": Case(
        0.1, {"traffic.shared_prefix": {"tokens": 300, "hit_fraction": 0.9}}
    ),
    "traffic.tenant": Case("sales", ask="bill", shown=True),
    "traffic.requests_per_conversation": Case(6, ask="bill"),
    "traffic.arrival_cv": Case(5, ask="simulate"),
    "traffic.priority": Case(9, TWO, "simulate"),
    "traffic.deadline": Case("500 ms", CROWD, "simulate"),
    **{
        f"slo.{metric}_{statistic}": Case("1 us")
        for metric in ("ttft", "tpot", "itl", "e2e")
        for statistic in ("mean", "p50", "p90", "p95", "p99")
    },
    "slo.confidence": Case("99 %", {"slo.tpot_p95": "12 ms"}),
    "fleet.hardware": Case(["l40s"]),
    "fleet.headroom": Case("90 %", {"traffic.request_rate": "40 req/s"}),
    "fleet.spare_replicas": Case(3),
    "fleet.survive": Case({"machine": 3}),
    "fleet.machines_per_rack": Case(3, {"fleet.survive": {"rack": 1}}),
    "fleet.zones": Case(2, {"fleet.survive": {"zone": 1}, "traffic.request_rate": "400 req/s"}),
    "fleet.max_unavailable": Case(2),
    "fleet.time_to_failure": Case("30 d"),
    "fleet.time_to_repair": Case("72 h"),
    "fleet.mix": Case("lengths", {"fleet.hardware": ["h100-sxm", "l40s"]}),
    "fleet.start_up": Case("3 min", TRACE),
    "fleet.burst": Case(9, TRACE),
    "fleet.routing": Case("random", {"traffic.request_rate": "90 req/s", "slo.ttft_p95": "500 ms"}),
    "fleet.tensor_parallel": Case(2),
    "fleet.pipeline_parallel": Case(2),
    "fleet.expert_parallel": Case([1], SPARSE),
    "fleet.data_parallel": Case([2], SPARSE),
    "fleet.machines": Case(["p5.48xlarge"], {"fleet.hardware": ["h100-sxm"]}),
    "fleet.providers": Case(["AWS"], {"fleet.hardware": ["h100-sxm"]}),
    "fleet.regions": Case(["us-east-1"], {"fleet.hardware": ["h100-sxm"]}),
    "traffic.region": Case(
        "b", PLACES | {"fleet.location": "a", "fleet.serves": "location"}, refused="no traffic is from a"
    ),
    "regions.name": Case("c", PLACES, refused="unknown region 'a'"),
    "regions.utc_offset": Case(-9, PLACES),
    "regions.delay": Case({"b": "500 ms"}, PLACES),
    "regions.offers": Case(["us-east-1"], PLACES | {"fleet.location": "a"}),
    "regions.electricity": Case("0.2 $/kWh", PLACES | {"fleet.location": "a"}),
    "regions.grid": Case("100 g/kWh", PLACES | {"fleet.location": "a"}),
    "fleet.location": Case("b", PLACES | {"fleet.location": "a", "fleet.serves": "location"}, shown=False),
    "fleet.serves": Case("location", PLACES | {"fleet.location": "a"}),
    "fleet.own": Case({"8 x h100-sxm": 1}, {"fleet.hardware": ["h100-sxm"]}),
    "fleet.max_machines": Case(
        {"p5.4xlarge": 0}, {"fleet.hardware": ["h100-sxm"], "fleet.providers": ["AWS"]}
    ),
    "fleet.max_gpus": Case(1),
    "fleet.max_gpus_per_replica": Case(1, {"fleet.tensor_parallel": [1, 2]}),
    "fleet.disaggregation": Case("only", APART | {"fleet.kv_link": None}),
    "fleet.prefill_hardware": Case(["h200-sxm"], APART),
    "fleet.decode_hardware": Case(["h200-sxm"], APART),
    "fleet.kv_link": Case("ethernet-25g", APART),
    "fleet.kv_link_latency": Case("1 ms", APART),
    "fleet.network": Case("ethernet-25g", WIDE),
    "fleet.weight_dtypes": Case(["as-published", "fp8"]),
    "fleet.kv_dtypes": Case(["bf16", "fp8"]),
    "prices.commitment": Case("spot"),
    "prices.provider": Case("aws"),
    "prices.region": Case("us-west-2", AWS),
    "prices.per_gpu_hour": Case({"h100-sxm": "1 $/h"}),
    "prices.file": Case("prices.yaml"),
    "prices.electricity": Case("0.1 $/kWh"),
    "prices.facility_ratio": Case(1.5, OWN),
    "prices.people": Case("9000 $/month", ask="compare"),
    "prices.overhead": Case("10 %", ask="compare"),
    "prices.other.text_bytes_per_token": Case("9 B", {"prices.other": {"logs_per_gb": "1 $"}}),
    "prices.other.other_zone_fraction": Case("50 %", {"prices.other": {"cross_zone_per_gb": "1 $"}}),
    "prices.other.defaults": Case(True),
    **{
        f"prices.other.{key}": Case(
            value, {"prices.other": {"egress_per_gb": "1 $", "cpu_nodes": 1, "cpu_node": "1 $/month"}}
        )
        for key, value in {
            "egress_per_gb": "2 $",
            "cross_zone_per_gb": "2 $",
            "logs_per_gb": "2 $",
            "staging": "5 %",
            "bytes_per_token": "900 B",
            "load_balancers": "9 $/month",
            "weights_per_gb": "1 $/month",
            "cpu_nodes": 2,
            "cpu_node": "9 $/month",
            "support": "5 %",
        }.items()
    },
    "prices.host_memory_per_gb": Case("3 $/month", TIER, ask="compare"),
    "prices.date": Case("2026-11-02", {"prices.file": "vms.csv"}, shown=True),
    "commitments.reserved_1y.price": Case(
        "1 $/h", CURVE | {"commitments": {"reserved_1y": {"price": "0.9 $/h"}}}
    ),
    "commitments.reserved_1y.discount": Case(
        "70 %", CURVE | {"commitments": {"reserved_1y": {"discount": "80 %"}}}
    ),
    "commitments.reserved_3y.price": Case(
        "1 $/h", CURVE | {"commitments": {"reserved_3y": {"price": "0.9 $/h"}}}
    ),
    "commitments.reserved_3y.discount": Case(
        "70 %", CURVE | {"commitments": {"reserved_3y": {"discount": "80 %"}}}
    ),
    "commitments.reserved_1y.upfront": Case(
        "50 %", CURVE | {"commitments": {"reserved_1y": {"discount": "80 %"}}}
    ),
    "commitments.reserved_3y.upfront": Case(
        "50 %", CURVE | {"commitments": {"reserved_3y": {"discount": "80 %"}}}
    ),
    "commitments.interest": Case(
        "9 %", CURVE | {"commitments": {"reserved_1y": {"discount": "80 %", "upfront": "50 %"}}}
    ),
    "commitments.spot.headroom": Case("40 %", CURVE | {"commitments": {"spot": {"headroom": "10 %"}}}),
    "commitments.spot.most": Case("10 %", CURVE | {"commitments": {"spot": {"most": "90 %"}}}),
    **{
        f"commitments.owned.{key}": Case(value, CURVE | {"commitments": {"owned": OWNED}})
        for key, value in {
            "capex": "22000 $",
            "life": "6 years",
            "residual": "20 %",
            "interest": "3 %",
            "upkeep": "1 %",
            "electricity": "0.2 $/kWh",
            "facility_ratio": 1.6,
            "idle": "20 %",
            "power": "1.2 kW",
            "people": "9 $/month",
        }.items()
    },
    "commitments.min_replicas": Case(3, CURVE | {"commitments": {"min_replicas": 1}}),
    "commitments.max_replicas": Case(1, CURVE | {"commitments": {"max_replicas": 9}}),
    "tags": Case({"cost_center": "4711"}, ask="bill", shown=True),
    "commitments.begin": Case(
        "2026-12",
        CURVE | {"commitments": {"begin": "2026-11", "reserved_1y": {"discount": "80 %", "upfront": "50 %"}}},
        ask="december",
    ),
    "currency.name": Case("CHF", {"currency": {"name": "EUR", "usd": 1.1}}, shown=True),
    "currency.usd": Case(2.0, {"currency": {"name": "EUR", "usd": 1.1}}),
    **{
        f"energy.{key}": Case(value, {"energy": {"rack_limit": "20 kW", "grid": "400 g/kWh"}})
        for key, value in {
            "idle": "30 %",
            "decode": "80 %",
            "prefill": "70 %",
            "host": "90 %",
            "facility_ratio": 1.9,
            "grid": "100 g/kWh",
            "rack_limit": "90 kW",
            "measured.idle": "90 W",
            "measured.decode": "300 W",
            "measured.prefill": "500 W",
        }.items()
    },
    "energy.gpus_per_server": Case(
        2,
        {
            "energy": {"rack_limit": "20 kW", "grid": "400 g/kWh"},
            "prices.per_gpu_hour": {"l40s": "1 $/h", "h100-sxm": "3 $/h"},
        },
    ),
    "growth.per_month": Case("9 %", {"growth": {"per_month": "5 %"}}),
    "growth.months": Case(9, {"growth": {"per_month": "5 %"}}),
    "growth.rates": Case(
        {"1": "2 req/s", "2": "9 req/s"}, {"growth": {"rates": {"1": "2 req/s", "2": "3 req/s"}}}
    ),
    "growth.gpu_price_decline": Case("20 %", {"growth": {"per_month": "5 %"}}),
    "growth.token_price_decline": Case("20 %", {"growth": {"per_month": "5 %"}}, "compare"),
    "budget.usd_per_month": Case(10, {"budget": {"usd_per_month": 90000}}),
    "budget.includes": Case(
        ["people"], {"budget": {"usd_per_month": 90000}, "prices.people": "89900 $/month"}
    ),
    "hosted.time_to_live": Case("1 min", CACHED, "compare"),
    "hosted.prefixes": Case(900, CACHED, "compare"),
    "hosted.batch_fraction": Case("50 %", ask="compare"),
    "hosted.file": Case("tokens.yaml", ask="compare"),
    "hosted.discount": Case("20 %", ask="compare"),
    "hosted.surcharge": Case("10 %", ask="compare"),
    "hosted.token_ratios": Case({"openai": 1.2}, ask="compare"),
    "hosted.service": Case("flex", ask="compare"),
    "hosted.caching": Case("default", CACHED | {"traffic.request_rate": "1 req/s"}, "claude"),
    **{
        f"hosted.provisioned.{key}": Case(
            value, {"hosted.provisioned": {"price": "1 $/h", "tokens_per_minute": 100}}, "compare"
        )
        for key, value in {
            "price": "2 $/h",
            "tokens_per_minute": 99,
            "output_weight": 4,
            "least": 9000,
            "step": 7,
        }.items()
    },
    "hosted.date": Case("2026-11-02", {"hosted.file": "litellm.json"}, "compare", shown=True),
}

REFUSALS = {
    "revision": ("v1", {"model": "./config.json"}, "only models on the hub have revisions"),
    "slo.confidence": ("90 %", {}, "slo.confidence: .* there are none"),
    "fleet.burst": (2, {}, "fleet.burst: .* no traffic has one"),
    "traffic.added_tokens": (100, {}, "traffic.*added_tokens: is what later turns add"),
    "traffic.images": ({"width": 800, "height": 600}, {}, "has no vision tower"),
    "traffic.documents": (4, USERS, "traffic.*documents: is for request_rate"),
    "traffic.samples": (4, USERS, "traffic.*samples: is for request_rate"),
    "traffic.padded_batch": (4, {}, "traffic.*padded_batch: is for a batch job"),
    "traffic.retries": ({"invalid": 1, "attempts": 3}, {}, "traffic.*retries.invalid"),
    "lora.max_loras": (9, {"lora": {"adapters": 4}}, "lora.max_loras: 9 slots are more than the 4 adapters"),
    "lora.modules": ("k_poj", {"lora": {"adapters": 4}}, "unknown module 'k_poj': did you mean 'k_proj'"),
    "traffic.turns": (4, {}, "traffic.*turns: needs think_time"),
    "traffic.shared_prefix": (
        {"tokens": 100, "hit_fraction": 0.5},
        TURNS,
        "hit_fraction: follows from the turns",
    ),
    "cascade": (CASCADE["cascade"], USERS, r"cascade: traffic\[0\] has users or sessions"),
    "prices.facility_ratio": (1.2, {}, "prices.facility_ratio: .* none is given"),
}
"""What has nothing to apply to -> the change, what is there before, the reason."""


def keys_of(model: type, start: str = "") -> Iterator[str]:
    """Yield the keys of a record and of the records in it."""
    for name, field in record_keys(model).items():
        inner = record_of(field.annotation)
        if inner:
            yield from keys_of(inner, f"{start}{name}.")
        else:
            yield f"{start}{name}"


def test_every_key_has_its_case():
    assert list(dict.fromkeys(keys_of(ScenarioFile))) == list(keys_of(ScenarioFile))
    assert set(CASES) == set(keys_of(ScenarioFile))


def changed(scenario: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario with keys set, or taken away where the value is None; of a list the first entry."""
    found = deepcopy(scenario)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = found
        for part in parents:
            inner = place.setdefault(part, {})
            place = inner[0] if isinstance(inner, list) else inner
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return found


@pytest.fixture
def answer(line):
    """Return what a question on a scenario gives: what is printed, or the refusal."""

    def run(scenario, ask):
        text = json.dumps(scenario)
        if (text, ask) not in ANSWERS:
            Path("scenario.yaml").write_text(text)
            ran = line(ASKS[ask].split(), anew=True)
            ANSWERS[text, ask] = ran.err if ran.code == 2 else ran.out
        return ANSWERS[text, ask]

    return run


ANSWERS: dict[tuple[str, str], str] = {}


@pytest.mark.parametrize("key", CASES)
def test_a_change_of_a_key_changes_an_answer(key, answer, numbers):
    case = CASES[key]
    before = changed(BASE, case.before)
    after = changed(before, {key: case.value})
    assert before != after
    first, second = answer(before, case.ask), answer(after, case.ask)
    if case.refused:
        assert re.search(case.refused, second)
    elif case.shown:
        (shown,) = case.value.values() if isinstance(case.value, dict) else (str(case.value),)
        assert shown in second
        assert shown not in first
    else:
        name = key.rpartition(".")[2]
        was, now = (numbers(json.loads(text)["result"], name) for text in (first, second))
        assert was != now


def test_a_burst_that_is_given_changes_the_plan_itself(answer):
    """Nine times the busiest minute of the trace: the plan serves nine times the rate; left out, it serves the minute."""
    before = changed(BASE, TRACE)
    plans = [
        json.loads(answer(scenario, "fleet"))["result"]["chosen"]
        for scenario in (before, changed(before, {"fleet.burst": 1}), changed(before, {"fleet.burst": 9}))
    ]
    left_out, minute, burst = (plan["request_rate_per_replica"] * plan["replicas"] for plan in plans)
    assert left_out == minute
    assert burst == pytest.approx(9 * minute)
    assert plans[0] == plans[1]
    assert plans[2]["replicas"] > plans[0]["replicas"]


@pytest.mark.parametrize("key", REFUSALS)
def test_a_key_with_nothing_to_apply_to_is_refused(key, answer):
    value, before, reason = REFUSALS[key]
    said = answer(changed(changed(BASE, before), {key: value}), "fleet")
    assert re.search(reason, said)


def test_experts_of_a_dense_model_and_prices_of_other_devices_are_said(answer):
    spread = changed(BASE, {"fleet.expert_parallel": [1, 2], "fleet.tensor_parallel": 2})
    rejected = json.loads(answer(spread, "fleet"))["result"]["rejected"]
    assert "expert-parallel 2 on a model without experts" in {item["reason"] for item in rejected}
    priced = changed(BASE, {"prices.per_gpu_hour": {"b200": "5 $/h"}})
    said = json.loads(answer(priced, "fleet"))["warnings"]
    assert "prices.per_gpu_hour: fleet.hardware has no b200" in said
