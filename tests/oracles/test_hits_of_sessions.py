"""Hits of sessions by the size of a cache, against a cache that drops whole sessions while they come and go at random."""

from collections import OrderedDict
from heapq import heappop, heappush

import numpy as np
import pytest

from capplan.workload.kept_contexts import CacheTraffic, contexts_of
from capplan.workload.length import fixed, lognormal
from capplan.workload.sessions import Sessions

IN_FLIGHT = 300
CHATS = {
    "even": Sessions(fixed(8), fixed(400), fixed(120), fixed(60), 10.0),
    "long tail": Sessions(lognormal(13, 0.75), lognormal(483, 0.55), fixed(71), fixed(42), 15.0),
    "shared prefix": Sessions(lognormal(5, 0.6), fixed(900), lognormal(200, 0.6), fixed(100), 20.0, shared_tokens=600),
}  # fmt: skip


def hits_by_events(sessions, cache_tokens, seed):
    """Return the part of the prompt tokens that a cache of whole sessions holds; sessions come as a Poisson process."""
    random = np.random.default_rng(seed)
    mean_turns = float(sessions.turns.sample(20_000, random).mean())
    rate = IN_FLIGHT / (mean_turns * sessions.think_time_s)
    lasts_s = 20.0 * mean_turns * sessions.think_time_s
    at_s, events, number = 0.0, [], 0
    while at_s < lasts_s:
        at_s += float(random.exponential(1.0 / rate))
        heappush(events, (at_s, number))
        number += 1
    turns = sessions.turns.sample(number, random)
    first = np.maximum(sessions.first_tokens.sample(number, random), sessions.shared_tokens + 1)
    context, sent, held = np.zeros(number), np.zeros(number, dtype=int), OrderedDict()
    room, found, asked = cache_tokens - sessions.shared_tokens, 0.0, 0.0
    while events:
        now_s, which = heappop(events)
        if now_s > lasts_s:
            break
        grown = first[which] if sent[which] == 0 else sessions.added_tokens.sample(1, random)[0]
        prompt = context[which] + grown
        if now_s > 0.6 * lasts_s:
            asked += prompt
            found += context[which] if which in held else min(sessions.shared_tokens, prompt)
        context[which] = prompt + sessions.output_tokens.sample(1, random)[0]
        room += held.pop(which, 0.0)
        held[which] = context[which] - sessions.shared_tokens
        room -= held[which]
        while room < 0.0 and len(held) > 1:
            room += held.popitem(last=False)[1]
        sent[which] += 1
        if sent[which] < turns[which]:
            heappush(events, (now_s + float(random.exponential(sessions.think_time_s)), which))
    return found / asked


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("share", [0.4, 0.65, 0.9, 1.5])
def test_a_cache_finds_what_one_of_whole_sessions_finds_while_they_come_and_go(name, share):
    """A curve of 32 drawn sessions was off by 0.03 for the draw alone, and found 89 % where 142 users have 93 %."""
    sessions = CHATS[name]
    found = contexts_of(sessions)
    rate = IN_FLIGHT / sessions.think_time_s
    columns = (found.returning_tokens, sessions.think_time_s, found.gone_tokens)
    others = CacheTraffic(np.array([rate]), *(np.array([value]) for value in columns), running_tokens=0.0)
    cache = share * IN_FLIGHT * found.input_tokens
    by_events = np.mean([hits_by_events(sessions, cache, seed) for seed in (1,)])
    hits = found.hit_fraction(np.array([cache]), sessions.think_time_s, others)
    assert float(hits[0]) == pytest.approx(by_events, abs=0.02)
