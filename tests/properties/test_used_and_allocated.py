"""What a sequence needs is never above what its engine reserves: every shipped shape, engine and cache dtype."""

import pytest

from capplan.errors import InputError
from capplan.memory.kv_sizes import kv_sizes
from capplan.readers.catalogue.models import read_model, shipped_names

CONTEXTS = (1, 3, 8, 17, 46, 100, 127, 1_000, 4_097, 131_072)
DTYPES = ("fp32", "bf16", "fp8", "int8")


ENGINES = ("vllm", "sglang", "trtllm")
SOME = (
    "deepseek-v3.2", "zai-org/GLM-5", "Qwen/Qwen3.6-27B", "ai21labs/AI21-Jamba-1.5-Large", "gemma-3-27b-it", "deepseek-ai/DeepSeek-V4-Pro",
)  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_no_model_uses_more_than_is_allocated(engine):
    assert above_what_is_allocated(SOME, engine) == []


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_no_shipped_model_uses_more_than_is_allocated(engine):
    assert above_what_is_allocated(shipped_names(), engine) == []


def above_what_is_allocated(names, engine):
    above = []
    for name in names:
        network = read_model(name, offline=True)
        for dtype in DTYPES:
            for ranks in (1, 8):
                try:
                    rows = kv_sizes(
                        network, CONTEXTS, kv_dtype=dtype, engine=engine, tensor_parallel=ranks
                    ).rows
                except InputError:
                    continue
                above += [
                    (
                        name,
                        dtype,
                        ranks,
                        row.context_tokens,
                        row.kv_bytes_per_gpu,
                        row.engine_reserved_bytes_per_gpu,
                    )
                    for row in rows
                    if row.kv_bytes_per_gpu > row.engine_reserved_bytes_per_gpu * (1 + 1e-9)
                    or row.kv_bytes_total > row.engine_reserved_bytes_per_sequence * (1 + 1e-9)
                ]
    return above
