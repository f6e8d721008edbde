"""A fleet behind one router: failures, autoscaling, hedging, and separate prefill and decode replicas."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.fleet.engine_options import EngineOptions, Engines, engines_of
from capplan.fleet.pools.link import LinkTerms, LinkUse, link_between, link_use, unlinked_reason
from capplan.fleet.simulation import (
    ENGINE_DEFAULTS,
    FleetOutcome,
    Stream,
    fleet_outcome,
    simulated_fleet,
    simulation_summary,
    stream_with_block_ids,
)
from capplan.replica.replica import Replica
from capplan.replica.spec import ReplicaSpec, served_context_tokens
from capplan.replica.speculation import best_speculating_replica, drafting_of_prompts
from capplan.serving.outcome import FULL_RUN, EarlyEnd
from capplan.serving.requests import Admission, Requests, offered
from capplan.serving.terms import Autoscaling, EngineSetup, Failure, Hedging, Routing
from capplan.workload.request_class import Slo

if TYPE_CHECKING:
    from capplan.serving.fleet_simulator import FleetRun

DEALT: tuple[Routing, ...] = ("round_robin", "random")
"""Rules of a router that do not look at the replicas."""


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
    kv_link: LinkTerms | None = None
    """Link between prefill and decode replicas."""
    decode: Replica | None = None
    """One of the decode replicas; None: as the prefill replicas."""

    def pool_devices(self, prefill: ReplicaSpec) -> int:
        """Return the devices of both pools."""
        decode = self.decode.spec if self.decode else prefill
        return (self.prefill_replicas or 0) * prefill.devices + (self.decode_replicas or 0) * decode.devices

    def link_use(
        self,
        prefill: ReplicaSpec,
        prompt_tokens: float,
        requests_per_s: float,
        draft: ReplicaSpec | None = None,
    ) -> LinkUse | None:
        """Return size, time and load of the transfers between the pools, with the cache of a draft model; None without pools."""
        if self.kv_link is None:
            return None
        return link_use(
            prefill,
            self.decode.spec if self.decode else prefill,
            (self.prefill_replicas or 0, self.decode_replicas or 0),
            self.kv_link,
            prompt_tokens=prompt_tokens,
            requests_per_s=requests_per_s,
            draft=draft,
        )


def _routed_fleet(
    replica: Replica,
    stream: Stream,
    operation: Operation,
    *,
    replicas: int,
    slo: Slo,
    until_s: float,
    admission: Admission | None,
    use: EngineOptions,
    gauged: bool,
    early_end: EarlyEnd,
) -> FleetOutcome:
    """Simulate replicas behind one router; `gauged` and `early_end` concern separate pools, and `replicas` those that do both phases."""
    stream = stream_with_block_ids(stream, replica, use)
    apart, prompt_tokens = _is_disaggregated(operation), stream.mean_input_tokens
    if apart:
        engines, later = _engines_of_pools(replica, operation, use, stream)
    else:
        engines = later = engines_of(replica, use, stream.block_tokens, prompt_tokens)
    routing: Routing = (
        operation.routing or stream.routing or ("prefix_aware" if engines.setup.caching else "round_robin")
    )
    admission = admission or Admission()
    if apart:
        run = _disaggregated(
            engines, later, stream, operation, routing, until_s, admission, gauged=gauged, early_end=early_end
        )
    else:
        scaling = operation.autoscaling
        if scaling is not None:
            replicas = min(max(replicas, scaling.min_replicas), scaling.max_replicas)
        run = _behind_one_router(engines.setup, stream, operation, routing, replicas, until_s, admission)
    stopped = {failure.replica for failure in operation.failures if failure.repair_s == inf}
    is_dead = len(stopped) >= replicas and operation.autoscaling is None and not apart
    outcome = fleet_outcome([run.outcome], stream, slo, until_s=inf if is_dead else until_s)
    count = most_replicas(operation, replicas)
    summary = simulation_summary(engines, outcome, [run.outcome], count)
    summary["assumptions"] = (*dict.fromkeys((*engines.assumptions, *later.assumptions)), *assumed(operation))
    if apart:
        summary |= {"tokens_per_step": later.setup.tokens_per_step, "draft": engines.replica.draft}
        summary["kv_blocks"] = engines.setup.kv_blocks * (operation.prefill_replicas or 0) + (
            later.setup.kv_blocks * (operation.decode_replicas or 0)
        )
    return replace(outcome, replicas=count, run=run, **summary)


def _behind_one_router(
    engine: EngineSetup,
    stream: Stream,
    operation: Operation,
    routing: Routing,
    replicas: int,
    until_s: float,
    admission: Admission,
) -> "FleetRun":
    from capplan.serving.fleet_simulator import simulate_fleet

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
    use: EngineOptions = ENGINE_DEFAULTS,
    gauged: bool = True,
    early_end: EarlyEnd = FULL_RUN,
) -> FleetOutcome:
    """Simulate a fleet: replicas one by one on a stream split beforehand if that is enough, else behind a router.

    Users that are dealt to replicas in turn or at random stay with theirs, as `fleet` sizes for: no router is needed. Sessions stay too,
    unless a rule of the router is named.
    """
    if operation is None and stream.routing == "least_loaded" and replicas > 1:
        operation = Operation()
    is_of_users = stream.crowd is not None and stream.crowd.visits is None
    if is_of_users and operation in [Operation(routing=routing) for routing in DEALT]:
        stream, operation = replace(stream, routing=operation.routing), None
    if operation is None:
        return simulated_fleet(
            replica, stream, replicas=replicas, slo=slo, until_s=until_s, admission=admission, use=use
        )
    return _routed_fleet(
        replica, stream, operation,
        replicas=replicas, slo=slo, until_s=until_s, admission=admission, use=use, gauged=gauged, early_end=early_end,
    )  # fmt: skip


_DEALT = 29
"""Seed of the random numbers by which a router deals out shares: every group of a mix draws the same ones."""


@dataclass(frozen=True, slots=True)
class MixedGroup:
    """Replicas of one group of a mix, and which requests the router sends to them."""

    replica: Replica
    replicas: int
    classes: frozenset[int]
    """Classes of the stream, by position."""
    above_tokens: float | None
    up_to_tokens: float | None
    weights: tuple[float, float] = (0.0, 1.0)
    """Part of the unit interval: a request belongs to the group in whose part its random number is."""
    draft_tokens: int | None = None
    """Tokens that its replicas draft in a round; None: as the options of the engines say."""

    def use_of(self, use: EngineOptions) -> EngineOptions:
        """Return the options of its engines, which draft as many tokens as were planned for the group."""
        if use.drafting is None or self.draft_tokens is None:
            return use
        return replace(use, drafting=replace(use.drafting, draft_tokens=self.draft_tokens))

    def requests_of(self, stream: Stream) -> Requests:
        """Return the requests of a stream that are the group's."""
        every = stream.requests
        assert every is not None
        of_class = np.zeros(len(every), int) if every.class_index is None else every.class_index
        mine = np.isin(of_class, list(self.classes))
        if self.above_tokens is not None:
            mine &= every.input_tokens > self.above_tokens
        if self.up_to_tokens is not None:
            mine &= every.input_tokens <= self.up_to_tokens
        if self.weights != (0.0, 1.0):
            dealt = np.random.default_rng(_DEALT).random(len(every))
            mine &= (dealt >= self.weights[0]) & (dealt < self.weights[1])
        return every.at(np.flatnonzero(mine))


def run_mix(
    groups: Sequence[MixedGroup],
    stream: Stream,
    *,
    slo: Slo,
    until_s: float = inf,
    admission: Admission | None = None,
    use: EngineOptions = ENGINE_DEFAULTS,
) -> FleetOutcome:
    """Simulate a mix: one stream of requests, whose router sends each request to the group that its class or its prompt belongs to.

    Parameters
    ----------
    groups : replicas and the rule of the router
    stream : the load of the service, without users
    slo : limits for goodput
    until_s : [s]
        stop at this time
    admission : admission rules; None: admit all
    use : options of the engines

    Returns
    -------
    latencies [s], rates [1/s], by class and overall
    """
    found = [
        simulated_fleet(
            group.replica,
            replace(stream, requests=group.requests_of(stream)),
            replicas=group.replicas,
            slo=slo,
            until_s=until_s,
            admission=admission,
            use=group.use_of(use),
        )
        for group in groups
    ]
    tokens = [each.all.output_tokens_per_s for each in found]
    rounds = [rate / each.tokens_per_step for rate, each in zip(tokens, found, strict=True)]
    outcome = fleet_outcome([part for each in found for part in each.parts], stream, slo, until_s)
    hits = {"device": outcome.all.prefix_hit_fraction} if any(each.hit_fractions for each in found) else {}
    return replace(
        outcome,
        hit_fractions=hits,
        kv_blocks=sum(each.kv_blocks for each in found),
        tokens_per_step=sum(tokens) / sum(rounds) if sum(rounds) else 1.0,
        assumptions=found[0].assumptions,
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
        assumptions.append(operation.kv_link.assumption)
    rule = operation.autoscaling
    if rule is not None:
        assumptions.append(
            Assumption(
                f"every {rule.interval_s:g} s the fleet is scaled to one replica for each {rule.rate_per_s:.4g} requests per second that "
                f"finished in the last {rule.window_s:g} s; a start takes {rule.start_s:g} s, and a replica stays {rule.hold_s:g} s after "
                "it was last needed",
                "fleet.start_up; Autoscaling in Python",
            )
        )
    if operation.hedging is not None:
        words = "of two copies of a request the one that finishes first counts"
        assumptions.append(Assumption(words, "Hedging in Python"))
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


def _engines_of_pools(
    replica: Replica, operation: Operation, use: EngineOptions, stream: Stream
) -> tuple[Engines, Engines]:
    """Return the engines of the prefill and of the decode pool: offload tiers belong to the first, rounds of drafts to the second.

    A replica that speculates already is taken as it is.
    """
    prompt_tokens, prompts = stream.mean_input_tokens, drafting_of_prompts(use.drafting)
    context = min(prompt_tokens, served_context_tokens(replica.spec))
    first = best_speculating_replica(replica, prompts, 1.0, context) if prompts else replica
    return (
        engines_of(first, replace(use, drafting=None), stream.block_tokens, prompt_tokens),
        engines_of(operation.decode or replica, replace(use, tiers=()), 0, prompt_tokens),
    )


def _disaggregated(
    prefill: Engines,
    decode: Engines,
    stream: Stream,
    operation: Operation,
    routing: Routing,
    until_s: float,
    admission: Admission,
    *,
    gauged: bool,
    early_end: EarlyEnd,
) -> "FleetRun":
    from capplan.serving.fleet_simulator import EnginePlan, simulate_disaggregated

    terms = operation.kv_link or LinkTerms()
    counts = (operation.prefill_replicas or 0, operation.decode_replicas or 0)
    first, second = prefill.replica, decode.replica
    if words := unlinked_reason(first.spec, second.spec, counts, terms):
        raise InputError(f"{terms.key}: {words}\n  a network joins any number: --kv-link network")
    link = link_between(first.spec, second.spec, terms, stream.mean_input_tokens, first.draft)
    later: Routing = "round_robin" if routing == "round_robin" else "least_loaded"
    return simulate_disaggregated(
        stream.requests,
        EnginePlan(prefill.setup, counts[0], routing),
        EnginePlan(decode.setup, counts[1], later),
        link,
        concurrency=stream.concurrency,
        crowd=stream.crowd,
        until_s=until_s,
        admission=admission,
        gauged=gauged,
        early_end=early_end,
    )
