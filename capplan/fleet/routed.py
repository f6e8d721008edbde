"""A fleet behind one router: failures, autoscaling, hedging, and separate prefill and decode replicas."""

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from capplan.assumption import Assumption
from capplan.errors import InputError, unknown
from capplan.fleet.engine_use import Engines, EngineUse, engines_of, links_of
from capplan.fleet.simulation import (
    ENGINE_DEFAULTS,
    FleetOutcome,
    Stream,
    fleet_outcome,
    simulated_fleet,
    simulation_summary,
    stream_with_block_ids,
)
from capplan.model.kv_cache import kv_bytes_per_sequence, state_bytes_per_sequence
from capplan.model.weight_format import kv_bytes_per_element
from capplan.replica.replica import Replica
from capplan.serving.fleet_simulator import EnginePlan, FleetRun, simulate_disaggregated, simulate_fleet
from capplan.serving.fleet_terms import Autoscaling, Failure, Hedging, KvLink, Routing
from capplan.serving.requests import Admission, offered
from capplan.serving.terms import EngineSetup
from capplan.workload.slo import Slo


@dataclass(frozen=True, slots=True)
class Operation:
    """How a fleet is operated; the default is a router only."""

    routing: Routing | None = None
    """None: prefix_aware if prompts have block ids, else round_robin."""
    failures: tuple[Failure, ...] = ()
    autoscaling: Autoscaling | None = None
    hedging: Hedging | None = None
    prefill_replicas: int | None = None
    decode_replicas: int | None = None
    """Given together with `prefill_replicas`, or not at all."""
    kv_link: str | None = None
    """Name of the device link between prefill and decode replicas."""


def _kv_link_of(replica: Replica, name: str, prompt_tokens: float) -> KvLink:
    """Return the link between two replicas: every device sends its part of the KV cache at the datasheet rate.

    Parameters
    ----------
    replica : on either side
    name : of a link of its device
    prompt_tokens : [tokens]
        of a typical prompt, whose KV bytes per token are used for all

    Returns
    -------
    bytes per token [B] and rate [B/s], without latency

    Raises
    ------
    InputError
        names the known links
    """
    spec = replica.spec
    links = links_of(spec.device)
    if name not in links:
        raise unknown("link", name, links, place="--kv-link")
    rate = links[name]
    if rate is None:
        raise InputError(
            f"--kv-link {name}: the rate of {spec.device.title} is not known\n"
            f"  known: {', '.join(link for link, known in links.items() if known is not None)}"
        )
    context = np.asarray(max(prompt_tokens, 1.0))
    held = kv_bytes_per_sequence(spec.network, context, kv_bytes_per_element(spec.kv_format))
    state = state_bytes_per_sequence(spec.network)
    return KvLink(float((held + state) / context), rate * spec.devices)


def _routed_fleet(
    replica: Replica,
    stream: Stream,
    operation: Operation,
    *,
    replicas: int,
    slo: Slo,
    until_s: float = inf,
    admission: Admission | None = None,
    use: EngineUse = ENGINE_DEFAULTS,
) -> FleetOutcome:
    """Simulate identical replicas behind one router.

    Parameters
    ----------
    replica : one of them
    stream : the load
    operation : how the fleet is operated
    replicas : [-]
        that serve from the start; not used with separate prefill and decode
    slo : limits for goodput
    until_s : [s]
        stop at this time
    admission : admission rules; None: admit all
    use : options of the engines

    Returns
    -------
    latencies [s], rates [1/s], by class and overall

    Raises
    ------
    InputError
        names options that cannot be combined
    """
    stream = stream_with_block_ids(stream, replica, use)
    engines = engines_of(replica, use, stream.block_tokens, stream.mean_input_tokens)
    routing: Routing = (
        operation.routing or stream.routing or ("prefix_aware" if engines.setup.caching else "round_robin")
    )
    admission = admission or Admission()
    if _is_disaggregated(operation):
        run = _disaggregated(engines, stream, operation, routing, until_s, admission)
    else:
        scaling = operation.autoscaling
        if scaling is not None:
            replicas = min(max(replicas, scaling.min_replicas), scaling.max_replicas)
        run = _behind_one_router(engines.setup, stream, operation, routing, replicas, until_s, admission)
    stopped = {failure.replica for failure in operation.failures if failure.repair_s == inf}
    is_dead = len(stopped) >= replicas and operation.autoscaling is None and not _is_disaggregated(operation)
    outcome = fleet_outcome([run.outcome], stream.class_names, slo, until_s=inf if is_dead else until_s)
    count = most_replicas(operation, replicas)
    summary = simulation_summary(engines, outcome, [run.outcome], count)
    summary["assumptions"] += assumed(operation)
    return replace(outcome, replicas=count, run=run, **summary)


def _behind_one_router(
    engine: EngineSetup,
    stream: Stream,
    operation: Operation,
    routing: Routing,
    replicas: int,
    until_s: float,
    admission: Admission,
) -> FleetRun:
    arrivals, crowd = offered(stream.requests, stream.concurrency, stream.crowd)
    return simulate_fleet(
        arrivals,
        engine,
        replicas,
        routing=routing,
        failures=operation.failures,
        autoscaling=operation.autoscaling,
        hedging=operation.hedging,
        crowd=crowd,
        until_s=until_s,
        admission=admission,
    )


def run_fleet(
    replica: Replica,
    stream: Stream,
    operation: Operation | None,
    *,
    replicas: int,
    slo: Slo,
    until_s: float = inf,
    admission: Admission | None = None,
    use: EngineUse = ENGINE_DEFAULTS,
) -> FleetOutcome:
    """Simulate a fleet: replicas one by one on a stream split beforehand if that is enough, else behind a router."""
    if operation is None and stream.routing == "least_loaded" and replicas > 1:
        operation = Operation()
    if operation is None:
        return simulated_fleet(
            replica, stream, replicas=replicas, slo=slo, until_s=until_s, admission=admission, use=use
        )
    return _routed_fleet(
        replica, stream, operation, replicas=replicas, slo=slo, until_s=until_s, admission=admission, use=use
    )


def most_replicas(operation: Operation | None, replicas: int) -> int:
    """Return the largest number of replicas that may serve at once."""
    if operation is None:
        return replicas
    if operation.prefill_replicas is not None:
        return operation.prefill_replicas + (operation.decode_replicas or 0)
    return replicas if operation.autoscaling is None else operation.autoscaling.max_replicas


def assumed(operation: Operation) -> tuple[Assumption, ...]:
    """Return the assumptions behind the operation of a fleet."""
    assumptions = []
    if operation.kv_link is not None:
        assumptions.append(
            Assumption(
                f"KV caches go over {operation.kv_link} at the datasheet rate of all devices of a replica, without latency",
                "--kv-link",
            )
        )
    rule = operation.autoscaling
    if rule is not None:
        assumptions.append(
            Assumption(
                f"every {rule.interval_s:g} s replicas are added if over {rule.high_fraction:.0%} of the sequence slots are "
                f"taken, and one is removed below {rule.low_fraction:.0%}; a start takes {rule.start_s:g} s",
                "fleet.start_up; Autoscaling in Python",
            )
        )
    if operation.hedging is not None:
        assumptions.append(
            Assumption("of two copies of a request the one that finishes first counts", "Hedging in Python")
        )
    return tuple(assumptions)


def _is_disaggregated(operation: Operation) -> bool:
    """Return whether prefill and decode run on separate replicas; InputError if the options for it are incomplete."""
    given = (operation.prefill_replicas, operation.decode_replicas, operation.kv_link)
    if all(value is None for value in given):
        return False
    if any(value is None for value in given):
        raise InputError("--prefill-replicas, --decode-replicas and --kv-link must be given together")
    if operation.failures or operation.autoscaling or operation.hedging:
        raise InputError(
            "failures, autoscaling and hedging are not modelled with separate prefill and decode replicas\n"
            "  drop --prefill-replicas, --decode-replicas and --kv-link"
        )
    return True


def _disaggregated(
    engines: Engines,
    stream: Stream,
    operation: Operation,
    routing: Routing,
    until_s: float,
    admission: Admission,
) -> FleetRun:
    link = _kv_link_of(engines.replica, str(operation.kv_link), stream.mean_input_tokens)
    engine = replace(engines.setup, table=engines.setup.clock)
    later: Routing = "round_robin" if routing == "round_robin" else "least_loaded"
    return simulate_disaggregated(
        stream.requests,
        EnginePlan(engine, operation.prefill_replicas or 0, routing),
        EnginePlan(engine, operation.decode_replicas or 0, later),
        link,
        concurrency=stream.concurrency,
        crowd=stream.crowd,
        until_s=until_s,
        admission=admission,
    )
