"""A model that is split between a device and the memory of its host: the split that is asked for, or the fastest of those that fit."""

from collections.abc import Sequence
from dataclasses import replace

from capplan.errors import CapplanError, DoesNotFitError, InputError
from capplan.model.sharding import WHOLE
from capplan.model.weight_format import kv_bytes_per_element
from capplan.phases.cost import total_s
from capplan.phases.step import decode_step_costs
from capplan.replica.offload import EVERY_LAYER, Offload, host_devices, split_network
from capplan.replica.plans import rates_of
from capplan.replica.replica import memory_of, replica_of
from capplan.replica.spec import ReplicaSpec, card_layers, cards_of, served_context_tokens

Split = tuple[int | None, int | None]
"""Layers on the device, and layers whose experts are on the host, as `Offload` has them."""


def split_replica(spec: ReplicaSpec, split: Split, bytes_per_s: float) -> ReplicaSpec:
    """Return a replica with some of its layers, or their experts, in the memory of the host; itself where nothing is there.

    Parameters
    ----------
    spec : the replica, whole
    split : layers on the device, and layers whose experts are on the host
    bytes_per_s : [B/s]
        peak bandwidth of the memory of the host
    """
    gpu_layers, cpu_experts = split
    kept, held = split_network(spec.network, gpu_layers or EVERY_LAYER, cpu_experts or 0)
    if held is None:
        return spec
    if not kept.layers:
        raise InputError(
            "--n-gpu-layers 1: keeps nothing but the LM head on the device; 2 are the fewest that are modelled"
        )
    if spec.devices > 1:
        raise InputError("weights on the host next to several devices are not modelled; give one device")
    host_devices(spec.device, bytes_per_s)
    return replace(spec, network=kept, offload=Offload(held, bytes_per_s, gpu_layers, cpu_experts))


def split_words(held: Offload) -> list[str]:
    """Return the options that state a split."""
    stated = {"--n-gpu-layers": held.gpu_layers, "--n-cpu-moe": held.cpu_experts}
    return [word for name, count in stated.items() if count for word in (name, str(count))]


def holds_its_sequences(spec: ReplicaSpec) -> bool:
    """Return whether a device has room for the weights and for the cache: of as many longest sequences as are stated, else of one."""
    plan = memory_of(spec)
    return bool(plan.fits) and float(plan.max_concurrency) >= float(spec.max_num_seqs or 1)


def fastest_split(spec: ReplicaSpec, bytes_per_s: float) -> ReplicaSpec:
    """Return a replica with the split that generates a sequence fastest of those that fit; itself where it fits whole.

    The routed experts of ever more layers go to the host first, then whole layers; or whole layers only. More on the host is never faster,
    so of either way the first that fits is asked for its speed, at half of the longest context.

    Parameters
    ----------
    spec : the replica, whole
    bytes_per_s : [B/s]
        peak bandwidth of the memory of the host

    Raises
    ------
    InputError
        the device shares the memory of its host
    DoesNotFitError
        it does not fit with all layers but one on the host
    """
    if holds_its_sequences(spec):
        return spec
    found = [
        replica for way in _ways(spec) if (replica := _first_that_fits(spec, way, bytes_per_s)) is not None
    ]
    if not found:
        raise DoesNotFitError(
            f"{spec.network.name} does not fit on {spec.device.name} with all layers but one on the host\n"
            "  give a smaller --max-model-len or --kv-dtype"
        )
    return found[0] if len(found) == 1 else min(found, key=_token_s)


def fastest_cards(spec: ReplicaSpec) -> ReplicaSpec:
    """Return a machine of cards with the split that generates a sequence fastest: the quickest card holds as many layers as it has room for, then the next.

    Parameters
    ----------
    spec : the replica on a machine of cards

    Raises
    ------
    DoesNotFitError
        the cards together have no room for the layers and the cache
    """
    cards = spec.device.cards
    layers = [
        replace(spec, device=card, efficiency=efficiency, tensor_split=())
        for card, efficiency in zip(cards, spec.efficiency.cards, strict=True)
    ]
    order = sorted(range(len(cards)), key=lambda at: _layers_s(layers[at]))
    counts, left = [0.0] * len(cards), len(spec.network.layers) + 1
    for at, following in zip(order, [*order[1:], None], strict=True):
        for count in range(left, 0, -1):
            trial = counts.copy()
            trial[at] = float(count)
            if following is not None:
                trial[following] = float(left - count)
            if _card_holds(replace(spec, tensor_split=tuple(trial)), at):
                counts[at] = float(count)
                left -= count
                break
    if left:
        raise DoesNotFitError(
            f"{spec.network.name} does not fit on {spec.device.name}\n  give a smaller --max-model-len, --kv-dtype or --weight-dtype"
        )
    return replace(spec, tensor_split=tuple(counts))


def _layers_s(card: ReplicaSpec) -> float:
    """Return the time of a token in all layers on one card, whether they fit or not, at half of the longest context."""
    context, kv_bytes = served_context_tokens(card) / 2.0, kv_bytes_per_element(card.kv_format)
    return float(
        total_s(decode_step_costs(card.network, 1.0, context, WHOLE, kv_bytes, rates_of(card).rates))
    )


def _card_holds(spec: ReplicaSpec, at: int) -> bool:
    """Return whether one card of a machine has room for its layers and their cache."""
    used = [card for card, count in enumerate(card_layers(spec)) if count]
    try:
        return holds_its_sequences(cards_of(spec)[used.index(at)])
    except DoesNotFitError:
        return False


def _ways(spec: ReplicaSpec) -> list[list[Split]]:
    """Return the ways to put ever more on the host, the least first."""
    layers = len(spec.network.layers)
    fewer = range(layers, 1, -1)
    whole: list[Split] = [(count, None) for count in fewer]
    if not any(layer.experts for layer in spec.network.layers):
        return [whole]
    experts: list[Split] = [(None, count + 1) for count in range(layers)]
    return [[*experts, *((count, layers) for count in fewer)], whole]


def _first_that_fits(spec: ReplicaSpec, way: Sequence[Split], bytes_per_s: float) -> ReplicaSpec | None:
    """Return the replica of the first split that fits; None where not even the last does."""
    low, high = 0, len(way)
    while low < high:
        middle = (low + high) // 2
        fits = holds_its_sequences(split_replica(spec, way[middle], bytes_per_s))
        low, high = (low, middle) if fits else (middle + 1, high)
    return None if low == len(way) else split_replica(spec, way[low], bytes_per_s)


def _token_s(spec: ReplicaSpec) -> float:
    """Return the time of a token of one sequence at half of its longest context; endless where no speed is known."""
    try:
        return float(replica_of(spec).clock.row(1).step_s(served_context_tokens(spec) / 2.0))
    except CapplanError:
        return float("inf")
