"""Residual streams that each block mixes into its input and its output back into (hyper-connections: DeepSeek V4, GLM-5.3, Hy 4)."""

from capplan.model.network import Projection


def stream_mixing(
    hidden: int, streams: int, mixes: int, *, scales: int
) -> tuple[tuple[Projection, ...], int]:
    """Return the matmuls that mix the streams around attention and feed-forward, and their biases and scales.

    Parameters
    ----------
    hidden : width of one stream [-]
    streams : streams [-]
    mixes : weights that one matmul gives out for all streams [-]
    scales : of these weights [-]

    Examples
    --------
    >>> matmuls, vectors = stream_mixing(4096, 4, 24, scales=3)
    >>> [(one.inputs, one.outputs) for one in matmuls], vectors
    ([(16384, 24), (16384, 24)], 54)
    """
    matmuls = tuple(
        Projection(f"mix_{block}", "other", streams * hidden, mixes, "none")
        for block in ("attention", "feed_forward")
    )
    return matmuls, 2 * (mixes + scales)


def stream_head(hidden: int, streams: int) -> int:
    """Return the parameters of what joins the streams after the last layer: a matrix, its biases and a scale."""
    return streams * streams * hidden + streams + 1
