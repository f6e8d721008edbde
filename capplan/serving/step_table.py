"""The time of one engine step, as tables: the only thing that serving knows of a network and its devices.

A step holds S decoding sequences at mean context c, and prefill chunks of n_i new tokens after p_i cached ones:

    decode only   t = D(S) + A(S, c)
    mixed         t = M(T) + H(S + chunks) + A(S, c) + sum_i P(n_i, p_i),   T = S + sum_i n_i

with D, M, H linear between knots in one variable, A and P bilinear in two.
"""

from dataclasses import dataclass

from capplan.numbers import Array


@dataclass(frozen=True, slots=True)
class StepTable:
    """Step times of one replica; all times in seconds, knots ascending."""

    sequence_knots: Array
    """Decoding sequences of the replica, shape (s,); starts at 0 or 1."""
    decode_s: Array
    """D: a step that only decodes, without attention over the cache, shape (s,)."""
    head_s: Array
    """H: LM head, sampling and per-sequence host work of a mixed step by sequences that need logits, shape (s,)."""
    context_knots: Array
    """Mean tokens in the cache per decoding sequence, shape (c,)."""
    decode_attention_s: Array
    """A, shape (s, c)."""
    token_knots: Array
    """Tokens in a mixed step, shape (t,)."""
    mixed_s: Array
    """M: a mixed step without attention and without LM head, shape (t,)."""
    new_knots: Array
    """New tokens of one prefill chunk, shape (n,)."""
    past_knots: Array
    """Tokens already cached before the chunk, shape (p,)."""
    prefill_attention_s: Array
    """P, shape (n, p)."""
    request_s: float = 0.0
    """Added once to every request before its first token (HTTP, tokenisation)."""
