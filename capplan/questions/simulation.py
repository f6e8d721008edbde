"""The inputs of `simulate` and `sweep`: the scenario's plan (or one that is given), and the requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capplan.assumption import Assumption
from capplan.errors import InputError, Reason, TargetError
from capplan.fleet.answer import FleetAnswer
from capplan.fleet.engine_options import EngineOptions, engines_of
from capplan.fleet.load.demand import Demand
from capplan.fleet.load.offered import SamplePath
from capplan.fleet.load.routed import MixedGroup, Operation
from capplan.fleet.load.session_load import peak_stream
from capplan.fleet.over_time import OverTime, scaling_rate
from capplan.fleet.plan import Plan
from capplan.fleet.review import spec_of_layout
from capplan.fleet.search.candidates import Layout, refuse_illegal
from capplan.fleet.search.one_layout import trial_of
from capplan.fleet.search.recommended import planned_rate_limit
from capplan.fleet.search.simulated_layout import demand_at_replica
from capplan.fleet.simulation import Stream, capacity_per_s, split_stream
from capplan.model.sharding import Sharding
from capplan.questions.fleet import AskedFleet, parts_of, replicas_by_group, terms_of
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.money.commitments import group_over_time
from capplan.readers.calibration.refitted import efficiency_by, refitted_profile
from capplan.readers.catalogue.hardware import device
from capplan.recorded.traces.trace import Trace, read_trace
from capplan.replica.replica import Replica, replica_of
from capplan.replica.spec import ReplicaSpec
from capplan.scenario.command_flags import OperationFlags, PlanFlags, RequestFlags
from capplan.scenario.engine_use import operation_of
from capplan.scenario.traffic import rate_line
from capplan.scenario.workload_file import is_workload
from capplan.serving.requests import Admission, Requests
from capplan.serving.simulator import simulate
from capplan.serving.terms import BY_PREFIX, Routing
from capplan.workload.request_class import RequestClass, ResponseTimes

PILOT_REQUESTS = 2000
"""Requests of the pilot run that estimates response times, and so how many requests users send in a given time."""
Progress = Callable[[int, int], None] | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The plan that is simulated, and where it comes from."""

    asked: AskedFleet
    spec: ReplicaSpec
    replicas: int
    """Replicas in service, without spares."""
    name: str
    origin: str
    """Where the layout of a replica comes from."""
    counted: str
    """The number of replicas as text, for a fleet without autoscaling or pools."""
    plan: Plan | None = None
    """The plan of the search; `spec` is that of its first group. None for a replica that was named."""
    layout: Layout | None = None
    """The layout of a replica that was named."""

    @property
    def draft_tokens(self) -> int | None:
        """Return the draft length of the plan; None where it has none, or is not from a search."""
        return None if self.plan is None else self.plan.draft_tokens

    def gpus_of(self, replicas: int) -> int:
        """Return the GPUs of some replicas; of a mix those of its groups, whatever the number."""
        if self.plan is None or not self.plan.is_mix:
            return replicas * self.spec.devices
        return sum(group.busy_replicas * group.layout.devices for group in self.plan.groups)


def layout_name(layout: Layout) -> str:
    """Return a layout as short text, such as 'h100-sxm TP2 fp8'."""
    return f"{layout.device.name} {layout.in_words()}"


def fleet_plans(asked: AskedFleet) -> tuple[Plan, ...]:
    """Return the plans of `capplan fleet`, cheapest first, with separate pools where the scenario allows them; TargetError where there are none."""
    plans = fleet_for(asked).plans
    if not plans:
        raise _no_plan(asked)
    return plans


def _no_plan(asked: AskedFleet) -> TargetError:
    return TargetError(
        f"{asked.scenario.name}: no plan meets the targets, so there is none to simulate\n"
        f"  name one: --hardware h100-sxm -tp 4 --replicas 2, or see: capplan fleet {asked.scenario.command_words()}"
    )


def chosen_plan(
    asked: AskedFleet, flags: PlanFlags, progress: Progress = None, answer: FleetAnswer | None = None
) -> Chosen:
    """Return the named plan, or else the one that the fleet search chooses for the scenario."""
    hardware, replicas = flags.hardware, flags.replicas
    if hardware is None and flags.tensor_parallel is None and flags.pipeline_parallel is None:
        answer = answer or fleet_for(asked, progress)
        if answer.chosen is None:
            raise _no_plan(asked)
        return chosen_of(asked, answer.chosen, replicas)
    question = asked.question
    own = {item.name: item for item in question.devices}
    target = (own.get(hardware) or device(hardware)) if hardware else question.devices[0]
    if target.name not in question.efficiencies:
        calibration = Path(asked.scenario.calibration) if asked.scenario.calibration else None
        engine, _, _ = refitted_profile(calibration, question.profile, target)  # refuses another device's
        question = replace(
            question,
            efficiencies={**question.efficiencies, target.name: efficiency_by(calibration, target, engine)},
            on_devices={**question.on_devices, target.name: engine},
        )
    dtype, network = next(iter(question.networks.items()))
    sharding = Sharding(float(flags.tensor_parallel or 1), float(flags.pipeline_parallel or 1), 1.0, 1.0)
    layout = Layout(target, sharding, dtype, question.kv_formats[0])
    refuse_illegal(network, layout, question.profile_on(target))
    counted = _count_text(replicas or 1) + ("" if replicas else " (replace with --replicas)")
    return Chosen(
        replace(asked, question=question),
        spec_of_layout(layout, question),
        replicas or 1,
        layout_name(layout),
        "the plan given",
        counted,
        layout=layout,
    )


def chosen_of(asked: AskedFleet, plan: Plan, replicas: int | None = None) -> Chosen:
    """Return a plan of the search as it is simulated, or its layout with another number of replicas."""
    if replicas is not None and plan.has_pools:
        raise InputError(
            f"--replicas {replicas}: the plan of {asked.scenario.name} has a prefill and a decode pool\n"
            "  for other pools: --hardware NAME --prefill-replicas 2 --decode-replicas 2 --kv-link network"
        )
    if replicas is not None and plan.is_mix:
        raise InputError(
            f"--replicas {replicas} is not worked out for a mix of fleets\n  for the cheapest fleet of one kind: --set fleet.mix=off"
        )
    names = [layout_name(group.layout) for group in plan.groups]
    if len(set(names)) > 1:
        names = [f"{of} {name}" for of, name in zip(plan.group_names, names, strict=True)]
    origin, counted = "the plan that capplan fleet chooses", _plan_count_text(plan)
    if replicas is not None:
        origin, counted = "the layout that capplan fleet chooses", _count_text(replicas)
    spec, count = spec_of_layout(plan.groups[0].layout, asked.question), replicas or sum(plan.in_service)
    return Chosen(asked, spec, count, ", ".join(dict.fromkeys(names)), origin, counted, plan)


def mixed_groups(chosen: Chosen, operation: Operation | None, stream: Stream) -> tuple[MixedGroup, ...]:
    """Return the groups of a mix as they are simulated; none for other plans.

    Raises
    ------
    InputError
        an operation, users, or prompts whose hits depend on the cache of a replica
    """
    plan, question = chosen.plan, chosen.asked.question
    if plan is None or not plan.is_mix:
        return ()
    if operation is not None:
        raise InputError(
            "simulate: the router of a mix deals requests in turn within each group; leave out the options of another operation\n"
            "  for one kind of fleet: --set fleet.mix=off"
        )
    if stream.crowd is not None or question.demand.reuses or stream.block_tokens:
        raise InputError(
            "simulate: users, sessions and prompts with named prefixes are not simulated through the router of a mix\n"
            "  for one kind of fleet: --set fleet.mix=off"
        )
    places = {name: place for place, name in enumerate(stream.class_names)}
    groups: list[MixedGroup] = []
    dealt = 0.0
    names = {name for group in plan.groups if group.requests for name in group.requests.classes}
    if not places.keys() >= names:
        raise InputError("simulate: a trace has no classes by which the router of the plan divides requests")
    for group, (part, _) in zip(plan.groups, parts_of(chosen.asked, plan), strict=True):
        routed = group.requests
        assert routed is not None
        replica = replica_of(spec_of_layout(group.layout, part.question))
        classes = frozenset(places[name] for name in routed.classes)
        weights = (0.0, 1.0)
        if routed.share is not None:
            weights = (dealt, 1.0 if group is plan.groups[-1] else dealt + routed.share)
            dealt = weights[1]
        bounds, drafts = (routed.above_tokens, routed.up_to_tokens), group.draft_tokens
        groups.append(MixedGroup(replica, group.busy_replicas, classes, *bounds, weights, drafts))
    return tuple(groups)


def _plan_count_text(plan: Plan) -> str:
    if plan.has_pools:
        counts = " and ".join(f"{group.replicas} {group.role}" for group in plan.groups)
        return f"{counts} replicas, {plan.groups[0].spare_replicas} spare in each pool"
    counts = "; ".join(
        f"{f'{name}: ' if name else ''}{_count_text(group.replicas)}{f' on {group.hardware}' if name else ''}, {group.spare_replicas} of them spare"
        for name, group in zip(plan.group_names, plan.groups, strict=True)
    )
    return f"the router sends {counts}" if plan.is_mix else counts


def scaling_rate_of(chosen: Chosen) -> float:
    """Return the rate of requests that an autoscaler counts with for each replica: the threshold that the plan is exported with [1/s].

    A layout that no search chose is planned for the traffic of the scenario first. InputError if its replicas meet the targets at no rate.
    """
    asked, plan = chosen.asked, chosen.plan
    if plan is not None and (plan.is_mix or plan.has_pools):
        raise InputError(
            "--autoscale: separate pools and the groups of a mix are not scaled by one rate of requests\n"
            "  for one kind of fleet: --set fleet.mix=off --set fleet.disaggregation=off"
        )
    if plan is None:
        return _scaling_rate(chosen, _planned_rate(chosen), None)
    line = rate_line(asked.scenario, plan.responses_s)
    (replicas_at,) = replicas_by_group(asked, plan)
    over_time = group_over_time(asked.scenario, plan.single, line, replicas_at)
    return _scaling_rate(chosen, plan.single.planned_request_rate_limit_per_replica, over_time)


def _scaling_rate(chosen: Chosen, planned_per_s: float, over_time: OverTime | None) -> float:
    if not planned_per_s > 0.0:
        raise InputError(
            f"--autoscale: {chosen.name} meets the targets at no rate of requests, so there is none to scale by\n"
            "  name another layout, such as a larger --tensor-parallel, or leave --autoscale out"
        )
    if over_time is None:
        return planned_per_s
    return scaling_rate(planned_per_s, over_time.rates_per_s.tolist(), over_time.needed.tolist())


def _planned_rate(chosen: Chosen) -> float:
    """Return the largest rate that a named layout is planned for under the targets of its scenario."""
    question, terms = chosen.asked.question, terms_of(chosen.asked)
    assert chosen.layout is not None
    trial = trial_of(question, chosen.layout, terms)
    if isinstance(trial, Reason):
        return 0.0
    predicted = trial.rate_limit(chosen.replicas, 1.0, trial.limits)
    return planned_rate_limit(predicted, trial.sure_rate_limit(chosen.replicas), terms.headroom_fraction)


def operation_of_plan(chosen: Chosen, flags: OperationFlags, replicas: int | None) -> Operation | None:
    """Return how the fleet is operated: by the flags, and in the pools of the plan where it has them."""
    start_up_s = chosen.asked.scenario.fleet.start_up_s
    operation = operation_of(flags, start_up_s, replicas, lambda: scaling_rate_of(chosen))
    plan = chosen.plan
    if plan is None or plan.transfer is None:
        return operation
    if flags.prefill_replicas is not None or flags.decode_replicas is not None or flags.kv_link is not None:
        raise InputError(
            "--prefill-replicas, --decode-replicas and --kv-link: the plan has separate pools; name --hardware for others"
        )
    prefill, decode = plan.groups
    return replace(
        operation or Operation(),
        prefill_replicas=prefill.busy_replicas,
        decode_replicas=decode.busy_replicas,
        kv_link=plan.transfer.terms,
        decode=replica_of(spec_of_layout(decode.layout, chosen.asked.question)),
    )


def _count_text(replicas: int) -> str:
    return f"{replicas} {'replica' if replicas == 1 else 'replicas'}"


@dataclass(frozen=True, slots=True)
class AskedStream:
    """The requests, with assumptions and warnings about them."""

    stream: Stream
    spec: ReplicaSpec
    """Replica with a context that holds the longest of the requests."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]
    rate_per_s: float


def asked_stream(chosen: Chosen, flags: RequestFlags) -> AskedStream:
    """Return the requests of a trace, or drawn from the scenario's traffic."""
    trace = flags.trace
    classes = chosen.asked.scenario.classes
    trace_of_class = classes[0].trace if len(classes) == 1 else None
    path = trace or (Path(trace_of_class) if trace_of_class else None)
    if path is not None and not is_workload(path.name):
        return _warmed(_replayed(chosen, read_trace(path, strict=False), flags.until_s), flags.warm_up_s)
    if trace is not None:
        raise InputError(
            f"--trace {trace}: a workload YAML is a description, not requests\n  name it in the scenario instead: traffic: [{{trace: {trace.name}}}]"
        )
    return _warmed(_sampled(chosen, flags.seed, flags.until_s), flags.warm_up_s)


def _warmed(asked: AskedStream, warm_up_s: float | None) -> AskedStream:
    """Return a stream that says which part of its beginning figures leave out: the stated time, or the warm-up of the traffic."""
    stream = asked.stream
    if warm_up_s is not None:
        arrival_s = None if stream.requests is None else stream.requests.arrival_s
        last_s = inf if arrival_s is None else float(np.max(arrival_s))
        if warm_up_s >= last_s:
            raise InputError(
                f"--warm-up: {warm_up_s:g} s leaves no request, the last one arrives after {last_s:.4g} s"
            )
        stream = replace(stream, warm_up_s=warm_up_s, warm_up_share=0.0)
        words = f"the first {warm_up_s:g} s are left out"
    elif stream.warm_up_s:
        words = f"sessions start with the run, and the first {stream.warm_up_s:.0f} s, in which they fill the caches, are left out"
    elif stream.warm_up_share:
        words = (
            f"the first {stream.warm_up_share:.0%} of the requests, which meet empty replicas, are left out"
        )
    else:
        return asked
    stated = (*asked.assumptions, Assumption(words, "--warm-up"))
    return replace(asked, stream=stream, assumptions=stated)


def _sampled(chosen: Chosen, seed: int, seconds: float | None) -> AskedStream:
    question = chosen.asked.question
    replica = replica_of(chosen.spec)
    demand = demand_at_replica(question.demand, replica, share=1.0 / chosen.replicas)
    longest = chosen.spec.max_model_len or demand.longest_tokens
    response: ResponseTimes = 0.0
    if demand.users or demand.has_sessions:
        plan = chosen.plan
        if plan is not None and sum(plan.in_service) == chosen.replicas:
            response = plan.responses_s
        else:
            response = responses_s(replica, demand, chosen.replicas, seed, longest)
    rate, turns_wait = sum(demand.rates_per_s(response)), chosen.plan is None or len(chosen.plan.groups) == 1
    stream = peak_stream(
        demand, replicas=chosen.replicas, seed=seed, longest=longest, seconds=seconds, response_s=response,
        routing=chosen.asked.scenario.file.fleet.routing, turns_wait=turns_wait,
    )  # fmt: skip
    users = ""
    if stream.crowd is not None and stream.crowd.users:
        users = f" and {stream.crowd.users:,} users, who wait for each response"
    if stream.crowd is not None and stream.crowd.visits is not None:
        users += (
            f"; each turn of {stream.crowd.visits.turns.size:,} sessions waits for the response before it"
        )
    if not turns_wait and any(item.sessions is not None and item.users is None for item in demand.classes):
        shares = demand.rates_of_classes(response)
        mean_s = float(np.average(demand.responses_s(response), weights=shares))
        users += (
            f"; turns follow {mean_s:.3g} s after the one before, the mean response, and their think time"
        )
    stated = Assumption(
        f"{stream.requests_drawn:,} requests drawn from the scenario's traffic at its peak of {rate:.4g} req/s{users}, seed {seed}",
        "--trace, --until, --seed",
    )
    return AskedStream(stream, chosen.spec, (stated,), (), rate)


def responses_s(
    replica: Replica, demand: Demand, replicas: float, seed: int, longest: int
) -> tuple[float, ...]:
    """Return estimates of the response time of each class: the means of a short run of one replica.

    A class without a response in this run gets the mean of all classes.
    """
    path = SamplePath(demand, count=PILOT_REQUESTS, seed=seed, longest=longest)
    offered = path.offered(1.0 / replicas, replicas=replicas)
    outcome = simulate(offered.requests, replica.engine, crowd=offered.crowd)
    whole = float(np.nanmean(outcome.e2e_s))
    of_classes = [outcome.e2e_s[outcome.class_index == index] for index in range(len(demand.classes))]
    return tuple(float(np.nanmean(e2e_s)) if np.isfinite(e2e_s).any() else whole for e2e_s in of_classes)


def _replayed(chosen: Chosen, trace: Trace, seconds: float | None) -> AskedStream:
    most = chosen.spec.network.max_context_tokens
    longest = int((trace.input_tokens + trace.output_tokens).max())
    context = max(chosen.spec.max_model_len or 0, 1024 * -(-longest // 1024))
    if chosen.asked.scenario.file.max_model_len is not None:
        context = chosen.asked.scenario.file.max_model_len
    context = min(context, most) if most else context
    drawn = trace.requests()
    kept = drawn.input_tokens < context
    if seconds is not None and drawn.arrival_s is not None:
        kept &= drawn.arrival_s < seconds
    warnings = list(trace.remarks)
    over = int(np.count_nonzero(drawn.input_tokens >= context))
    if over:
        warnings.append(
            f"{over:,} prompts reach the context of {context:,} tokens and are rejected, as by the engine"
        )
    cut = int(np.count_nonzero((drawn.input_tokens + drawn.output_tokens > context) & kept))
    if cut:
        warnings.append(f"{cut:,} outputs are truncated at the context of {context:,} tokens")
    if not kept.any():
        raise InputError(
            f"{trace.name}: no request is left to simulate (context {context:,} tokens, --until)"
        )
    stream = Stream(_kept(drawn, kept, context), (Path(trace.name).name.split(".")[0],), trace.block_tokens)
    return AskedStream(
        stream,
        replace(chosen.spec, max_model_len=context),
        (Assumption(f"requests as in {Path(trace.name).name}", "--trace"),),
        tuple(warnings),
        trace.mean_request_rate_per_s,
    )


def _kept(drawn: Requests, kept: NDArray[np.bool_], context: int) -> Requests:
    """Return the requests that are kept, their outputs truncated at the context."""
    selected = drawn.at(np.flatnonzero(kept))
    return replace(
        selected, output_tokens=np.minimum(selected.output_tokens, context - selected.input_tokens)
    )


def admission_of(
    stream: Stream,
    queue_limit: int | None,
    deadline_s: float | None,
    classes: Sequence[RequestClass] = (),
) -> Admission:
    """Return the admission rules of a replica's queue: the flags, overridden by what a class states."""
    said = {item.name: item for item in classes}
    by_class = [said.get(name) or (classes[0] if len(classes) == 1 else None) for name in stream.class_names]
    limits = [item.deadline_s if item and item.deadline_s else deadline_s for item in by_class]
    ranks = [item.priority if item else None for item in by_class]
    return Admission(
        queue_limit=queue_limit,
        deadline_s=tuple(inf if limit is None else limit for limit in limits) if any(limits) else (),
        priority=tuple(rank or 0 for rank in ranks) if any(rank is not None for rank in ranks) else (),
    )


def utilisation_of(
    replica: Replica,
    asked: AskedStream,
    replicas: int,
    use: EngineOptions,
    operation: Operation | None,
) -> float:
    """Return the offered rate over the maximum rate that the replicas can serve, without hits in offload tiers.

    Of two pools the busier one counts: prompts yield one token in the first, and are in the cache of the second.
    """
    stream, prompt = asked.stream, asked.stream.mean_input_tokens
    routing = None if operation is None else operation.routing

    def most_per_s(replica: Replica, requests: Requests, id_tokens: int) -> float:
        return capacity_per_s(engines_of(replica, replace(use, tiers=()), id_tokens, prompt).setup, requests)

    if operation is not None and operation.kv_link is not None:
        prompts, answers = operation.prefill_replicas or 0, operation.decode_replicas or 0
        first, later = _offered_to_one(stream, prompts, routing), stream.representative
        first = replace(first, output_tokens=np.ones_like(first.output_tokens))
        later = replace(later, cached_tokens=later.input_tokens - 1)
        most = min(
            most_per_s(replica, first, stream.block_tokens) * prompts,
            most_per_s(operation.decode or replica, later, 0) * answers,
        )
    else:
        offered = _offered_to_one(stream, replicas, routing)
        most = most_per_s(replica, offered, stream.block_tokens) * replicas
    return asked.rate_per_s / most if most > 0.0 else float("inf")


def _offered_to_one(stream: Stream, replicas: int, routing: Routing | None) -> Requests:
    """Return the requests of one replica, whose cache holds their earlier prompts; all requests if their prompts have no blocks."""
    if not stream.block_tokens:
        return stream.representative
    whole = replace(stream, requests=stream.representative, crowd=None)
    by_prefix = (routing or stream.routing) in (None, *BY_PREFIX)
    requests, _ = split_stream(whole, max(replicas, 1), by_prefix=by_prefix)[0]
    return requests or stream.representative


def utilisation_of_mix(groups: Sequence[MixedGroup], asked: AskedStream, use: EngineOptions) -> float:
    """Return the offered rate over the maximum rate of the group that is the fullest."""
    total = len(asked.stream.requests or ())
    found = []
    for group in groups:
        own = group.requests_of(asked.stream)
        part = replace(
            asked, stream=replace(asked.stream, requests=own), rate_per_s=asked.rate_per_s * len(own) / total
        )
        found.append(utilisation_of(group.replica, part, group.replicas, group.use_of(use), None))
    return max(found)
