"""How long a prefix cache keeps the context of a session whose user thinks, and what the next turn finds of it: Che's approximation."""

from dataclasses import dataclass
from functools import lru_cache
from math import inf

import numpy as np

from capplan.numbers import Array
from capplan.workload.length import Lengths, empirical, fixed
from capplan.workload.sessions import Sessions, drawn_turns

DRAWN_TURNS = 100_000
"""Turns that are drawn, from which the lengths of prompts and contexts are taken: their means are then within 1 %."""
LENGTHS = 2_000
"""Equally likely lengths of prompts that stand for those of the draw."""
PARTS = 32
"""Equally many contexts of about the same length, each of which stands for all of them."""
SURGE = 2.0
"""Standard deviations by which sessions in flight hold more than in the mean in a surge that a replica has to recover from (an assumption): one moment in 44 of a normal law."""
SEED = 11
_IDLE_S = np.append(0.0, np.geomspace(1e-3, 1e9, 600))
"""Times at which what a cache holds is worked out; it is linear between them."""
_LEAST_THINK_S = 1e-9


def _drawn_contexts(
    sessions: Sessions, longest: float
) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Return the turns of random sessions, in rows: number of the turn, prompt and output [tokens]."""
    count = max(int(DRAWN_TURNS / sessions.turns.mean_tokens), 1)
    turns = drawn_turns(sessions, count, np.random.default_rng(SEED), longest)
    return np.array([turns.turn, turns.input_tokens, turns.output_tokens], dtype=np.float64)


def prompt_lengths(sessions: Sessions, longest: float = inf) -> Lengths:
    """Return the prompts of all turns, as drawn [tokens]; a session ends before a turn that exceeds the longest context."""
    _, inputs, _ = _drawn_contexts(sessions, longest)
    if inputs.min() == inputs.max():
        return fixed(float(inputs[0]))
    return empirical(np.array([part.mean() for part in np.array_split(np.sort(inputs), LENGTHS)]))


@dataclass(frozen=True, slots=True)
class CacheTraffic:
    """What the requests of a replica put into its prefix cache, class by class."""

    rates_per_s: Array
    returning_tokens: Array
    """Tokens that a request leaves in the cache and a later one asks for again, in the mean."""
    think_times_s: Array
    """Mean of the exponential time until then."""
    gone_tokens: Array
    """Tokens that a request leaves in the cache and nobody asks for again, in the mean."""
    running_tokens: float
    """Tokens of the requests that run, which stay."""

    def held_tokens(self, idle_s: Array) -> Array:
        """Return the distinct tokens that were asked for within a time.

            H(T) = R + sum_k r_k (a_k z_k (1 - exp(-T / z_k)) + b_k T)

        Parameters
        ----------
        idle_s : [s]
            T; of class k, r requests per second leave a tokens that are asked for again after z in the mean, and b that are not

        Returns
        -------
        H [tokens]
            R: those of running requests

        Examples
        --------
        Ten prompts a second of 100 tokens that nobody asks for again, next to 500 tokens of running requests, for 2 s:

        >>> nobody = CacheTraffic(np.array([10.0]), np.zeros(1), np.zeros(1), np.array([100.0]), 500.0)
        >>> nobody.held_tokens(np.array([0.0, 2.0])), nobody.idle_s(np.array([400.0, 2500.0]))
        (array([ 500., 2500.]), array([0., 2.]))

        References
        ----------
        Che, Tung, Wang 2002, "Hierarchical web caching systems", doi:10.1109/JSAC.2002.801752. Known error of hits that are averaged over surges of sessions: 0.005 in the
        median of 18 simulated loads, and 0.05 at most, where they are below 0.2.
        """
        time_s, think_s = idle_s[:, None], np.maximum(self.think_times_s, _LEAST_THINK_S)
        again = self.returning_tokens * think_s * -np.expm1(-time_s / think_s)
        held: Array = (self.rates_per_s * (again + self.gone_tokens * time_s)).sum(axis=1)
        return held + self.running_tokens

    def idle_s(self, room_tokens: Array) -> Array:
        """Return how long a cache of each size keeps what nobody asks for; zero where running requests fill it [s]."""
        return np.asarray(np.interp(room_tokens, self.held_tokens(_IDLE_S), _IDLE_S, left=0.0))


@dataclass(frozen=True, slots=True)
class Contexts:
    """What a turn of sessions finds in a cache that keeps everything, and leaves there."""

    left_tokens: Array
    """What the turn before left, without what all sessions share: of equally many later turns each, ascending."""
    later_fraction: float
    """Part of the turns that are not the first of their session."""
    gone_tokens: float
    """What the last turn of a session leaves, over all turns; without what all share."""
    running_tokens: float
    """What a turn holds while it runs, in the mean; without what all share."""
    shared_tokens: float
    """What all sessions share, in the mean of all prompts."""
    input_tokens: float
    """Mean of all prompts."""

    @property
    def returning_tokens(self) -> float:
        """What a turn leaves and the next one asks for, in the mean of all turns [tokens]."""
        return self.later_fraction * float(self.left_tokens.mean())

    @property
    def unlimited_token_hit_fraction(self) -> float:
        """Fraction of the prompt tokens that a cache without limit holds."""
        return (self.returning_tokens + self.shared_tokens) / self.input_tokens

    def held_variance(self, sessions: float, *, of_users: bool) -> float:
        """Return the variance of the tokens that sessions in flight hold [tokens^2].

            var(S) = n f E(c^2),   n f E(c^2) - n (f E(c))^2 of users

        Of n sessions in the mean a part f has a context, of c tokens: a compound Poisson law, where each of n users has one.

        Examples
        --------
        >>> two = Contexts(np.array([100.0, 300.0]), 0.5, 0.0, 0.0, 0.0, 400.0)
        >>> two.held_variance(4.0, of_users=False), two.held_variance(4.0, of_users=True)
        (100000.0, 60000.0)
        """
        square = self.later_fraction * float(np.square(self.left_tokens).mean())
        return sessions * (square - self.returning_tokens**2 if of_users else square)

    def hit_fraction(self, cache_tokens: Array, think_time_s: float, others: CacheTraffic) -> Array:
        """Return the fraction of the prompt tokens that caches of each size hold.

            h = (f sum_i c_i (1 - exp(-T_i / z)) + S) / I,   H(T_i) = N - S - c_i

        A turn finds its context c if the cache has room for it next to what others ask for meanwhile, else
        what all sessions share.

        Parameters
        ----------
        cache_tokens : [tokens]
            N
        think_time_s : [s]
            z, mean of the exponential time from a response to the next turn
        others : all other requests, with H; of users, without the one of the turn

        Returns
        -------
        [-]
            h, of prompts of I tokens in the mean, of which S are shared and a part f are later turns
        """
        sizes = np.asarray(cache_tokens, dtype=np.float64)
        idle_s = others.idle_s(sizes[..., None] - self.shared_tokens - self.left_tokens)
        kept = -np.expm1(-idle_s / max(think_time_s, _LEAST_THINK_S))
        own = self.later_fraction * (self.left_tokens * kept).mean(axis=-1)
        room = np.maximum(sizes - others.running_tokens, 0.0)
        return np.asarray((own + np.minimum(self.shared_tokens, room)) / self.input_tokens)


@lru_cache(maxsize=32)
def contexts_of(sessions: Sessions, longest: float = inf) -> Contexts:
    """Return what the turns of sessions find in a cache and leave there, in the mean of a draw; a session ends before a turn that exceeds the longest context [tokens]."""
    turn, inputs, outputs = _drawn_contexts(sessions, longest)
    shared = np.minimum(sessions.shared_tokens, inputs - 1)
    first, last = turn == 0, np.append(turn[1:] == 0, True)
    own = np.maximum(inputs + outputs - sessions.shared_tokens, 0.0)
    left = np.sort(np.minimum(np.roll(own, 1), inputs - 1 - shared)[~first])
    parts = np.array([part.mean() for part in np.array_split(left, PARTS) if part.size] or [0.0])
    return Contexts(
        parts,
        float((~first).mean()),
        float((own * last).mean()),
        float((own - outputs / 2.0).mean()),
        float(shared.mean()),
        float(inputs.mean()),
    )
