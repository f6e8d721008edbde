"""Laws of what mixers state of themselves, and a mixer that nobody has heard of taken through everything that reads it."""

from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.lookup import ENGINES, profile
from capplan.memory.kv_sizes import kv_sizes
from capplan.memory.launch import engine_launch
from capplan.memory.layer_groups import cache_kinds, state_bytes_held
from capplan.memory.plan import memory_plan
from capplan.model.kv_cache import kv_bytes_per_sequence, state_bytes, state_bytes_per_sequence
from capplan.model.mixers import CachePart, Description, Heads, StatePart
from capplan.model.network import (
    Attention,
    CompressedAttention,
    CrossAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    Mixer,
    Network,
    Projection,
    ShortConvolution,
    StateSpace,
)
from capplan.model.parameters import summary
from capplan.model.sharding import Sharding, head_reason
from capplan.phases import mixer_work
from capplan.phases.cost import OperatorCost
from capplan.phases.mixer_work import decode_cost, prefill_cost
from capplan.phases.step import decode_step_costs, prefill_step_costs
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device
from capplan.replica.plans import step_rates
from capplan.replica.tables import context_limits
from tests.properties.ideal_device import ideal_rates

RATES = ideal_rates(flop_per_s=1e12, bytes_per_s=1e10)
HEAD = Projection("lm_head", "lm_head", 512, 32000, "columns")


def network_of(*mixers, times=1):
    projections = (
        Projection("gate_up", "ffn", 512, 4096, "columns"),
        Projection("down", "ffn", 2048, 512, "rows"),
    )
    layers = tuple(Layer((mixer,), projections, norm_parameters=1024) for mixer in mixers) * times
    return Network("n", "t", 512, 32000, layers, HEAD, False, 512 * 32000, max_context_tokens=8192)


few = st.integers(1, 6)
kernels = st.integers(2, 6)
eights = st.integers(1, 8).map(lambda n: 8 * n)
KINDS = {
    Attention: st.builds(Attention, eights, st.sampled_from([1, 2, 4, 8]), eights, eights,
                         st.none() | eights, cached=st.booleans(), causal=st.booleans(), index_head_dim=st.sampled_from([0, 64]),
                         convolved_elements=st.sampled_from([0, 64])),
    LatentAttention: st.builds(LatentAttention, eights, eights, eights, eights, eights, st.sampled_from([0, 8]),
                               st.sampled_from([0, 128]), index_cached=st.booleans(), window_tokens=st.none() | eights),
    LinearAttention: st.builds(LinearAttention, st.sampled_from(["gated_delta", "lightning", "kda"]), eights, eights,
                               few, few, st.just(0) | eights, kernels, eights),
    StateSpace: st.one_of(
        st.builds(StateSpace, st.just(1), eights, st.just(1), few, few, st.just(1), eights, kernels),
        st.builds(lambda heads, dim, size, groups, kernel: StateSpace(
            2, heads * dim, heads, dim, size, groups, heads * dim + 2 * groups * size, kernel),
            eights, few, few, st.sampled_from([1, 2, 4, 8]), kernels),
    ),
    CrossAttention: st.builds(CrossAttention, eights, eights, st.integers(1, 1500)),
    ShortConvolution: st.builds(ShortConvolution, eights, kernels),
    CompressedAttention: st.builds(CompressedAttention, eights, eights, st.just(4), eights, st.just(8),
                                   st.sampled_from([0, 4, 128]), st.booleans(), index_head_dim=st.sampled_from([0, 128])),
}  # fmt: skip
mixers = st.one_of(*KINDS.values())
ranks = st.sampled_from([1, 2, 4, 8])


def test_every_kind_of_mixer_has_costs_and_laws():
    assert set(get_args(Mixer)) == set(mixer_work._COSTS) == set(KINDS)


@given(mixers, ranks)
def test_ranks_together_hold_every_state_and_only_shared_pieces_twice(mixer, tensor):
    assert head_reason(network_of(mixer), tensor) is None
    parts = mixer.description.state_parts
    divides = all(part.pieces is None or part.pieces % tensor == 0 for part in parts)
    for size in (
        state_bytes,
        lambda mixer, tensor=1.0: state_bytes_held(mixer.description.state_parts, tensor),
    ):
        whole, together = size(mixer), tensor * size(mixer, float(tensor))
        assert together == whole if divides else whole < together <= tensor * whole


@given(mixers, ranks, st.integers(1, 20000))
def test_ranks_together_hold_every_vector_and_only_whole_heads_twice(mixer, tensor, context):
    network = network_of(mixer)
    whole, rank = (kv_bytes_per_sequence(network, float(context), 2.0, tp) for tp in (1.0, float(tensor)))
    parts = mixer.description.cache_parts
    assert rank <= whole <= tensor * rank
    if all(part.heads % tensor == 0 for part in parts):
        assert tensor * rank == whole
    if all(part.heads == 1 for part in parts):
        assert rank == whole


@given(mixers, st.sampled_from([1.0, 2.0]))
def test_engines_keep_every_vector_and_state_but_one_convolution_column(mixer, element):
    kinds = cache_kinds(network_of(mixer), 1.0, element)
    held = sum(float(kind.token_bytes) for kind in kinds)
    needed = sum(part.heads * part.elements / part.entry_tokens for part in mixer.description.cache_parts)
    assert held >= needed
    for part in mixer.description.state_parts:
        columns = part.state_format is None
        assert (
            part.allocated_elements < part.elements if columns else part.allocated_elements >= part.elements
        )


@pytest.mark.parametrize(("norms", "normed", "exchanged"), [("none", 0, 0), ("head", 1, 0), ("wide", 1, 1)])
def test_norms_read_and_write_queries_and_keys_and_only_wide_ones_exchange_squares(norms, normed, exchanged):
    of, network = device("h100"), network_of(Attention(8, 2, 64, 64, query_key_norms=norms))
    rates = step_rates(network, of, efficiency_for(of), profile=profile("vllm"), kv_format="bf16").rates
    costs = decode_step_costs(network, 16.0, 100.0, Sharding(tensor=2.0), 2.0, rates)
    moved = sum(cost.moved_bytes for cost in costs if cost.operator == "query_key_norm")
    sent = sum(cost.sent_bytes for cost in costs if cost.operator == "norm_exchange")
    # 16 tokens, four query heads and one key head of 64 on a rank, two bytes in and out; two mean squares in fp32.
    assert (moved, sent) == (normed * 16 * 5 * 64 * 2 * 2, exchanged * 16 * 2 * 4)


@dataclass(frozen=True, slots=True)
class Paired:
    """Caches a vector for each head and pair of tokens, and ten sums that every rank keeps."""

    heads: int
    width: int

    @property
    def description(self):
        return Description(
            "paired",
            (Heads(self.heads, "pairs", replicable=True),),
            (CachePart(self.width, self.heads, entry_tokens=2),),
            (StatePart(10, 10, "fp32", pieces=1),),
            read_limits=(640.0,),
            softmax=True,
        )


PAIRED = network_of(Paired(8, 64), Attention(8, 8, 32, 32), times=4)


def test_a_mixer_that_nobody_has_heard_of_is_counted_cut_and_named():
    contexts, tensor = np.array([100.0, 101.0, 5000.0]), np.array([[1.0], [2.0], [16.0]])
    paired = network_of(Paired(8, 64), times=4)
    vectors = 4 * 64 * 2 * np.floor(contexts / 2)
    assert kv_bytes_per_sequence(paired, contexts, 2.0, tensor).tolist() == [
        (heads * vectors).tolist() for heads in (8, 4, 1)
    ]
    assert state_bytes_per_sequence(paired, tensor).tolist() == [[160.0]] * 3
    kinds = cache_kinds(PAIRED, 2.0, 2.0)
    assert [(k.kind, k.layers, float(k.token_bytes), float(k.state_bytes)) for k in kinds] == [
        ("full", 4, 256.0, 0.0), ("state", 4, 0.0, 40.0), ("full", 4, 512.0, 0.0),
    ]  # fmt: skip
    assert summary(PAIRED)["mixers"] == {"paired": 4, "attention": 4}
    assert summary(PAIRED)["attention_layers"] == 8
    assert head_reason(paired, 3).words == "8 pairs neither divide nor replicate over tensor-parallel 3"
    assert head_reason(paired, 16) is None
    assert context_limits(PAIRED) == (640.0,)


@pytest.mark.parametrize(
    "engine",
    [known for versions in ENGINES.values() for known in versions],
    ids=lambda e: f"{e.engine}-{e.version}",
)
def test_engines_reserve_for_a_mixer_that_nobody_has_heard_of(engine):
    contexts = np.array([100.0, 5000.0])
    need = kv_bytes_per_sequence(PAIRED, contexts, 2.0) + state_bytes_per_sequence(PAIRED)
    launch = engine_launch(engine, Sharding(), 64e9, 2.0, contexts, 64.0, 2048.0, 0.8)
    plan = memory_plan(PAIRED, launch, engine)
    assert np.all(plan.fits)
    assert np.all(plan.reserved_bytes_per_sequence >= need)
    (row,) = kv_sizes(
        PAIRED, [5000], kv_dtype="bf16", engine=engine.engine, engine_version=engine.version
    ).rows
    assert row.engine_reserved_bytes_per_sequence >= need[1] == row.kv_bytes_total


def test_steps_price_a_mixer_that_nobody_has_heard_of_from_one_row(monkeypatch):
    def cost(mixer, chunk):
        seconds = 7.0 if chunk.decode else 5.0
        return OperatorCost("paired", seconds * chunk.new + mixer.heads / chunk.tensor_parallel)

    row = mixer_work.MixerCosts(cost, cost, lambda _: "paired: a guess")
    monkeypatch.setitem(mixer_work._COSTS, Paired, row)
    of = device("h100")
    rates = step_rates(PAIRED, of, efficiency_for(of), profile=profile("vllm"), kv_format="bf16")
    assert (rates.label, rates.assumptions[-1].what) == ("assumed", "paired: a guess")
    two = Sharding(tensor=2.0)
    decode = decode_step_costs(PAIRED, 8.0, 1000.0, two, 2.0, rates.rates)
    prefill = prefill_step_costs(PAIRED, 1.0, 3.0, 0.0, two, 2.0, rates.rates)
    assert [[c.seconds for c in costs if c.operator == "paired"] for costs in (decode, prefill)] == [
        [44.0],
        [76.0],
    ]
    assert {"attention", "gate_up", "down"} <= {c.operator for c in decode}


def on_one_rank(mixer, tensor):
    """Return the mixer that has as many heads and channels as one rank of another."""
    cut = {
        Attention: ("query_heads", "kv_heads", "convolved_elements"),
        LatentAttention: ("query_heads",),
        CompressedAttention: ("query_heads",),
        CrossAttention: ("heads",),
        LinearAttention: ("key_heads", "value_heads", "conv_channels"),
        StateSpace: ("inner_size", "heads", "conv_channels"),
        ShortConvolution: ("channels",),
    }[type(mixer)]
    parts = {name: getattr(mixer, name) / tensor for name in cut}
    if isinstance(mixer, Attention):
        parts["kv_heads"] = max(parts["kv_heads"], 1)  # replicated where ranks are more
    if isinstance(mixer, StateSpace):
        parts["groups"] = max(mixer.groups / tensor, 1)  # as those that share B and C
    return replace(mixer, **parts)


@settings(max_examples=60, deadline=None)
@given(
    mixers, st.sampled_from([2.0, 4.0, 8.0]), st.integers(1, 3000), st.integers(0, 5000), st.integers(1, 40)
)
def test_a_rank_takes_what_a_mixer_with_its_share_of_heads_takes(mixer, tensor, new, past, sequences):
    narrow = on_one_rank(mixer, tensor)
    for query in (1.0, 4.0):
        rank, alone = (
            decode_cost(each, float(sequences), float(past), parts, 2.0, RATES, query)
            for each, parts in ((mixer, tensor), (narrow, 1.0))
        )
        assert rank == alone
    rank, alone = (
        prefill_cost(each, float(sequences), float(new), float(past), parts, 2.0, RATES)
        for each, parts in ((mixer, tensor), (narrow, 1.0))
    )
    assert rank == alone


def test_one_mixer_of_a_layer_with_wide_norms_exchanges_them_for_the_layer():
    """Beside a convolution, as alone: 16 tokens, two mean squares in fp32."""
    wide = Attention(8, 2, 64, 64, query_key_norms="wide")
    projections = (Projection("down", "ffn", 2048, 512, "rows"),)
    for mixers_of_layer in ((wide,), (wide, ShortConvolution(64, 3)), (ShortConvolution(64, 3), wide)):
        network = Network("n", "t", 512, 32000, (Layer(mixers_of_layer, projections),), HEAD, False, 512)
        costs = decode_step_costs(network, 16.0, 100.0, Sharding(tensor=2.0), 2.0, RATES)
        assert [cost.sent_bytes for cost in costs if cost.operator == "norm_exchange"] == [16 * 2 * 4]
