"""How each engine divides a device, worked out from the dimensions of a small model and the rules of the engine."""

from dataclasses import replace

import numpy as np
import pytest

from capplan.engine.lookup import ENGINES, with_most_graphs
from capplan.memory.launch import engine_launch
from capplan.memory.plan import memory_plan
from capplan.model.network import Attention, Experts, LatentAttention, Layer, Network, Projection
from capplan.model.sharding import Sharding
from tests.nearness import near

GIB = 2.0**30
HIDDEN, INNER, VOCABULARY, HEADS, KV_HEADS, WIDTH, LAYERS, CONTEXT = 512, 1536, 32000, 16, 8, 64, 6, 4096
ATTENTION = Attention(HEADS, KV_HEADS, WIDTH, WIDTH)
MATRICES = (
    Projection("qkv", "attention", HIDDEN, WIDTH * (HEADS + 2 * KV_HEADS), "columns", kv_outputs=2 * WIDTH * KV_HEADS, kv_heads=KV_HEADS),
    Projection("o", "attention", WIDTH * HEADS, HIDDEN, "rows"),
)  # fmt: skip
DENSE = (
    Projection("gate_up", "ffn", HIDDEN, 2 * INNER, "columns"),
    Projection("down", "ffn", INNER, HIDDEN, "rows"),
)
EXPERTS = Experts(16, 2, HIDDEN, 256)
HEAD = Projection("lm_head", "lm_head", HIDDEN, VOCABULARY, "columns")
EMBEDDING = HIDDEN * VOCABULARY
PROFILES = [profile for known in ENGINES.values() for profile in known]
every_engine = pytest.mark.parametrize("profile", PROFILES, ids=[f"{p.engine}-{p.version}" for p in PROFILES])


def network(layer=None, **changed):
    layer = layer or Layer((ATTENTION,), MATRICES + DENSE, norm_parameters=2 * HIDDEN)
    plain = Network(
        "small", "llama", HIDDEN, VOCABULARY, (layer,) * LAYERS, HEAD, False, EMBEDDING, final_norm_parameters=HIDDEN
    )  # fmt: skip
    return replace(plain, **changed)


def plan(
    model,
    profile,
    *,
    sequences=64.0,
    tokens=2048.0,
    gib=24.0,
    links=1.0,
    eager=False,
    context=CONTEXT,
    **sharding,
):
    launch = engine_launch(
        profile,
        Sharding(**sharding),
        gib * GIB,
        2.0,
        float(context),
        sequences,
        tokens,
        0.8,
        fast_links=links,
    )
    return memory_plan(model, launch, with_most_graphs(profile, 0) if eager else profile)


def weights_of_rank(tensor=1, *, stage_layers=LAYERS, embedding=True, head=True):
    """Attention and feed-forward cut over the ranks, KV heads at least one each, norms whole; both edges cut by rows."""
    kv = max(KV_HEADS / tensor, 1.0)
    attention = HIDDEN * WIDTH * (HEADS / tensor + 2 * kv) + HIDDEN * WIDTH * HEADS / tensor
    layer = attention + 3 * HIDDEN * INNER / tensor + 2 * HIDDEN
    edges = (embedding * EMBEDDING + head * EMBEDDING) / tensor + head * HIDDEN
    return 2 * (stage_layers * layer + edges)


@every_engine
def test_a_rank_holds_its_part_of_every_matrix(profile):
    on_host = VOCABULARY * HIDDEN * 2 if profile.memory.host_embedding else 0
    for tensor in (1, 2, 8, 16):
        held = weights_of_rank(tensor) - on_host / tensor
        assert plan(network(), profile, tensor=float(tensor)).weight_bytes == near(held)
    # A table of sines and cosines for every position, one for each pair of a head.
    longer = plan(network(max_context_tokens=10_000, scaled_rotary_tokens=5_000), profile)
    assert longer.weight_bytes == near(weights_of_rank() - on_host + 15_000 * WIDTH * 2)


@every_engine
def test_experts_are_held_whole_by_groups_or_in_parts_by_all_ranks(profile):
    moe = network(Layer((ATTENTION,), MATRICES, EXPERTS))
    matrices = 2 * 16 * 3 * HIDDEN * 256 * LAYERS
    for tensor, data, expert in ((1, 1, 1), (4, 1, 1), (4, 1, 4), (2, 2, 4), (1, 4, 4)):
        whole = plan(moe, profile, tensor=float(tensor), data=float(data), expert=float(expert)).weight_bytes
        none = plan(network(Layer((ATTENTION,), MATRICES)), profile, tensor=float(tensor)).weight_bytes
        assert whole - none == near(matrices / (tensor * data))


@every_engine
def test_latent_attention_holds_a_second_copy_of_its_expansion(profile):
    """16 bit whatever the checkpoint, for the heads of the rank (arXiv:2405.04434, section 2.1.2)."""
    mixer = LatentAttention(HEADS, 128, 32, 48, 64)
    latent, other = network(Layer((mixer,), MATRICES)), network(Layer((ATTENTION,), MATRICES))
    for tensor in (1.0, 4.0):
        copy = 2 * LAYERS * 128 * HEADS / tensor * (48 + 64)
        assert plan(latent, profile, tensor=tensor).weight_bytes - plan(
            other, profile, tensor=tensor
        ).weight_bytes == near(copy)
    rotated = (
        plan(replace(latent, max_context_tokens=1000), profile).weight_bytes
        - plan(latent, profile).weight_bytes
    )
    assert rotated == near(1000 * 32 * 2)


@every_engine
def test_the_first_stage_holds_the_embedding_and_the_last_one_the_head(profile):
    """The plan is of the stage that holds fewest sequences; all of them hold as many layers, so of the heaviest."""
    held = plan(network(), profile, pipeline=3.0).weight_bytes
    first, middle, last = (
        weights_of_rank(stage_layers=2, embedding=e, head=h)
        for e, h in ((True, False), (False, False), (False, True))
    )
    assert held in (near(first), near(last))
    assert held > middle
    # A tied head is held by the last stage once more.
    tied = network(tied_embeddings=True, lm_head=HEAD)
    assert plan(tied, profile, pipeline=3.0).weight_bytes in (near(first), near(last))
    assert plan(tied, profile).weight_bytes == near(weights_of_rank() - 2 * EMBEDDING)


def captured(most):
    """Return the batch sizes that vLLM captures: 1, 2, 4, every 8 to 256, every 16 from there (CompilationConfig)."""
    return [n for n in [1, 2, 4, *range(8, 257, 8), *range(272, 2048, 16)] if n <= most]


@every_engine
@pytest.mark.parametrize("sequences", [1, 3, 7, 64, 200, 256, 300, 512, 1500])
def test_a_graph_is_captured_for_every_size_and_layer(profile, sequences):
    rules = profile.memory
    limit = profile.tiers[0].wide_graph_max_sequences
    whole = min(sequences, limit)
    piecewise = min(2 * sequences, limit) if profile.doubles_graph_sequences else whole
    sizes = len(captured(whole)) + len(captured(piecewise))
    graphs = rules.graph_base_bytes + rules.graph_bytes_per_layer * LAYERS * sizes
    assert plan(network(), profile, sequences=float(sequences)).cuda_graph_bytes == near(graphs)
    moe = network(Layer((ATTENTION,), MATRICES, EXPERTS))
    with_experts = plan(moe, profile, sequences=float(sequences)).cuda_graph_bytes
    assert with_experts - graphs == near(rules.graph_expert_bytes * sizes)
    assert plan(network(), profile, sequences=float(sequences), eager=True).cuda_graph_bytes == 0.0


@every_engine
def test_graphs_come_out_of_the_cache_only_where_the_engine_counts_them_before(profile):
    """vLLM from 0.20 on, as it estimates them; all others leave them to what the memory fraction spares."""
    captured, eager = plan(network(), profile), plan(network(), profile, eager=True)
    graphs = captured.cuda_graph_bytes
    missing = profile.memory.budgeted_graph_fraction * graphs
    assert eager.kv_bytes_available - captured.kv_bytes_available == pytest.approx(missing, abs=1.0)
    assert eager.headroom_bytes - captured.headroom_bytes == pytest.approx(graphs - missing, abs=1.0)


@every_engine
def test_each_engine_takes_its_fraction_of_its_own_total(profile):
    rules, held, total = profile.memory, plan(network(), profile), 24 * GIB
    weights, activations, runtime = held.weight_bytes, held.activation_bytes, held.non_torch_bytes
    assert runtime == rules.non_torch_bytes
    usable, cache = {
        "utilisation": (0.8 * total, 0.8 * total - weights - activations - runtime - rules.budgeted_graph_fraction * held.cuda_graph_bytes),
        "static_fraction": (0.8 * (total - runtime), 0.8 * (total - runtime) - weights),
        "free_fraction": (total - runtime, 0.8 * (total - runtime - weights - activations)),
    }[rules.budget]  # fmt: skip
    assert held.usable_bytes == near(usable)
    assert held.kv_bytes_available == near(cache)
    warm = 64 * rules.warmup_sampler_bytes * VOCABULARY
    assert held.headroom_bytes == pytest.approx(
        total - weights - runtime - held.cuda_graph_bytes - cache - warm, abs=1.0
    )


@every_engine
def test_ranks_hold_collective_buffers_before_or_after_the_cache_is_sized(profile):
    rules = profile.memory
    one, fast, slow = (
        plan(network(), profile, tensor=t, links=n) for t, n in ((1.0, 1.0), (2.0, 1.0), (2.0, 0.0))
    )
    assert one.non_torch_bytes == slow.non_torch_bytes == rules.non_torch_bytes
    assert fast.non_torch_bytes == rules.non_torch_bytes + rules.collective_bytes
    before = slow.headroom_bytes + slow.kv_bytes_available + rules.late_collective_bytes
    assert before == pytest.approx(
        fast.headroom_bytes + fast.kv_bytes_available + rules.collective_bytes, abs=1.0
    )
    groups = plan(network(Layer((ATTENTION,), MATRICES, EXPERTS)), profile, data=2.0, expert=2.0)
    assert groups.non_torch_bytes == fast.non_torch_bytes


@every_engine
def test_the_peak_is_that_of_the_widest_layer_or_of_the_sampler(profile):
    rules, step = profile.memory, min(2048, profile.ubatch_tokens)
    longer = min(65536, profile.ubatch_tokens) / step
    for tensor in (1.0, 4.0):
        # Gate, up and their product, and hidden states, for every token of a step.
        layer = step * 2 * (3 * INNER / tensor + rules.hidden_copies * HIDDEN)
        states = step * HIDDEN * 2
        sampler = 64 * VOCABULARY * (2 + rules.sampler_bytes) + rules.activation_base_bytes
        peak = max(layer, sampler + rules.resident_copies * states)
        assert plan(network(), profile, tensor=tensor).activation_bytes == near(peak)
        long = plan(network(), profile, tensor=tensor, tokens=65536.0)
        assert long.activation_bytes == near(
            max(longer * layer, sampler + rules.resident_copies * longer * states)
        )
    seeing = plan(network(vision_parameters=10**6), profile).activation_bytes
    images = step * rules.vision_bytes_per_token + states
    assert seeing == near(
        max(
            step * 2 * (3 * INNER + rules.hidden_copies * HIDDEN),
            sampler + rules.resident_copies * states + images,
        )
    )


@every_engine
def test_experts_work_in_two_buffers_that_some_engines_keep(profile):
    """Gate and up of all routed tokens, then their product; both at least as wide as a token."""
    rules, step = profile.memory, min(2048, profile.ubatch_tokens)
    moe = network(Layer((ATTENTION,), MATRICES, EXPERTS))
    for tensor, data, expert in ((1, 1, 1), (4, 1, 1), (4, 1, 4), (1, 2, 2)):
        width = 2 * 256 * expert / (tensor * data)
        buffers = step * data * 2 * (max(width, HIDDEN) + max(width / 2, HIDDEN)) * 2
        states = step * HIDDEN * 2
        kv = max(KV_HEADS / tensor, 1.0)
        layer = step * 2 * (max(WIDTH * (HEADS / tensor + 2 * kv), HIDDEN) + rules.hidden_copies * HIDDEN)
        sampler = (
            64 * VOCABULARY * (2 + rules.sampler_bytes)
            + rules.activation_base_bytes
            + rules.resident_copies * states
        )
        kept = buffers if rules.expert_workspace_resident else 0.0
        held = plan(moe, profile, tensor=float(tensor), data=float(data), expert=float(expert))
        assert held.activation_bytes == near(max(layer + buffers, sampler + kept))


@every_engine
def test_a_dense_cache_holds_whole_blocks_of_the_layers_of_a_stage(profile):
    for tensor, pipeline in ((1, 1), (4, 1), (16, 1), (1, 3), (2, 2)):
        held = plan(network(), profile, tensor=float(tensor), pipeline=float(pipeline), context=1000)
        token = 2 * 2 * WIDTH * max(KV_HEADS / tensor, 1.0) * LAYERS / pipeline
        block = profile.block_tokens
        per_sequence = -(-1000 // block) * block
        assert held.reserved_bytes_per_sequence == near(token * per_sequence)
        assert held.max_concurrency == pytest.approx(held.kv_bytes_available / token / per_sequence, rel=1e-4)
        assert held.kv_cache_tokens == pytest.approx(held.kv_bytes_available / token, rel=1e-2)
        assert held.kv_cache_tokens * token <= held.kv_bytes_available * (1 + 1e-9)


@every_engine
def test_with_more_memory_first_weights_fit_then_activations_then_a_sequence(profile):
    """Codes 1, 2, 3 and 0, and 4 wherever CUDA graphs are what is short."""
    sizes = np.geomspace(0.5 * weights_of_rank() / GIB, 300.0, 80)
    codes = [int(plan(network(), profile, gib=gib, context=500_000).limit_codes) for gib in sizes]
    order = [{0: 5}.get(code, code) for code in codes]
    assert order == sorted(order)
    assert codes[0] == 1
    assert codes[-1] == 0
    assert 3 in codes
    assert (
        2 in codes or profile.memory.budget != "utilisation"
    )  # the others take activations out of what is spared
