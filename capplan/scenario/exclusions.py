"""Keys of a scenario that exclude each other, or need another one, and why: the one table of them."""

import re
from collections.abc import Mapping
from itertools import combinations
from typing import Any, get_args

from capplan.readers.record import keys_of
from capplan.readers.yaml_file import KeyPath
from capplan.replica.speculation import Method
from capplan.scenario.reading import Reading
from capplan.scenario.scenario_file import Promise, ScenarioFile
from capplan.scenario.workload_file import MEANS

MULTIPLES = ("documents", "samples", "retries", "reasoning_tokens", "padded_batch")
OF_OUTPUTS = ("output_tokens", "reasoning_tokens", "samples", "retries", "turns", "trace")
"""Keys of a line of traffic that are about outputs."""


def one_by_one(section: str) -> str:
    """Return how to ask for one of the fleets of a section."""
    parts = "first, second or alone" if section == "cascade" else "NAME"
    return f"one fleet at a time: --set {section}.part={parts}"


_T = "traffic[]."
_POOLING = "and runner: pooling generates no tokens; leave it out"
_LEAVE = "leave one of them out"
_SOURCES = "give either draft or draft_step_time, e.g. draft_step_time: 2 ms, or a method that needs none of them: eagle, mtp, dspark, medusa, ngram"
LIMITS = sorted(key for key in Promise.model_fields if key not in ("confidence", "outside"))
"""Keys of `slo` that are targets."""
_GROWTH = "given; give one of them, e.g. {per_month: 6 %, months: 18}"

EXCLUSIONS: Mapping[str, str] = {
    **{f"traffic[].{key} with runner: pooling": f"is about outputs, {_POOLING}" for key in OF_OUTPUTS},
    **{
        f"traffic[].{key} with traffic[].{other}": f"{why}, and {other} is given; {_LEAVE}"
        for keys, others, why in (
            (MULTIPLES, ("turns", "users", "trace"), "is for request_rate, or requests with within"),
            (("images",), ("turns", "trace"), "is for requests of one prompt"),
            (("turns",), ("requests", "trace"), "is for request_rate or users"),
        )
        for key in keys
        for other in others
    },
    "traffic[].padded_batch without traffic[].requests": "is for a batch job: requests: 1M with within: 8 h; engines that serve do not pad",
    **{
        f"traffic[].{key} with traffic[].{first}": f"states the mean rate a second time, besides {first}; give one of them"
        for first, key in combinations(MEANS, 2)
    },
    **{
        f"traffic[].{key} with traffic[].requests": "is for continuous traffic; a batch job is paid for while it runs, so leave it out"
        for key in MEANS
    },
    **{
        f"traffic[].arrival_cv with traffic[].{follows}": f"says how requests arrive by themselves, and those of {follows} follow responses and think times; leave it out"
        for follows in ("users", "turns")
    },
    "traffic[].mean_rate with traffic[].users": "cannot be given for users, whose rate depends on the response time; give daily_curve or active_hours",
    **{
        f"traffic[].outside.{key} without traffic[].outside.tool_calls": "is of one tool call; say how many there are, e.g. tool_calls: 3"
        for key in ("tool_time", "usd_per_tool_call")
    },
    "traffic[].outside.tool_time with traffic[].turns": "is think_time where a session has turns: all calls between two of them; leave it out",
    "traffic[].outside.tool_calls without traffic[].outside.tool_time or traffic[].turns": "needs tool_time, e.g. tool_time: 400 ms",
    "traffic[].added_tokens without traffic[].turns": "is what later turns add; give turns, e.g. turns: 8",
    "traffic[].turns without traffic[].think_time": "needs think_time, e.g. think_time: 5 s",
    "traffic[].turns without traffic[].added_tokens": "needs added_tokens, e.g. added_tokens: {mean: 800, p95: 3000}",
    f"slo.confidence without {' or '.join(f'slo.{key}' for key in LIMITS)}": "is the probability of meeting the targets, and there are none; e.g. ttft_p95: 800 ms, or leave confidence out",
    "fleet.burst without traffic[].trace": "multiplies the busiest minute of a trace, and no traffic has one; e.g. traffic: [{trace: requests.csv}], or write the peak into request_rate and leave burst out",
    "fleet.survive with fleet.spare_replicas": f"says what spare_replicas: N says, which is {{replica: N}}; {_LEAVE}",
    "commitments.interest without commitments.reserved_1y.upfront or commitments.reserved_3y.upfront": "is paid on what a reservation costs upfront, and none has an upfront part; e.g. reserved_1y: {upfront: 50 %}",
    "energy.gpus_per_server without energy.rack_limit": "belongs to rack_limit, and none is given; e.g. rack_limit: 40 kW",
    "speculation with runner: pooling": f"drafts tokens of outputs, {_POOLING}",
    "speculation with speculation.draft and speculation.draft_step_time": _SOURCES,
    "speculation with speculation.method: draft-model without speculation.draft or speculation.draft_step_time": _SOURCES,
    **{
        f"speculation.draft with speculation.method: {method}": f"is for method: draft-model; {method} drafts by itself"
        for method in get_args(Method)
        if method != "draft-model"
    },
    "speculation.metrics with speculation.acceptance": "acceptance is stated already; give one of them",
    "regions with cascade": f"not with cascade: an escalated request would cross the network twice if its two models are in two places, and they are planned one by one; {_LEAVE}",
    "regions with sharing": f"not with sharing: services share the GPUs of one place, and the traffic of each would be from regions of its own; {_LEAVE}",
    "cascade with runner: pooling": f"is about answers, and runner: pooling gives none; {_LEAVE}",
    "sharing with cascade": f"is not modelled with a cascade; {_LEAVE}",
    **{
        f"{section} with {key} without {section}.part": f"has several fleets, and {key} is of one; {one_by_one(section)}"
        for section, of_one in (("cascade", ()), ("sharing", ("growth",)))
        for key in ("budget", *of_one, "energy", "fleet.max_gpus")
    },
    **{
        f"sharing with {others}{key}": f"is not modelled with {key}; {_LEAVE}"
        for key, others in (
            ("commitments", ""),
            ("kv_offload", ""),
            ("speculation", "sharing.by: device and "),
            ("fleet.disaggregation", ""),
        )
    },
    **{
        f"{key} without regions": "is about regions, and there are none; e.g. regions: [{name: europe, utc_offset: 1}]"
        for key in ("fleet.location", "fleet.serves", "traffic[].region")
    },
    **{
        f"hosted.{key} with hosted.provisioned": f"is of prices by the token, and hosted.provisioned rents throughput by the hour; {_LEAVE}"
        for key in ("batch_fraction", "discount", "surcharge", "service")
    },
    **{
        f"commitments.{term} with commitments.{term}.price and commitments.{term}.discount": f"price and discount are both given; {_LEAVE}"
        for term in ("reserved_1y", "reserved_3y")
    },
    **{
        f"energy.{phase} with energy.measured.{phase}": f"is measured too, in energy.measured.{phase}; {_LEAVE}"
        for phase in ("idle", "decode", "prefill")
    },
    **{
        f"prices.other.{key} without prices.other.{needed} or prices.other.defaults": f"needs prices.other.{needed} too: a number of nodes and what one costs"
        for key, needed in (("cpu_nodes", "cpu_node"), ("cpu_node", "cpu_nodes"))
    },
    "growth with growth.per_month and growth.rates": f"per_month and rates are both {_GROWTH}",
    "growth without growth.per_month or growth.rates": f"neither per_month nor rates is {_GROWTH}",
    "growth.months with growth.rates": "belongs to per_month; rates state their months themselves",
    **{
        f"growth.gpu_price_decline with {key}": f"falls with prices of rented GPUs, and {why}"
        for key, why in {
            "prices.electricity": f"prices.electricity stays; {_LEAVE}",
            **{
                f"prices.commitment: {paid}": f"prices.commitment: {paid} keeps its price for its term; state the term in commitments"
                for paid in ("reserved", "reserved-1y", "reserved-3y", "owned", "capacity-block")
            },
        }.items()
    },
    "growth with traffic[].requests": "is for continuous traffic; a batch job is planned as it stands, so leave it out",
    "backend with engine: any": f"belongs to llamacpp, and engine is any; {_LEAVE}",
    "engine_version with engine: any": f"belongs to one engine, and engine is any; {_LEAVE}",
    "kv_offload with prefix_caching: false": f"holds prefixes, and prefix_caching is false; {_LEAVE}",
    **{
        f"slo.{key} with runner: pooling": f"limits the time between tokens, {_POOLING}"
        for key in LIMITS
        if key.startswith(("tpot", "itl"))
    },
    "fleet.disaggregation with runner: pooling": f"hands prompts over to a decode pool, {_POOLING}",
    **{
        f"fleet.{key} without fleet.disaggregation or fleet.disaggregation: off": "fleet.disaggregation is left out, and this is about separate pools only; give disaggregation: allowed, or leave it out too"
        for key in ("prefill_hardware", "decode_hardware", "kv_link", "kv_link_latency")
    },
    **{
        f"fleet.mix with {keys}": f"not with {keys}: {why}; {_LEAVE}"
        for keys, why in {
            "fleet.disaggregation": "each group would be a pair of pools, and pairs are not searched for part of the requests",
            "speculation.draft_step_time": "a stated time is that of one kind of GPU; speculation.draft names a model whose time is predicted on each",
            "fleet.max_gpus": "the cheapest fleets of the parts are found one by one, and the limit is on all of them; fleet.max_machines limits each kind",
            "budget and commitments": "the mix is the cheapest by the price of prices.commitment, so none within a budget by commitments would not mean that there is none",
            "cascade": "its two models have fleets of their own, and each is searched separately",
            "sharing": "services share the GPUs of one fleet",
        }.items()
    },
}
"""Keys that are stated together, or without others -> why not, said of the first of them; `traffic[]` is each line of traffic, and KEY: VALUE
is stated with this value, which may be the default. Of rows about the same key the first one that applies is said."""
_ROWS = [
    (re.split(" with | and ", stated), absent.split(" or ") if absent else [], why)
    for row, why in EXCLUSIONS.items()
    for stated, _, absent in (row.partition(" without "),)
]


def note_exclusions(reading: Reading, file: ScenarioFile) -> None:
    """Note the keys of a scenario that exclude each other; what follows from them is not reported too."""
    every = range(len(file.traffic))
    for stated, absent, why in _ROWS:
        by_line = any(key.startswith(_T) for key in stated)
        for line in every if by_line else (0,):
            if not all(_stated(file, key, line) for key in stated):
                continue
            paths = [_path(key, line) for key in (*stated, *absent)]
            known = any(path in reading.excluded for path in paths)
            if not known and not any(
                _stated(file, key, at) for key in absent for at in ((line,) if by_line else every)
            ):
                reading.reject(paths[0], why, *paths)
                reading.excluded.append(paths[0])


def _path(key: str, line: int) -> KeyPath:
    """Return the path of a key, of one line of traffic.

    Examples
    --------
    >>> _path("traffic[].samples", 2), _path("engine: any", 0)
    (('traffic', 2, 'samples'), ('engine',))
    """
    name = key.partition(": ")[0]
    return ("traffic", line, *name[len(_T) :].split(".")) if name.startswith(_T) else tuple(name.split("."))


def _stated(file: ScenarioFile, key: str, line: int) -> bool:
    """Return whether a key is stated and says something: nothing that is switched off, and not what holds without it."""
    record: Any = None
    value: Any = file
    name: str | int = ""
    for name in _path(key, line):
        if value is None:
            return False
        record, value = value, value[name] if isinstance(name, int) else getattr(value, name)
    _, colon, wanted = key.partition(": ")
    if colon:
        return str(value).lower() == wanted
    kind: type = type(record)
    return value not in (None, "off", []) and value != keys_of(kind)[str(name)].default
