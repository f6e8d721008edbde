"""Laws of steps: no step beats its memory and arithmetic, and better hardware or less work is never slower.

The floors are worked out here from parameter counts and the datasheet, beside the code that they judge.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from capplan.engine.lookup import profile
from capplan.fleet.search.candidates import Layout, layout_reason
from capplan.memory.launch import engine_launch
from capplan.model.kv_cache import kv_bytes_per_sequence
from capplan.model.network import layer_counts
from capplan.model.parameters import active_parameters, weight_bytes_by_class
from capplan.model.sharding import Sharding
from capplan.model.weight_format import in_weight_format, kv_bytes_per_element
from capplan.operators.expert_exchange import exchange_kernels, is_captured
from capplan.operators.experts import experts_hit
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import read_model
from capplan.replica.plans import step_rates
from capplan.replica.tables import (
    Knots,
    chunk_limits,
    context_limits,
    device_tables,
    step_knots,
    table_of_plan,
    with_host,
)
from capplan.serving.step_table import decode_step_s, mixed_step_s
from tests.sweeps import examples

MODELS = (
    "Qwen/Qwen2.5-0.5B", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct", "google/gemma-3-27b-it",
    "google/gemma-2-9b-it", "facebook/opt-6.7b", "mistralai/Mixtral-8x7B-Instruct-v0.1", "Qwen/Qwen3-30B-A3B",
    "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V2-Lite", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "HuggingFaceTB/SmolLM2-135M",
)  # fmt: skip
DEVICES = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "l40s", "l4", "rtx-4090", "mi300x")
ENGINES = (
    ("vllm", "0.5.3"),
    ("vllm", "0.11.0"),
    ("vllm", None),
    ("sglang", None),
    ("trtllm", "0.9.0"),
    ("trtllm", None),
)
KNOTS = Knots(
    sequences=np.array([1.0, 3.0, 8.0, 33.0, 64.0, 200.0]), contexts=np.array([0.0, 100.0, 1000.0, 9000.0]),
    tokens=np.array([1.0, 16.0, 100.0, 512.0, 3000.0, 8192.0]), new=np.array([1.0, 100.0, 700.0, 4096.0]),
    past=np.array([0.0, 500.0, 6000.0]),
)  # fmt: skip

models, places, engines = st.sampled_from(MODELS), st.sampled_from(DEVICES), st.sampled_from(ENGINES)
ranks, stages = st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 1, 2])
laws = settings(max_examples=examples(40, 120), deadline=None)


STEP_TOKENS = 4096


@lru_cache(maxsize=64)
def network_of(name, weights):
    network = read_model(name, offline=True)
    return network if weights == "auto" else in_weight_format(network, weights)


def own_knots(network):
    """Return knots as replicas have them; the longest context is no power of two, so that windows lie between."""
    return step_knots(256.0, 8192.0, 11000.0, context_limits(network), chunks=chunk_limits(network))


def legal(network, gpu, sharding, engine):
    return layout_reason(network, Layout(gpu, sharding, "auto", "bf16"), engine) is None


def tables_of(network, gpu, sharding, engine, kv_format="bf16", kv_bytes=None, knots=KNOTS):
    """Return rates and step table of a plan, the host included, whether it fits or not."""
    exchange = exchange_kernels(engine, gpu, sharding, STEP_TOKENS)
    own = step_rates(
        network, gpu, efficiency_for(gpu), profile=engine, kv_format=kv_format, sharding=sharding,
        exchange=exchange,
    )  # fmt: skip
    size = kv_bytes_per_element(kv_format) if kv_bytes is None else kv_bytes
    launch = engine_launch(engine, sharding, 80e9, size, 8192.0, 1.0, 1.0).as_columns()
    tables = device_tables(
        network, launch, own.rates, knots, graph_sequences=np.inf if is_captured(exchange[0]) else 0.0
    )
    return own.rates, table_of_plan(with_host(tables, engine.host, network), 0)


def weight_floor_bytes(network, tokens, rates):
    """Return the bytes of weights that a step of so many tokens reads: of the experts those that are hit."""
    size = weight_bytes_by_class(network)
    whole = sum(size.get(name, 0.0) for name in ("attention", "ffn", "shared_expert", "router", "lm_head"))
    if network.tied_embeddings:
        whole += network.lm_head.inputs * network.lm_head.outputs * 2.0
    experts = [(layer.experts, count) for layer, count in layer_counts(network) if layer.experts]
    for own, _ in experts[:1]:
        skew = float(np.asarray(rates.experts[own.weight_format].router_skew))
        hit = experts_hit(float(tokens), float(own.experts), float(own.experts_per_token), skew)
        whole += size["expert"] * float(hit) / own.experts
    return whole


def read_floor_bytes(network, context, kv_bytes):
    """Return the cache that one sequence reads; nothing is asked of layers that choose what they read, or begin anew."""
    chooses = ("index_heads", "chunked")
    if any(
        getattr(mixer, name, 0) for name in chooses for layer in set(network.layers) for mixer in layer.mixers
    ):
        return 0.0
    return float(kv_bytes_per_sequence(network, float(context), kv_bytes))


def peak_of(rates):
    return max(float(np.asarray(own.flop_per_s)) for own in [*rates.matmul.values(), *rates.experts.values()])


@given(
    models,
    st.sampled_from(["auto", "fp8"]),
    places,
    ranks,
    stages,
    engines,
    st.integers(1, 200),
    st.integers(1, 9000),
)
@laws
def test_a_decode_step_is_never_below_its_memory_nor_its_arithmetic(
    name, weights, place, tensor, pipeline, engine, sequences, context
):
    network, gpu, own = network_of(name, weights), device(place), profile(*engine)
    sharding = Sharding(float(tensor), float(pipeline))
    assume(legal(network, gpu, sharding, own))
    rates, table = tables_of(network, gpu, sharding, own, knots=own_knots(network))
    found = float(decode_step_s(table, sequences, context))
    batch = max(sequences / pipeline, 1.0)
    read = weight_floor_bytes(network, batch, rates) + batch * read_floor_bytes(network, context, 2.0)
    assert found >= 0.999 * read / (gpu.memory_bytes_per_s * tensor)
    assert found >= 2.0 * active_parameters(network) * batch / (peak_of(rates) * tensor) * 0.98


@given(
    models,
    st.sampled_from(["auto", "fp8"]),
    places,
    ranks,
    engines,
    st.integers(1, 8000),
    st.integers(0, 150),
)
@laws
def test_a_step_with_prompts_is_never_below_its_memory_nor_its_arithmetic(
    name, weights, place, tensor, engine, new, sequences
):
    network, gpu, own = network_of(name, weights), device(place), profile(*engine)
    sharding = Sharding(float(tensor))
    assume(legal(network, gpu, sharding, own))
    rates, table = tables_of(network, gpu, sharding, own, knots=own_knots(network))
    found = float(mixed_step_s(table, float(sequences), 1000.0, 1.0, float(new), 0.0))
    tokens = new + sequences
    read = weight_floor_bytes(network, tokens, rates) + sequences * read_floor_bytes(network, 1000.0, 2.0)
    assert found >= 0.999 * read / (gpu.memory_bytes_per_s * tensor)
    body = active_parameters(network) - network.lm_head.parameters
    assert found >= 2.0 * body * tokens / (peak_of(rates) * tensor) * 0.98


def whole_table(table):
    """Return the times of the steps at all knots: of decoding, and of prompts."""
    decode = table.decode_s[:, None] + table.decode_attention_s
    return decode, table.mixed_s, table.prefill_attention_s, table.head_s


@given(
    models,
    places,
    ranks,
    engines,
    st.sampled_from([1.01, 1.3, 2.0, 10.0]),
    st.sampled_from(["bandwidth", "peak"]),
)
@laws
def test_more_bandwidth_or_peak_is_never_slower(name, place, tensor, engine, factor, what):
    network, gpu, own = network_of(name, "auto"), device(place), profile(*engine)
    sharding = Sharding(float(tensor))
    assume(legal(network, gpu, sharding, own))
    if what == "bandwidth":
        better = replace(gpu, memory_bytes_per_s=gpu.memory_bytes_per_s * factor)
    else:
        better = replace(gpu, peak_flop_per_s={k: v * factor for k, v in gpu.peak_flop_per_s.items()})
    _, before = tables_of(network, gpu, sharding, own)
    _, after = tables_of(network, better, sharding, own)
    for first, second in zip(whole_table(before), whole_table(after), strict=True):
        assert np.all(second <= first * (1.0 + 1e-9))
