"""Encoders against published sizes: parameters of model cards and of safetensors headers, pairs of a mask, positions."""

import json
import shlex

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capplan.families.model_config import pooled, read_network
from capplan.model.parameters import active_parameters, parameters, weight_bytes
from capplan.operators.attention import bidirectional_pairs
from capplan.readers.catalogue.models import read_model
from tests.families import ROWS, network_of
from tests.tables import table

BERT, NOMIC, GTE, T5, ALBERT = (ROWS["bases"][name] for name in ("bert", "nomic", "gte", "t5", "albert"))


@table
def test_the_context_is_that_of_the_model_card(model, tokens):
    """Tables of RoBERTa begin behind the padding token: 8,194 and 514 rows."""
    assert read_model(model, offline=True).max_context_tokens == tokens


@given(st.integers(1, 60), st.none() | st.integers(0, 40))
def test_pairs_are_those_of_the_mask(tokens, reach):
    """The mask of transformers' `sliding_window_bidirectional_overlay`: a distance of at most the reach, both ends included."""
    distance = np.abs(np.subtract.outer(np.arange(tokens), np.arange(tokens)))
    seen = distance <= (tokens if reach is None else reach)
    window = np.inf if reach is None else 2.0 * reach + 1.0
    assert float(bidirectional_pairs(float(tokens), window)) == seen.sum()


def test_embeddinggemma_sees_256_tokens_on_each_side():
    """`Gemma3TextConfig` of transformers 5.23: a window of 512 becomes an exclusive bound of 257 on both sides."""
    layers = network_of("embeddinggemma").layers
    assert [layer.mixers[0].window_tokens for layer in layers] == [513, 513, 513, 513, 513, None] * 4
    assert not any(layer.mixers[0].causal for layer in layers)


def test_one_file_in_the_names_of_gpt_2_and_of_transformers_is_one_network():
    of_transformers = ROWS["bases"]["encoder"] | {
        "model_type": "nomic_bert",
        "vocab_size": 30528,
        "type_vocab_size": 2,
    }
    assert read_network(NOMIC, "a").layers == read_network(of_transformers, "b").layers


def test_a_reranker_keeps_its_head_and_an_embedder_its_layers_alone():
    embedder, reranker = (
        read_model(name, offline=True) for name in ("BAAI/bge-m3", "BAAI/bge-reranker-v2-m3")
    )
    assert parameters(reranker) - parameters(embedder) == 1024 + 1
    hidden = 1024 * 1024 + 1024
    assert parameters(pooled(embedder)) == parameters(embedder) - hidden
    assert pooled(reranker).pooler == reranker.pooler
    assert active_parameters(reranker) == active_parameters(pooled(embedder)) + hidden + 1024 + 1
    masked = read_network(BERT | {"architectures": ["BertForMaskedLM"]}, "masked")
    assert parameters(pooled(masked)) == parameters(masked) - 768 * 768 - 768 - 30522
    assert weight_bytes(reranker) == 2 * parameters(reranker)


PROMPT = ("--hardware", "l40s", "--input-tokens", 512, "--concurrency", 4, "--offline")
POOLING = (*PROMPT, "--runner", "pooling", "--format", "json")


def test_nothing_of_a_prompt_is_kept(capplan):
    said = capplan("kv-size", "bge-m3", "--offline")
    assert "no KV cache" in said.out
    rows = capplan.result("kv-size", "bge-m3", "--offline")["rows"]
    assert {row["kv_bytes_total"] + row["engine_reserved_bytes_per_gpu"] for row in rows} == {0.0}
    fit = json.loads(capplan("fit", "bge-m3", "--hardware", "l40s", "--offline", "--format", "json").out)
    assert fit["result"]["fits"]
    assert (fit["result"]["kv_cache_tokens"], fit["result"]["max_num_batched_tokens"]) == (0, 8192)
    assert fit["result"]["max_concurrency"] == fit["result"]["max_num_seqs"]


def test_a_prompt_multiplies_the_whole_square_and_the_parameters_of_its_layers(capplan):
    """Two FLOP a parameter and token; attention 4 n^2 h d in each of 24 layers: the head counts for one position."""
    rows = capplan.result("estimate", "bge-reranker-v2-m3", *POOLING)["breakdown"]
    flop = {row["operator"]: row["flop"] for row in rows}
    layers = flop["qkv"] + flop["o"] + flop["up"] + flop["down"]
    assert layers == 2 * 512 * 24 * 12 * 1024**2
    assert flop["attention"] == 24 * 4 * 512**2 * 1024
    assert (flop["pooler"], flop["scores"]) == (2 * 1024**2, 2 * 1024)


def test_windows_of_modernbert_spare_long_prompts_their_square(capplan):
    def attention_flop(tokens):
        words = shlex.split(
            f"--hardware l40s --input-tokens {tokens} --concurrency 1 --runner pooling --offline"
        )
        rows = json.loads(capplan("estimate", "gte-modernbert-base", *words, "--format", "json").out)
        return sum(row["flop"] for row in rows["result"]["breakdown"] if row["operator"] == "attention")

    whole, windowed = 8 * 8000**2, 14 * (129 * 8000 - 64 * 65)
    assert attention_flop(8000) == 4 * 768 * (whole + windowed)


def test_a_prompt_may_fill_every_position(capplan):
    assert capplan("estimate", "all-minilm-l6-v2", *POOLING).code == 0


SCENARIO = {
    "name": "rerank",
    "model": "BAAI/bge-reranker-v2-m3",
    "runner": "pooling",
    "traffic": [{"request_rate": "4 req/s", "documents": 20, "input_tokens": {"mean": 360, "p95": 700}}],
    "slo": {"ttft_p95": "500 ms"},
    "fleet": {"hardware": ["l40s"], "tensor_parallel": 1},
}


def test_a_fleet_of_encoders_has_no_pipelines_and_no_cache_that_fills(capplan, tmp_path):
    (tmp_path / "s.yaml").write_text(json.dumps(SCENARIO))
    result = capplan.result("fleet", tmp_path / "s.yaml", "--offline")
    assert {plan["pipeline_parallel"] for plan in result["plans"]} == {1}
    assert result["chosen"]["usd_per_thousand_requests"] > 0


def test_a_narrower_cache_is_no_lever_of_an_encoder(capplan, tmp_path):
    (tmp_path / "s.yaml").write_text(json.dumps(SCENARIO))
    levers = capplan.result("levers", tmp_path / "s.yaml", "--lever", "kv-dtype", "--offline")["levers"]
    assert {(lever["applicable"], lever["reason"]) for lever in levers} == {
        (False, "an encoder has no KV cache")
    }


def test_a_first_scenario_of_an_encoder_is_answered(capplan, tmp_path):
    path = tmp_path / "first.yaml"
    assert capplan("init", path, "--model", "bge-m3", "--hardware", "l40s", "--offline").code == 0
    assert "runner: pooling" in path.read_text()
    assert capplan("fleet", path, "--offline").code == 0
    path.unlink()
    assert "output_tokens" in capplan.refused(
        "init", path, "--model", "bge-m3", "--output-tokens", 5, "--offline"
    )


def test_what_is_explained_of_a_cache_is_that_there_is_none(capplan, tmp_path):
    (tmp_path / "s.yaml").write_text(json.dumps(SCENARIO))
    assert capplan("fleet", tmp_path / "s.yaml", "--offline", "-o", tmp_path / "plan.json").code == 0
    for quantity, value in (
        ("kv_bytes_per_token", 0.0),
        ("max_concurrency", 256.0),
        ("kv_cache_tokens", 256 * 2048.0),
    ):
        said = capplan.result("explain", tmp_path / "plan.json", quantity, "--offline")
        assert said["value"] == value
    assert {each["name"]: each["value"] for each in said["inputs"]} == {
        "max_num_seqs": 256,
        "max_model_len": 2048,
    }


def test_layers_of_albert_compute_though_they_share_their_weights() -> None:
    """Twelve layers of one group multiply the same matrices twelve times; two groups are held twice."""
    one, two = read_network(ALBERT, "albert"), read_network(ALBERT | {"num_hidden_groups": 2}, "albert")
    assert len(one.layers) == len(two.layers) == 12
    assert parameters(two) - parameters(one) == 7_087_872
    assert sum(matrix.owns_weights for layer in one.layers for matrix in layer.projections) == 5
