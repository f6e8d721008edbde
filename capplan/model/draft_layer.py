"""The layer that predicts the token after the next one (MTP), which a model brings for drafting."""

from dataclasses import replace

from capplan.model.network import Attention, CompressedAttention, LatentAttention, Layer, Network, Projection
from capplan.model.parameters import weight_bytes, weight_bytes_by_class
from capplan.model.weight_format import in_weight_format

_FEED_FORWARD = frozenset({"ffn", "shared_expert"})


def draft_layer(network: Network) -> Layer | None:
    """Return the last caching layer again, with the matrix that joins the last hidden state and the embedding of the new token.

    Where that layer has no feed-forward part of its own (Nemotron-H: a layer has one part), the last such layer is added.
    Matrices are in the dtype of the activations and experts in the format that the checkpoint stores those of its prediction layers in.

    Parameters
    ----------
    network : the model

    Returns
    -------
    the layer; None where no layer has a KV cache

    References
    ----------
    vLLM 0.23, deepseek_mtp.py and nemotron_h_mtp.py: `eh_proj`, a whole decoder layer or one attention and one mixture-of-experts layer.

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> mlp = Projection("up_proj", "ffn", 8, 16, "columns")
    >>> layers = (Layer((Attention(2, 2, 4, 4),), ()), Layer((), (mlp,)), Layer((), ()))
    >>> [p.name for p in draft_layer(Network("n", "t", 8, 10, layers, head, True, 80)).projections]
    ['up_proj', 'eh_proj']
    """
    caching = next((layer for layer in reversed(network.layers) if _caches(layer)), None)
    if caching is None:
        return None
    size = network.hidden_size
    joined = Projection("eh_proj", "mtp", 2 * size, size, "none", weight_format=network.activation_format)
    feeding = caching
    if not _feeds_forward(caching):
        feeding = next(
            (layer for layer in reversed(network.layers) if not layer.mixers and _feeds_forward(layer)),
            caching,
        )
    apart = feeding is not caching
    layer = replace(
        caching,
        projections=(*caching.projections, *(feeding.projections if apart else ())),
        experts=feeding.experts,
        norm_parameters=caching.norm_parameters + (feeding.norm_parameters if apart else 0),
    )
    plain = in_weight_format(replace(network, layers=(layer,)), network.activation_format).layers[0]
    experts = plain.experts
    if experts is not None and network.mtp_experts is not None:
        experts = replace(network.mtp_experts, experts=experts.experts)
    return replace(plain, projections=(*plain.projections, joined), experts=experts)


def draft_layers_per_layer(network: Network, layer: Layer) -> float:
    """Return the bytes of all layers for multi-token prediction that a checkpoint has, per byte of `layer`.

    Parameters
    ----------
    network : with such layers
    layer : as `draft_layer` returns it

    Returns
    -------
    [-]
        3 where a model has three such layers, below 1 where its feed-forward part is smaller than in the other layers
    """
    held = weight_bytes_by_class(network, mtp=True).get("mtp", 0.0)
    alone = weight_bytes(replace(network, layers=(layer,))) - weight_bytes(replace(network, layers=()))
    return held / alone


def _caches(layer: Layer) -> bool:
    return any(isinstance(mixer, Attention | LatentAttention | CompressedAttention) for mixer in layer.mixers)


def _feeds_forward(layer: Layer) -> bool:
    return layer.experts is not None or any(p.tensor_class in _FEED_FORWARD for p in layer.projections)
