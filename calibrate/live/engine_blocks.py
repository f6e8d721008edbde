"""Start the engine on each model in turn, in this process, and write what its cache holds: one line of JSON a model on stdout.

It runs in the environment of the engine and imports nothing of capplan: `python engine_blocks.py CONTEXT BUDGET MODEL_FOLDER ...`.
Weights keep what was in memory and no step is run: neither changes what the cache takes.
"""

import json
import sys
from typing import Any


def skip_what_takes_time() -> None:
    """Leave out random weights and the first step."""
    from vllm.model_executor.model_loader import dummy_loader  # type: ignore[import-not-found]
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner  # type: ignore[import-not-found]

    dummy_loader.initialize_single_dummy_weight = lambda *_, **__: None
    CPUModelRunner.warming_up_model = lambda _: None


def allocated(folder: str, context: int, budget: int) -> dict[str, Any]:
    """Return the blocks that the engine allocates and the requests of the longest context that they hold."""
    from vllm import LLM  # type: ignore[import-not-found]
    from vllm.v1.core.kv_cache_utils import (  # type: ignore[import-not-found]
        get_max_concurrency_for_kv_cache_config,
    )

    engine = LLM(
        model=folder, load_format="dummy", dtype="bfloat16", enforce_eager=True, max_model_len=context, max_num_seqs=4,
        max_num_batched_tokens=budget, skip_tokenizer_init=True, enable_prefix_caching=False, distributed_executor_backend="uni",
    ).llm_engine  # fmt: skip
    cache = engine.engine_core.engine_core.scheduler.kv_cache_config
    return {
        "blocks": cache.num_blocks,
        "concurrency": float(get_max_concurrency_for_kv_cache_config(engine.vllm_config, cache)),
        "groups": [
            [type(group.kv_cache_spec).__name__, group.kv_cache_spec.block_size, group.kv_cache_spec.page_size_bytes, len(group.layer_names)]
            for group in cache.kv_cache_groups
        ],
    }  # fmt: skip


def main(context: str, budget: str, *folders: str) -> None:
    """Write a line for each model; one that does not start is written with the reason."""
    from vllm.distributed import cleanup_dist_env_and_memory  # type: ignore[import-not-found]

    skip_what_takes_time()
    for folder in folders:
        try:
            found = allocated(folder, int(context), int(budget))
        except Exception as problem:  # noqa: BLE001  # whatever an engine raises is its answer
            found = {"reason": f"{type(problem).__name__}: {' '.join(str(problem).split())[:160]}"}
        print(json.dumps({"folder": folder, **found}), flush=True)
        cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main(*sys.argv[1:])
