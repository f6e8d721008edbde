"""Encoders, which read a prompt in both directions (BERT and its kin, ModernBERT, T5), and Whisper, whose decoder attends to one."""

from collections.abc import Sequence
from dataclasses import replace

from capplan.families.config import MOST_LAYERS, Config
from capplan.families.model_config import labels_of, stated_class, unknown_head
from capplan.families.parts.blocks import Heads, attention_output, decoder, gated_mlp, heads, plain_mlp, qkv
from capplan.families.parts.blocks import attention as self_attention
from capplan.families.parts.stacks import Traits, block, dense_mlp, layer_windows
from capplan.families.parts.towers import encoder_block, linear
from capplan.model.images import Tower
from capplan.model.network import CROSS_KV, CrossAttention, Encoder, Layer, Network, Projection
from capplan.model.parameters import layer_parameters

_BERT = Traits(qkv_bias=True, output_bias=True, mlp_bias=True, gated=False, norm_bias=True, causal=False)
_WITH_POOLER = ("albert", "bert", "camembert", "jina_embeddings_v3", "mpnet", "roberta", "xlm-roberta")
"""Types whose class without a head ends in a dense layer over the first token."""
_FROM_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta")
"""Types that count positions from the padding token on, so that a table of 514 rows is for 512 tokens."""
_BIAS_OF_MASKED = {"modernbert": ("decoder_bias", True), "eurobert": ("mlp_bias", False)}
"""Types whose head for masked tokens has a bias where a key says so, and what it means where it is missing; the others have one."""


def read_bert(config: Config, name: str) -> Network:
    """Return a BERT or one of its kin: learned positions, but in Jina Embeddings 3, whose are rotary."""
    _only(config, "position_embedding_type", "absolute")
    _refuse(config, "is_decoder", "add_cross_attention")
    kind = config.model_type
    shape = heads(config)
    width = config.dimension("embedding_size") if kind == "electra" else shape.hidden_size
    positions = config.dimension("max_position_embeddings")
    learned = 0 if kind == "jina_embeddings_v3" else positions
    types = config.dimension("type_vocab_size", least=0) if kind not in ("distilbert", "mpnet") else 0
    wide = "hidden_dim" if kind == "distilbert" else "intermediate_size"
    layer = block(shape, _BERT, dense_mlp(config, shape, _BERT, wide))
    stack = [layer] * config.layers()
    if width != shape.hidden_size:
        into = Projection("project_in", "other", width, shape.hidden_size, "none", bias=shape.hidden_size)
        stack[0] = replace(layer, projections=(into, *layer.projections))
    network = _encoder(
        config, name, stack, hidden=shape.hidden_size, norms=2 * width,
        rows=config.dimension("vocab_size") + learned + types, width=width,
    )  # fmt: skip
    if kind == "mpnet":
        biases = config.dimension("relative_attention_num_buckets") * shape.query_heads
        network = replace(network, other_parameters=biases)
    if kind in _FROM_PADDING:
        before = config.count("pad_token_id", default=1) + 1
        if positions <= before:
            raise config.error(
                "max_position_embeddings",
                f"{positions} leaves no position for a token",
                f"allowed: above {before}",
            )
        network = replace(network, max_context_tokens=positions - before)
    config.unused("sinusoidal_pos_embds", "output_past", "directionality", "tie_weights_")
    return _with_head(network, config, width=width)


def read_albert(config: Config, name: str) -> Network:
    """Return an ALBERT: a BERT whose layers share the weights of a few groups, after a projection of narrow embeddings."""
    _only(config, "position_embedding_type", "absolute")
    shape = heads(config)
    width, hidden = config.dimension("embedding_size"), shape.hidden_size
    count, groups = config.layers(), config.dimension("num_hidden_groups")
    inner = config.dimension("inner_group_num", most=MOST_LAYERS // count)
    layer = block(shape, _BERT, dense_mlp(config, shape, _BERT))
    again = replace(
        layer,
        projections=tuple(replace(one, owns_weights=False) for one in layer.projections),
        norm_parameters=0,
    )
    group_of = [index * groups // count for index in range(count)]
    unused = groups - len(set(group_of))
    stack = []
    for index, group in enumerate(group_of):
        stack += [again if group in group_of[:index] else layer] * inner
    into = Projection("project_in", "other", width, hidden, "none", bias=hidden)
    stack[0] = replace(layer, projections=(into, *layer.projections))
    network = _encoder(
        config, name, stack, hidden=hidden, norms=2 * width, width=width,
        rows=config.dimension("vocab_size") + config.dimension("max_position_embeddings") + config.dimension("type_vocab_size", least=0),
    )  # fmt: skip
    network = replace(network, other_parameters=unused * inner * layer_parameters(layer))
    return _with_head(network, config, width=width)


def read_deberta(config: Config, name: str) -> Network:
    """Return a DeBERTa 1, 2 or 3: a BERT whose scores add products of queries and keys with a table of relative positions.

    The table is projected once for all prompts; each token is multiplied with its `2 r` rows, as a matrix of hidden size x 2 r.
    """
    shape, later = heads(config), config.model_type == "deberta-v2"
    hidden = shape.hidden_size
    sizes = {"attention_head_size": shape.head_dim}
    if stated_class(config).endswith("ForSequenceClassification"):
        sizes["pooler_hidden_size"] = hidden
    for key, size in sizes.items():
        if config.optional(key) not in (None, size):
            raise config.error(key, f"{config.values[key]!r} is not modelled", f"allowed: {size}")
    width = config.optional("embedding_size") or hidden
    learned = config.dimension("max_position_embeddings") if config.flag("position_biased_input") else 0
    layer = block(shape, _BERT, dense_mlp(config, shape, _BERT))
    other = table = 0
    config.unused("max_relative_positions", "pos_att_type", "position_buckets", "share_att_key")
    if config.flag("relative_attention"):
        layer, other, table = _with_relative_positions(config, layer, shape, later=later)
    fused, *rest = layer.projections
    fused = fused if later else replace(fused, bias=2 * hidden)  # keys have none
    if not later and config.flag("talking_head"):
        other += 2 * shape.query_heads**2
    layer = replace(layer, projections=(fused, *rest), other_parameters=other)
    stack = [layer] * config.layers()
    outside = 2 * hidden
    if later:
        normed = "layer_norm" in config.text("norm_rel_ebd", default="none").lower()
        outside += 2 * hidden if normed else 0
        if kernel := config.count("conv_kernel_size"):
            inputs = kernel * config.divisible(
                "hidden_size", hidden, "conv_groups", config.optional("conv_groups") or 1
            )
            convolution = Projection("convolution", "other", inputs, hidden, "none", bias=hidden)
            stack[0] = replace(
                layer,
                projections=(*layer.projections, convolution),
                norm_parameters=layer.norm_parameters + 2 * hidden,
            )
    if width != hidden:
        into = Projection("project_in", "other", width, hidden, "none")
        stack[0] = replace(stack[0], projections=(into, *stack[0].projections))
    rows = config.dimension("vocab_size") + learned + config.count("type_vocab_size")
    network = _encoder(config, name, stack, hidden=hidden, norms=outside, rows=rows, width=width)
    network = replace(network, other_parameters=table * hidden)
    config.unused(
        "conv_act", "legacy", "pooler_hidden_size", "pooler_dropout", "pooler_hidden_act", "cls_dropout"
    )
    return _with_head(network, config, width=width)


def _with_relative_positions(
    config: Config, layer: Layer, shape: Heads, *, later: bool
) -> tuple[Layer, int, int]:
    """Return a layer that multiplies with relative positions, the parameters that project them there, and the rows of their table."""
    reach = config.first_present("max_relative_positions")[1]
    if reach in (None, -1, 0):
        reach = config.dimension("max_position_embeddings")
    else:
        reach = config.dimension("max_relative_positions")
    buckets = config.first_present("position_buckets")[1] if later else None
    if buckets not in (None, -1, 0):
        reach = config.dimension("position_buckets")
    stated = config.first_present("pos_att_type")[1] or []
    kinds = [part.strip() for part in stated.lower().split("|")] if isinstance(stated, str) else stated
    ways = [kind for kind in ("c2p", "p2c") if kind in kinds]
    hidden = shape.hidden_size
    products = tuple(
        Projection(kind, "attention", hidden, 2 * reach, "columns", owns_weights=False) for kind in ways
    )
    shared = later and config.flag("share_att_key")
    biased = len(ways) if later else ways.count("p2c")
    projected = 0 if shared else len(ways) * hidden * hidden + biased * hidden
    fused, *rest = layer.projections
    return replace(layer, projections=(fused, *products, *rest)), projected, 2 * reach


def read_t5_encoder(config: Config, name: str) -> Network:
    """Return the encoder of a T5, mT5 or umT5 by itself, as it serves vectors; with a decoder it is not modelled."""
    kind, stated = config.model_type, stated_class(config)
    if not stated.endswith("EncoderModel"):
        raise config.error(
            "architectures",
            f"{stated or kind!r} is an encoder-decoder that vLLM and SGLang do not serve; its encoder by itself is modelled",
            "allowed: T5EncoderModel, MT5EncoderModel, UMT5EncoderModel",
        )
    hidden, count = config.dimension("d_model"), config.layers("num_layers")
    query_heads, width = config.dimension("num_heads", most=100_000), config.dimension("d_kv")
    gated = config.text("feed_forward_proj", default="relu").startswith("gated")
    traits = Traits(gated=gated, causal=False)
    shape = Heads(hidden, query_heads, query_heads, width, width)
    layer = block(shape, traits, dense_mlp(config, shape, traits, "d_ff"))
    network = _encoder(
        config,
        name,
        [layer] * count,
        hidden=hidden,
        norms=hidden,
        rows=config.dimension("vocab_size"),
        width=hidden,
    )
    biases = config.dimension("relative_attention_num_buckets") * query_heads
    config.unused(
        "num_decoder_layers", "relative_attention_max_distance", "n_positions", "tie_word_embeddings"
    )
    config.notes.append("an encoder: prompts are read whole and in both directions, and nothing is cached")
    return replace(
        network,
        other_parameters=biases * (count if kind == "umt5" else 1),
        notes=tuple(config.notes),
        keys_used=tuple(config.keys_used),
    )


def read_gte(config: Config, name: str) -> Network:
    """Return a GTE of Alibaba's own class (gte-base-en-v1.5, gte-multilingual): rotary positions, a gate without biases."""
    _only(config, "position_embedding_type", "rope")
    _only(config, "layer_norm_type", "layer_norm")
    _refuse(config, "logn_attention_scale")
    config.unused("pack_qkv", "unpad_inputs", "use_memory_efficient_attention", "logn_attention_clip1")
    shape = heads(config)
    hidden = shape.hidden_size
    up, down = gated_mlp(hidden, config.dimension("intermediate_size"))
    layer = block(shape, _BERT, ((up, replace(down, bias=hidden)), None))
    network = _encoder(
        config, name, [layer] * config.layers(), hidden=hidden, norms=2 * hidden,
        rows=config.dimension("vocab_size") + config.count("type_vocab_size"), width=hidden,
    )  # fmt: skip
    return _with_head(network, config, width=hidden)


def read_eurobert(config: Config, name: str) -> Network:
    """Return an EuroBERT: a Llama without a causal mask."""
    bias = config.flag("attention_bias")
    mlp_bias = config.flag("mlp_bias")
    traits = Traits(qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias, causal=False)
    shape = heads(config)
    layer = block(shape, traits, dense_mlp(config, shape, traits))
    hidden = shape.hidden_size
    network = _encoder(
        config,
        name,
        [layer] * config.layers(),
        hidden=hidden,
        norms=hidden,
        rows=config.dimension("vocab_size"),
        width=hidden,
    )
    return _with_head(network, config, width=hidden)


def read_nomic_bert(config: Config, name: str) -> Network:
    """Return a Nomic Embed: BERT with rotary positions, a gate, and no biases but those of norms; also in the names of GPT-2."""
    flags = ("causal", "prenorm", "parallel_block", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
    _refuse(config, *flags, "use_rms_norm", "moe_every_n_layers")
    _only(config, "activation_function", "swiglu")
    hidden = config.dimension("hidden_size", "n_embd")
    count = config.dimension("num_attention_heads", "n_head", most=100_000)
    head_dim = config.optional("head_dim") or config.divisible("hidden_size", hidden, "heads", count)
    shape = Heads(hidden, count, count, head_dim, head_dim)
    traits = Traits(norm_bias=True, causal=False)
    layer = block(shape, traits, dense_mlp(config, shape, traits, "intermediate_size", "n_inner"))
    network = _encoder(
        config, name, [layer] * config.layers("num_hidden_layers", "n_layer"), hidden=hidden, norms=2 * hidden,
        rows=config.dimension("vocab_size") + config.dimension("type_vocab_size", least=0), width=hidden,
    )  # fmt: skip
    trained = config.optional("max_trained_positions")
    if trained is not None:
        network = replace(network, max_context_tokens=min(trained, network.max_context_tokens or trained))
    return _with_head(network, config, width=hidden)


def read_modernbert(config: Config, name: str) -> Network:
    """Return a ModernBERT: two of three layers see a window around each token; the first layer has no norm before attention."""
    shape = heads(config)
    hidden = shape.hidden_size
    bias = config.flag("attention_bias")
    traits = Traits(
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias"),
        norm_bias=config.flag("norm_bias"),
        causal=False,
    )
    layers = config.layers()
    every = config.optional("global_attn_every_n_layers") or 3
    window = 2 * (config.dimension("local_attention") // 2) + 1
    windows = layer_windows(config, layers, window, default=[bool(i % every) for i in range(layers)])
    part = dense_mlp(config, shape, traits)
    norm = hidden * (2 if traits.norm_bias else 1)
    stack = [block(shape, traits, part, window=one) for one in windows]
    stack[0] = replace(stack[0], norm_parameters=norm)
    network = _encoder(
        config, name, stack, hidden=hidden, norms=2 * norm, rows=config.dimension("vocab_size"), width=hidden
    )
    return _with_head(network, config, width=hidden)


def _encoder(
    config: Config, name: str, layers: Sequence[Layer], *, hidden: int, norms: int, rows: int, width: int
) -> Network:
    """Return an encoder without a head; `norms` are those outside its layers, `rows` those of all its tables of a width."""
    network = decoder(
        config, name, layers, hidden=hidden, final_norm=norms, embedding_parameters=rows * width, tied=False
    )
    return replace(network, lm_head=replace(network.lm_head, outputs=0), generates=False)


def _with_head(network: Network, config: Config, *, width: int) -> Network:
    """Return the encoder with the head that `architectures` names; the class without one where it names none."""
    name, kind = stated_class(config), config.model_type
    modern = kind == "modernbert"
    config.unused("decoder_bias", "classifier_bias", "classifier_pooling", "tie_word_embeddings")
    biased = not modern or config.flag("classifier_bias")
    outputs = width if name.endswith("ForMaskedLM") else network.hidden_size
    dense = Projection(
        "pooler", "lm_head", network.hidden_size, outputs, "none", bias=outputs if biased else 0
    )
    norm = network.final_norm_parameters // 2 if modern else 0
    if name.endswith(("ForSequenceClassification", "ForTokenClassification")):
        labels = labels_of(config)
        dense_first = modern or name.endswith("ForSequenceClassification")
        config.notes.append(f"{name}: {labels} score(s) for a text")
        network = replace(
            network,
            lm_head=replace(network.lm_head, outputs=labels, bias=labels),
            pooler=dense if dense_first else None,
            final_norm_parameters=network.final_norm_parameters + norm,
        )
    elif name.endswith("ForMaskedLM"):
        rows, plain = network.vocabulary_size, kind == "eurobert"
        key, usual = _BIAS_OF_MASKED.get(kind, ("", True))
        bias = rows if not key or config.flag(key, default=usual) else 0
        config.notes.append(f"{name}: the head for masked tokens is counted; vectors are served without it")
        network = replace(
            network,
            lm_head=replace(network.lm_head, inputs=width, outputs=rows, bias=bias),
            pooler=None if plain else dense,
            tied_embeddings=config.ties_embeddings(default=not plain),
            final_norm_parameters=network.final_norm_parameters + (0 if plain else norm or 2 * width),
        )
    elif kind in _WITH_POOLER and (not name or _bare(name)):
        network = replace(network, pooler=dense)
    elif name and not _bare(name):
        raise unknown_head(config, name)
    config.notes.append("an encoder: prompts are read whole and in both directions, and nothing is cached")
    return replace(network, notes=tuple(config.notes), keys_used=tuple(config.keys_used))


def _bare(name: str) -> bool:
    return name.endswith("Model") and not name.endswith("LMHeadModel")


def _refuse(config: Config, *keys: str) -> None:
    """Raise the error for a key that asks for what is not modelled."""
    for key in keys:
        if value := config.first_present(key)[1]:
            raise config.error(key, f"{value!r} is not modelled", "allowed: false")


def _only(config: Config, key: str, wanted: str) -> None:
    """Raise the error for a key that says something else than the one form that is modelled."""
    if config.text(key, default=wanted) != wanted:
        raise config.error(key, f"{config.values[key]!r} is not modelled", f"allowed: {wanted}")


def read_whisper(config: Config, name: str) -> Network:
    """Return a Whisper; keys have no bias, and norms stand before self-attention, cross-attention and feed-forward."""
    stated = stated_class(config)
    if stated and stated not in ("WhisperForConditionalGeneration", "WhisperModel"):
        raise config.error(
            "architectures",
            f"{stated!r} is a part of Whisper that is not modelled by itself",
            "allowed: WhisperForConditionalGeneration, WhisperModel",
        )
    hidden, source = config.dimension("d_model"), config.dimension("max_source_positions")
    shape = _heads(config, hidden, "decoder_attention_heads")
    wide, count = config.dimension("decoder_ffn_dim"), config.layers("decoder_layers")
    layer = _layer(shape, wide, source)
    positions = config.dimension("max_target_positions")
    rows = config.dimension("vocab_size") + positions
    network = decoder(
        config, name, [layer] * count, hidden=hidden, final_norm=2 * hidden, embedding_parameters=rows * hidden, tied_default=True
    )  # fmt: skip
    bins, inner, depth = (
        config.dimension("num_mel_bins"),
        config.dimension("encoder_ffn_dim"),
        config.layers("encoder_layers"),
    )
    tower = Tower(
        layers=depth,
        hidden_size=hidden,
        intermediate_size=inner,
        heads=_heads(config, hidden, "encoder_attention_heads").query_heads,
        gated=False,
        patch_inputs=2 * 3 * bins + 3 * hidden,
        merger=(),
    )
    convolutions = linear(3 * bins, hidden) + linear(3 * hidden, hidden)
    size = convolutions + depth * encoder_block(hidden, inner, biased=3) + 2 * hidden + source * hidden
    config.unused(*(key for key in config.values if key.startswith("mask_")), "apply_spec_augment")
    config.unused("classifier_proj_size", "use_weighted_layer_sum", "median_filter_width", "scale_embedding")
    config.notes.append(
        f"an encoder-decoder: every sequence holds keys and values of {source:,} positions of its source besides those of its text"
    )
    return replace(
        network,
        max_context_tokens=positions,
        encoder=Encoder(source, tower),
        vision_parameters=size,
        notes=tuple(config.notes),
        keys_used=tuple(config.keys_used),
    )


def _heads(config: Config, hidden: int, key: str) -> Heads:
    heads = config.dimension(key, most=100_000)
    head_dim = config.divisible("d_model", hidden, key, heads)
    return Heads(hidden, heads, heads, head_dim, head_dim)


def _layer(shape: Heads, wide: int, source: int) -> Layer:
    """Return a layer of the decoder; the encoder's pass multiplies the matrix of its cross-attention that makes keys and values."""
    hidden = shape.hidden_size
    fused = replace(qkv(shape), bias=2 * hidden)
    queries = replace(fused, name="cross_q", outputs=hidden, bias=hidden, kv_outputs=0, kv_heads=0)
    keys = replace(fused, name=CROSS_KV, outputs=2 * hidden, bias=hidden, matmul=False)
    back = attention_output(shape, bias=True)
    matmuls = (
        fused, back, queries, keys, replace(back, name="cross_o"), *plain_mlp(hidden, wide, bias=True),
    )  # fmt: skip
    mixers = (self_attention(shape), CrossAttention(shape.query_heads, shape.head_dim, source))
    return Layer(mixers, matmuls, None, 3 * 2 * hidden)
