"""Cards of one machine that are not alike: the layers that llama.cpp gives to each, and each card as a replica of its own part.

A token passes the cards one after the other, and the pieces of a prompt follow each other:

    t_token = sum_d t_d + (N - 1) t_h,   t_prompt = t (1 + (n - 1) f) / n,   f = min(g max(t_slowest / t, 1 / 4), 1),   t = sum_d t_d
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from capplan.errors import DoesNotFitError
from capplan.hardware.device import engine_memory_bytes
from capplan.memory.capacity import part_of
from capplan.replica.spec import ReplicaSpec


def layers_by_card(layers: int, proportions: Sequence[float]) -> tuple[int, ...]:
    """Return how many layers each card of a machine has, of which the LM head is the last.

        n_d = |{i in 0, ..., L : s_(d-1) <= i / (L + 1) < s_d}|,   s_d = (p_1 + ... + p_d) / (p_1 + ... + p_N)

    Parameters
    ----------
    layers : [-]
        L, of the model
    proportions : [-]
        p, of each card; not all of them 0

    Returns
    -------
    [-]
        n, which sum up to L + 1

    Examples
    --------
    >>> layers_by_card(32, (24.0, 12.0)), layers_by_card(32, (1.0, 0.0))
    ((22, 11), (33, 0))

    References
    ----------
    llama.cpp, `load_tensors` in src/llama-model.cpp: https://github.com/ggml-org/llama.cpp.
    """
    ends = list(accumulate(proportions))
    counts = [0] * len(ends)
    for index in range(layers + 1):
        counts[next(card for card, end in enumerate(ends) if end / ends[-1] > index / (layers + 1))] += 1
    return tuple(counts)


def card_layers(spec: ReplicaSpec) -> tuple[int, ...]:
    """Return the layers of each card of a machine, the LM head counted as the last: as stated, else by memory; none of a single device."""
    cards = spec.device.cards
    by_memory = tuple(engine_memory_bytes(card) for card in cards)
    return layers_by_card(len(spec.network.layers), spec.tensor_split or by_memory) if cards else ()


def cards_of(spec: ReplicaSpec) -> tuple[ReplicaSpec, ...]:
    """Return each card that has layers as a replica of its part, the one with the LM head last; a single device is itself the only one.

    Raises
    ------
    DoesNotFitError
        a card has the LM head and no layer
    """
    counts = card_layers(spec)
    if not counts:
        return (spec,)
    used = [at for at, count in enumerate(counts) if count]
    parts, start, layers = [], 0, len(spec.network.layers)
    for at in used:
        end = min(start + counts[at], layers)
        if end == start:
            raise DoesNotFitError(
                f"--tensor-split: leaves nothing but the LM head to {spec.device.cards[at].name}\n  give it a larger part, or none"
            )
        network = part_of(spec.network, start, end, first=at == used[0], last=at == used[-1])
        card, efficiency = spec.device.cards[at], spec.efficiency.cards[at]
        parts.append(replace(spec, network=network, device=card, efficiency=efficiency, tensor_split=()))
        start = end
    return tuple(parts)
