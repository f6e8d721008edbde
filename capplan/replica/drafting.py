"""Sources of drafts (another model, a head on the target, the prompt, the target's first layers) and the best draft length."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from capplan.model.network import Layer, Network
from capplan.model.rank_weights import weight_bytes_per_rank
from capplan.model.sharding import Sharding
from capplan.numbers import Array
from capplan.phases.speculation import round_time_s, round_tokens
from capplan.replica.replica import Replica
from capplan.replica.rounds import Rounds, speculating_replica
from capplan.replica.spec import ReplicaSpec
from capplan.replica.speculation import DRAFT_TOKENS, DraftModel, step_times

Method = Literal["draft-model", "eagle", "mtp", "medusa", "ngram", "early-exit"]


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """Speculative decoding of any replica of a target."""

    method: Method
    acceptance_fractions: tuple[float, ...]
    """One for all positions, or one for each: the chance that a draft is accepted given that all before it were."""
    draft_tokens: int | None = None
    """In one round; None: as many as are best at the load."""
    verified_tokens: int | None = None
    """In one round, where drafts form a tree; None: the drafts and one more."""
    network: Network | None = None
    """Of a draft model."""
    step_s: float | None = None
    """Of one draft, where it is stated; the drafter is then taken to need no memory."""
    exit_layers: int | None = None
    """Layers of the target that draft, where it exits early."""


def draft_of(plan: DraftPlan, target: ReplicaSpec) -> DraftModel | float:
    """Return the drafter of a target: a model, or the time of one draft [s].

    An EAGLE or MTP head is one more layer of the target, with its embedding and its LM head; a Medusa head is one more LM head; drafts
    from the prompt take no time on the device.
    """
    if plan.step_s is not None:
        return plan.step_s
    if plan.method == "ngram":
        return 0.0
    if plan.method == "draft-model":
        assert plan.network is not None
        tensor, data = target.sharding.tensor, target.sharding.data
        return DraftModel(replace(target, network=plan.network, sharding=Sharding(tensor, 1.0, 1.0, data)))
    layers = target.network.layers
    if plan.method == "early-exit":
        assert plan.exit_layers is not None
        return DraftModel(_with_layers(target, layers[: plan.exit_layers]), weight_bytes=0.0, caches=False)
    if plan.method == "medusa":
        heads = plan.draft_tokens or len(plan.acceptance_fractions)
        return DraftModel(_with_layers(target, ()), weight_bytes=heads * _lm_head_bytes(target), caches=False)
    one = _with_layers(target, layers[-1:])
    return DraftModel(one, weight_bytes=_layer_bytes(one))


def _with_layers(target: ReplicaSpec, layers: tuple[Layer, ...]) -> ReplicaSpec:
    """Return the target cut to some of its layers, with the same parallelism."""
    return replace(target, network=replace(target.network, layers=layers))


def _layer_bytes(one: ReplicaSpec) -> float:
    """Return the weight bytes of the layers of a network, without its embedding and its LM head, on one device."""
    without = replace(one.network, layers=())
    held = weight_bytes_per_rank(one.network, one.sharding) - weight_bytes_per_rank(without, one.sharding)
    return float(held)


def _lm_head_bytes(target: ReplicaSpec) -> float:
    """Return the weight bytes of one more LM head on one device."""
    network = target.network
    elements = network.hidden_size * network.vocabulary_size / float(target.sharding.tensor)
    return 2.0 * elements


def best_draft_tokens(plan: DraftPlan, target: ReplicaSpec, batch: float, context_tokens: float) -> int:
    """Return the draft length with the most tokens per second at a batch; the shortest of equally good ones.

    Parameters
    ----------
    plan : DraftPlan
    target : the replica
    batch : [-]
        decoding sequences
    context_tokens : [tokens]
        mean context of a sequence

    Returns
    -------
    [tokens]
        at most as many as acceptances are stated by position
    """
    if plan.draft_tokens is not None:
        return plan.draft_tokens
    most = len(plan.acceptance_fractions)
    lengths = np.array([g for g in DRAFT_TOKENS if most == 1 or g <= most], dtype=np.float64)
    sequences = np.array([[max(batch, 1.0)]])
    times = step_times(target, draft_of(plan, target), sequences, lengths[None, :], context_tokens)
    yields: Array = np.array([round_tokens(plan.acceptance_fractions, int(g)) for g in lengths])
    rates = (
        yields
        / np.broadcast_to(round_time_s(lengths, times.draft_step_s, times.verify_s), (1, lengths.size))[0]
    )
    return int(lengths[int(np.argmax(rates))])


def best_speculating_replica(
    replica: Replica, plan: DraftPlan, batch: float, context_tokens: float
) -> Rounds:
    """Return a replica that speculates, with the draft length that is best at a batch.

    Raises
    ------
    InputError, DoesNotFitError
        a pipelined replica; target and draft leave no room for the KV cache
    """
    tokens = best_draft_tokens(plan, replica.spec, batch, context_tokens)
    draft = draft_of(replace(plan, draft_tokens=tokens), replica.spec)
    return speculating_replica(
        replica,
        draft,
        plan.acceptance_fractions,
        tokens,
        context_tokens,
        verified_tokens=plan.verified_tokens,
    )
