"""A replica with speculative decoding, for the simulator: its decode steps are whole rounds of drafting and verification."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from capplan.engine.lookup import graph_max_sequences, tier
from capplan.errors import InputError
from capplan.memory.usable import engine_memory_bytes
from capplan.numbers import Array
from capplan.phases.speculation import round_tokens
from capplan.replica.plans import engine_scheduling
from capplan.replica.replica import Replica
from capplan.replica.spec import ReplicaSpec
from capplan.replica.speculation import DraftModel, step_time_s, target_and_draft_memory
from capplan.serving.step_table import StepTable, piecewise_linear


@dataclass(frozen=True, slots=True)
class Rounds:
    """A replica with speculative decoding, and the tokens of a round."""

    replica: Replica
    """Its step table holds whole rounds, its KV cache what the draft model leaves."""
    tokens_per_round: float
    query_tokens: int
    """Tokens verified per sequence: the drafts plus one, or more where drafts form a tree."""
    draft_tokens: int


def speculating_replica(
    replica: Replica,
    draft: DraftModel | float,
    acceptance_fraction: float | Sequence[float],
    draft_tokens: int,
    context_tokens: float,
    *,
    verified_tokens: int | None = None,
) -> Rounds:
    """Return a replica whose decode steps are rounds.

    Parameters
    ----------
    replica : without speculation
    draft : the draft model, or the time of one of its steps [s]
    acceptance_fraction : [-]
        probability that a draft token is accepted if all before it were; or one for each position
    draft_tokens : [tokens]
        drafted in one round
    context_tokens : [tokens]
        of a typical sequence, for which the KV cache is divided between both models
    verified_tokens : [tokens]
        in one round, where drafts form a tree; None: the drafts and one more

    Returns
    -------
    the replica with rounds for steps, and the mean yield of a round

    Raises
    ------
    InputError
        a pipelined replica
    """
    refuse_stages(replica.spec)
    query = max(draft_tokens + 1, verified_tokens or 0)
    accepted = [acceptance_fraction] if isinstance(acceptance_fraction, float) else acceptance_fraction
    blocks = replica.kv_blocks
    if isinstance(draft, DraftModel):
        both = target_and_draft_memory(replica, draft, context_tokens)
        blocks = max(int(blocks * both.max_sequences / both.max_sequences_alone), 1)
    scheduling = replica.scheduling
    seats = min(scheduling.max_num_seqs, max(scheduling.max_num_batched_tokens // query, 1))
    return Rounds(
        replica=replace(
            replica,
            table=round_table(replica, draft, draft_tokens, query),
            scheduling=replace(scheduling, max_num_seqs=seats),
            kv_blocks=blocks,
        ),
        tokens_per_round=round_tokens(accepted, draft_tokens),
        query_tokens=query,
        draft_tokens=draft_tokens,
    )


def refuse_stages(spec: ReplicaSpec) -> None:
    """Raise the error for a pipelined replica, whose rounds are not modelled."""
    if spec.sharding.pipeline > 1:
        raise InputError(
            "speculation with pipeline stages is not simulated\n  use --tensor-parallel only, or drop the speculation"
        )


def round_table(
    replica: Replica, draft: DraftModel | float, draft_tokens: int, query_tokens: int | None = None
) -> StepTable:
    """Return the step times of a replica whose decode steps are rounds.

    The time of a round is that of a plain decode step, plus the extra device time of verifying all drafts instead of one
    token, plus the draft steps in sequence. In a mixed step, drafting and the longer attention are added; the verified
    tokens count among the tokens of the step. A verification larger than the biggest CUDA graph runs eagerly: it takes at
    least as long as a prefill of that size.
    """
    table, spec = replica.table, replica.spec
    batch = np.maximum(table.sequence_knots, 1.0)
    query = float(query_tokens or draft_tokens + 1)

    def steps(of: ReplicaSpec, each: float) -> Array:
        """Return device times by batch and context, with `each` tokens of every sequence."""
        sequences, contexts = np.broadcast_arrays(batch[:, None], table.context_knots)
        times: Array = np.broadcast_to(
            step_time_s(of, sequences, contexts, np.full(sequences.shape, each)), sequences.shape
        )
        return times

    plain = steps(spec, 1.0)
    drafts = steps(draft.spec, 1.0) if isinstance(draft, DraftModel) else np.full(plain.shape, draft)
    more = np.maximum(steps(spec, query) - plain, 0.0)
    longer = draft_tokens * (drafts - drafts[:, :1]) + (more - more[:, :1])
    verified_tokens = batch * query
    eager = piecewise_linear(table.token_knots, table.mixed_s, verified_tokens) + table.head_s
    graph = largest_graph_sequences(spec)
    least = np.where(verified_tokens > graph, eager, 0.0) if draft_tokens else 0.0
    return replace(
        table,
        decode_s=np.maximum(table.decode_s + more[:, 0], least) + draft_tokens * drafts[:, 0],
        head_s=table.head_s + draft_tokens * drafts[:, 0],
        decode_attention_s=table.decode_attention_s + np.maximum(longer, 0.0),
    )


def largest_graph_sequences(spec: ReplicaSpec) -> int:
    """Return the size of the largest decode CUDA graph in tokens, summed over the attention-data-parallel groups."""
    entry = tier(spec.profile, engine_memory_bytes(spec.device), spec.device.architecture)
    seats = engine_scheduling(spec).max_num_seqs
    return int(spec.sharding.data) * graph_max_sequences(
        spec.profile, entry, seats, int(spec.sharding.tensor)
    )
