"""What docs/scenario.md says of the keys about drafts, adapters and more models than one."""

from collections.abc import Mapping
from types import MappingProxyType

DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "speculation": "none",
        "speculation.method": "draft-model",
        "speculation.acceptance": "what is published for the method",
        "speculation.metrics": "-",
        "speculation.draft_tokens": "as many as are best at the load",
        "speculation.verified_tokens": "the drafts and one more",
        "speculation.draft": "-",
        "speculation.draft_step_time": "-",
        "lora": "none",
        "lora.max_loras": "one for each adapter",
        "lora.max_lora_rank": "16",
        "lora.modules": "all of attention and feed-forward",
        "lora.fully_sharded": "false",
        "lora.share": "100 %",
        "cascade": "one model",
        "cascade.revision": "the default branch",
        "cascade.after": "answer",
        "cascade.verdict_time": "0 s",
        "cascade.changes": "none",
        "cascade.part": "all fleets",
        "sharing": "one model",
        "sharing.models.revision": "the default branch",
        "sharing.models.gpu_memory_utilization": "needed with by: device",
        "sharing.models.changes": "none",
        "sharing.part": "all models",
    }
)
"""What holds where a key is left out."""

EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "speculation": "{acceptance: 0.7, draft_tokens: 4, draft_step_time: 2 ms}",
        "speculation.method": "eagle",
        "speculation.acceptance": "0.7",
        "speculation.metrics": "scrape.txt",
        "speculation.verified_tokens": "64",
        "speculation.draft_tokens": "4",
        "speculation.draft": "meta-llama/Llama-3.2-1B",
        "speculation.draft_step_time": "2 ms",
        "lora": "{adapters: 200, max_loras: 64}",
        "lora.adapters": "200",
        "lora.max_loras": "64",
        "lora.max_lora_rank": "32",
        "lora.modules": "[q_proj, v_proj]",
        "lora.fully_sharded": "true",
        "lora.share": "40 %",
        "cascade": "{model: Qwen/Qwen3-32B, escalated: 20 %}",
        "cascade.model": "Qwen/Qwen3-32B",
        "cascade.revision": "main",
        "cascade.escalated": "20 %",
        "cascade.after": "router",
        "cascade.verdict_time": "60 ms",
        "cascade.changes": "{weight_dtype: fp8, fleet: {hardware: [h200-sxm]}}",
        "cascade.part": "second",
        "sharing": "{by: device, models: [{name: guard, model: Qwen/Qwen3-0.6B, gpu_memory_utilization: 0.3}]}",
        "sharing.by": "mig",
        "sharing.models": "[{name: guard, model: Qwen/Qwen3-0.6B, gpu_memory_utilization: 0.3}]",
        "sharing.models.name": "guard",
        "sharing.models.model": "Qwen/Qwen3-0.6B",
        "sharing.models.revision": "main",
        "sharing.models.gpu_memory_utilization": "0.3",
        "sharing.models.changes": "{slo: {ttft_p95: 300 ms}}",
        "sharing.part": "guard",
    }
)
"""Key -> as it may be written."""

TABLES = {
    "speculation": "speculation.",
    "lora": "lora.",
    "cascade": "cascade.",
    "sharing": "sharing.",
    "shared_models": "sharing.models.",
}
"""Mark of the page -> the start of its keys."""

PAGE = """## speculation

<speculation>

## lora

<lora>

## cascade

Two models, of which the large one answers a share of the requests ([how they are planned](reference/traffic.md#cascades)).

<cascade>

## sharing

Models that share devices with the model of the scenario ([how they are planned](reference/traffic.md#several-models-on-the-same-gpus)).

<sharing>

### models

<shared_models>
"""
