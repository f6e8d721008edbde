"""RecurrentGemma (Griffin): two gated linear recurrences, then one local attention layer."""

from capplan.families.config import Config
from capplan.families.parts.blocks import attention, decoder, gated_mlp, heads, qkv
from capplan.model.network import Layer, Network, Projection, StateSpace

_KINDS = ("recurrent", "attention")


def read_recurrent_gemma(config: Config, name: str) -> Network:
    """Return a RecurrentGemma; a recurrence is represented as a state space with one state per channel."""
    shape = heads(config)
    hidden = shape.hidden_size
    width = config.optional("lru_width") or hidden
    kernel = config.dimension("conv1d_width", default=4, most=64)
    window = config.dimension("attention_window_size", default=2048)
    # the config states the width of gate and up together
    half = config.divisible("intermediate_size", config.dimension("intermediate_size"), "gate and up", 2)
    mlp = gated_mlp(hidden, half, bias=True)
    block = config.divisible("lru_width", width, "num_attention_heads", shape.query_heads)
    gates = Projection("gates", "state", block, 2 * width, "columns", bias=2 * width)
    recurrent = Layer(
        (StateSpace(1, width, 1, width, 1, 1, width, kernel),),
        (
            Projection("in_proj", "attention", hidden, 2 * width, "columns", bias=2 * width),
            gates,
            Projection("out_proj", "attention", width, hidden, "rows", bias=hidden),
            *mlp,
        ),
        None,
        2 * hidden,
        state_parameters=width * kernel + width + width,
    )
    inner = shape.query_heads * shape.head_dim
    attending = Layer(
        (attention(shape, window),),
        (
            qkv(shape, bias=config.flag("attention_bias", default=False)),
            Projection("o", "attention", inner, hidden, "rows", bias=hidden),
            *mlp,
        ),
        None,
        2 * hidden,
    )
    pattern = config.items("block_types", "_block_types") or ["recurrent", "recurrent", "attention"]
    for index, kind in enumerate(pattern):
        if kind not in _KINDS:
            raise config.error(
                f"block_types[{index}]", f"{kind!r} is not known", f"allowed: {', '.join(_KINDS)}"
            )
    layers = [
        attending if pattern[index % len(pattern)] == "attention" else recurrent
        for index in range(config.layers())
    ]
    return decoder(config, name, layers, hidden=hidden, tied_default=True)
