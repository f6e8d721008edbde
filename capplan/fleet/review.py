"""What a search is asked, resolved, and the details of its plans for a review: margins, sizing step by step, memory and operators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import numpy as np

from capplan.accuracy.bounded import Intervals, network_class
from capplan.accuracy.slowness import (
    JointSlowness,
    Slowness,
    SlownessTable,
    by_latency,
    latency_at_slowness,
    replica_slowness,
)
from capplan.assumption import Assumption
from capplan.engine.left_out import Served
from capplan.engine.profile import EngineProfile
from capplan.fleet.fit import Fit, fit
from capplan.fleet.group import Group
from capplan.fleet.load.demand import Demand
from capplan.fleet.plan import RANGE, Plan
from capplan.fleet.search.candidates import Layout, Ranges
from capplan.hardware.device import Device, Efficiency
from capplan.model.network import Network
from capplan.ranges import SEED
from capplan.replica.estimate import OperatorRow, breakdown_of
from capplan.replica.load import Load
from capplan.replica.plans import rates_of
from capplan.replica.replica import Replica, replica_of
from capplan.replica.spec import ReplicaSpec, deployed_as
from capplan.replica.speculation import DraftPlan
from capplan.serving.step_table import decode_step_s, mixed_step_s, pipeline_pass_ratio
from capplan.serving.terms import Routing
from capplan.workload.request_class import SIMULATED_REQUESTS, Slo, Target


@dataclass(frozen=True, slots=True)
class Question:
    """The input of a search, resolved: one network per weight dtype, one efficiency per device."""

    networks: Mapping[str, Network]
    """Network in each weight dtype, by the name of the dtype."""
    devices: Sequence[Device]
    efficiencies: Mapping[str, Efficiency]
    """Efficiency of each device, by device name."""
    kv_formats: Sequence[str]
    profile: EngineProfile
    ranges: Ranges
    demand: Demand
    slo: Slo
    intervals: Intervals
    slowness_table: SlownessTable
    max_model_len: int
    routing: Routing | None
    """How the router deals requests out; None: in turn, with turns of sessions on the replica of the turn before."""
    requests: int = SIMULATED_REQUESTS
    seed: int = SEED
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    drafting: DraftPlan | None = None
    on_devices: Mapping[str, EngineProfile] = field(default_factory=dict)
    """The engine on devices where it runs otherwise than elsewhere, by name: with host times that results refitted, with more CUDA graphs."""

    def profile_on(self, device: Device) -> EngineProfile:
        """Return the engine as it runs on a device."""
        return self.on_devices.get(device.name, self.profile)

    @property
    def devices_by_profile(self) -> list[list[Device]]:
        """The devices, those on which the engine runs alike together: plans of one array have one engine profile."""
        groups: list[list[Device]] = []
        for device in self.devices:
            alike = [group for group in groups if self.profile_on(group[0]) == self.profile_on(device)]
            if alike:
                alike[0].append(device)
            else:
                groups.append([device])
        return groups

    def slowness(
        self,
        targets: Sequence[Target],
        network: Network,
        step_s: float,
        device: Device,
        served: Served | None = None,
    ) -> Slowness:
        """Return the distribution of slowness of a replica on a device, as it matters for these targets on one latency; `served`: by which deployment."""
        return replica_slowness(
            self.slowness_table,
            targets,
            network_class=network_class(network),
            step_s=step_s,
            device=device,
            efficiency=self.efficiencies[device.name],
            left_out=self.profile_on(device).left_out,
            served=served,
        )

    def joint_slowness(
        self, network: Network, step_s: float, device: Device, served: Served | None = None
    ) -> JointSlowness:
        """Return the distribution of slowness of a replica on a device, by the latencies that the targets limit."""
        each = by_latency(self.slo.targets)
        return JointSlowness(
            {name: self.slowness(own, network, step_s, device, served) for name, own in each.items()},
            self.slowness_table.correlation,
        )

    def served(self, network: Network, layout: Layout, in_flight: float) -> Served:
        """Return what a replica of a layout serves with some requests in flight."""
        lengths = self.demand.lengths
        name = deployed_as(network, layout.sharding, layout.kv_format)
        return Served(name, float(lengths.input_tokens), float(lengths.output_tokens), in_flight)


def spec_of_layout(layout: Layout, question: Question) -> ReplicaSpec:
    """Return the replica specification of a layout, whose weights are in one of the question's dtypes."""
    return ReplicaSpec(
        network=question.networks[layout.weight_format],
        device=layout.device,
        efficiency=question.efficiencies[layout.device.name],
        profile=question.profile_on(layout.device),
        sharding=layout.sharding,
        kv_format=layout.kv_format,
        max_model_len=question.max_model_len,
        max_num_seqs=question.max_num_seqs,
        max_num_batched_tokens=layout.max_num_batched_tokens or question.max_num_batched_tokens,
        gpu_memory_utilization=question.gpu_memory_utilization,
        typical_context_tokens=int(
            question.demand.lengths.input_tokens + question.demand.lengths.output_tokens
        ),
    )


@dataclass(frozen=True, slots=True)
class PlanDetail:
    """Memory, operators and phase times of one replica of a plan."""

    spec: ReplicaSpec
    memory: Fit
    breakdown: tuple[OperatorRow, ...]
    load: Load
    phase_s: Mapping[str, float]
    """Prefill of one prompt and one decode step as the engine runs them, with host time and overlap."""
    group: str = ""
    """`prefill` or `decode` where the plan has separate pools; the requests of the group in a mix."""


def plan_spec(group: Group, question: Question) -> ReplicaSpec:
    """Return one replica of a plan, or of one pool of it."""
    return spec_of_layout(group.layout, question)


def kernel_assumptions(group: Group, question: Question) -> tuple[Assumption, ...]:
    """Return the assumptions about kernels of a plan, or of one pool of it, that were not measured on its device; empty if all were."""
    assumptions = rates_of(plan_spec(group, question)).assumptions
    return tuple(assumption.of_scenario() for assumption in assumptions)


def target_margins(plan: Plan, question: Question) -> tuple[dict[str, Any], ...]:
    """Return a row for every target of the scenario: its limit, the prediction of the plan, and what that leaves.

    The limit is as the scenario states it, with what it allows for waits outside. The value lies between `low_s` and `high_s` in 80 %
    of the cases. Interval and probability are of one distribution of slowness, so the high end is within the limit exactly where the
    probability is 90 % or more. The margin over the limit is negative if the target is missed.
    """
    return tuple(_margin(plan, question, target) for target in question.slo.targets)


def _margin(plan: Plan, question: Question, target: Target) -> dict[str, Any]:
    predicted, engine = plan.value(target), plan.engine_value(target)
    probability, limit_s = plan.target_probabilities[target.key], plan.engine_limit_s(target)
    seen_at = plan.receiving if target.metric == "ttft" else plan.generating
    ends = []
    for group in seen_at:
        slowness = _slowness(plan, group, question, target)
        certain = inf if probability >= 1.0 else 0.0
        slowest = slowness.quantile(probability) if 0.0 < probability < 1.0 else certain
        ends += [
            latency_at_slowness(engine, slowness.quantile(part), limit_s, slowest) - engine for part in RANGE
        ]
    return {
        "target": target.key,
        "limit_s": target.stated_s,
        "predicted_s": predicted,
        "low_s": predicted + min(0.0, *ends),
        "high_s": predicted + max(ends),
        "margin_fraction": 1.0 - predicted / target.stated_s,
        "met_probability": probability,
    }


def _slowness(plan: Plan, group: Group, question: Question, target: Target) -> Slowness:
    """Return the distribution of the slowness of a group that decides about a target, at the step of the plan."""
    network, served = question.networks[group.weight_dtype], None
    if group.role == "serve" and not group.draft_tokens:
        served = question.served(network, group.layout, group.concurrency_per_replica)
    step_s = plan.tpot_s.mean if isfinite(plan.tpot_s.mean) else plan.e2e_s.mean
    return question.slowness([target], network, step_s, group.layout.device, served)


def sizing_of(group: Group, headroom_fraction: float) -> dict[str, float]:
    """Return the steps from the peak of the requests of a group to its number of devices.

    Replicas are counted before rounding up: as predicted with headroom, R / (l (1 - h)), and with the required confidence, R / s, at a peak rate R,
    for the largest rate l at which one replica meets the targets as predicted, and s at which one does that is as slow as the confidence allows for.
    """
    limit, sure_limit = group.request_rate_limit_per_replica, group.sure_request_rate_limit_per_replica
    assert limit is not None
    assert sure_limit is not None
    peak, planned = group.request_rate_per_replica * group.busy_replicas, limit * (1.0 - headroom_fraction)
    return {
        "peak_request_rate": peak,
        "limit_request_rate": limit,
        "headroom_fraction": headroom_fraction,
        "planned_request_rate": planned,
        "predicted_replicas": peak / planned,
        "sure_limit_request_rate": sure_limit,
        "sure_replicas": peak / sure_limit,
        "busy_replicas": group.busy_replicas,
        "spare_replicas": group.spare_replicas,
        "devices_per_replica": group.layout.devices,
        "devices": group.gpus,
        "utilisation_fraction": group.request_rate_per_replica / limit,
    }


def plan_details(plan: Plan, questions: Sequence[tuple[Question, Demand]]) -> tuple[PlanDetail, ...]:
    """Return memory and operators of one replica of each group of a plan at the peak of the requests that it gets.

    Parameters
    ----------
    plan : of one group, of separate pools, or a mix
    questions : of the requests of each group, and these requests with their mean lengths and hits under the plan
    """
    return tuple(
        _detail(group, question, demand, name)
        for group, (question, demand), name in zip(plan.groups, questions, plan.group_names, strict=True)
    )


def _detail(group: Group, question: Question, demand: Demand, name: str) -> PlanDetail:
    spec = plan_spec(group, question)
    lengths = demand.lengths
    inputs = float(lengths.input_tokens)
    load = Load(
        max(1, round(inputs)),
        max(1, round(float(lengths.output_tokens))),
        request_rate=group.request_rate_per_replica,
        prefix_hit_fraction=float(np.clip(float(lengths.cached_tokens) / inputs, 0.0, 1.0)),
    )
    replica, sequences = replica_of(spec), group.concurrency_per_replica
    every = breakdown_of(replica, load, sequences)
    rows = tuple(row for row in every if group.role in ("serve", row.phase))
    return PlanDetail(spec, fit(spec), rows, load, phase_times(replica, load, sequences), name)


def phase_times(replica: Replica, load: Load, sequences: float) -> dict[str, float]:
    """Return the time of one chunked prefill and of one decode step, from the step table of a replica [s]."""
    past = load.input_tokens * load.prefix_hit_fraction
    new = max(1.0, load.input_tokens - past)
    stages = float(replica.table.stages)
    chunk = min(new, replica.scheduling.max_num_batched_tokens / stages)
    middle = past + (new - chunk) / 2.0
    turns = float(pipeline_pass_ratio(new / chunk, 0.0, replica.table.stage_fraction))
    prefill = turns * float(mixed_step_s(replica.table, 0.0, 0.0, 1.0, chunk, middle))
    context = load.input_tokens + load.output_tokens / 2.0
    decode = float(decode_step_s(replica.table, max(1.0, sequences), context))
    return {"prefill": prefill, "decode": decode}
