"""All replicas of a plan as they are started: which engine, how many of it, on what, and at what load another one is needed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from capplan.deploy.command_line import checked_name
from capplan.deploy.replica_launch import ReplicaLaunch, launch_of
from capplan.errors import InputError
from capplan.fleet.over_time import scaling_rate
from capplan.fleet.search.candidates import DEGREES
from capplan.money.order import OWN
from capplan.operators.llamacpp import ENGINE as LLAMACPP
from capplan.readers.plan_file import AGAIN, LaunchRow, OrderedRow, PlanFile, ServerRow, StatedGroup
from capplan.readers.record import validated
from capplan.readers.yaml_file import Document
from capplan.scenario.scenario_file import Commitments, Fleet

Section = TypeVar("Section", Commitments, Fleet)

IMAGES = {
    "vllm": "vllm/vllm-openai:v{version}",
    "sglang": "lmsysorg/sglang:v{version}",
    "trtllm": "nvcr.io/nvidia/tensorrt-llm/release:{version}",
}
"""Engine -> image of a release, for NVIDIA devices."""
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
"""Vendor -> what Kubernetes calls its devices."""
SLICE = re.compile(r"[0-9]+g\.[0-9]+gb(\.me)?")
"""MIG profile behind the name of a device, as NVIDIA's device plugin spells it; a device of one's own may have any name."""
LONGEST_NAME = 40
_LIMITS_FOLLOW = ("hardware", "max_num_batched_tokens", *DEGREES)
"""What the limits of an engine depend on."""


@dataclass(frozen=True, slots=True)
class Group:
    """Replicas that are started alike: all of them, or those of one pool."""

    name: str
    """A DNS label; of a pool, with its role."""
    launch: ReplicaLaunch
    hardware: str
    vendor: str
    devices_per_server: int
    replicas: int
    spare_replicas: int
    planned_rate: float
    """Largest that one replica is planned for [1/s]: at which its targets just hold, less headroom, and with the confidence."""
    predicted_rate: float | None = None
    """Rate at which its targets just hold as predicted [1/s]; None for one of two pools."""
    rule: str = ""
    """Requests that the router of a mix sends to it, in words; empty if all groups get the same."""
    request_fraction: float = 1.0
    """Share of all requests that it gets."""
    hourly_loads: tuple[tuple[float, int], ...] = ()
    """Request rate of the group, and the replicas without spares that it needs then; empty without a load curve."""

    @property
    def scaling_rate(self) -> float:
        """Largest rate that each replica counts with [1/s]."""
        rates, needed = zip(*self.hourly_loads, strict=True) if self.hourly_loads else ((), ())
        return scaling_rate(self.planned_rate, rates, needed)

    @property
    def busy_replicas(self) -> int:
        """Replicas at work at the peak."""
        return self.replicas - self.spare_replicas

    @property
    def slice(self) -> str:
        """Profile of the MIG slices that the replicas are on; empty on whole devices."""
        profile = self.hardware.partition(":")[2]
        return profile if SLICE.fullmatch(profile) else ""

    @property
    def resource(self) -> str:
        """What Kubernetes calls the devices; MIG slices with the mixed strategy of NVIDIA's device plugin."""
        return f"nvidia.com/mig-{self.slice}" if self.slice else RESOURCES[self.vendor]

    @property
    def servers(self) -> int:
        """Servers that one replica spans; InputError if it would fill one of them in part."""
        devices, each = self.launch.devices, self.devices_per_server
        if devices <= each:
            return 1
        if devices % each:
            raise InputError(
                f"a replica of {devices} x {self.hardware} is not a whole number of servers of {each}"
            )
        return devices // each


@dataclass(frozen=True, slots=True)
class FleetLaunch:
    """What a plan starts."""

    name: str
    groups: tuple[Group, ...]
    least_replicas: int | None
    """Fewest replicas that an autoscaler keeps, as the scenario says."""
    most_replicas: int | None
    usd_per_hour: float | None
    """Price of all devices."""
    order: tuple[OrderedRow, ...]
    """Machines of the plan; empty without a price."""
    on_spot: bool
    """Whether the machines are paid for as spot instances."""
    max_unavailable: int
    """Replicas that a rolling update takes out at once; 0 if the plan has no spare one."""
    image: str | None
    remarks: tuple[str, ...]
    """What people have to know and no option says."""
    link: str = ""
    """Link between the prefill and the decode pool; empty without pools."""

    @property
    def is_mix(self) -> bool:
        """Whether a router sends different requests to different groups."""
        return bool(self.groups[0].rule)

    def machines(self, group: Group) -> tuple[str, ...]:
        """Return the instance types that a group may run on; empty if some of its machines have none."""
        mine = [line for line in self.order if line.hardware == group.hardware]
        bought = all(line.sku is not None and line.provider != OWN for line in mine)
        return tuple(line.sku for line in mine if line.sku is not None) if bought else ()

    @property
    def engine(self) -> str:
        """Return the engine of all groups."""
        return self.groups[0].launch.engine

    def needed_image(self, group: Group) -> str:
        """Return the image of a group; InputError if none of a release is known."""
        if self.image is not None and all(one.vendor == group.vendor for one in self.groups):
            return self.image
        if self.image is not None:
            raise InputError(
                f"--image {self.image}: one image does not run on devices of {' and '.join(sorted({one.vendor for one in self.groups}))}\n"
                "  plan each group by itself, with the GPUs of one vendor in fleet.hardware"
            )
        if group.vendor != "nvidia":
            raise InputError(
                f"no image of {self.engine} for {group.vendor} devices is known\n  name one: --image REGISTRY/NAME:TAG"
            )
        return IMAGES[self.engine].format(version=group.launch.version)


def dns_label(text: str) -> str:
    """Return a name that Kubernetes takes.

    Examples
    --------
    >>> dns_label("Support chat (EU)"), dns_label("日本")
    ('support-chat-eu', 'capplan')
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:LONGEST_NAME].strip("-") or "capplan"


def fleet_launch(
    file: PlanFile, *, checkpoint: str | None = None, draft: str | None = None, image: str | None
) -> FleetLaunch:
    """Return what the recommended plan of a file starts.

    Parameters
    ----------
    file : the plan file
    checkpoint : served instead of the model of the plan
    draft : checkpoint of the draft, where the plan does not name one
    image : of the containers, instead of the engine's release
    """
    chosen, inputs = file.answer.chosen, file.inputs
    if inputs.launch is None:
        raise InputError(f"{file.path}: does not say what its engines are started with\n  {AGAIN}")
    if draft is not None and inputs.launch.speculation is None:
        raise InputError(
            f"--draft: the plan of {file.path} does not speculate, so there is nothing to draft with"
        )
    _refuse_unsaid(file, inputs.launch)
    name = dns_label(str(inputs.content.get("name", "")))
    groups = tuple(_groups(file, inputs.launch, name, checkpoint, draft))
    launch = groups[0].launch
    drafted = launch.drafts.draft if launch.drafts else None
    for what, written in (
        ("model", launch.model),
        ("revision", launch.revision),
        ("draft", drafted),
        ("--image", image),
    ):
        checked_name(what, written)
    machines = chosen.order.machines if chosen.order else ()
    for line in machines:
        for what, written in (("machine", line.sku), ("provider", line.provider), ("region", line.region)):
            checked_name(what, written)
    asked, limits = _written(file, "commitments", Commitments), _written(file, "fleet", Fleet)
    return FleetLaunch(
        name=name,
        groups=groups,
        least_replicas=asked.min_replicas,
        most_replicas=asked.max_replicas,
        usd_per_hour=chosen.usd_per_hour,
        order=tuple(machines),
        on_spot=any(price.commitment == "spot" for price in inputs.prices),
        max_unavailable=limits.max_unavailable or min(1, *(group.spare_replicas for group in groups)),
        image=image,
        remarks=_remarks(file, groups),
        link=chosen.transfer.link if chosen.transfer else "",
    )


def _written(file: PlanFile, key: str, kind: type[Section]) -> Section:
    """Return a section of the scenario of a plan; InputError if an editor made something else of it."""
    written = file.inputs.content.get(key)
    return validated(kind, Document(f"{file.path}: {key}", {} if written is None else written, {}))


def _refuse_unsaid(file: PlanFile, started: LaunchRow) -> None:
    """Raise the error for a plan file whose scenario starts its engines with what the plan does not say."""
    written = file.inputs.content
    said = {
        "lora": (written.get("lora") is None) == (started.adapters is None),
        "runner": written.get("runner", "generate") == started.runner,
        "chunked_prefill": written.get("chunked_prefill") == started.chunked_prefill,
        "cuda_graphs": written.get("cuda_graphs") == started.cuda_graphs,
    }
    for key, same in said.items():
        if not same:
            raise InputError(
                f"{file.path}: does not say what {key} of its scenario starts its engines with\n  {AGAIN}"
            )


def _groups(
    file: PlanFile, started: LaunchRow, name: str, checkpoint: str | None, draft: str | None
) -> Iterator[Group]:
    """Yield the groups of the chosen plan; each with the limits of its own engines."""
    rows = file.answer.chosen.groups
    mixed = any(row.requests for row in rows)
    servers = started.servers or [
        ServerRow(devices_per_server=started.devices_per_server, vendor=started.vendor) for _ in rows
    ]
    if len(servers) != len(rows):
        raise InputError(
            f"{file.path}: states servers of {len(servers)} groups, and has {len(rows)}\n  {AGAIN}"
        )
    for number, (row, server) in enumerate(zip(rows, servers, strict=True), start=1):
        launch = launch_of(file, row, started, checkpoint=checkpoint, draft=draft)
        if any(getattr(row, key) != getattr(rows[-1], key) for key in _LIMITS_FOLLOW):
            launch = replace(
                launch,
                max_num_seqs=server.max_num_seqs,
                max_num_batched_tokens=server.max_num_batched_tokens,
                memory_fraction=server.memory_fraction,
            )
        yield Group(
            name if len(rows) == 1 else f"{name}-{number if mixed else row.role}",
            launch,
            row.hardware,
            server.vendor if launch.engine == LLAMACPP else _vendor(server.vendor, row.hardware),
            server.devices_per_server,
            row.replicas,
            row.spare_replicas,
            row.planned_request_rate_limit_per_replica,
            row.request_rate_limit_per_replica,
            _rule(row, file) if mixed else "",
            row.requests.request_fraction if row.requests else 1.0,
            _hourly_loads(file, row, number - 1),
        )


def _hourly_loads(file: PlanFile, row: StatedGroup, at: int) -> tuple[tuple[float, int], ...]:
    """Return the distinct request rates of a group over time, and the replicas that it needs at each."""
    hours = file.answer.over_time_of(at)
    if hours is None:
        return ()
    fraction = row.requests.request_fraction if row.requests else 1.0
    needed = (gpus // row.gpus_per_replica for gpus in hours.needed_gpus)
    return tuple(
        sorted({(fraction * rate, count) for rate, count in zip(hours.request_rate, needed, strict=False)})
    )


def _rule(row: StatedGroup, file: PlanFile) -> str:
    """Return the requests that the router of a mix sends to a group, in words; users stay with theirs."""
    routed = row.requests
    assert routed is not None
    if routed.share is not None:
        traffic = file.inputs.content.get("traffic")
        waiting = any("users" in item for item in (traffic if isinstance(traffic, list) else ()))
        return (
            f"{routed.share:.0%} of the {'users' if waiting else 'requests'} of {', '.join(routed.classes)}"
        )
    if routed.up_to_tokens is not None:
        return f"prompts of at most {routed.up_to_tokens:g} tokens"
    return (
        f"prompts above {routed.above_tokens:g} tokens"
        if routed.above_tokens is not None
        else ", ".join(routed.classes)
    )


def _vendor(vendor: str, hardware: str) -> str:
    known = vendor.lower()
    if known not in RESOURCES:
        raise InputError(
            f"{hardware}: devices of {vendor} are not exported; known vendors: {', '.join(RESOURCES)}"
        )
    return known


def _remarks(file: PlanFile, groups: tuple[Group, ...]) -> tuple[str, ...]:
    said = []
    if any(group.launch.max_num_seqs is None for group in groups):
        said.append(
            f"limits of the engines of {groups[0].name} are left to the engine: the plan states those of {groups[-1].name}"
            if groups[0].rule
            else "limits of the prefill engines are left to the engine: the plan states those of its decode engines"
        )
    if groups[0].rule:
        rules = "; ".join(f"{group.rule} to {group.name}" for group in groups)
        said.append(f"the router in front of the groups has to send {rules}")
    routing = file.answer.chosen.routing
    if routing != "round_robin":
        said.append(
            f"requests are planned to be routed by {routing}, which the router in front of the replicas has to do"
        )
    return tuple(said)
