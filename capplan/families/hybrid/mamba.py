"""Networks with recurrent states only: Mamba, Mamba-2, Falcon Mamba. No layer has a cache that grows."""

from capplan.families.config import Config
from capplan.families.parts.blocks import decoder
from capplan.families.parts.state_blocks import Mamba2Shape, StateBlock, mamba1, mamba2, rank_of
from capplan.model.network import Network


def _network(config: Config, name: str, block: StateBlock, hidden: int, *, tied_default: bool) -> Network:
    layers = [block.layer(hidden)] * config.layers("num_hidden_layers", "n_layer")
    return decoder(config, name, layers, hidden=hidden, tied_default=tied_default)


def read_mamba(config: Config, name: str) -> Network:
    """Return a Mamba-1 network (Mamba, Falcon Mamba)."""
    hidden = config.dimension("hidden_size", "d_model")
    expand = config.dimension("expand", default=2, most=64)
    inner = config.optional("intermediate_size", "d_inner") or expand * hidden
    block = mamba1(
        hidden,
        inner=inner,
        state=config.dimension("state_size", default=16),
        kernel=config.dimension("conv_kernel", default=4, most=64),
        dt_rank=rank_of(config, "time_step_rank", hidden),
        bias=config.flag("use_bias", default=False),
        conv_bias=config.flag("use_conv_bias", default=True),
    )
    return _network(config, name, block, hidden, tied_default=True)


def read_mamba2(config: Config, name: str) -> Network:
    """Return a Mamba-2 network (Codestral Mamba)."""
    hidden = config.dimension("hidden_size", "d_model")
    heads = config.dimension("num_heads", default=128)
    head_dim = config.dimension("head_dim", default=64)
    expand = config.dimension("expand", default=2, most=64)
    if heads * head_dim != expand * hidden:
        raise config.error(
            "num_heads",
            f"{heads} heads of {head_dim} are not {expand} x {hidden} wide",
            "allowed: num_heads x head_dim = expand x hidden_size",
        )
    block = mamba2(
        config,
        hidden,
        Mamba2Shape(
            heads,
            head_dim,
            state=config.dimension("state_size", default=128),
            groups=config.dimension("n_groups", default=8),
            kernel=config.dimension("conv_kernel", default=4, most=64),
        ),
        bias=config.flag("use_bias", default=False),
        conv_bias=config.flag("use_conv_bias", default=True),
    )
    return _network(config, name, block, hidden, tied_default=False)
