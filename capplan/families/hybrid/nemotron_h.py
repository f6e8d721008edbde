"""Nemotron-H and Nemotron 3: every layer is one of Mamba-2, attention, feed-forward or experts, with one norm."""

from dataclasses import dataclass, replace

from capplan.families.config import Config
from capplan.families.parts.blocks import (
    decoder,
    heads,
    plain_mlp,
    routed,
    router,
)
from capplan.families.parts.stacks import Traits, block
from capplan.families.parts.state_blocks import Mamba2Shape, layer_kinds, mamba2, state_format
from capplan.model.network import Experts, Layer, Network, Projection
from capplan.model.parameters import layer_parameters

_LETTERS = {"M": "state", "*": "attention", "-": "mlp", "E": "moe"}
_NAMES = {
    "mamba": "state", "linear_attention": "state", "attention": "attention", "full_attention": "attention",
    "mlp": "mlp", "moe": "moe",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Layers by kind, made on first use: a network without experts has no expert keys."""

    config: Config
    hidden: int

    def layer(self, kind: str) -> Layer:
        """Return the layer of a kind."""
        if kind == "state":
            return self._state()
        if kind == "attention":
            shape = heads(
                self.config,
                hidden=self.hidden,
                head_dim_keys=("head_dim", "attention_head_dim"),
                default_kv_heads=8,
            )
            self.config.unused("attention_bias")  # the class has none
            return block(shape, Traits(norms=1), ((), None))
        bias = self.config.flag("mlp_bias", default=False)
        if kind == "mlp":
            return Layer(
                (),
                plain_mlp(self.hidden, self.config.dimension("intermediate_size"), bias=bias),
                None,
                self.hidden,
            )
        return self._experts(bias=bias)

    def _state(self) -> Layer:
        config = self.config
        mixer = mamba2(
            config,
            self.hidden,
            Mamba2Shape(
                config.dimension("mamba_num_heads", default=128),
                config.dimension("mamba_head_dim", default=64),
                state=config.dimension("ssm_state_size", default=128),
                groups=config.dimension("n_groups", "mamba_n_groups", default=8),
                kernel=config.dimension("conv_kernel", "mamba_d_conv", default=4, most=64),
            ),
            bias=config.flag("use_bias", "mamba_proj_bias", default=False),
            conv_bias=config.flag("use_conv_bias", "mamba_conv_bias", default=True),
            state_format=state_format(config, "mamba_ssm_cache_dtype"),
            state_stated=True,
        )
        return mixer.layer(self.hidden)

    def _experts(self, *, bias: bool) -> Layer:
        config, hidden = self.config, self.hidden
        experts = config.dimension("n_routed_experts", "num_local_experts")
        latent = config.optional("moe_latent_size")
        expert = routed(
            config,
            experts,
            config.dimension("num_experts_per_tok"),
            latent or hidden,
            config.dimension("moe_intermediate_size"),
            gated=False,
        )
        config.unused("n_shared_experts")  # the class has one, whatever the key says
        size = config.dimension("moe_shared_expert_intermediate_size")
        shared = plain_mlp(hidden, size, bias=bias, tensor_class="shared_expert")
        into: tuple[Projection, ...] = ()
        if latent:
            into = (
                Projection("latent_down", "ffn", hidden, latent, "none", bias=latent if bias else 0),
                Projection("latent_up", "ffn", latent, hidden, "none", bias=hidden if bias else 0),
            )
        return Layer((), (router(hidden, experts), *into, *shared), expert, hidden)


def read_nemotron_h(config: Config, name: str) -> Network:
    """Return a Nemotron-H, Nemotron 3 (Nano, Super, Ultra) with its multi-token-prediction layers."""
    hidden = config.dimension("hidden_size")
    config.unused("num_hidden_layers", "intermediate_size", "mtp_layers_block_type")
    blocks = _Blocks(config, hidden)
    kinds = _kinds(config, "layers_block_type", "hybrid_override_pattern")
    by_kind = {kind: blocks.layer(kind) for kind in dict.fromkeys(kinds)}
    network = decoder(config, name, [by_kind[kind] for kind in kinds], hidden=hidden)
    depth = config.count("num_nextn_predict_layers")
    if not depth:
        return replace(network, keys_used=tuple(config.keys_used))
    mtp = [
        blocks.layer(kind) for kind in _kinds(config, "mtp_layers_block_type", "mtp_hybrid_override_pattern")
    ]
    # one matmul joins the last hidden state and the new token's embedding, each with a norm
    joining = 2 * hidden * hidden + 3 * hidden
    experts: Experts | None = next((layer.experts for layer in mtp if layer.experts), None)
    if experts is not None and depth > 1:
        experts = replace(experts, experts=experts.experts * depth)
    return replace(
        network,
        mtp_parameters=depth * (joining + sum(layer_parameters(layer) for layer in mtp)),
        mtp_experts=experts,
        keys_used=tuple(config.keys_used),
    )


def _kinds(config: Config, list_key: str, pattern_key: str) -> list[str]:
    pattern = config.text(pattern_key, default="")
    if pattern:
        for index, letter in enumerate(pattern):
            if letter not in _LETTERS:
                raise config.error(
                    pattern_key,
                    f"letter {letter!r} at {index} is not known",
                    "allowed: M (Mamba-2), *, - (mlp), E",
                )
        return [_LETTERS[letter] for letter in pattern]
    listed = config.items(list_key)
    if listed is None:
        raise config.missing(pattern_key, list_key)
    return layer_kinds(config, (list_key,), len(listed), _NAMES)
