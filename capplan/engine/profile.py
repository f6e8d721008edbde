"""What a serving engine of a version does: scheduling, defaults, memory accounting, host overhead."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Policy: TypeAlias = Literal["mixed", "prefill_first", "static"]


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How an engine forms its steps.

    mixed : decode tokens first, then prefill chunks up to the token budget, in one step (vLLM V1, TensorRT-LLM)
    prefill_first : waiting prompts are prefilled in steps of their own before decoding goes on (SGLang, vLLM V0)
    static : one batch starts and ends together
    """

    policy: Policy
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked: bool = True
    """A prompt may be cut to fill the budget; otherwise it waits until it fits whole."""
    block_tokens: int = 16


@dataclass(frozen=True, slots=True)
class HostOverhead:
    """Time that the host adds to what the device does, in seconds."""

    step_s: float = 0.0
    """Per step, not overlapped with the device."""
    sequence_s: float = 0.0
    """Per running sequence and step (scheduling, sampling, detokenisation)."""
    prefill_token_s: float = 0.0
    """Per prompt token (tokenisation, input preparation)."""
    request_s: float = 0.0
    """Per request, before its first token: HTTP, tokenisation, first streaming chunk."""
    eager_layer_s: float = 0.0
    """Per layer of a step that does not run under CUDA graphs: launches that the device waits for."""
