"""What docs/scenario.md, and a page for each section in docs/scenario/, say of every key of a scenario, written from the records that read it.

Meaning and unit come from the record; what stands in for a key that is left out is said here, from the code that does it.
"""

import re
import typing
from collections.abc import Iterator, Mapping
from copy import copy
from types import MappingProxyType
from typing import Any

from pydantic.fields import FieldInfo

from capplan.fleet.scenario import FleetLimits
from capplan.money.price import Prices
from capplan.readers.record import keys_of as record_keys
from capplan.readers.record import record_of
from capplan.scenario.scenario import DEFAULT_HARDWARE
from capplan.scenario.scenario_file import Promise, ScenarioFile
from capplan.workload.daily_curve import SHAPES
from capplan.workload.request_class import METRICS, STATISTICS, Slo
from docs.generators import model_keys, money_keys, traffic_keys
from docs.generators.described import field_texts

_LIMITS, _PRICES, _ENGINE = FleetLimits(()), Prices(), "the engine's"
DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "description": "none",
        "revision": "main",
        "runner": "generate",
        "weight_dtype": "what the model's config says",
        "kv_dtype": "the checkpoint's, else what the engine takes for the model: mostly its activation dtype",
        "engine": "vllm",
        "engine_version": "the newest that is modelled",
        "backend": "the usual one of each device",
        "max_model_len": "room for 99.9% of the requests",
        "max_num_seqs": _ENGINE,
        "max_num_batched_tokens": _ENGINE,
        "gpu_memory_utilization": _ENGINE,
        "cuda_graphs": _ENGINE,
        "calibration": "what is shipped",
        "chunked_prefill": _ENGINE,
        "prefix_caching": "true",
        "kv_offload": "none",
        "kv_offload.bandwidth": "of the link",
        "slo": "none",
        **{f"slo.{metric}_{statistic}": "none" for metric in METRICS for statistic in STATISTICS},
        "slo.outside": "included, if there is any",
        "slo.confidence": f"{Slo().confidence:.0%}",
        "fleet": "as below",
        "fleet.hardware": ", ".join(DEFAULT_HARDWARE),
        "fleet.headroom": f"{_LIMITS.headroom_fraction:.0%}",
        "fleet.spare_replicas": "as fleet.survive says",
        "fleet.survive": f"{{{_LIMITS.survive.domain}: {_LIMITS.survive.count}}}; nothing if all traffic is batch jobs",
        "fleet.machines_per_rack": f"{_LIMITS.survive.machines_per_rack}",
        "fleet.zones": f"{_LIMITS.survive.zones}",
        "fleet.max_unavailable": "0",
        "fleet.time_to_failure": "by its GPUs: 264 d of a machine of eight",
        "fleet.time_to_repair": f"{_LIMITS.survive.failures.repair_s / 3600.0:g} h",
        "fleet.start_up": f"{_LIMITS.start_up_s:g} s",
        "fleet.burst": f"1; for the spares {_LIMITS.burst_ratio:g}",
        "fleet.routing": "round_robin; prefix_aware where a trace names blocks",
        "fleet.tensor_parallel": ", ".join(map(str, _LIMITS.ranges.tensor_parallel)),
        "fleet.pipeline_parallel": ", ".join(map(str, _LIMITS.ranges.pipeline_parallel)),
        "fleet.expert_parallel": "1 and all ranks of a stage",
        "fleet.data_parallel": "1 and all ranks of a stage",
        "fleet.max_gpus": "any number",
        "fleet.max_gpus_per_replica": "any number",
        "fleet.machines": "as the provider of the price sells the GPU",
        "fleet.providers": "any",
        "fleet.regions": "any",
        "fleet.location": "the region from which most requests come",
        "fleet.serves": "all",
        "fleet.own": "none",
        "fleet.max_machines": "any number",
        "fleet.mix": "off",
        "fleet.disaggregation": "both ways for large mixtures of experts, else off",
        "fleet.prefill_hardware": "hardware",
        "fleet.decode_hardware": "hardware",
        "fleet.kv_link": "network",
        "fleet.kv_link_latency": "0 s",
        "fleet.network": "each device's own",
        "fleet.weight_dtypes": "weight_dtype only",
        "fleet.kv_dtypes": "kv_dtype only",
        "regions": "none",
        "regions.utc_offset": "0",
        "regions.delay": "needed where users of one region use machines in another",
        "regions.offers": "any",
        "regions.electricity": "prices.electricity",
        "regions.grid": "energy.grid",
        "prices": "as below",
        "prices.commitment": _PRICES.paid_as,
        "prices.provider": _PRICES.seller,
        "prices.region": "any",
        "prices.per_gpu_hour": "listed prices",
        "prices.file": "the shipped price list",
        "prices.electricity": "in the price",
        "prices.facility_ratio": f"{_PRICES.power_ratio:g}",
        **model_keys.DEFAULTS,
        **traffic_keys.DEFAULTS,
        **money_keys.DEFAULTS,
    }
)  # fmt: skip
"""Key that may be left out -> what holds then."""

EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "name": "support-chat",
        "description": "the support desk of one shop",
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "revision": "main",
        "weight_dtype": "fp8",
        "kv_dtype": "fp8",
        "engine": "vllm",
        "engine_version": "'0.19.0'",
        "backend": "vulkan",
        "max_model_len": "32k",
        "max_num_seqs": "256",
        "max_num_batched_tokens": "8192",
        "gpu_memory_utilization": "0.9",
        "cuda_graphs": "64",
        "calibration": "our-h100.calibration.yaml",
        "chunked_prefill": "false",
        "prefix_caching": "false",
        "kv_offload": "[{name: host, capacity: 512 GB}]",
        "kv_offload.name": "host",
        "kv_offload.capacity": "512 GB",
        "kv_offload.bandwidth": "50 GB/s",
        "runner": "pooling",
        "traffic": "[{request_rate: 20 req/s, input_tokens: 1800, output_tokens: 350}]",
        "slo": "{ttft_p95: 800 ms, tpot_p95: 40 ms}",
        "slo.outside": "excluded",
        **{f"slo.{metric}_{statistic}": {"ttft": "800 ms", "tpot": "40 ms", "itl": "60 ms", "e2e": "20 s"}[metric] for metric in METRICS for statistic in STATISTICS},
        "regions": "[{name: europe, utc_offset: 1}, {name: asia, utc_offset: 9}]",
        "regions.name": "europe",
        "regions.utc_offset": "5.5",
        "regions.delay": "{asia: 160 ms}",
        "regions.offers": "[eu-west-1]",
        "regions.electricity": "0.21 $/kWh",
        "regions.grid": "230 g/kWh",
        "fleet": "{hardware: [h100-sxm, h200-sxm], headroom: 30 %}",
        "fleet.hardware": "[h100-sxm, our-gpu.yaml]",
        "fleet.spare_replicas": "2",
        "fleet.start_up": "3 min",
        "fleet.burst": "2",
        "fleet.routing": "least_loaded",
        "fleet.tensor_parallel": "[2, 4]",
        "fleet.pipeline_parallel": "1",
        "fleet.expert_parallel": "8",
        "fleet.data_parallel": "[1, 8]",
        "fleet.max_gpus": "64",
        "fleet.max_gpus_per_replica": "8",
        "fleet.machines": "[p5.48xlarge, a3-ultragpu-8g]",
        "fleet.providers": "[AWS, GCP]",
        "fleet.regions": "[us-east-1]",
        "fleet.location": "europe",
        "fleet.serves": "location",
        "fleet.own": "{8 x h100-sxm: 2}",
        "fleet.max_machines": "{p5.48xlarge: 4}",
        "fleet.mix": "lengths",
        "fleet.survive": "{machine: 1}",
        "fleet.machines_per_rack": "2",
        "fleet.zones": "2",
        "fleet.max_unavailable": "1",
        "fleet.time_to_failure": "100 d",
        "fleet.time_to_repair": "4 h",
        "fleet.disaggregation": "allowed",
        "fleet.prefill_hardware": "[h100-sxm]",
        "fleet.decode_hardware": "[h200-sxm]",
        "fleet.kv_link": "infiniband-ndr",
        "fleet.kv_link_latency": "10 us",
        "fleet.network": "ethernet-400g",
        "fleet.weight_dtypes": "[as-published, fp8]",
        "fleet.kv_dtypes": "[bf16, fp8]",
        "prices": "{commitment: reserved, provider: aws}",
        "prices.commitment": "reserved",
        "prices.provider": "aws",
        "prices.region": "us-east-1",
        "prices.per_gpu_hour": "{h100-sxm: 2.2 $/h}",
        "prices.file": "our-prices.yaml",
        "prices.facility_ratio": "1.3",
        **model_keys.EXAMPLES,
        **traffic_keys.EXAMPLES,
        **money_keys.EXAMPLES,
    }
)  # fmt: skip
"""Key -> as it may be written, where its unit has no example."""

OFF = frozenset({"-", "none", "as below"})
"""Defaults of which the page says nothing: nothing of the kind is planned, or the keys of the section have defaults of their own."""
_METRICS = {
    "ttft": "time to first token",
    "tpot": "time per output token of a request, after the first",
    "itl": "gap between two tokens",
    "e2e": "time of a whole answer",
}
_KINDS = {
    "traffic.daily_curve": "24 rates, or a shape: " + ", ".join(SHAPES),
    "traffic.input_tokens": "tokens, or the keys below",
    "traffic.output_tokens": "tokens, or the keys of input_tokens",
    "traffic.turns": "a number, or the keys of input_tokens",
    "traffic.reasoning_tokens": "tokens, or the keys of input_tokens",
    "traffic.added_tokens": "tokens, or the keys of input_tokens",
    "fleet.hardware": "a name or a list",
    "fleet.weight_dtypes": "a name or a list",
    "fleet.disaggregation": "off, allowed, only",
    "fleet.prefill_hardware": "a name or a list",
    "fleet.decode_hardware": "a name or a list",
    "fleet.kv_link": "a name, or a rate in GB/s",
    "fleet.network": "a name, or a rate in GB/s",
    "fleet.kv_dtypes": "a name or a list",
    "cascade.changes": "keys of a scenario",
    "sharing.models.changes": "keys of a scenario",
    "prices.per_gpu_hour": "`hardware: price` lines, in $/h",
    **{
        f"fleet.{way}_parallel": "a whole number or a list"
        for way in ("tensor", "pipeline", "expert", "data")
    },
    "traffic.input_tokens.values": "a list of numbers of tokens",
}
"""Key that takes more than one form -> which ones."""


def keys_of(record: type = ScenarioFile, start: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key of a record and of the records in it, dotted, with its field, whose description is the text below it."""
    texts = field_texts(record)
    for name, field in record_keys(record).items():
        described = copy(field)
        described.description = texts.get(name)
        yield f"{start}{name}", described
        inner = record_of(field.annotation)
        if inner is not None:
            yield from keys_of(inner, f"{start}{name}.")


def _schema(field: FieldInfo) -> dict[str, Any]:
    """Return what the type of a field says to editors: how a quantity is written."""
    marks = [
        *field.metadata,
        *(m for arm in typing.get_args(field.annotation) for m in getattr(arm, "__metadata__", ())),
    ]
    return next((dict(found) for mark in marks if (found := getattr(mark, "json_schema", None))), {})


def example(key: str, field: FieldInfo) -> str:
    """Return a value of a key as it stands in YAML; of all lengths, that of prompts."""
    of_prompts = f"traffic.input_tokens.{key.rpartition('.')[2]}"
    return EXAMPLES.get(key) or EXAMPLES.get(of_prompts) or str(_schema(field)["examples"][0])


def _written(key: str, field: FieldInfo) -> str:
    """Return how a value is written: the names that are allowed, or an example, after what else it may be."""
    shown = f"`{example(key, field)}`"
    if key in _KINDS:
        return f"{_KINDS[key]}: {shown}"
    arms = [arm for arm in (field.annotation, *typing.get_args(field.annotation)) if arm is not type(None)]
    names = next((typing.get_args(arm) for arm in arms if typing.get_origin(arm) is typing.Literal), ())
    if names:
        return ", ".join(f"`{name}`" for name in names)
    return shown


_DEFAULT = re.compile(
    r"[;,] (?:if left out,?|default:?|left out:|off by default|[^;,.:]+? if not stated)[^.]*(?:\.\d[^.]*)*(?=\.|$)"
)
"""What a text says of the default, which has a column of its own."""


def _meaning(key: str, field: FieldInfo) -> str:
    section, _, name = key.partition(".")
    metric = name.partition("_")[0]
    if section == "slo" and metric in _METRICS:
        return f"Limits of the {_METRICS[metric]}: of the mean, and of percentiles."
    said = _DEFAULT.sub("", " ".join((field.description or "").split()))
    return said or {"p": f"{key[-2:]}th percentile."}[key.rpartition(".")[2][0]]


def _said(key: str, field: FieldInfo) -> str:
    """Return what stands behind the name of a key: its meaning, what holds without it, and how it is written."""
    stated = DEFAULTS.get(key) or f"{field.default}"
    default = " Required." if field.is_required() else "" if stated in OFF else f" Default: {stated}."
    meaning, written = _meaning(key, field).removesuffix("."), _written(key, field)
    return f"{meaning}.{default} {written[:1].upper()}{written[1:]}"


def _listed(start: str) -> str:
    """Return the list of the keys of a section, which wraps on a phone; keys that differ in their name only share an item."""
    named: dict[str, list[str]] = {}
    for key, field in keys_of():
        if key.startswith(start) and "." not in key.removeprefix(start):
            name = f"`{key.removeprefix(start)}`"
            if not start and f"\n## {key}\n" in _sections():
                name = f"[{name}]({SCENARIO}/{key}.md)"
            named.setdefault(_said(key, field), []).append(f"**{name}**")
    return "\n".join(f"- {', '.join(names)}: {said}" for said, names in named.items())


def _curves() -> str:
    lines = [
        f"| `{name}` | {sum(hours) / len(hours):.2f} | {' '.join(f'{rate:.2f}' for rate in hours)} |"
        for name, hours in SHAPES.items()
    ]
    return "\n".join(["| shape | mean over peak | hours from midnight |", "| --- | --- | --- |", *lines])


def _sections() -> str:
    """Return the text of all pages with the marks of their lists."""
    return _PAGE.replace("<models>", model_keys.PAGE).replace("<money>\n", money_keys.PAGE)


def pages() -> dict[str, str]:
    """Return the text of docs/scenario.md and of the page of each section, by their paths below docs/."""
    first, *sections = re.split(r"^## (?!The file)", _text(), flags=re.MULTILINE)
    texts = {f"{SCENARIO}.md": f"{first.rstrip()}\n"}
    for section in sections:
        name, _, text = section.partition("\n")
        below = re.sub(r"\]\((?!http|#)", "](../", text.replace("\n### ", "\n## ")).strip()
        texts[f"{SCENARIO}/{name}.md"] = f"# {name}\n\n{WRITTEN}\n\n{below}\n"
    return texts


def _text() -> str:
    text = _sections()
    for mark, start in _TABLES.items():
        text = text.replace(f"<{mark}>", _listed(start))
    assert set(Promise.model_fields) == {
        *(f"{m}_{s}" for m in METRICS for s in STATISTICS),
        "confidence",
        "outside",
    }
    return text.replace("<curves>", _curves())


SCENARIO = "scenario"
"""Page of the file, and folder of the pages of its sections."""
WRITTEN = "<!-- written by `make docs` -->"
_TABLES = {
    "scenario": "",
    "traffic": "traffic.",
    "lengths": "traffic.input_tokens.",
    "users": "traffic.users.",
    "retries": "traffic.retries.",
    "images": "traffic.images.",
    "outside": "traffic.outside.",
    "prefix": "traffic.shared_prefix.",
    "regions": "regions.",
    "slo": "slo.",
    "fleet": "fleet.",
    "offload": "kv_offload.",
    **model_keys.TABLES,
    "prices": "prices.",
    **money_keys.TABLES,
}
_PAGE = """# Scenario keys

<!-- written by `make docs` from the records that read a scenario -->

A scenario is one YAML file with a name, a model and traffic. Every other key has a default, which the answer lists as an assumption. capplan rejects a file with mistakes and prints a line for each.

```yaml
name: support-chat
model: meta-llama/Llama-3.1-70B-Instruct
traffic:
  - request_rate: 20 req/s
    daily_curve: office
    input_tokens: {mean: 1800, p95: 6000}
    output_tokens: {mean: 350, p95: 900}
slo: {ttft_p95: 800 ms, tpot_p95: 40 ms}
```

Editors with the YAML language server complete and check the file by the line that `capplan init` writes at its top:

```yaml
# yaml-language-server: $schema=https://OWNER.github.io/capplan/schema/scenario.json
```

Without a connection, name the schema of your installation in the settings of your editor (`yaml.schemas`): `capplan fleet absent.yaml` prints its path after `keys:`.

**Numbers and units** read the same here and in flags. `10`, `10 rps`, `10 req/s` and `10/s` are one rate, and so is `600/min`. `32k` and `32,000` are one length. `20 %` and `0.2` are one share.
A number without a unit is in requests per second, tokens, hours of a day, or a fraction of one. Times, bytes, dollars and watts need their unit (`800 ms`, `80 GB`, `2.5 $/h`). Upper and lower case
count in units: `m` is a thousandth, `M` a million.

## The file

Each key has its meaning, its default, and the names or an example of what it takes. Without a default, nothing of the kind is planned. A key that is a link has a page with keys of its own.

<scenario>

## traffic

State how often requests come by one of `request_rate`, `users` with `think_time`, `requests` with `within`, or `trace`, and how long they are by `input_tokens` and `output_tokens`, unless a trace does.

<traffic>

### Peak and mean

A fleet is sized for the peak and paid at all hours, so a token costs more at the mean load than at the peak. State the mean in one way: `mean_rate` (over all paid hours), `daily_curve`, or
`active_hours`. A trace has its own mean; `mean_rate` replaces it if the trace shows only a busy hour. A batch job is paid while it runs.

The shapes are assumptions; `follow-the-sun` is `office` in three time zones, eight hours apart. 24 values of your own are better: `capplan workload TRACE -o workload.yaml` writes the values of a
trace longer than two days as `rate_by_hour`.

<curves>

### Lengths

<lengths>

### users

`users: 400` are the people who are active at the same time, not all who have an account. `users: {employees: 2000, active: 20 %}` states the same.

<users>

### retries

<retries>

### images

<images>

### outside

<outside>

### shared_prefix

<prefix>

Lengths count whole prompts, the prefix included. A cache finds whole blocks of the prefix, and the last token of a prompt is always computed. A prompt that is shorter than the prefix holds a
part of it, so fewer tokens hit than `tokens` times `hit_fraction`, and a warning says how many. Lengths that contain the prefix: `{p50: 1500, p95: 6000, min: 1201}`.

## regions

<regions>

Every class of traffic then names its region, and its `daily_curve` is in local time. One fleet in `fleet.location` serves all users, or with `fleet.serves: location` only the users of this region.
`capplan levers --lever regions` compares all places with a fleet in each region ([where machines are](reference/orders.md#where-machines-are)).

## slo

<slo>

## fleet

<fleet>

[What each router does](reference/simulate.md#a-router-failures-autoscaling-hedging-separate-prefill-and-decode) is on the page of simulate.

## kv_offload

<offload>

<models>
## prices

<prices>

<money>
"""
