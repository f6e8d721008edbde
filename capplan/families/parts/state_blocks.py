"""The mixers with a fixed state that families share: Mamba-1, Mamba-2, gated delta net."""

from dataclasses import dataclass

from capplan.families.config import Config
from capplan.families.parts.blocks import Part
from capplan.model.network import Layer, LinearAttention, Mixer, Projection, StateSpace


@dataclass(frozen=True, slots=True)
class StateBlock:
    """A mixer with its matmuls and its small tensors."""

    mixer: Mixer
    projections: tuple[Projection, ...]
    state_parameters: int
    """Convolution taps and biases, A, D, dt bias."""
    norm_parameters: int = 0
    split_norm_parameters: int = 0
    """The part of `norm_parameters` that tensor-parallel ranks divide, as they divide the heads under it."""

    def layer(self, norms: int, feed_forward: Part = ((), None)) -> Layer:
        """Return a layer of this mixer and a feed-forward, with `norms` norm parameters around them."""
        matmuls, experts = feed_forward
        return Layer(
            (self.mixer,),
            (*self.projections, *matmuls),
            experts,
            norms + self.norm_parameters,
            split_norm_parameters=self.split_norm_parameters,
            state_parameters=self.state_parameters,
        )


@dataclass(frozen=True, slots=True)
class Mamba2Shape:
    """The sizes of a Mamba-2 mixer."""

    heads: int
    head_dim: int
    state: int
    """Elements of the state per channel."""
    groups: int
    """Groups of heads that share B and C."""
    kernel: int
    """Taps of the convolution."""
    chunk: int
    """Tokens that a scan takes at once."""


def rank_of(config: Config, key: str, hidden: int) -> int:
    """Return the rank of the step-size projection; "auto" is hidden / 16, rounded up.

    Examples
    --------
    >>> rank_of(Config({"dt_rank": "auto"}, "config.json"), "dt_rank", 2600), rank_of(Config({"dt_rank": 64}, "x"), "dt_rank", 2600)
    (163, 64)
    """
    value = config.first_present(key)[1]
    if value is None or value == "auto":
        return -(-hidden // 16)
    return config.dimension(key)


def mamba1(
    hidden: int,
    *,
    inner: int,
    state: int,
    kernel: int,
    dt_rank: int,
    bias: bool,
    conv_bias: bool,
    inner_norms: bool = False,
) -> StateBlock:
    """Return a Mamba-1 block; `inner_norms` are Jamba's norms of step size, B and C."""
    projections = (
        Projection("in_proj", "attention", hidden, 2 * inner, "columns", bias=2 * inner if bias else 0),
        Projection("x_proj", "state", inner, dt_rank + 2 * state, "rows"),
        Projection("dt_proj", "state", dt_rank, inner, "columns", bias=inner),
        Projection("out_proj", "attention", inner, hidden, "rows", bias=hidden if bias else 0),
    )
    taps = inner * kernel + (inner if conv_bias else 0)
    return StateBlock(
        StateSpace(1, inner, 1, inner, state, 1, inner, kernel),
        projections,
        taps + inner * state + inner,
        dt_rank + 2 * state if inner_norms else 0,
    )


def mamba2(
    config: Config,
    hidden: int,
    shape: Mamba2Shape,
    *,
    bias: bool,
    conv_bias: bool,
    output_bias: bool | None = None,
    gated_norm: bool = True,
    state_format: str = "fp32",
    state_stated: bool = False,
) -> StateBlock:
    """Return a Mamba-2 block: one input matmul for gate, x, B, C and step size; `output_bias` where the other matmul has its own key."""
    output_bias = bias if output_bias is None else output_bias
    inner, kernel = shape.heads * shape.head_dim, shape.kernel
    config.divisible("mamba heads", shape.heads, "groups", shape.groups)
    shared = 2 * shape.groups * shape.state
    channels = inner + shared
    outputs = inner + channels + shape.heads
    projections = (
        Projection(
            "in_proj", "attention", hidden, outputs, "columns", bias=outputs if bias else 0,
            kv_outputs=shared, kv_heads=shape.groups,
        ),
        Projection("out_proj", "attention", inner, hidden, "rows", bias=hidden if output_bias else 0),
    )  # fmt: skip
    taps = channels * kernel + (channels if conv_bias else 0)
    return StateBlock(
        StateSpace(
            2,
            inner,
            shape.heads,
            shape.head_dim,
            shape.state,
            shape.groups,
            channels,
            kernel,
            state_format,
            state_stated,
            shape.chunk,
        ),
        projections,
        taps + 3 * shape.heads,
        inner if gated_norm else 0,
        inner if gated_norm else 0,
    )


def gated_delta_net(
    config: Config,
    hidden: int,
    *,
    default_heads: tuple[int, int] = (16, 32),
    default_key_dim: int | None = None,
) -> StateBlock:
    """Return the gated delta net of Qwen3-Next, Qwen3.5 and OLMo Hybrid: one matmul for q, k, v and gate, one for beta and alpha.

    `default_heads` are those of keys and of values; without a `default_key_dim` both are 128 wide, else values are twice as wide.
    """
    key_heads = config.dimension("linear_num_key_heads", default=default_heads[0])
    value_heads = config.dimension("linear_num_value_heads", default=default_heads[1])
    key_dim = config.dimension("linear_key_head_dim", default=default_key_dim or 128)
    value_dim = config.dimension("linear_value_head_dim", default=2 * key_dim if default_key_dim else 128)
    kernel = config.dimension("linear_conv_kernel_dim")
    config.divisible("linear_num_value_heads", value_heads, "linear_num_key_heads", key_heads)
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    inner = value_heads * value_dim
    mixer = LinearAttention(
        "gated_delta", key_heads, value_heads, key_dim, value_dim,
        conv_channels=channels, conv_kernel=kernel, state_elements=value_heads * key_dim * value_dim,
        state_format=state_format(config, "mamba_ssm_dtype"), state_stated=config.has("mamba_ssm_dtype"),
    )  # fmt: skip
    projections = (
        Projection("in_proj_qkvz", "attention", hidden, channels + inner, "columns"),
        Projection("in_proj_ba", "state", hidden, 2 * value_heads, "columns"),
        Projection("out_proj", "attention", inner, hidden, "rows"),
    )
    return StateBlock(mixer, projections, channels * kernel + 2 * value_heads, value_dim)


_STATE_FORMATS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def state_format(config: Config, *keys: str) -> str:
    """Return the format of the recurrent state; fp32, as in the reference implementation, where no key states it.

    Examples
    --------
    >>> state_format(Config({"dtype": "torch.bfloat16"}, "config.json"), "dtype"), state_format(Config({}, "x"), "dtype")
    ('bf16', 'fp32')
    """
    name = config.text(*keys, default="float32").removeprefix("torch.")
    if name not in _STATE_FORMATS:
        raise config.error(keys[0], f"{name!r} is not known", f"allowed: {', '.join(_STATE_FORMATS)}")
    return _STATE_FORMATS[name]
