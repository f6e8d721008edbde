"""How a fleet is to be run, as flags say it: '1@5 min', '2:8'."""

from collections.abc import Sequence
from typing import Any

from capplan.errors import InputError, unknown
from capplan.fleet.routed import Operation
from capplan.readers.quantity import SECONDS, quantity
from capplan.serving.fleet_terms import ROUTINGS, Autoscaling, Failure, Hedging, Routing


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
        raise InputError(f"--autoscale: {text!r} is not a least and a most; write it as '2:8'")
    if not 1 <= int(least) <= int(most):
        raise InputError(f"--autoscale: {text!r} must go from at least 1 upwards, such as '2:8'")
    return Autoscaling(int(least), int(most), start_s=start_s)


def routing_of(text: str | None) -> Routing | None:
    """Return a way to choose a replica by its name; None where none is named.

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


def operation_of(
    routing: str | None,
    failures: Sequence[Any] | None,
    autoscale: str | None,
    hedge_s: float | None,
    pools: tuple[int | None, int | None, str | None],
    start_up_s: float,
    replicas: int | None = None,
) -> Operation | None:
    """Return how the fleet is to be run; None where no flag asks for anything."""
    if replicas is not None and pools[0] is not None:
        raise InputError(
            "--replicas: is not read beside --prefill-replicas and --decode-replicas, which say it for each kind"
        )
    found = Operation(
        routing=routing_of(routing),
        failures=tuple(failure_of(text) for text in failures or ()),
        autoscaling=None if autoscale is None else autoscaling_of(autoscale, start_up_s),
        hedging=None if hedge_s is None else Hedging(hedge_s),
        prefill_replicas=pools[0],
        decode_replicas=pools[1],
        kv_link=pools[2],
    )
    return None if found == Operation() else found
