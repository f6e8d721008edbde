"""Gemma 1 to 4: wide heads, tied embeddings, from Gemma 2 on four norms and alternating windows.

In Gemma 3n and 4 some layers read the cache of earlier ones, and the smaller models have an embedding for each layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from capplan.families.config import Config
from capplan.families.parts.blocks import (
    Heads,
    attention,
    attention_output,
    decoder,
    gated_mlp,
    heads,
    qkv,
    with_tower,
    with_vision,
)
from capplan.families.parts.stacks import Traits, block_decoder, layer_windows, mixture, with_biases
from capplan.families.parts.vision import gemma3_vision, gemma4_unified_vision, gemma4_vision
from capplan.model.network import Layer, Network, Projection

_WIDE_HEAD = 512
"""Head size of full layers in a Gemma 4 file that does not state it."""


def _heads(config: Config) -> Heads:
    return heads(config, default_head_dim=256)


def read_gemma(config: Config, name: str) -> Network:
    """Return a Gemma 1."""
    return block_decoder(config, name, with_biases(config, Traits(tied=True)), shape=_heads(config))


def read_gemma2(config: Config, name: str) -> Network:
    """Return a Gemma 2: every second layer slides, beginning with the first; VaultGemma has no norms behind attention and feed-forward."""
    norms = 2 if config.model_type == "vaultgemma" else 4
    traits = with_biases(config, Traits(norms=norms, tied=True))
    layers = config.layers()
    window = config.dimension("sliding_window")
    windows = layer_windows(config, layers, window, default=[i % 2 == 0 for i in range(layers)])
    return block_decoder(config, name, traits, shape=_heads(config), windows=windows)


def window_of(config: Config, *, both_sides: bool) -> int | None:
    """Return the tokens that a sliding layer caches; a window that looks to both sides is divided between them."""
    window = config.optional("sliding_window")
    return window // 2 + 1 if window and both_sides else window


def read_gemma3_text(config: Config, name: str) -> Network:
    """Return a Gemma 3 without its vision tower: five sliding layers, then a full one."""
    traits = with_biases(config, Traits(norms=4, head_norms=True, tied=True))
    layers = config.layers()
    pattern = config.optional("sliding_window_pattern", "_sliding_window_pattern") or 6
    default = [(i + 1) % pattern != 0 for i in range(layers)]
    window = window_of(config, both_sides=config.flag("use_bidirectional_attention"))
    windows = layer_windows(config, layers, window, default=default)
    return block_decoder(config, name, traits, windows=windows)


def read_gemma3(config: Config, name: str) -> Network:
    """Return a Gemma 3 with its SigLIP vision tower."""
    return with_tower(read_gemma3_text(config.needed_section("text_config"), name), config, gemma3_vision)


@dataclass(frozen=True, slots=True)
class _PerLayerInput:
    """The second embedding, of which every layer reads its slice."""

    width: int
    vocabulary: int

    def table(self, layers: int) -> int:
        return self.vocabulary * layers * self.width

    def projections(self, hidden: int) -> tuple[Projection, ...]:
        if not self.width:
            return ()
        return (
            Projection("per_layer_gate", "ffn", hidden, self.width, "none"),
            Projection("per_layer_projection", "ffn", self.width, hidden, "none"),
        )

    def norms(self, hidden: int) -> int:
        return hidden if self.width else 0

    def first_layer(self, hidden: int, layers: int) -> tuple[Projection, ...]:
        """Return the matmul that every token passes once, before the first layer."""
        if not self.width:
            return ()
        return (Projection("per_layer_model_projection", "other", hidden, layers * self.width, "none"),)


def _per_layer_input(config: Config) -> _PerLayerInput:
    return _PerLayerInput(
        config.count("hidden_size_per_layer_input"),
        config.count("vocab_size_per_layer_input", default=262144),
    )


def _mixing(
    shape: Heads, *, cached: bool, bias: bool, keys_are_values: bool = False
) -> tuple[Projection, ...]:
    fused = qkv(shape)
    if not cached:
        outputs = shape.query_heads * shape.head_dim
        fused = replace(fused, name="q", outputs=outputs, kv_outputs=0, kv_heads=0)
    elif keys_are_values:
        keys = shape.kv_heads * shape.head_dim
        fused = replace(fused, outputs=fused.outputs - keys, kv_outputs=keys)
    return replace(fused, bias=fused.outputs if bias else 0), attention_output(shape, bias=bias)


def _head_norms(shape: Heads, *, cached: bool) -> int:
    return 2 * shape.head_dim if cached else shape.head_dim


def _first_sharing(config: Config, layers: int) -> int:
    shared = config.count("num_kv_shared_layers")
    if shared >= layers:
        raise config.error(
            "num_kv_shared_layers",
            f"{shared} of {layers} layers",
            f"allowed: a whole number from 0 to {layers - 1}",
        )
    return layers - shared


def read_gemma3n(config: Config, name: str) -> Network:
    """Return the text model of a Gemma 3n; four residual streams that every layer predicts and corrects."""
    config = config.section("text_config") or config
    hidden, layers = config.dimension("hidden_size"), config.layers()
    kv_heads, head_dim = config.dimension("num_key_value_heads"), config.dimension("head_dim")
    shape = Heads(hidden, config.dimension("num_attention_heads"), kv_heads, head_dim, head_dim)
    widths = config.per_layer("intermediate_size", layers=layers, default=16384)
    windows = layer_windows(
        config, layers, config.optional("sliding_window"), default=[(i + 1) % 5 != 0 for i in range(layers)]
    )
    bias = config.flag("attention_bias")
    streams, rank = config.dimension("altup_num_inputs"), config.dimension("laurel_rank")
    extra = _per_layer_input(config)
    beside = (
        Projection("laurel_left", "ffn", hidden, rank, "none"),
        Projection("laurel_right", "ffn", rank, hidden, "none"),
        *extra.projections(hidden),
        Projection("altup_router", "router", hidden, streams, "none"),
    )
    altup = hidden + hidden + streams * streams + streams * streams * streams
    first_sharing = _first_sharing(config, layers)
    stack: list[Layer] = []
    for i, (width, window) in enumerate(zip(widths, windows, strict=True)):
        cached = i < first_sharing
        matmuls = (*_mixing(shape, cached=cached, bias=bias), *gated_mlp(hidden, width), *beside)
        norms = 6 * hidden + _head_norms(shape, cached=cached) + altup
        stack.append(Layer((attention(shape, window, cached=cached),), matmuls, None, norms))
    stream = Projection("altup_projection", "other", hidden, hidden, "none")
    before = extra.first_layer(hidden, layers) + (stream,) * (streams - 1)
    stack[0] = replace(stack[0], projections=before + stack[0].projections)
    stack[0] = replace(stack[0], norm_parameters=stack[0].norm_parameters + extra.width)
    stack[-1] = replace(stack[-1], projections=stack[-1].projections + (stream,) * (streams - 1))
    table = config.dimension("vocab_size") * hidden + extra.table(layers)
    return decoder(config, name, stack, hidden=hidden, tied_default=True, embedding_parameters=table)


def read_gemma3n_whole(config: Config, name: str) -> Network:
    """Return a Gemma 3n; its vision and audio towers are not counted."""
    config.uncounted("the vision and audio towers of Gemma 3n are not counted")
    return with_vision(read_gemma3n(config, name), config, 0)


def _gemma4_feed_forward(
    config: Config, hidden: int, *, sharing: bool
) -> tuple[tuple[Projection, ...], Layer]:
    """Return the dense matmuls, and a layer that holds router and experts where they are enabled."""
    width = config.dimension("intermediate_size")
    if sharing and config.flag("use_double_wide_mlp"):
        width *= 2
    dense = gated_mlp(hidden, width)
    if not config.flag("enable_moe_block"):
        config.unused("moe_intermediate_size", "num_experts", "top_k_experts")
        return dense, Layer((), ())
    experts = config.dimension("num_experts")
    wide = ("moe_intermediate_size", "expert_intermediate_size")
    matmuls, routed = mixture(config, hidden, wide, experts=experts, chosen="top_k_experts")
    return dense, Layer((), matmuls, routed, norm_parameters=3 * hidden + hidden + experts)


def _heads_of_layers(config: Config, windows: Sequence[int | None]) -> list[Heads]:
    """Return the heads of each layer: full layers are wider; newer files state what differs layer by layer."""
    query_heads, kv_heads = config.dimension("num_attention_heads"), config.dimension("num_key_value_heads")
    hidden, narrow = config.dimension("hidden_size"), config.dimension("head_dim")
    usual = Heads(hidden, query_heads, kv_heads, narrow, narrow)
    config.unused("global_head_dim", "num_global_key_value_heads")
    overrides = config.section("per_layer_config")
    if overrides is not None:
        return [
            _overridden(overrides.section(*(str(i), f"{i:02d}", f"{i:03d}")), usual)
            for i in range(len(windows))
        ]
    wide = config.optional("global_head_dim") or _WIDE_HEAD
    same = config.flag("attention_k_eq_v")
    global_kv_heads = (config.optional("num_global_key_value_heads") if same else None) or kv_heads
    full = Heads(hidden, query_heads, global_kv_heads, wide, wide)
    return [full if window is None else usual for window in windows]


def _overridden(override: Config | None, usual: Heads) -> Heads:
    if override is None:
        return usual
    head_dim = override.optional("head_dim") or usual.head_dim
    kv_heads = override.optional("num_key_value_heads") or usual.kv_heads
    return replace(usual, kv_heads=kv_heads, head_dim=head_dim, value_head_dim=head_dim)


def read_gemma4_text(config: Config, name: str) -> Network:
    """Return the text model of a Gemma 4: full layers have wider heads, may share keys and values."""
    hidden, layers = config.dimension("hidden_size"), config.layers()
    same, bias = config.flag("attention_k_eq_v"), config.flag("attention_bias")
    default = [(i + 1) % 6 != 0 for i in range(layers)]
    window = window_of(config, both_sides=config.text("use_bidirectional_attention") == "all")
    windows = list(layer_windows(config, layers, window, default=default))
    windows[-1] = None
    extra = _per_layer_input(config)
    first_sharing = _first_sharing(config, layers)
    made: dict[tuple[Heads, int | None, bool], Layer] = {}
    stack = []
    for i, (shape, window) in enumerate(zip(_heads_of_layers(config, windows), windows, strict=True)):
        cached = i < first_sharing
        if (shape, window, cached) not in made:
            dense, mixed = _gemma4_feed_forward(config, hidden, sharing=not cached)
            matmuls = _mixing(shape, cached=cached, bias=bias, keys_are_values=same and window is None)
            norms = 4 * hidden + extra.norms(hidden) + _head_norms(shape, cached=cached)
            norms += mixed.norm_parameters
            made[shape, window, cached] = Layer(
                (attention(shape, window, cached=cached),),
                (*matmuls, *dense, *mixed.projections, *extra.projections(hidden)),
                mixed.experts,
                norms,
            )
        stack.append(made[shape, window, cached])
    first = stack[0]
    stack[0] = replace(
        first,
        projections=extra.first_layer(hidden, layers) + first.projections,
        norm_parameters=first.norm_parameters + extra.width,
    )
    table = config.dimension("vocab_size") * hidden + extra.table(layers)
    return decoder(config, name, stack, hidden=hidden, tied_default=True, embedding_parameters=table)


def read_gemma4(config: Config, name: str) -> Network:
    """Return a Gemma 4 with its vision tower; the unified one has a matrix for patches and one for sound instead of towers."""
    network = read_gemma4_text(config.needed_section("text_config"), name)
    if config.model_type == "gemma4_unified":
        sound = config.section("audio_config")
        frames = sound.dimension("audio_embed_dim") if sound else 0
        return with_tower(
            network, config, lambda vision, hidden: gemma4_unified_vision(vision, hidden) + frames * hidden
        )
    if config.has("audio_config"):
        config.uncounted("the audio tower is not counted")
    return with_tower(network, config, gemma4_vision)
