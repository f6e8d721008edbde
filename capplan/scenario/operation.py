"""How a fleet is operated, from the text of flags: '1@5 min', '2:8'."""

from typing import Any

from capplan.errors import InputError, unknown
from capplan.fleet.load.routed import Operation
from capplan.fleet.pools.link import LinkTerms
from capplan.hardware.networks import NETWORKS
from capplan.readers.quantity import BYTES_PER_S, SECONDS, quantity
from capplan.scenario.simulation_flags import OperationFlags
from capplan.serving.replicas.fleet_terms import ROUTINGS, Autoscaling, Failure, Hedging, Routing


def failure_of(text: Any) -> Failure:
    """Return a failure written as REPLICA@TIME.

    Examples
    --------
    >>> failure_of("1@5 min")
    Failure(time_s=300.0, replica=1, repair_s=inf)
    """
    number, at, time = str(text).partition("@")
    if not at or not number.strip().isdecimal():
        raise InputError(f"--fail: {text!r} is not a replica and a time; write it as '1@5 min'")
    return Failure(quantity(time, SECONDS, "--fail"), int(number))


def autoscaling_of(text: str, start_s: float) -> Autoscaling:
    """Return the limits of an autoscaler written as MIN:MAX.

    Examples
    --------
    >>> autoscaling_of("2:8", 60.0).max_replicas
    8
    """
    least, colon, most = text.partition(":")
    if not colon or not least.strip().isdecimal() or not most.strip().isdecimal():
        raise InputError(f"--autoscale: {text!r} is not a minimum and a maximum; write it as '2:8'")
    if not 1 <= int(least) <= int(most):
        raise InputError(
            f"--autoscale: {text!r} needs a minimum of at least 1 and a maximum not below it, such as '2:8'"
        )
    return Autoscaling(int(least), int(most), start_s=start_s)


def routing_of(text: str | None) -> Routing | None:
    """Return a routing by its name; None where none is given.

    Examples
    --------
    >>> routing_of("least_loaded")
    'least_loaded'
    """
    if text is None:
        return None
    for name in ROUTINGS:
        if name == text:
            return name
    raise unknown("routing", text, ROUTINGS, place="--routing")


def network_bytes_per_s(text: str, place: str) -> float | None:
    """Return the rate of a network by its name or as it is written; None for a name that only a device may know.

    Examples
    --------
    >>> network_bytes_per_s("infiniband-ndr", "fleet.kv_link"), network_bytes_per_s("25 GB/s", "fleet.kv_link")
    (50000000000.0, 25000000000.0)
    """
    if text in NETWORKS:
        return NETWORKS[text]
    return quantity(text, BYTES_PER_S, place) if text[:1].isdigit() else None


def link_terms_of(text: str, place: str, latency_s: float = 0.0) -> LinkTerms:
    """Return a link between pools: of the devices, of a standard, or a rate per device."""
    return LinkTerms(text, network_bytes_per_s(text, place), latency_s, place=place)


def operation_of(flags: OperationFlags, start_up_s: float, replicas: int | None) -> Operation | None:
    """Return how the fleet is operated; None where no flag is given."""
    if replicas is not None and flags.prefill_replicas is not None:
        raise InputError(
            "--replicas: cannot be combined with --prefill-replicas and --decode-replicas, which set the size of each pool"
        )
    operation = Operation(
        routing=routing_of(flags.routing),
        failures=tuple(failure_of(text) for text in flags.fail or ()),
        autoscaling=None if flags.autoscale is None else autoscaling_of(flags.autoscale, start_up_s),
        hedging=None if flags.hedge_s is None else Hedging(flags.hedge_s),
        prefill_replicas=flags.prefill_replicas,
        decode_replicas=flags.decode_replicas,
        kv_link=None if flags.kv_link is None else link_terms_of(flags.kv_link, "--kv-link"),
    )
    return None if operation == Operation() else operation
