"""A network with the format of each matrix chosen."""

from collections.abc import Callable
from dataclasses import replace

from capplan.model.network import Experts, Layer, Network, Projection


def with_formats(
    network: Network,
    projection_format: Callable[[int, Projection], str],
    experts_format: Callable[[int, Experts], str],
) -> Network:
    """Return the network with the format of each layer's matrices chosen by two functions.

    Parameters
    ----------
    network : the model
    projection_format : format of a projection, given the index of its layer
    experts_format : format of the routed experts, given the index of their layer

    Returns
    -------
    the same network, formats replaced; equal layers stay one object

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((), (Projection("up", "ffn", 8, 16, "columns"),))
    >>> network = Network("n", "t", 8, 10, (layer,), head, True, 80)
    >>> changed = with_formats(network, lambda index, matrix: "fp8", lambda index, experts: "fp8")
    >>> changed.layers[0].projections[0].weight_format
    'fp8'
    """
    seen: dict[tuple[Layer, tuple[str, ...]], Layer] = {}
    layers = []
    for index, layer in enumerate(network.layers):
        names = [projection_format(index, projection) for projection in layer.projections]
        names.append(experts_format(index, layer.experts) if layer.experts else "")
        key = (layer, tuple(names))
        if key not in seen:
            seen[key] = _layer_in(layer, names)
        layers.append(seen[key])
    return replace(network, layers=tuple(layers))


def _layer_in(layer: Layer, names: list[str]) -> Layer:
    projections = tuple(
        replace(projection, weight_format=name)
        for projection, name in zip(layer.projections, names[:-1], strict=True)
    )
    experts = replace(layer.experts, weight_format=names[-1]) if layer.experts else None
    return replace(layer, projections=projections, experts=experts)
