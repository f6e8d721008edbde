"""A network with the format of each matrix chosen."""

from collections.abc import Callable
from dataclasses import replace

from capplan.errors import InputError
from capplan.model.network import Experts, Layer, Network, Projection

_WHOLE = frozenset({"bf16", "fp16", "fp32"})
"""Formats that are not quantised."""


def with_formats(
    network: Network,
    projection_format: Callable[[int, Projection], str],
    experts_format: Callable[[int, Experts], str | tuple[str, str]],
) -> Network:
    """Return the network with the format of each layer's matrices chosen by two functions.

    Parameters
    ----------
    network : the model
    projection_format : format of a projection, given the index of its layer
    experts_format : format of the routed experts, given the index of their layer; two where the matrix that writes the hidden
        state has its own

    Returns
    -------
    the same network, formats replaced; equal layers stay one object

    Raises
    ------
    InputError
        An encoder-decoder would be quantised.

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((), (Projection("up", "ffn", 8, 16, "columns"),))
    >>> network = Network("n", "t", 8, 10, (layer,), head, True, 80)
    >>> changed = with_formats(network, lambda index, matrix: "fp8", lambda index, experts: "fp8")
    >>> changed.layers[0].projections[0].weight_format
    'fp8'
    """
    seen: dict[tuple[Layer, tuple[str, ...], str | tuple[str, str]], Layer] = {}
    layers = []
    for index, layer in enumerate(network.layers):
        names = tuple(projection_format(index, projection) for projection in layer.projections)
        if network.encoder is not None and not _WHOLE.issuperset(names):
            raise InputError(
                f"{network.name}: quantised weights of an encoder-decoder are not modelled, since engines quantise its encoder too\n"
                "  leave the weight dtype out, and the section of quantisation: its figures are then those of 16 bits"
            )
        key = (layer, names, experts_format(index, layer.experts) if layer.experts else "")
        if key not in seen:
            seen[key] = _layer_in(*key)
        layers.append(seen[key])
    return replace(network, layers=tuple(layers))


def _layer_in(layer: Layer, names: tuple[str, ...], of_experts: str | tuple[str, str]) -> Layer:
    projections = tuple(
        replace(projection, weight_format=name)
        for projection, name in zip(layer.projections, names, strict=True)
    )
    experts = experts_in(layer.experts, of_experts) if layer.experts else None
    return replace(layer, projections=projections, experts=experts)


def experts_in(experts: Experts, name: str | tuple[str, str]) -> Experts:
    """Return experts in one format, or in one for the matrices that read the hidden state and one for the matrix that writes it.

    Examples
    --------
    >>> experts_in(Experts(4, 2, 8, 16), ("fp8", "bf16")).matrices
    (('fp8', 256, 32), ('bf16', 128, 8))
    """
    into, out_of = (name, name) if isinstance(name, str) else name
    return replace(experts, weight_format=into, down_format=None if out_of == into else out_of)
