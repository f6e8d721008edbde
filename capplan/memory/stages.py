"""A network split into pipeline stages."""

from dataclasses import dataclass, replace

import numpy as np

from capplan.model.network import Network
from capplan.numbers import Array


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage: its layers, with the embedding on the first and the LM head on the last."""

    network: Network
    first: bool
    last: bool
    layer_share: float
    """Its layers / all layers."""

    @property
    def alone(self) -> bool:
        """The whole network is one stage."""
        return self.first and self.last


def stages_of(network: Network, stages: int) -> list[Stage]:
    """Return the stages of a network; equal middle stages appear once.

    Parameters
    ----------
    network : the model
    stages : [-]
        pipeline ranks

    Returns
    -------
    stages in order

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> network = Network("n", "t", 8, 10, (Layer((), ()),) * 8, head, True, 80)
    >>> [(len(stage.network.layers), stage.first, stage.last) for stage in stages_of(network, 4)]
    [(2, True, False), (2, False, False), (2, False, True)]
    """
    if stages == 1:
        return [Stage(network, first=True, last=True, layer_share=1.0)]
    distinct: list[Stage] = []
    edges = stage_edges(len(network.layers), stages)
    for index, (start, end) in enumerate(edges):
        first, last = index == 0, index == len(edges) - 1
        part = replace(network, layers=network.layers[start:end], tied_embeddings=False)
        if not first:
            part = replace(part, embedding_parameters=0, vision_parameters=0, other_parameters=0)
        if last:
            head_format = (
                network.embedding_format if network.tied_embeddings else network.lm_head.weight_format
            )
            part = replace(part, lm_head=replace(network.lm_head, weight_format=head_format))
        else:
            no_head = replace(network.lm_head, outputs=0, bias=0)
            part = replace(part, lm_head=no_head, pooler=None, final_norm_parameters=0)
        stage = Stage(part, first, last, (end - start) / len(network.layers))
        if stage not in distinct:
            distinct.append(stage)
    return distinct


def stage_edges(layers: int, stages: int) -> list[tuple[int, int]]:
    """Return first and one-past-last layer of each pipeline stage.

    Layers left over go to the stages before the last, from the back: the last stage already holds the LM head.

    Parameters
    ----------
    layers : [-]
    stages : [-]

    Returns
    -------
    pairs of layer indices

    Examples
    --------
    >>> stage_edges(126, 4)
    [(0, 31), (31, 63), (63, 95), (95, 126)]

    References
    ----------
    vLLM, vllm/distributed/utils.py, `get_pp_indices`.
    """
    sizes = [layers // stages] * stages
    for i in range(layers % stages):
        sizes[(stages - 2 - i) % stages] += 1
    ends = np.cumsum(sizes).tolist()
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def stage_shares(network: Network, stages: Array) -> tuple[Array, Array]:
    """Return the layers of the fullest stage and of the last one over all layers, by plan.

    Examples
    --------
    Ten layers in one, two and four stages (2, 3, 3 and 2 layers):

    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> network = Network("n", "t", 64, 1000, (Layer((), ()),) * 10, head, True, 64000)
    >>> [shares.tolist() for shares in stage_shares(network, np.array([1.0, 2.0, 4.0]))]
    [[1.0, 0.5, 0.3], [1.0, 0.5, 0.2]]
    """
    layers = len(network.layers)
    shares = {}
    for count in set(np.ravel(stages).tolist()):
        sizes = [end - start for start, end in stage_edges(layers, int(count))]
        shares[count] = max(sizes) / layers, sizes[-1] / layers
    largest, last = np.array([shares[count] for count in np.ravel(stages).tolist()]).T
    return largest, last
