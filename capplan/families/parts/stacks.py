"""Whole stacks of attention and feed-forward, which most families are up to a few traits."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Heads,
    Part,
    attention,
    attention_output,
    decoder,
    decoder_layer,
    gated_mlp,
    heads,
    plain_mlp,
    qkv,
    routed,
    router,
)
from capplan.model.network import Layer, Network, Projection, Routing

T = TypeVar("T")
Counted: TypeAlias = int | str | tuple[str, ...]
"""A number, or the key that states it under one name or several."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What distinguishes the attention and feed-forward blocks of most families."""

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    gated: bool = True
    norms: int = 2
    """Norms of the hidden size per layer."""
    norm_bias: bool = False
    """Layer norm with bias instead of RMS norm."""
    head_norms: bool = False
    """A query norm and a key norm, each as wide as one head."""
    qk_norm_over_all_heads: bool = False
    """A query norm and a key norm over all heads at once."""
    tied: bool = False
    """What a missing tie_word_embeddings means."""
    sinks: bool = False
    output_gate: Literal["none", "heads", "channels"] = "none"
    """A gate on what attention gives out: one number for each query head, or one for each of its channels."""
    final_norm: bool = True
    causal: bool = True
    """False in encoders, where a token sees those after it too."""


_PLAIN = Traits()


def with_biases(config: Config, traits: Traits = _PLAIN) -> Traits:
    """Return the traits with biases in all matrices of attention if `attention_bias` says so."""
    bias = config.flag("attention_bias")
    return replace(traits, qkv_bias=bias, output_bias=bias)


def _attention_norms(shape: Heads, traits: Traits) -> int:
    """Return the norm and sink parameters inside attention."""
    count = shape.query_heads if traits.sinks else 0
    if traits.head_norms:
        count += 2 * shape.head_dim
    if traits.qk_norm_over_all_heads:
        count += (shape.query_heads + shape.kv_heads) * shape.head_dim
    return count


def block(
    shape: Heads, traits: Traits, feed_forward: Part, *, window: int | None = None, chunked: bool = False
) -> Layer:
    """Return one layer of attention and feed-forward."""
    width = shape.hidden_size * (2 if traits.norm_bias else 1)
    norms: Literal["none", "head", "wide"] = (
        "head" if traits.head_norms else "wide" if traits.qk_norm_over_all_heads else "none"
    )
    gates = {"none": 0, "heads": shape.query_heads, "channels": shape.query_heads * shape.head_dim}
    gate = gates[traits.output_gate]
    return decoder_layer(
        attention(shape, window, chunked=chunked, query_key_norms=norms, causal=traits.causal),
        (
            qkv(shape, bias=traits.qkv_bias),
            *((Projection("gate", "attention", shape.hidden_size, gate, "columns"),) if gate else ()),
            attention_output(shape, bias=traits.output_bias),
        ),
        feed_forward,
        traits.norms * width + _attention_norms(shape, traits),
    )


def once_each(make: Callable[..., T], keys: Iterable[tuple[Any, ...]]) -> list[T]:
    """Return what is made of each key, made once for all keys that are equal: most layers of a network are alike."""
    listed = list(keys)
    made = {key: make(*key) for key in dict.fromkeys(listed)}
    return [made[key] for key in listed]


def dense_mlp(config: Config, shape: Heads, traits: Traits, *keys: str) -> Part:
    """Return the dense feed-forward that `intermediate_size` (or the keys given) describes."""
    intermediate = config.dimension(*(keys or ("intermediate_size",)))
    make = gated_mlp if traits.gated else plain_mlp
    return make(shape.hidden_size, intermediate, bias=traits.mlp_bias), None


def block_decoder(
    config: Config,
    name: str,
    traits: Traits,
    parts: Sequence[Part] | None = None,
    *,
    shape: Heads | None = None,
    windows: Sequence[int | None] | None = None,
    head_bias: bool = False,
) -> Network:
    """Return a network of blocks that differ at most in feed-forward and window.

    Without `parts` every layer has the dense feed-forward of `intermediate_size`.
    """
    shape = shape or heads(config)
    if parts is None:
        layers = config.layers()
        parts = [dense_mlp(config, shape, traits)] * layers
    stack = once_each(
        lambda part, window: block(shape, traits, part, window=window),
        zip(parts, windows or [None] * len(parts), strict=True),
    )
    final = shape.hidden_size * (2 if traits.norm_bias else 1) if traits.final_norm else 0
    return decoder(
        config,
        name,
        stack,
        hidden=shape.hidden_size,
        tied_default=traits.tied,
        final_norm=final,
        head_bias=head_bias,
    )


def _names(keys: str | tuple[str, ...]) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else keys


def mixture(
    config: Config,
    hidden: int,
    intermediate: Counted,
    *,
    experts: Counted = "num_experts",
    chosen: Counted = "num_experts_per_tok",
    shared: Counted = 0,
    shared_gate: bool = False,
    router_bias: bool = False,
    router_in: str | None = None,
    expert_bias: bool = False,
) -> Part:
    """Return a mixture of experts: router, shared experts as one dense feed-forward, routed experts."""
    count, each, width = (
        one if isinstance(one, int) else config.dimension(*_names(one))
        for one in (experts, chosen, intermediate)
    )
    beside = shared if isinstance(shared, int) else config.count(*_names(shared))
    matmuls: tuple[Projection, ...] = (router(hidden, count, bias=router_bias, multiplied_in=router_in),)
    if beside:
        matmuls += gated_mlp(hidden, beside, tensor_class="shared_expert")
    if shared_gate:
        matmuls += (Projection("shared_gate", "shared_expert", hidden, 1, "none"),)
    bias = 2 * width + hidden if expert_bias else 0
    return matmuls, routed(config, count, each, hidden, width, bias=bias)


def routed_by(part: Part, routing: Routing) -> Part:
    """Return a mixture of experts whose tokens choose their experts in a certain way."""
    matmuls, experts = part
    return matmuls, experts and replace(experts, routing=routing)


def mixtral_mixture(config: Config, hidden: int, *, shared: int = 0) -> Part:
    """Return a mixture in the keys of Mixtral: every expert as wide as a dense feed-forward, two per token."""
    return mixture(config, hidden, "intermediate_size", experts="num_local_experts", shared=shared)


def deepseek_mixture(config: Config, hidden: int, *, shared_experts: int = 0) -> Part:
    """Return a mixture in the keys of DeepSeek: shared experts as wide as routed ones; `shared_experts` of them where the file does not say."""
    width = config.dimension("moe_intermediate_size")
    experts, chosen = config.dimension("n_routed_experts"), config.dimension("num_experts_per_tok")
    shared = config.count("n_shared_experts", default=shared_experts) * width
    part = mixture(config, hidden, width, experts=experts, chosen=chosen, shared=shared)
    return routed_by(part, "grouped")


def parts_by_layer(
    config: Config, shape: Heads, traits: Traits, sparse: Part, is_sparse: Sequence[bool]
) -> list[Part]:
    """Return the feed-forward of each layer; the keys of the dense one are read only where a layer uses it."""
    config.unused("intermediate_size")
    dense = sparse if all(is_sparse) else dense_mlp(config, shape, traits)
    return [sparse if mixed else dense for mixed in is_sparse]


def parts_after(config: Config, dense: Part, sparse: Part, layers: int, first_sparse: int) -> list[Part]:
    """Return dense layers first, then mixtures; `mlp_layer_types` takes precedence where it is given."""
    usual = [dense if i < first_sparse else sparse for i in range(layers)]
    return config.kinds(
        "mlp_layer_types", layers=layers, known={"dense": dense, "sparse": sparse}, default=usual
    )


_SLIDES = {"full_attention": False, "sliding_attention": True, "chunked_attention": True}


def layer_windows(
    config: Config, layers: int, window: int | None, *, default: Iterable[bool] | None = None
) -> tuple[int | None, ...]:
    """Return the window of each layer, from `layer_types` or from the default (True: sliding).

    Examples
    --------
    >>> typed = Config({"layer_types": ["sliding_attention", "full_attention"]}, "config.json")
    >>> layer_windows(typed, 2, 4096), layer_windows(Config({}, "config.json"), 2, 4096, default=[False, True])
    ((4096, None), (None, 4096))
    """
    usual = [window is not None] * layers if default is None else list(default)
    slides = config.kinds("layer_types", layers=layers, known=_SLIDES, default=usual)
    if any(slides) and window is None:
        raise config.missing("sliding_window")
    return tuple(window if sliding else None for sliding in slides)


def with_next_token_layers(config: Config, network: Network, last: Layer) -> Network:
    """Return the network with its multi-token-prediction layers: each a layer like the last one, a merging matmul and three norms."""
    count = config.count("num_nextn_predict_layers")
    if not count:
        return network
    hidden = network.hidden_size
    dense = (
        sum(p.parameters for p in last.projections) + last.norm_parameters + 2 * hidden * hidden + 3 * hidden
    )
    experts = replace(last.experts, experts=last.experts.experts * count) if last.experts else None
    total = count * (dense + (last.experts.parameters if last.experts else 0))
    return replace(network, mtp_parameters=total, mtp_experts=experts)
