"""What a search is asked: networks, devices, demand and targets, resolved; and the replica that a layout of it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from capplan.accuracy.intervals import Intervals
from capplan.accuracy.left_out import Served
from capplan.accuracy.serving import network_class
from capplan.accuracy.slowness import Slowness, SlownessTable, replica_slowness
from capplan.engine.profile import EngineProfile
from capplan.fleet.load.demand import Demand
from capplan.fleet.search.candidates import Layout, Ranges
from capplan.hardware.device import Device
from capplan.hardware.efficiency import Efficiency
from capplan.model.network import Network
from capplan.replica.spec import ReplicaSpec, deployed_as
from capplan.replica.speculation import DraftPlan
from capplan.serving.terms import Routing
from capplan.workload.request_class import Slo, Target


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
    routing: Routing
    requests: int = 15_000
    """Requests of each simulated run. A tenth of them overstates the largest rate by 4 to 7 %; one long run beats several seeds."""
    seed: int = 7
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    drafting: DraftPlan | None = None

    def slowness(
        self,
        targets: Sequence[Target],
        network: Network,
        step_s: float,
        device: Device,
        served: Served | None = None,
    ) -> Slowness:
        """Return the distribution of slowness of a replica on a device, as it matters for these targets; `served`: by which deployment."""
        return replica_slowness(
            self.slowness_table,
            targets,
            network_class=network_class(network),
            step_s=step_s,
            device=device,
            efficiency=self.efficiencies[device.name],
            left_out=self.profile.left_out,
            served=served,
        )

    def served(self, network: Network, layout: Layout, in_flight: float) -> Served:
        """Return what a replica of a layout serves with some requests in flight."""
        lengths = self.demand.lengths
        name = deployed_as(network, layout.sharding, layout.kv_format)
        return Served(name, float(lengths.input_tokens), float(lengths.output_tokens), in_flight)


def spec_of_layout(layout: Layout, weight_dtype: str, question: Question) -> ReplicaSpec:
    """Return the replica specification of a layout, with weights in one of the question's dtypes."""
    return ReplicaSpec(
        network=question.networks[weight_dtype],
        device=layout.device,
        efficiency=question.efficiencies[layout.device.name],
        profile=question.profile,
        sharding=layout.sharding,
        kv_format=layout.kv_format,
        max_model_len=question.max_model_len,
        max_num_seqs=question.max_num_seqs,
        max_num_batched_tokens=question.max_num_batched_tokens,
        gpu_memory_utilization=question.gpu_memory_utilization,
        typical_context_tokens=int(
            question.demand.lengths.input_tokens + question.demand.lengths.output_tokens
        ),
    )
