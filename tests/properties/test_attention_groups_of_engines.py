"""Does capplan say what tensor and data parallelism mean where an engine counts them otherwise?"""

import pytest

from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica


def warnings(engine, tensor, data):
    flags = ServingFlags(engine=engine, tensor_parallel=tensor, data_parallel=data)
    return [text for text in asked_replica("qwen3-30b-a3b", "h100-sxm", flags).warnings if "dp-size" in text]


def test_the_words_of_sglang_for_attention_groups_are_explained():
    """SGLang, `--dp-size` with `--enable-dp-attention`: the attention groups divide the ranks of `--tp-size`."""
    (text,) = warnings("sglang", 4, 2)
    assert "are 8 devices here" in text
    assert text.endswith("--tensor-parallel 2 --data-parallel 2")


@pytest.mark.parametrize(("engine", "tensor", "data"), [("vllm", 4, 2), ("sglang", 1, 8), ("sglang", 4, 1)])
def test_nothing_is_said_where_the_numbers_mean_the_same(engine, tensor, data):
    assert warnings(engine, tensor, data) == []
