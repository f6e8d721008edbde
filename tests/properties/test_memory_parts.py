"""What every single part of a model adds to a rank: weights, tables, padding, working memory, and the cache it takes.

Each test adds one part to a small model and looks at the difference, worked out by hand.
"""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from capplan.engine.lookup import ENGINES, profile
from capplan.memory.launch import engine_launch
from capplan.memory.plan import memory_plan
from capplan.model.network import (
    Attention,
    CompressedAttention,
    Experts,
    LatentAttention,
    Layer,
    LinearAttention,
    Network,
    Projection,
    StateSpace,
)
from capplan.model.parameters import (
    active_parameters,
    parameters,
    weight_bytes,
    weight_bytes_by_class,
    weight_elements_by_class,
)
from capplan.model.sharding import Sharding
from tests.nearness import near

HIDDEN, LAYERS, VOCABULARY, GIB = 256, 4, 8000, 2.0**30
ATTENTION = Attention(8, 4, 32, 32)
HEAD = Projection("lm_head", "lm_head", HIDDEN, VOCABULARY, "columns")
VLLM = profile("vllm")
NEWEST = [known[-1] for known in ENGINES.values()]
newest_engines = pytest.mark.parametrize("engine", NEWEST, ids=[e.engine for e in NEWEST])


def network(layer=None, **changed):
    layer = layer or Layer((ATTENTION,), ())
    return replace(
        Network("small", "llama", HIDDEN, VOCABULARY, (layer,) * LAYERS, HEAD, False, HIDDEN * VOCABULARY),
        **changed,
    )


def plan(
    model,
    engine=VLLM,
    *,
    kv=2.0,
    context=1000,
    sequences=64.0,
    tokens=2048.0,
    gib=24.0,
    padded=128.0,
    **sharding,
):
    launch = engine_launch(
        engine,
        Sharding(**sharding),
        gib * GIB,
        kv,
        float(context),
        sequences,
        tokens,
        0.8,
        padded_inputs=padded,
    )
    return memory_plan(model, launch, engine)


def added(model, base=None, field="weight_bytes", **asked):
    """Return what a part adds to a field of the plan."""
    return getattr(plan(model, **asked), field) - getattr(plan(base or network(), **asked), field)


PLAIN = Projection("wide", "ffn", 512, 1024, "columns")
PARTS = {
    # A part of each of four layers: the layer, its bytes in one layer, whether ranks share it.
    "columns": (Layer((ATTENTION,), (PLAIN,)), 512 * 1024 * 2, True),
    "rows": (Layer((ATTENTION,), (replace(PLAIN, split="rows"),)), 512 * 1024 * 2, True),
    "whole": (Layer((ATTENTION,), (replace(PLAIN, split="none"),)), 512 * 1024 * 2, False),
    "fp8": (Layer((ATTENTION,), (replace(PLAIN, weight_format="fp8"),)), 512 * 1024, True),
    "four bits with scales": (Layer((ATTENTION,), (replace(PLAIN, weight_format="nvfp4"),)), 512 * 1024 * (0.5 + 1 / 16), True),
    "bias of columns, in 16 bit": (
        Layer((ATTENTION,), (replace(PLAIN, weight_format="fp8", bias=1024),)), 512 * 1024 + 1024 * 2, True,
    ),
    "looked up": (Layer((ATTENTION,), (replace(PLAIN, matmul=False),)), 512 * 1024 * 2, True),
    "of another layer": (Layer((ATTENTION,), (replace(PLAIN, owns_weights=False),)), 0, True),
    "norms": (Layer((ATTENTION,), (), norm_parameters=300), 300 * 2, False),
    "states": (Layer((ATTENTION,), (), state_parameters=400), 400 * 2, True),
    "other": (Layer((ATTENTION,), (), other_parameters=500, other_active_parameters=100), 500 * 2, False),
}  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_a_layer_weighs_what_it_stores_and_is_shared_or_not(part):
    layer, size, shared = PARTS[part]
    for tensor in (1.0, 4.0):
        assert added(network(layer), tensor=tensor) == near(LAYERS * size / (tensor if shared else 1.0))
    assert weight_bytes(network(layer)) - weight_bytes(network()) == near(LAYERS * size)


def test_every_part_beside_the_layers_weighs_what_it_stores():
    for tensor in (1.0, 4.0):
        asked = {"tensor": tensor}
        assert added(network(vision_parameters=1000), **asked) == near(2000 / tensor)
        assert added(network(vision_parameters=1000, vision_format="fp8"), **asked) == near(1000 / tensor)
        assert added(network(other_parameters=1000), **asked) == 2000
        assert added(network(final_norm_parameters=1000), **asked) == 2000
        assert added(network(lm_head=replace(HEAD, bias=1000)), **asked) == near(2000 / tensor)
        assert added(network(lm_head=replace(HEAD, weight_format="fp8")), **asked) == near(
            -HIDDEN * VOCABULARY / tensor
        )
        assert added(network(embedding_format="fp8"), **asked) == near(-HIDDEN * VOCABULARY / tensor)
        # A tied head is the embedding, in the format of the embedding.
        assert added(network(tied_embeddings=True), **asked) == near(-2 * HIDDEN * VOCABULARY / tensor)
        tied = network(
            tied_embeddings=True, embedding_format="fp8", lm_head=replace(HEAD, weight_format="fp8")
        )
        assert added(tied, **asked) == near(-3 * HIDDEN * VOCABULARY / tensor)
    assert added(network(mtp_parameters=10**6)) == 0.0  # loaded for speculative decoding only


def test_parameters_are_counted_by_class_and_active_ones_are_those_that_a_token_uses():
    projections = (
        PLAIN, replace(PLAIN, tensor_class="router", outputs=8, bias=8), replace(PLAIN, tensor_class="other", matmul=False),
    )  # fmt: skip
    experts = Experts(8, 2, HIDDEN, 100, bias=7)
    layer = Layer((ATTENTION,), projections, experts, 30, 40, 50, 5)
    model = network(
        layer, vision_parameters=11, mtp_parameters=13, final_norm_parameters=17, other_parameters=19
    )
    each = 3 * HIDDEN * 100 + 7
    assert weight_elements_by_class(model) == {
        "embedding": HIDDEN * VOCABULARY, "lm_head": HIDDEN * VOCABULARY, "ffn": LAYERS * 512 * 1024,
        "router": LAYERS * (512 * 8 + 8), "expert": LAYERS * 8 * each, "norm": LAYERS * 30 + 17, "state": LAYERS * 40,
        "other": LAYERS * (512 * 1024 + 50) + 19, "vision": 11,
    }  # fmt: skip
    assert weight_bytes_by_class(model, mtp=True)["mtp"] == 2 * 13
    active = LAYERS * (512 * 1024 + 512 * 8 + 8 + 2 * each + 30 + 40 + 5) + 17 + HIDDEN * VOCABULARY
    assert active_parameters(model) == active
    tied = replace(model, tied_embeddings=True)
    assert parameters(tied) == parameters(model) - HIDDEN * VOCABULARY
    assert active_parameters(tied) == active
    ungated = replace(experts, gated=False, bias=0, weight_format="fp8")
    bytes_of = weight_bytes_by_class(network(replace(layer, experts=ungated)))
    assert bytes_of["expert"] == near(LAYERS * 8 * 2 * HIDDEN * 100)
    assert bytes_of["norm"] == near(LAYERS * 30 * 2)


@pytest.mark.parametrize(
    ("tensor", "expert", "inputs", "padded", "wide", "long"),
    [(1, 1, 2880, 128, 3072, 2944), (4, 1, 2880, 128, 768, 2944), (4, 4, 2880, 256, 3072, 3072), (2, 1, 2816, 256, 1536, 2816)],
)  # fmt: skip
def test_experts_in_mxfp4_are_padded_to_what_their_kernels_want(tensor, expert, inputs, padded, wide, long):
    """A rank's width to a multiple of 256, inputs to one of what the device wants (gpt-oss: 2880 of both)."""
    experts = Experts(8, 2, inputs, 2880, weight_format="mxfp4")
    model = network(Layer((ATTENTION,), (), experts))
    held = 8 / expert * 3 * wide * long * (0.5 + 1 / 32)
    found = added(model, tensor=float(tensor), expert=float(expert), padded=float(padded))
    assert found == near(LAYERS * held)
    # Other formats are held as they are.
    plain = network(Layer((ATTENTION,), (), replace(experts, weight_format="nvfp4")))
    assert added(plain, tensor=float(tensor), expert=float(expert)) == near(
        LAYERS * 8 / tensor * 3 * inputs * 2880 * (0.5 + 1 / 16)
    )


@newest_engines
def test_tables_of_sines_and_cosines_are_as_wide_as_the_widest_head(engine):
    latent = LatentAttention(8, 64, 16, 24, 40)
    compressed = CompressedAttention(8, 64, 16, 128, 2)
    for mixer, width in (
        (ATTENTION, 32),
        (latent, 16),
        (compressed, 32),
    ):  # windows and entries have a table each
        layer = Layer((mixer,), ())
        long, short = (network(layer, max_context_tokens=n) for n in (9000, 1000))
        assert added(long, short, engine=engine) == near(8000 * width * 2)
    both = (Layer((ATTENTION,), ()), Layer((latent,), ()))
    assert added(network(layers=both, max_context_tokens=9000), network(layers=both), engine=engine) == near(
        9000 * 32 * 2
    )


WIDTHS = {
    "gate and up and their product": (Projection("gate_up", "ffn", HIDDEN, 8192, "columns"), 1.5 * 8192),
    "a second copy in eight bits": (
        Projection("gate_up", "ffn", HIDDEN, 8192, "columns", weight_format="fp8"),
        1.75 * 8192,
    ),
    "before and after the activation": (Projection("up", "ffn", HIDDEN, 8192, "columns"), 2 * 8192),
    "recurrent inputs": (Projection("in_proj", "state", HIDDEN, 8192, "columns"), 4 * 8192),
    "queries, keys and values": (Projection("qkv", "attention", HIDDEN, 8192, "columns"), 8192),
}


@newest_engines
@pytest.mark.parametrize("which", WIDTHS)
def test_the_widest_pair_of_operators_sets_the_peak_of_a_layer(engine, which):
    projection, width = WIDTHS[which]
    model, engine = network(Layer((ATTENTION,), (projection,))), replace(engine, ubatch_tokens=np.inf)
    rules = engine.memory
    for tensor in (1.0, 2.0):
        found = plan(model, engine, tensor=tensor, tokens=65536.0).activation_bytes
        layer = 65536 * 2 * (width / tensor + rules.hidden_copies * HIDDEN)
        assert found == near(layer)  # far above the sampler's
        # Stages hand their input and output on besides.
        staged = plan(model, engine, tensor=tensor, tokens=65536.0, pipeline=2.0).activation_bytes
        assert staged == near(layer + 2 * 65536 * HIDDEN * 2)


@newest_engines
def test_prefill_of_latent_attention_expands_a_part_of_the_context_at_once(engine):
    """Eight contexts, at least four blocks for each sequence, at most 131,072 tokens or half of it: the rule of vLLM's MLA metadata."""
    mixer = LatentAttention(16, 512, 64, 128, 96)
    engine = replace(engine, ubatch_tokens=np.inf)
    model, block = network(Layer((mixer,), ())), engine.block_tokens
    for context, sequences, tensor in (
        (4000, 64.0, 1.0),
        (4000, 64.0, 4.0),
        (500, 1024.0, 1.0),
        (60_000, 64.0, 2.0),
    ):
        tokens = min(max(8 * context, 4 * sequences * block), 65536 if engine.engine == "vllm" else 131072)
        gathered = tokens * (512 + 64 + 16 / tensor * (128 + 96)) * 2
        found = plan(
            model, engine, context=context, sequences=sequences, tensor=tensor, gib=200.0
        ).activation_bytes
        layer = 2048 * 2 * engine.memory.hidden_copies * HIDDEN + gathered
        sampler = (
            sequences * VOCABULARY * (2 + engine.memory.sampler_bytes) + engine.memory.activation_base_bytes
        )
        assert found == near(max(layer, sampler + engine.memory.resident_copies * 2048 * 2 * HIDDEN))


def test_prefill_of_compressed_attention_gathers_entries_window_and_chunk_of_four_prompts():
    for entry, entries in ((4, 2500), (128, ceil(10_000 / 128)), (0, 0)):
        mixer = CompressedAttention(8, 512, 64, 128, 2, entry)
        model = network(Layer((mixer,), ()))
        gathered = 4 * (entries + 128 + 65536) * 512 * 2
        found = plan(model, context=10_000, tokens=65536.0, gib=200.0)
        assert found.activation_bytes == near(65536 * 2 * VLLM.memory.hidden_copies * HIDDEN + gathered)


@newest_engines
def test_a_window_is_reserved_with_the_chunk_in_flight_or_as_the_engine_keeps_it(engine):
    """All layers alike: a sequence of the whole context takes its window and a step of tokens, whole blocks of them."""
    sliding = network(Layer((replace(ATTENTION, window_tokens=128),), ()))
    rules, block, token = engine.memory, engine.block_tokens, 2 * 2 * 4 * 32 * LAYERS
    held = plan(sliding, engine, context=4000, tokens=1000.0).reserved_bytes_per_sequence
    whole = ceil(4000 / block) * block
    if rules.whole_windows:
        kept = whole
    elif rules.budget == "utilisation":
        kept = (ceil((127 + 1000) / block) + 1) * block
    else:
        kept = min(128 + 1000, whole)
    assert held == near(token * kept)
    # A context shorter than its window is as one without.
    short = plan(sliding, engine, context=100, tokens=1000.0)
    assert short.reserved_bytes_per_sequence <= token * (ceil(100 / block) + 1) * block


def test_layers_of_two_kinds_share_blocks_and_the_smaller_group_is_padded():
    """Three full and five sliding layers: groups of three share a block, so two groups of sliding ones and one full."""
    full, sliding = Layer((ATTENTION,), ()), Layer((replace(ATTENTION, window_tokens=128),), ())
    model = network(layers=(full, sliding, sliding) * 2 + (full, sliding))
    held = plan(model, context=4000, tokens=1000.0)
    page = 3 * 16 * 2 * 2 * 4 * 32
    blocks = ceil(4000 / 16) + 2 * (ceil(1127 / 16) + 1)
    assert held.reserved_bytes_per_sequence == near(page * blocks)
    assert held.max_concurrency == near(np.floor(held.kv_bytes_available / page) / blocks)


HYBRIDS = [
    # The mixer, its convolution columns (one fewer than the kernel is long), its recurrent state, in elements.
    (LinearAttention("gated_delta", 4, 8, 64, 64, 1024, 4, 8 * 64 * 64), 1024 * 3, 8 * 64 * 64),
    (StateSpace(2, 1024, 16, 64, 64, 2, 1024 + 2 * 2 * 64, 4), (1024 + 256) * 3, 1024 * 64),
    (StateSpace(1, 1024, 1, 1024, 16, 1, 1024, 4), 1024 * 3, 1024 * 16),
]


@pytest.mark.parametrize(("stated", "element"), [(False, 2), (True, 4)])
@pytest.mark.parametrize(("mixer", "columns", "recurrent"), HYBRIDS)
def test_a_block_of_a_hybrid_covers_the_state_of_a_layer(mixer, columns, recurrent, stated, element):
    """One state for three layers, one cache: blocks grow, in steps of 16 tokens, until a page of keys holds a state.

    States are kept in the dtype of the model unless the config names another.
    """
    state = 2 * columns + element * recurrent
    mixer = replace(mixer, state_stated=stated)
    model = network(layers=(Layer((mixer,), ()),) * 3 + (Layer((ATTENTION,), ()),))
    page = ceil(state / (16 * 512)) * 16 * 512  # keys and values of a token take 512 bytes
    tokens = page / 512
    held = plan(model, context=4000)
    assert held.reserved_bytes_per_sequence == near(page * (ceil(4000 / tokens) + 3))
    alone = network(Layer((mixer,), ()))
    assert plan(alone).reserved_bytes_per_sequence == near(LAYERS * state)
