"""Images: tokens against the processors that published models come with, the work of towers against their parameters, and laws."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from capplan.fleet.load.demand import demand_of
from capplan.model.images import ImageWork, image_tokens, image_work
from capplan.phases.token_work import tower_costs
from capplan.readers.catalogue.models import read_model
from capplan.replica.replica import replica_of
from capplan.replica.spec import prompt_work_s_per_token
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from tests.asked import asked_of
from tests.files import written_to
from tests.tables import rows

QWEN2_5 = {
    "model_type": "qwen2_5_vl", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 128000, "torch_dtype": "bfloat16",
    "vision_config": {
        "model_type": "qwen2_5_vl", "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "in_chans": 3,
        "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
}  # fmt: skip
"""Of https://huggingface.co/Qwen/Qwen2.5-VL-7B-Instruct/blob/main/config.json, the keys that count."""
MODELS = {
    "qwen3_vl": "Qwen/Qwen3-VL-8B-Instruct",
    "mistral3": "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
    "gemma3": "google/gemma-3-4b-it",
}
PROCESSED = [(kind, *sizes) for kind, listed in rows("images").items() for sizes in listed]
BASE = {
    "name": "s",
    "model": "Qwen/Qwen3-VL-2B-Instruct",
    "traffic": [
        {"name": "a", "request_rate": "3 req/s", "input_tokens": 100, "output_tokens": 40, "images": {"count": 2, "width": 640, "height": 480}}
    ],
    "fleet": {"hardware": ["h100-sxm"], "tensor_parallel": 1, "pipeline_parallel": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Return the published models by type."""
    folder = tmp_path_factory.mktemp("qwen")
    (folder / "config.json").write_text(json.dumps(QWEN2_5))
    names = MODELS | {"qwen2_5_vl": str(folder)}
    return {kind: read_model(name, offline=True) for kind, name in names.items()}


@pytest.fixture
def written(tmp_path):
    """Return the path of the base scenario with changed keys."""

    def write(images=None, **keys) -> Path:
        scenario = BASE | keys
        if images is not None:
            scenario = scenario | {"traffic": [BASE["traffic"][0] | {"images": images}]}
        return written_to(tmp_path / "s.yaml", scenario)

    return write


@pytest.mark.parametrize(("kind", "width", "height", "limit", "tokens"), PROCESSED)
def test_an_image_is_as_many_tokens_as_its_processor_says(networks, kind, width, height, limit, tokens):
    assert image_tokens(networks[kind].images, width, height, limit) == tokens


@pytest.mark.parametrize("kind", [*MODELS, "qwen2_5_vl"])
def test_a_tower_multiplies_every_patch_by_its_parameters(networks, kind):
    """Two FLOP for each parameter and patch, those of the merger for each token; norms, biases and positions are under 2 %."""
    network = networks[kind]
    spec = asked_replica("llama-3.1-8b", "h100-sxm", ServingFlags(offline=True)).spec
    image = image_work(network.images, 1024, 1024, None, 1.0)
    costs = tower_costs(network.images.tower, image, "bf16", 1.0, replica_of(spec).rates.rates)
    flop = {True: 0.0, False: 0.0}
    for cost in costs:
        if cost.operator in ("patches", "qkv", "o", "up", "down", "merger"):
            flop[cost.operator == "merger"] += float(cost.flop)
    multiplied = flop[False] / (2 * image.patches) + flop[True] / (2 * image.merged_tokens)
    assert multiplied == pytest.approx(network.vision_parameters, rel=0.02)


def test_every_patch_sees_every_other_unless_windows_part_them(networks):
    """4 n^2 h FLOP a layer over the whole image; windows of 64 patches see 64."""
    spec = asked_replica("llama-3.1-8b", "h100-sxm", ServingFlags(offline=True)).spec
    rates = replica_of(spec).rates.rates
    for kind, whole in (("qwen3_vl", 27), ("qwen2_5_vl", 4)):
        tower = networks[kind].images.tower
        seen = tower_costs(tower, ImageWork(4096, 1024, 1.0), "bf16", 1.0, rates)
        flop = sum(float(cost.flop) for cost in seen if cost.operator == "attention")
        windowed = (tower.layers - whole) * 4 * 4096 * 64 * tower.hidden_size
        assert flop == pytest.approx(whole * 4 * 4096**2 * tower.hidden_size + windowed, rel=0.002)


def test_the_tower_takes_its_time_for_every_image_of_a_request(networks):
    """Twice the images for each token take twice the time; two ranks less than one, but not half."""
    spec = asked_replica("Qwen/Qwen3-VL-8B-Instruct", "h100-sxm", ServingFlags(offline=True)).spec
    rule = networks["qwen3_vl"].images

    def seconds(each, tensor=1.0):
        work = (image_work(rule, 1920, 1080, None, each),)
        split = replace(
            spec,
            network=replace(spec.network, image_work=work),
            sharding=replace(spec.sharding, tensor=tensor),
        )
        return prompt_work_s_per_token(split, replica_of(split).rates.rates)

    assert seconds(2e-3) == pytest.approx(2 * seconds(1e-3))
    assert 0.5 * seconds(1e-3) < seconds(1e-3, 2.0) < seconds(1e-3)


@pytest.mark.parametrize("count", [1, 3])
def test_prompts_hold_the_tokens_of_their_images(written, count):
    path = written({"count": count, "width": 640, "height": 480})
    asked = asked_of(path)
    tokens = image_tokens(read_model(BASE["model"], offline=True).images, 640, 480)
    assert tokens == 300
    assert float(demand_of(asked.scenario).lengths.input_tokens) == 100 + count * tokens


@pytest.mark.parametrize("name", ["screenshots", "many-adapters"])
def test_further_samples_of_a_request_read_no_image_and_copy_no_adapter_again(name):
    """They find its prompt in the cache, so what comes with a prompt comes once for each request."""
    each = []
    for samples in (1, 4):
        asked = asked_of(f"scenarios/{name}.yaml", f"traffic[0].samples={samples}")
        (network,) = asked.question.networks.values()
        demand, (item,) = asked.question.demand, asked.scenario.classes
        computed = float(demand.lengths.input_tokens) - float(demand.lengths.cached_tokens)
        tower = (
            sum(image.per_prompt_token for image in network.image_work)
            * computed
            * item.sequences_per_request
        )
        copied = network.adapters and network.adapters.missing_fraction / network.adapters.prompt_tokens
        each.append((tower, (copied or 0.0) * computed * item.sequences_per_request))
    assert each[1] == pytest.approx(each[0])
    assert sum(each[0]) > 0.0
