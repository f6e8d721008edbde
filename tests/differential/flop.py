"""FLOP of the matrix products of a prefill: what torch counts while transformers runs, and what our operators demand.

Not compared: scores and values of attention but those of encoders (the reference multiplies the masked half of the others
too, and latent attention in another order), scans and convolutions of recurrent mixers, and anything elementwise. The LM head is left out: an engine
multiplies it for the last position of a prompt alone.
"""

import math
from typing import Any

from torch.nn import Linear
from torch.utils.flop_counter import FlopCounterMode

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.model.network import CROSS_KV, Attention
from capplan.operators.attention import bidirectional_pairs
from capplan.operators.experts import experts_flop
from capplan.operators.matmul import matmul_flop
from tests.differential.reference import ENCODERS, CannotBuildError, built, run_prefill
from tests.differential.small import small_file

_PRODUCTS = ("aten.mm", "aten.addmm")
_SCORES = ("aten.bmm",)
_TOKENS = 16
_WITHIN = 0.01

OTHERWISE = {
    "deberta": "the reference projects the table of positions again for every prompt",
    "deberta-v2": "the reference projects the table of positions again for every prompt",
    "deepseek_v4": "the reference multiplies the grouped output matrix as a batch",
    "llama4": "the reference multiplies every token with every expert, as a batch",
    "llama4_text": "the reference multiplies every token with every expert, as a batch",
    "longcat_flash": "its router also chooses experts without weights, how many depends on the text",
    "mllama": "a prompt without an image skips the cross-attention layers",
    "recurrent_gemma": "the reference multiplies the gates of the recurrence as a batch",
}
"""Types whose products the reference does otherwise, and how."""


def _reference_flop(file: dict[str, Any]) -> float:
    """Return the FLOP of the matrix products of a prefill of the file's model, its LM head left out."""
    model = built(file, "cpu")
    with FlopCounterMode(display=False) as counter:
        run_prefill(model, _TOKENS)
    counted = counter.get_flop_counts()["Global"]
    products = _PRODUCTS + _SCORES if file["model_type"] in ENCODERS else _PRODUCTS
    whole = sum(flop for operator, flop in counted.items() if str(operator) in products)
    heads = [
        m.weight.numel()
        for name, m in model.named_modules()
        if isinstance(m, Linear) and name.split(".")[-1] in ("lm_head", "embed_out", "proj_out")
    ]
    return float(whole - 2 * _TOKENS * sum(heads))


def _our_flop(file: dict[str, Any]) -> float:
    """Return the FLOP that our projections and experts, the attention of an encoder, and the encoder of a source demand for as many tokens."""
    total, tokens = 0.0, float(_TOKENS)
    network = read_network(file, "flop")
    if (encoder := network.encoder) is not None:
        tower = encoder.tower
        block = 4 * tower.hidden_size**2 + 2 * tower.hidden_size * tower.intermediate_size
        made = sum(
            p.inputs * p.outputs for layer in network.layers for p in layer.projections if p.name == CROSS_KV
        )
        total += 2.0 * encoder.positions * (tower.layers * block + made)
    for layer in network.layers:
        for mixer in layer.mixers:
            if isinstance(mixer, Attention) and not mixer.causal:
                pairs = bidirectional_pairs(tokens, float(mixer.window_tokens or math.inf))
                width = mixer.query_heads * (mixer.head_dim + mixer.value_head_dim)
                total += 2.0 * width * float(pairs)
        total += sum(float(matmul_flop(tokens, p.inputs, p.outputs)) for p in layer.projections if p.matmul)
        if (e := layer.experts) is not None:
            many = float(e.experts)
            widths = (float(e.experts_per_token), float(e.inputs), float(e.intermediate_size))
            total += float(experts_flop(tokens, many, many, *widths, e.gated))
    return total


def flop_difference(kind: str) -> str | None:
    """Return how far our demand is off for the small model of a type; empty within 1 %, None where it is not compared."""
    if kind in OTHERWISE:
        return None
    try:
        file = small_file(kind)
        ours, reference = _our_flop(file), _reference_flop(file)
    except (CannotBuildError, InputError):
        return None
    return "" if abs(ours / reference - 1.0) <= _WITHIN else f"{ours:.0f} FLOP for {reference:.0f}"
