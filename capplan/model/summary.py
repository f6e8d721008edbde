"""Key figures of a network, to compare with its model card."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from capplan.model.network import Network, layer_counts
from capplan.model.parameters import active_parameters, parameters, weight_bytes


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one network."""

    model: str
    model_type: str
    layers: int
    parameters: int
    """As the reference implementation counts them; without multi-token-prediction layers."""
    active_parameters: int
    """Multiplied or added for one generated token; without the embedding lookup."""
    embedding_parameters: int
    mtp_parameters: int
    weight_bytes: float
    hidden_size: int
    vocabulary_size: int
    attention_layers: int
    """Layers with softmax attention of any kind."""
    mixers: Mapping[str, int]
    """Number of mixers by kind."""
    experts: int
    """Routed experts of a layer that has them; 0 for a dense model."""
    experts_per_token: int
    max_context_tokens: int | None


def summary(network: Network) -> Summary:
    """Return the figures of a network.

    Parameters
    ----------
    network : the model

    Returns
    -------
    counts [-], weights [B] in the formats that the network holds

    Examples
    --------
    >>> from capplan.model.network import Attention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((Attention(2, 1, 4, 4),), (Projection("qkv", "attention", 8, 16, "columns"),))
    >>> tiny = summary(Network("n", "t", 8, 10, (layer,) * 3, head, True, 80))
    >>> tiny.attention_layers, tiny.mixers, tiny.parameters, tiny.weight_bytes
    (3, {'attention': 3}, 464, 928.0)
    """
    mixers: Counter[str] = Counter()
    attention_layers = 0
    for layer, count in layer_counts(network):
        descriptions = [mixer.description for mixer in layer.mixers]
        attention_layers += count * any(description.softmax for description in descriptions)
        for description in descriptions:
            mixers[description.name] += count
    routed = next((layer.experts for layer in network.layers if layer.experts), None)
    return Summary(
        model=network.name,
        model_type=network.model_type,
        layers=len(network.layers),
        parameters=parameters(network),
        active_parameters=active_parameters(network),
        embedding_parameters=network.embedding_parameters,
        mtp_parameters=network.mtp_parameters,
        weight_bytes=float(weight_bytes(network)),
        hidden_size=network.hidden_size,
        vocabulary_size=network.vocabulary_size,
        attention_layers=attention_layers,
        mixers=dict(mixers),
        experts=routed.experts if routed else 0,
        experts_per_token=routed.experts_per_token if routed else 0,
        max_context_tokens=network.max_context_tokens,
    )
