"""A scenario YAML with every alternative resolved and every default stated: targets of the engine, and the pools and machines that the search may choose from."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote

from capplan.assumption import Assumption
from capplan.engine.lookup import ENGINES, profile
from capplan.errors import InputError, together, unknown
from capplan.fleet.engine_options import TierSize
from capplan.fleet.pools.link import LinkTerms
from capplan.fleet.scenario import FleetLimits, MixBy, PoolsLimits
from capplan.fleet.search.candidates import Ranges
from capplan.hardware.device import NETWORKS, Device
from capplan.memory.kv_sizes import AUTO
from capplan.model.network import Network
from capplan.model.parameters import is_large_mixture
from capplan.model.weight_format import KV_FORMATS, named_weight_format
from capplan.money.order import OWN, Machine, MachineLimits
from capplan.operators.device_rates import no_speed_reason
from capplan.readers.catalogue.hardware import catalogue_name, device, planned_device, sku_of
from capplan.readers.catalogue.offer_terms import known_machines
from capplan.readers.catalogue.prices import (
    machine,
    price_records,
    refuse_unknown_provider,
    refuse_unknown_region,
)
from capplan.readers.catalogue.scenarios import names_a_model, scenario_file, scenario_folder, scenario_word
from capplan.readers.text_file import data_folder, is_there
from capplan.readers.yaml_file import Document, KeyPath, read_yaml
from capplan.scenario.engine_use import link_terms_of, network_bytes_per_s
from capplan.scenario.exclusions import note_exclusions
from capplan.scenario.money_terms import (
    budget_terms,
    growth_ratios,
    named_prices,
    note_odd_money,
    note_other_prices,
)
from capplan.scenario.one_line import ANY, model_document
from capplan.scenario.reading import (
    Reading,
    by_key,
    overridden,
    scenario_record,
    warn_of_odd_targets,
)
from capplan.scenario.regions import located, survival
from capplan.scenario.replica import lora_terms
from capplan.scenario.scenario_file import Fleet, Promise, Scenario, ScenarioFile, Speculation
from capplan.scenario.several import asks_for_a_part, of_all, part_document, refuse_with_slices, several_terms
from capplan.scenario.speculation import resolved_speculation
from capplan.scenario.traffic import request_classes
from capplan.scenario.traffic_line import pooled_traffic
from capplan.workload.request_class import (
    METRICS,
    STATISTICS,
    RequestClass,
    Slo,
    Target,
    without_prefix_cache,
)

_WAITED = ("ttft", "e2e")
"""Metrics that users count from the moment they ask."""


def promised(reading: Reading, promise: Promise, classes: Sequence[RequestClass]) -> Slo:
    """Return the targets that a scenario states, less what its requests take outside before their prompts are sent.

    Parameters
    ----------
    reading : of the file
    promise : as written
    classes : of requests, with their time outside
    """
    targets = tuple(
        Target(metric, statistic, limit_s)
        for metric in METRICS
        for statistic in STATISTICS
        if (limit_s := getattr(promise, f"{metric}_{statistic}")) is not None
    )
    if not targets:
        reading.assume("no latency targets: sized for throughput only", "slo.ttft_p95, slo.tpot_p95")
        if any(item.users for item in classes):
            reading.warnings.append(
                "no latency target: users wait as long as it takes, so the smallest fleet is planned; state slo.ttft_p95 or slo.tpot_p95"
            )
    if promise.confidence is None and targets:
        reading.assume(
            f"sized to meet all targets with a probability of {Slo().confidence:.0%}, given how far predictions were from measured results",
            "slo.confidence",
        )
    warn_of_odd_targets(reading, targets)
    targets = _of_engine(reading, promise, classes, targets)
    return Slo(targets, Slo().confidence if promise.confidence is None else promise.confidence)


def _of_engine(
    reading: Reading, promise: Promise, classes: Sequence[RequestClass], targets: tuple[Target, ...]
) -> tuple[Target, ...]:
    """Return the targets with the limit that the longest time outside leaves to the engine; `Target.limit_of` has that of each class."""
    waits = [item.outside.wait_s for item in classes]
    longest = max(waits, default=0.0)
    counted = [target for target in targets if target.metric in _WAITED]
    if promise.outside is not None and not (longest and counted):
        why = "says whether targets of ttft or e2e include the time outside, and there is no such "
        missing = "time; e.g. traffic: [{outside: {time: 200 ms}}]" if not longest else "target"
        raise reading.refuse(("slo", "outside"), why + missing)
    if not (longest and counted):
        return targets
    if promise.outside == "excluded":
        reading.assume(f"targets are those of the engine: users wait up to {longest:g} s more", "slo.outside")
        return targets
    short = next((target for target in counted if target.limit_s <= longest), None)
    if short is not None:
        raise reading.refuse(
            ("slo", short.key),
            f"{short.limit_s:g} s are over before the prompt is sent: up to {longest:g} s are spent outside; "
            "for a limit of the engine only: outside: excluded",
        )
    left = ", ".join(f"{target.key} of {target.limit_s - longest:g} s" for target in counted)
    some = (
        ", and more for classes that wait less: each request counts with its own wait"
        if min(waits) < longest
        else ""
    )
    reading.assume(
        f"targets include up to {longest:g} s outside, which leaves the engine {left}{some}", "slo.outside"
    )
    return tuple(
        replace(target, limit_s=target.limit_s - longest, outside_s=longest) if target in counted else target
        for target in targets
    )


SPARES_OF_POOLS = (
    "spare replicas stand by in each of the two pools, as one of the other pool has to be started again"
)
USERS_OF_POOLS = "separate pools are sized for requests that arrive at random at the rate that the users send"

Devices = Callable[[str, list[str]], tuple[Device, ...]]
"""(key of fleet, names) -> devices."""


def pools_limits(
    reading: Reading, file: ScenarioFile, hardware: tuple[Device, ...], devices: Devices
) -> PoolsLimits | None:
    """Return what pools may be made of; None where the fleet has none, or where `with_screened_pools` decides.

    Parameters
    ----------
    reading : notes mistakes and defaults
    file : the scenario as it is written
    hardware : devices of the fleet, for a pool that names none
    devices : looks up the devices of a key
    """
    fleet = file.fleet
    if fleet.disaggregation in (None, "off"):
        return None  # keys of pools stay, so that pools can be switched off and on
    pools = {
        key: devices(key, names) if (names := getattr(fleet, key)) else hardware
        for key in ("prefill_hardware", "decode_hardware")
    }
    reading.assume(SPARES_OF_POOLS, "fleet.survive")
    link = reading.attempt(partial(_link, fleet), LinkTerms(), ("fleet", "kv_link"))
    reading.assumptions.append(link.assumption)
    return PoolsLimits(
        pools["prefill_hardware"], pools["decode_hardware"], link, only=fleet.disaggregation == "only"
    )


def with_screened_pools(scenario: Scenario, model: Network) -> Scenario:
    """Return a scenario that has separate pools looked at for a large mixture of experts, unless it says, or asks for what is not modelled with them."""
    file, limits = scenario.file, scenario.fleet
    users = any(item.users is not None for item in scenario.classes)
    conversations = any(item.users is not None and item.sessions is not None for item in scenario.classes)
    if (
        not is_large_mixture(model)
        or file.fleet.disaggregation is not None
        or limits.pools is not None
        or limits.mix != "off"
        or scenario.pooled
        or scenario.several is not None
        or conversations
        or any(device.partition is not None for device in limits.hardware)
    ):
        return scenario
    link = LinkTerms()
    pools = PoolsLimits(limits.hardware, limits.hardware, link, only=False, screened=True)
    assumed = [Assumption(SPARES_OF_POOLS, "fleet.survive"), link.assumption]
    assumed += [Assumption(USERS_OF_POOLS, "fleet.disaggregation")] if users else []
    return replace(
        scenario,
        fleet=replace(limits, pools=pools),
        assumptions=(*scenario.assumptions, *assumed),
    )


def _link(fleet: Fleet) -> LinkTerms:
    name = LinkTerms().name if fleet.kv_link is None else fleet.kv_link
    return link_terms_of(name, "fleet.kv_link", fleet.kv_link_latency or 0.0)


def refuse_with_pools(reading: Reading, file: ScenarioFile, classes: tuple[RequestClass, ...]) -> None:
    """Note what is not modelled with separate pools: conversations of users."""
    at = ("fleet", "disaggregation")
    if file.fleet.disaggregation in (None, "off"):
        return
    if any(item.users is not None for item in classes):
        reading.assume(USERS_OF_POOLS, "fleet.disaggregation")
    if any(item.users is not None and item.sessions is not None for item in classes):
        what = "separate pools are not modelled with conversations of users (traffic[].users with turns); give request_rate"
        reading.reject(at, what)


_BY_GPUS = re.compile(r"\s*(\d{1,4})\s*x\s*(\S{1,60})\s*")


def machine_limits(reading: Reading, fleet: Fleet) -> MachineLimits:
    """Return which machines a scenario may order, and which it has; mistakes are noted."""
    for key, names, check in (
        ("machines", fleet.machines, _refuse_unknown_machine),
        ("providers", fleet.providers, refuse_unknown_provider),
        ("regions", fleet.regions, refuse_unknown_region),
        ("max_machines", list(fleet.max_machines or ()), _refuse_unknown_machine),
    ):
        for name in names or ():
            at: KeyPath = ("fleet", key)
            try:
                check(name, "")
            except InputError as error:
                reading.reject(at, str(error))
    own = []
    for name, count in (fleet.own or {}).items():
        at = ("fleet", "own")
        try:
            own.append(_owned(name, count))
        except InputError as error:
            reading.reject(at, str(error))
    return MachineLimits(
        tuple(fleet.machines or ()),
        tuple(fleet.providers or ()),
        tuple(fleet.regions or ()),
        tuple(own),
        tuple((fleet.max_machines or {}).items()),
    )


def _refuse_unknown_machine(name: str, place: str) -> None:
    machine(name, place)


def _owned(name: str, count: int) -> Machine:
    """Return machines that are there already, by sku or as GPUS x DEVICE."""
    listed = sku_of(name)
    if listed is not None:
        return Machine(OWN, listed.record.sku, listed.record.device, listed.record.gpus, 0.0, most=count)
    match = _BY_GPUS.fullmatch(name)
    device = catalogue_name(match[2]) if match else None
    if match is None or device is None or not int(match[1]):
        names = {item.record.sku for item in known_machines()}
        raise unknown("machine", name, names, hint="or GPUS x DEVICE, such as 8 x h100-sxm")
    return Machine(OWN, f"{int(match[1])} x {device}", device, int(match[1]), 0.0, most=count)


SCHEMA = data_folder("docs/schema") / "scenario.json"
_PLAN_KEYS = {"capplan", "command", "result"}
"""Keys that a plan file has, and no scenario."""
"""Every key, for editors."""
DEFAULT_HARDWARE = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200")

IN_TURN = "requests are routed to the replicas in turn (round-robin), the default of the vLLM production stack's router"
ROUTED = (
    "requests are routed to the replica that has cached their prefix, unless it is far busier than the others; "
    "a plan counts on others being dealt in turn, and they find a less busy replica"
)

STAYS = "sessions are dealt to the replicas in turn, and stay with theirs"

AS_PUBLISHED = "as-published"
"""Weight dtype: that of the model's config."""


def _device(reading: Reading, at: KeyPath, name: str) -> Device | None:
    beside = reading.folder / name
    stated = reading.document.value.get("calibration")
    calibration = reading.resolved(stated) if isinstance(stated, str) else None
    try:
        return planned_device(str(beside) if name.lower().endswith((".yaml", ".yml")) else name, calibration)
    except InputError as error:
        raise reading.refuse(at, str(error)) from None


def _hardware(reading: Reading, file: ScenarioFile) -> tuple[Device, ...]:
    names = file.fleet.hardware
    if names is None:
        reading.assume(f"hardware: {', '.join(DEFAULT_HARDWARE)}", "fleet.hardware")
        return tuple(device(name) for name in DEFAULT_HARDWARE)
    if names == [ANY]:
        term = file.prices.commitment or "on-demand"
        known = sorted({item.device for item in price_records() if item.commitment == term})
        reading.assume(f"hardware: the {len(known)} GPUs with a listed {term} price", "fleet.hardware")
        return tuple(map(device, known))
    return _devices(reading, "hardware", names)


def _devices(reading: Reading, key: str, names: list[str]) -> tuple[Device, ...]:
    devices: list[Device] = []
    for index, name in enumerate(names):
        at: KeyPath = ("fleet", key, index)
        entry = reading.attempt(partial(_device, reading, at, name), None, at)
        if entry and all(entry.name != other.name for other in devices):
            devices.append(entry)
    return tuple(devices)


def networked(devices: tuple[Device, ...], network_bytes_per_s: float | None) -> tuple[Device, ...]:
    """Return devices whose servers are connected at a rate per device; as they are where none is given."""
    if network_bytes_per_s is None:
        return devices
    return tuple(replace(item, network_bytes_per_s=network_bytes_per_s) for item in devices)


def with_networks(scenario: "Scenario", rates: Mapping[str, float]) -> "Scenario":
    """Return a scenario in which servers of some devices are connected at a rate per device [B/s]."""
    if not rates:
        return scenario

    def joined(devices: tuple[Device, ...]) -> tuple[Device, ...]:
        return tuple(
            replace(item, network_bytes_per_s=rates.get(item.name, item.network_bytes_per_s))
            for item in devices
        )

    limits, pools = scenario.fleet, scenario.fleet.pools
    if pools is not None:
        both = joined(pools.prefill_devices), joined(pools.decode_devices)
        pools = replace(pools, prefill_devices=both[0], decode_devices=both[1])
    return replace(scenario, fleet=replace(limits, hardware=joined(limits.hardware), pools=pools))


def _network_bytes_per_s(reading: Reading, fleet: Fleet) -> float | None:
    if fleet.network is None:
        return None
    rate = network_bytes_per_s(fleet.network, "fleet.network")
    if rate is None:
        raise reading.unknown("network", fleet.network, NETWORKS, ("fleet", "network"))
    reading.assume(
        f"servers are joined by {fleet.network}: {rate / 1e9:g} GB/s per device and direction",
        "fleet.network",
    )
    return rate


def _limits(reading: Reading, file: ScenarioFile, classes: tuple[RequestClass, ...]) -> FleetLimits:
    defaults, fleet = FleetLimits(()), file.fleet
    if fleet.burst is not None:
        reading.assume(
            f"sized for bursts of {fleet.burst:g} times the busiest minute of a trace", "fleet.burst"
        )
    if fleet.headroom is None:
        reading.assume(f"headroom of {defaults.headroom_fraction:.0%}", "fleet.headroom")
    if fleet.routing is None:
        by_prefix = any(item.reuse is not None for item in classes)
        said = (
            STAYS if any(item.sessions is not None for item in classes) else ROUTED if by_prefix else IN_TURN
        )
        reading.assume(said, "fleet.routing")

    rate = reading.attempt(partial(_network_bytes_per_s, reading, fleet), None, ("fleet", "network"))
    hardware = networked(_hardware(reading, file), rate)
    return FleetLimits(
        hardware=hardware,
        headroom_fraction=defaults.headroom_fraction if fleet.headroom is None else fleet.headroom,
        survive=survival(reading, fleet, classes),
        start_up_s=defaults.start_up_s if fleet.start_up is None else fleet.start_up,
        burst_ratio=defaults.burst_ratio if fleet.burst is None else fleet.burst,
        ranges=Ranges(
            fleet.degrees("tensor_parallel") or defaults.ranges.tensor_parallel,
            fleet.degrees("pipeline_parallel") or defaults.ranges.pipeline_parallel,
            max_devices_per_replica=fleet.max_gpus_per_replica,
            expert_parallel=fleet.degrees("expert_parallel"),
            data_parallel=fleet.degrees("data_parallel"),
        ),
        mix=mix_by(reading, file),
        machines=machine_limits(reading, fleet),
        pools=pools_limits(
            reading, file, hardware, lambda key, names: networked(_devices(reading, key, names), rate)
        ),
    )


def mix_by(reading: Reading, file: ScenarioFile) -> MixBy:
    """Return what the router of several fleets may look at."""
    by = file.fleet.mix or FleetLimits(()).mix
    if by == "off":
        return by
    reading.assume(
        "the router knows the class of a request, or the length of its prompt, before it chooses a fleet, or deals requests out by weight",
        "fleet.mix",
    )
    return by


def _weight_dtypes(reading: Reading, file: ScenarioFile) -> tuple[str | None, ...]:
    named = [("weight_dtype", file.weight_dtype)] if file.weight_dtype else []
    named += [("fleet", name) for name in file.fleet.weight_dtypes or []]
    if not named:
        reading.assume("weight dtype as in the model's config", "weight_dtype")
        return (None,)
    for key, name in named:
        path: KeyPath = ("fleet", "weight_dtypes") if key == "fleet" else (key,)
        if name != AS_PUBLISHED:
            try:
                named_weight_format(name)
            except InputError as error:
                reading.reject(path, str(error))
            if alone := no_speed_reason([name], file.engine or ""):
                reading.reject(path, f"{name!r} has no speed, only a memory: {alone}")
    names = [None if name == AS_PUBLISHED else name for _, name in named]
    return tuple(dict.fromkeys(names))


def _kv_dtypes(reading: Reading, file: ScenarioFile) -> tuple[str, ...]:
    named = [file.kv_dtype] if file.kv_dtype else []
    named += file.fleet.kv_dtypes or []
    known = (AUTO, *KV_FORMATS)
    for name in named:
        if name not in known:
            path: KeyPath = ("kv_dtype",) if name == file.kv_dtype else ("fleet", "kv_dtypes")
            reading.note(reading.unknown("KV dtype", name, known, path), path)
    return tuple(dict.fromkeys(named)) or (AUTO,)


ANY_ENGINE = "any"
"""All engines are tried, and the cheapest plan is kept."""


def _engine(reading: Reading, file: ScenarioFile) -> str:
    if file.engine is None:
        reading.assume("served by vLLM", "engine")
    name = file.engine or "vllm"
    if name == ANY_ENGINE:
        return next(iter(ENGINES))
    key = "engine_version" if file.engine_version else "engine"
    try:
        profile(name, file.engine_version)
        key = "backend"
        profile(name, file.engine_version, file.backend)
    except InputError as error:
        raise reading.refuse((key,), str(error)) from None
    return name


def _model(reading: Reading, name: str) -> str:
    beside = reading.folder / name
    explicit = name.startswith(("./", "../", "~", "/")) or name.endswith(".json")
    return reading.resolved(name) if explicit or is_there(beside) else name


def _tiers(reading: Reading, file: ScenarioFile) -> tuple[TierSize, ...]:
    tiers = tuple(TierSize(tier.name, tier.capacity, tier.bandwidth) for tier in file.kv_offload)
    names = [tier.name for tier in tiers]
    twice = next((place for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        at = ("kv_offload", twice, "name")
        raise reading.refuse(at, f"{names[twice]!r} names two tiers; give each a different name")
    if tiers:
        reading.assume(
            "offload tiers hold blocks evicted from the cache; every request waits for the mean time of its loads",
            "kv_offload",
        )
    return tiers


def _speculation(reading: Reading, section: Speculation | None) -> Speculation | None:
    if section is None:
        return None
    return resolved_speculation(reading, section, _model(reading, section.draft) if section.draft else None)


def _classes(reading: Reading, file: ScenarioFile, *, pooled: bool) -> tuple[RequestClass, ...]:
    classes = request_classes(reading, pooled_traffic(reading, file), file.fleet.burst or 1.0, pooled=pooled)
    return tuple(map(without_prefix_cache, classes)) if file.prefix_caching is False else classes


def _located(
    reading: Reading, file: ScenarioFile, classes: tuple[RequestClass, ...]
) -> tuple[ScenarioFile, tuple[RequestClass, ...]]:
    """Return the scenario and its requests as they are where the machines are; as they were if some of them cannot be read."""
    known = [item for item in classes if item.users is not None or item.request_rate_per_s is not None]
    if len(known) < len(file.traffic):
        return file, classes
    found = reading.attempt(
        partial(located, reading, file, classes), None, ("regions",), ("traffic",), ("fleet",)
    )
    return found or (file, classes)


def scenario_from(document: Document, folder: Path, settings: Sequence[str] = ()) -> Scenario:
    """Return the scenario in a document; paths in it are relative to `folder`, and `settings` are the keys that the document has overridden."""
    file, reading = scenario_record(document, folder)
    note_exclusions(reading, file)
    weight_dtypes, kv_dtypes = _weight_dtypes(reading, file), _kv_dtypes(reading, file)
    engine = reading.attempt(partial(_engine, reading, file), "", ("engine",))
    tiers = reading.attempt(partial(_tiers, reading, file), (), ("kv_offload",))
    lora = reading.attempt(partial(lora_terms, reading, file.lora), None, ("lora",))
    speculation = reading.attempt(partial(_speculation, reading, file.speculation), None, ("speculation",))
    pooled = file.runner == "pooling"
    file, classes = _located(reading, file, _classes(reading, file, pooled=pooled))
    slo = reading.attempt(partial(promised, reading, file.slo, classes), Slo(), ("slo",))
    limits = _limits(reading, file, classes)
    refuse_with_pools(reading, file, classes)
    refuse_with_slices(reading, file, limits.hardware)
    prices = named_prices(reading, file.prices, limits.devices)
    note_odd_money(reading, file)
    note_other_prices(reading, file.prices)
    budget = budget_terms(reading, file.budget, file.prices)
    growth = reading.attempt(partial(growth_ratios, reading, file.growth, classes), (), ("growth",))
    section = "sharing" if file.cascade is None else "cascade"
    several = reading.attempt(partial(several_terms, reading, file, classes), None, (section,))
    if reading.mistakes:
        raise together(reading.mistakes)
    return Scenario(
        file=file,
        path=document.name,
        model=_model(reading, file.model),
        weight_dtypes=weight_dtypes,
        kv_dtypes=kv_dtypes,
        engine=engine,
        calibration=reading.resolved(file.calibration) if file.calibration else None,
        price_file=reading.resolved(file.prices.file) if file.prices.file else None,
        price_date=file.prices.date,
        budget=budget,
        growth=growth,
        hosted=replace(file.hosted, file=reading.resolved(file.hosted.file))
        if file.hosted.file
        else file.hosted,
        kv_offload=tiers,
        speculation=speculation,
        lora=lora,
        several=several,
        classes=classes,
        slo=slo,
        fleet=limits,
        prices=prices,
        assumptions=tuple(reading.assumptions),
        warnings=tuple(reading.warnings),
        written=document.value,
        settings=tuple(map(by_key, settings)),
    )


def _searched(plan: Mapping[str, object]) -> str:
    """Return the scenario that a plan file says it was made for, with its settings."""
    result = plan["result"]
    origin = result.get("plan_file") if isinstance(result, Mapping) else None
    scenario = origin.get("scenario") if isinstance(origin, Mapping) else None
    if origin is None or not isinstance(scenario, str):
        return "SCENARIO"
    settings = origin.get("settings")
    named = settings if isinstance(settings, list) else []
    return scenario_word(scenario) + "".join(f" --set {quote(by_key(str(setting)))}" for setting in named)


def scenario_document(path: str | os.PathLike[str], settings: Sequence[str]) -> Document:
    """Return the YAML of a scenario with some keys overridden, not checked yet; of several fleets the one that it asks for.

    A model in its place is a scenario that only the settings state.
    """
    if names_a_model(path):
        return model_document(str(path), settings)
    document = read_yaml(
        scenario_file(path),
        kind="a scenario YAML",
        way_out=f"shipped ones: capplan list scenarios; a new one: capplan init; keys: {SCHEMA}",
    )
    if set(document.value) >= _PLAN_KEYS:
        raise InputError(
            f"{path}: is a plan file, and a scenario YAML is expected\n  to search again: capplan fleet {_searched(document.value)}"
        )
    document = overridden(document, settings)
    if not asks_for_a_part(document):
        return document
    scenario = scenario_from(document, scenario_file(path).resolve().parent)
    return overridden(part_document(document, scenario), of_all(settings))


def read_scenario(path: str | os.PathLike[str], settings: Sequence[str] = ()) -> Scenario:
    """Return the scenario in a YAML file.

    Parameters
    ----------
    path : of the file, the name of a shipped scenario, or a model that the settings give a load
    settings : keys that are overridden, each KEY=VALUE or --FLAG=VALUE

    Returns
    -------
    Scenario in base units, its defaults listed in `assumptions`

    Raises
    ------
    InputError
        All errors, with file, line and key.
    """
    return scenario_from(scenario_document(path, settings), scenario_folder(scenario_file(path)), settings)
