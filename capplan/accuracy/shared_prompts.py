"""Prompts of a benchmark that begin alike, and conversations: what a prefix cache can find of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from capplan.errors import InputError
from capplan.numbers import Array, Counts
from capplan.serving.requests import ClosedLoopUsers, Requests, UserGroup

_TURNS = re.compile(r"(?<![\d,])([\d,]{1,15})-token document \+ (\d{1,9}) turns x (\d{1,9}) in / (\d{1,9})")
_MEAN_OUTPUT = re.compile(r"mean out (\d{1,9})-(\d{1,9})")
_HIT = re.compile(r"\bhits? (\d{1,6}(?:\.\d{1,6})?) ?%")
_COLD = ("cold", "empty caches", "recomputed", "repeated all stage")
"""Words of states in which no prompt was sent before the run; without one of them earlier runs or stages sent the same prompts."""

MOST_PROMPTS = 100_000
"""Different prompts of a run that are replayed at most."""

MOST_BLOCK_IDS = 128
"""Block ids of a prompt; a longer prompt has ids of several blocks each."""


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """Prompts in groups that share a prefix, sent over and over in one shuffled order."""

    prefix_tokens: int
    groups: int
    per_prefix: int | None
    """Different prompts of each group; None: every request ends differently."""
    warm: bool
    """All prompts were sent before the run that was measured."""

    @property
    def distinct(self) -> int:
        """Return the number of different prompts, or of prefixes where every request ends differently."""
        return self.groups * (self.per_prefix or 1)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Conversations about a document: each turn has all that was said before as its prompt."""

    document_tokens: int
    turns: int
    input_tokens: float
    """New tokens of each turn."""
    output_tokens: float

    @property
    def mean_input_tokens(self) -> float:
        """Return the mean prompt length over the turns."""
        return (
            self.document_tokens
            + self.input_tokens
            + (self.turns - 1) / 2.0 * (self.input_tokens + self.output_tokens)
        )


def _count(row: Mapping[str, str], name: str) -> int | None:
    text = (row.get(name) or "").strip()
    try:
        return int(float(text)) if text else None
    except ValueError as error:
        raise InputError(f"{name}: {text!r} is not a number") from error


def stated_hit_fraction(row: Mapping[str, str]) -> float:
    """Return the share of prompt tokens that the row says hit in the cache; 0 where it says nothing.

    Examples
    --------
    >>> stated_hit_fraction({"prefix_state": "aggregate prefill prefix hit 63.24 %"}), stated_hit_fraction({})
    (0.6324, 0.0)
    """
    found = _HIT.search(row.get("prefix_state") or "")
    return round(float(found[1]) / 100.0, 6) if found else 0.0


def shared_prompts_of(row: Mapping[str, str]) -> SharedPrompts | None:
    """Return which prompts of a row begin alike; None where none do.

    Parameters
    ----------
    row : its columns prefix_tokens, prefix_groups, prompts_per_prefix and prefix_state

    Returns
    -------
    the groups; InputError where a prefix is stated without the number of groups
    """
    tokens, groups = _count(row, "prefix_tokens"), _count(row, "prefix_groups")
    state = (row.get("prefix_state") or "").strip().lower()
    if not tokens or state == "prefix caching off" or state.startswith("none"):
        return None
    if not groups:
        raise InputError("prefix_groups: missing; how many prompts share a prefix decides what is cached")
    cold = any(word in state for word in _COLD) or "warmup_in_first_stage" in (row.get("flags") or "")
    shared = SharedPrompts(tokens, groups, _count(row, "prompts_per_prefix"), warm=not cold)
    if shared.distinct > MOST_PROMPTS:
        raise InputError(
            f"prefix_groups, prompts_per_prefix: {shared.distinct} different prompts; at most {MOST_PROMPTS} are replayed"
        )
    return shared


def conversation_of(row: Mapping[str, str]) -> Conversation | None:
    """Return the conversations that the lengths of a row describe; None where they describe none.

    Examples
    --------
    >>> text = "multi-turn: 49,152-token document + 6 turns x 256 in / 256 out requested"
    >>> conversation_of({"length_distribution": text}).mean_input_tokens
    50688.0
    """
    found = _TURNS.search(row.get("length_distribution") or "")
    if not found:
        return None
    document, turns, inputs, outputs = (int(part.replace(",", "")) for part in found.groups())
    generated = _MEAN_OUTPUT.search(row.get("length_distribution") or "")
    mean = sum(float(end) for end in generated.groups()) / 2.0 if generated else float(outputs)
    return Conversation(document, turns, float(inputs), mean)


def id_tokens_of(prompt_tokens: float, block_tokens: int) -> int:
    """Return the tokens of a block id: whole blocks of the engine, few enough ids of a prompt to look up.

    Examples
    --------
    >>> id_tokens_of(575.0, 16), id_tokens_of(16256.0, 16)
    (16, 128)
    """
    return block_tokens * max(1, ceil(prompt_tokens / (block_tokens * MOST_BLOCK_IDS)))


def order_of(shared: SharedPrompts, requests: int, random: "np.random.Generator") -> Counts:
    """Return which prompt each request sends: all in one shuffled order, over and over."""
    order = random.permutation(shared.distinct)
    sent: Counts = order[np.arange(requests) % shared.distinct]
    return sent


def with_shared_blocks(
    requests: Requests, shared: SharedPrompts, prompts: Counts, id_tokens: int
) -> Requests:
    """Return the requests with ids of their full blocks: equal for equal prompts, and over the prefix for those of a group.

    Examples
    --------
    Two prompts of three blocks, whose first two are the prefix of their group, and the first one again:

    >>> lengths = np.array([48, 48, 48])
    >>> shared = SharedPrompts(32, 1, 2, False)
    >>> with_shared_blocks(Requests(lengths, lengths), shared, np.array([0, 1, 0]), 16).block_ids.tolist()
    [0, 1, 2, 0, 1, 3, 0, 1, 2]
    """
    counts = requests.input_tokens // id_tokens
    prefix = shared.prefix_tokens // id_tokens
    known: dict[tuple[int, int], int] = {}
    ids: list[int] = []
    for place, (prompt, count) in enumerate(zip(prompts.tolist(), counts.tolist(), strict=True)):
        group, own = prompt // (shared.per_prefix or 1), prompt if shared.per_prefix else place
        for block in range(count):
            key = (-1 - group, block) if block < prefix else (own, block)
            ids.append(known.setdefault(key, len(known)))
    return replace(requests, block_ids=np.array(ids, dtype=np.int64), block_counts=counts)


def with_cached_tokens(
    requests: Requests, shared: SharedPrompts, prompts: Counts, block_tokens: int
) -> Requests:
    """Return the requests with what a cache that keeps everything has of each: its prefix, or all of a prompt sent before.

    Examples
    --------
    >>> lengths = np.array([48, 48, 48])
    >>> with_cached_tokens(Requests(lengths, lengths), SharedPrompts(32, 1, 2, False), np.array([0, 1, 0]), 16).cached_tokens
    array([ 0, 32, 47])
    """
    seen: set[tuple[str, int]] = set()
    if shared.warm:
        seen = {("group", group) for group in range(shared.groups)}
        seen |= {("prompt", prompt) for prompt in range(shared.distinct) if shared.per_prefix}
    cached = np.zeros(len(requests), dtype=np.int64)
    prefix = shared.prefix_tokens // block_tokens * block_tokens
    for place, prompt in enumerate(prompts.tolist()):
        group = prompt // (shared.per_prefix or 1)
        whole = int(requests.input_tokens[place])
        if shared.per_prefix and ("prompt", prompt) in seen:
            cached[place] = min(whole // block_tokens * block_tokens, whole - 1)
        elif ("group", group) in seen:
            cached[place] = min(prefix, whole - 1)
        seen |= {("group", group), ("prompt", prompt)}
    return replace(requests, cached_tokens=cached)


def conversations(talk: Conversation, count: int, users: int, id_tokens: int) -> ClosedLoopUsers:
    """Return the users of conversations, each with its share of them, one turn after another.

    Parameters
    ----------
    talk : its document and turns
    count : [-]
        conversations
    users : [-]
        who talk at the same time; the first ones have one conversation more where they cannot be dealt evenly
    id_tokens : [tokens]
        per block id

    Returns
    -------
    a group for each user

    Examples
    --------
    >>> crowd = conversations(Conversation(64, 2, 16.0, 16.0), 3, 2, 16)
    >>> crowd.requests.input_tokens.tolist(), [group.requests for group in crowd.groups]
    ([80, 112, 80, 112, 80, 112], [4, 2])
    """
    users = min(users, count)
    owned = [range(user, count, users) for user in range(users)]
    turn = np.arange(talk.turns)
    prompts = talk.document_tokens + talk.input_tokens + turn * (talk.input_tokens + talk.output_tokens)
    lengths: Array = np.tile(prompts, count)
    counts = lengths.astype(np.int64) // id_tokens
    longest = int(prompts[-1] + talk.output_tokens) // id_tokens + 1
    order = [talk_number for own in owned for talk_number in own]
    ids = [
        np.arange(number) + conversation * longest
        for conversation, number in zip(np.repeat(order, talk.turns).tolist(), counts.tolist(), strict=True)
    ]
    ends = (lengths + talk.output_tokens).astype(np.int64) // id_tokens
    responses = [
        np.arange(first, last) + conversation * longest
        for conversation, first, last in zip(
            np.repeat(order, talk.turns).tolist(), counts.tolist(), ends.tolist(), strict=True
        )
    ]
    requests = Requests(
        lengths.astype(np.int64),
        np.full(lengths.size, round(talk.output_tokens), dtype=np.int64),
        block_ids=np.concatenate(ids),
        block_counts=counts,
        output_ids=np.concatenate(responses),
        output_counts=ends - counts,
    )
    groups = tuple(UserGroup(1, len(own) * talk.turns) for own in owned)
    return ClosedLoopUsers(requests, users, groups=groups)
