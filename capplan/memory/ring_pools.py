"""Pools of compressed attention in SGLang: windows and entries in proportion, tokens that wait for an entry in rings."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from capplan.model.mixers import held_vector_bytes
from capplan.model.network import CompressedAttention, Mixer
from capplan.model.weight_format import FORMATS
from capplan.numbers import Number

PAGE_TOKENS = 256.0
"""Tokens of a page."""
_ROWS = 128.0
"""Multiple to which the rows of rings are rounded."""


def ring_bytes(mixers: Sequence[Mixer], sequences: Number, *, drafts: bool = False) -> Number:
    """Return what one device keeps for the waiting tokens of layers whose entries do not overlap.

        F = 128 ceil((n + 2) R + 1 over 128) 2 d w in each layer,   R = c, or 2 c with drafts

    Parameters
    ----------
    sequences : [-]
        n, with which one engine is started

    Returns
    -------
    [B]
        F; value and gate of d elements of w bytes, c tokens to an entry

    Examples
    --------
    One layer, entries of 128 tokens, one sequence: (3 x 128 + 1) rows are rounded to 512, of 8 values each.

    >>> layer = CompressedAttention(1, 4, 2, 128, 1, entry_tokens=128)
    >>> float(ring_bytes([layer], 1.0))
    16384.0

    References
    ----------
    SGLang, `DSV4PoolConfigurator`, srt/model_executor/pool_configurator.py.
    """
    size: Number = np.zeros(())
    for mixer, layers in Counter(mixers).items():
        if not isinstance(mixer, CompressedAttention) or not mixer.entry_tokens or mixer.overlapping:
            continue
        ring = float(mixer.entry_tokens * (2 if drafts else 1))
        rows = np.ceil(((sequences + 2.0) * ring + 1.0) / _ROWS) * _ROWS
        size = size + layers * rows * 2.0 * mixer.head_dim * FORMATS[mixer.state_format].bytes_per_element
    return size


def _token_bytes(mixers: Sequence[Mixer], kv_bytes_per_element: Number, window_ratio: float) -> Number:
    """Return what one token of the pools takes on one device, with its part of the pool of windows.

        b = sum over layers of q v + (v + k) / c + q (2 c / w) 4 (d + d_k) f where entries overlap

    Parameters
    ----------
    mixers : of all layers
    kv_bytes_per_element : [B]
        of the cache dtype
    window_ratio : [-]
        q, tokens of the pool of windows for each token

    Returns
    -------
    [B]
        b; vectors of v and index keys of k bytes, c tokens to an entry, windows of w tokens, states of d + d_k elements of f bytes

    Examples
    --------
    >>> layer = CompressedAttention(1, 16, 8, 128, 1)
    >>> float(_token_bytes([layer], 2.0, 0.5))
    16.0

    References
    ----------
    SGLang, `DSV4PoolConfigurator`, srt/model_executor/pool_configurator.py.
    """
    size: Number = np.zeros(())
    for mixer, layers in Counter(mixers).items():
        if not isinstance(mixer, CompressedAttention):
            continue
        for part in mixer.description.cache_parts:
            held = held_vector_bytes(part, kv_bytes_per_element)
            share = window_ratio if part.window_tokens < math.inf else 1.0 / part.entry_tokens
            size = size + layers * share * held
        if mixer.overlapping:
            state = 4.0 * (mixer.head_dim + mixer.index_head_dim)
            ring = 2.0 * mixer.entry_tokens / mixer.window_tokens
            element = FORMATS[mixer.state_format].bytes_per_element
            size = size + layers * window_ratio * ring * state * element
    return size


def pooled_capacity(
    available_bytes: Number,
    mixers: Sequence[Mixer],
    kv_bytes_per_element: Number,
    context_tokens: Number,
    step_tokens: Number,
    window_ratio: float,
) -> tuple[Number, Number, Number]:
    """Return tokens, sequences and bytes per sequence of pools of which that of windows has a part of the tokens.

        n = A / b;   r = b max(l', min(w + l s / (l + s), l') / q),   l' = l in whole pages

    The prefix tree keeps the last piece of a prompt, l s / (l + s) tokens in the mean, in the pool of windows while its sequence runs.

    Parameters
    ----------
    available_bytes : [B]
        A, of one device
    mixers : of all layers, with windows of w tokens
    context_tokens, step_tokens : [tokens]
        l, and s of the token budget of a step
    window_ratio : [-]
        q, tokens of the pool of windows for each token

    Returns
    -------
    tokens [tokens], sequences [-], bytes of one sequence [B]; b is `_token_bytes`

    Examples
    --------
    Two pages a sequence, and pieces of 256 tokens with a window of 128, where the pool of windows holds half as many tokens:

    >>> layer = CompressedAttention(1, 16, 8, 128, 1)
    >>> tokens, sequences, size = pooled_capacity(24576.0, [layer], 2.0, 512.0, 512.0, 0.5)
    >>> float(tokens), float(sequences), float(size)
    (1536.0, 2.0, 12288.0)

    References
    ----------
    SGLang, `SWARadixCache.inc_lock_ref`, srt/mem_cache; `maybe_evict_swa`, srt/managers.
    """
    each = _token_bytes(mixers, kv_bytes_per_element, window_ratio)
    window = max(float(part.window_tokens) for part in mixers[0].description.cache_parts[:1])
    whole = np.ceil(context_tokens / PAGE_TOKENS) * PAGE_TOKENS
    piece = context_tokens * step_tokens / (context_tokens + step_tokens)
    size = each * np.maximum(whole, np.minimum(window + piece, whole) / window_ratio)
    pool = np.maximum(available_bytes, 0.0)
    return np.floor(pool / each), pool / size, size
