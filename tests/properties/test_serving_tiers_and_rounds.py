"""Prefix cache, offload tiers and speculation under load, against engines that take one step after the other."""

import sys
from dataclasses import replace
from importlib import import_module
from math import ceil, inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.live.python_core import outcome_of, python_engine
from capplan.engine.profile import Scheduling
from capplan.serving.block_cache import OffloadTier, PrefixCaching
from capplan.serving.fleet_simulator import simulate_fleet
from capplan.serving.outcome import FINISHED, SHED
from capplan.serving.requests import Requests, offered
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepClock
from capplan.serving.terms import EngineSetup, Failure, Hedging
from tests.sweeps import examples

sys.path.insert(0, str(Path(__file__).parent))
steps = import_module("test_serving_simulator")
Reference, random_case, random_table = steps.Reference, steps.random_case, steps.random_table

POLICIES = pytest.mark.parametrize("policy", ["mixed", "prefill_first"])


class TieredReference(Reference):
    """One step at a time, with blocks that have names, tiers that they fall into, and rounds of several tokens."""

    def __init__(self, *arguments, caching, growth, query, variance, **options):
        super().__init__(*arguments, **options)
        self.caching, self.growth, self.query, self.variance = caching, growth, query, variance
        self.overshoot = 0 if growth == 1.0 else ceil(growth)
        self.rounds, self.joined = 0, 0
        self.known, self.kept, self.due = set(), [], {}
        self.tiers = [[] for _ in caching.tiers] if caching else []
        self.link_free = [0.0 for _ in self.tiers]
        self.found = [0] * (1 + len(self.tiers))

    # --- what is where ---

    def ids_of(self, row):
        if not self.caching:
            return []
        starts = np.concatenate(([0], np.cumsum(self.requests.block_counts)))
        ids = self.requests.block_ids[starts[row] : starts[row + 1]].tolist()
        return ids[: int(self.requests.input_tokens[row]) // self.caching.id_tokens]

    def arrive(self):
        super().arrive()
        request = self.everyone[-1]
        request.ids, request.loading, request.found, request.join_rounds = (
            self.ids_of(request.index),
            False,
            0,
            0,
        )

    def own(self, request, tokens):
        ids = getattr(request, "ids", [])
        if not ids:
            return super().own(request, tokens)
        return self.blocks(tokens - len(ids) * self.caching.id_tokens)

    def reserved(self, request, target, remaining):
        ids = getattr(request, "ids", [])
        if not ids:
            return super().reserved(request, target, remaining)
        own = target - len(ids) * self.caching.id_tokens
        return ceil((own + self.fraction * (remaining - 1)) / self.scheduling.block_tokens)

    def in_use(self):
        return {block for request in self.running for block in request.ids}

    def shared(self, more=()):
        size = self.caching.id_tokens // self.scheduling.block_tokens if self.caching else 0
        return len(self.in_use() | set(more)) * size

    def decoding(self):
        return sorted((r for r in self.running if r.computed >= r.target), key=lambda r: r.place)

    def used(self, extra=0):
        gained = int((self.rounds + extra) * self.growth)
        total = 0
        for request in self.running:
            decodes = request.computed >= request.target
            mixed = self.scheduling.policy == "mixed" and not decodes
            begun = self.begun_blocks(request) if mixed else 0
            total += (
                begun if mixed else self.own(request, request.base + gained if decodes else request.target)
            )
        return total

    def begun_blocks(self, request):
        """Blocks of the pieces that are begun, without those that have names."""
        return max(self.own(request, request.begun), 0)

    def without_a_block(self):
        """Deal blocks for the next round in order of admission, as vLLM does; return who comes after a request that gave up its own, or None."""
        now, later = (int(rounds * self.growth) for rounds in (self.rounds, self.rounds + 1))
        order = self.decoding()
        for place, request in enumerate(order):
            while request in self.running:
                served = [r for r in order[: place + 1] if r in self.running]
                more = sum(self.own(r, r.base + later) - self.own(r, r.base + now) for r in served)
                if self.used() + more <= self.capacity - self.shared():
                    break
                self.preempt()
                if request not in self.running:
                    return order[place + 1 :]
        return None

    def make_room(self):
        """Preempt until all decoding sequences have room for a round and a prompt under way for its next piece."""
        before, mixed = self.preemptions, self.scheduling.policy == "mixed"
        if mixed and self.admission.priority:
            self.skipped = self.without_a_block()
            if self.skipped is not None:
                return True
        while self.decoding() and self.used(extra=1) > self.capacity - self.shared():
            self.preempt()
        while mixed:
            under_way = next((r for r in self.running if not r.loading and r.computed < r.target), None)
            if under_way is None:
                break
            budget = max(self.scheduling.max_num_batched_tokens - len(self.decoding()) * self.query, 0)
            held, begun = self.begun_blocks(under_way), under_way.begun
            under_way.begun = max(begun, min(under_way.target, under_way.computed + budget))
            if self.begun_blocks(under_way) == held:
                break
            if self.used(extra=1) <= self.capacity - self.shared():
                self.trim(self.used(extra=1))
                break
            under_way.begun = begun
            self.preempt()
        return self.preemptions > before

    def trim(self, private):
        if not self.caching:
            return
        room = self.capacity - self.shared() - private
        while len(self.kept) > room // (self.caching.id_tokens // self.scheduling.block_tokens):
            block = self.kept.pop(0)
            self.known.discard(block)
            for tier, place in zip(self.caching.tiers, self.tiers, strict=True):
                if tier.capacity_blocks:
                    place.append(block)
                    if len(place) <= tier.capacity_blocks:
                        break
                    block = place.pop(0)

    def look_up(self, request):
        """How many leading blocks are somewhere, how many in each tier, and when all of them are here."""
        ready, counts = self.now, [0 for _ in self.tiers]
        found = 0
        for block in request.ids:
            where = next((i for i, place in enumerate(self.tiers) if block in place), None)
            if block in self.known:
                ready = max(ready, self.due.get(block, self.now))
            elif where is not None:
                counts[where] += 1
            else:
                break
            found += 1
        for i, count in enumerate(counts):
            if count:
                arrives = max(self.link_free[i], self.now) + count * self.caching.tiers[i].load_s_per_block
                ready = max(ready, arrives)
        return found, counts, ready

    def take(self, request, found, counts, ready):
        for i, count in enumerate(counts):
            if count:
                self.link_free[i] = (
                    max(self.link_free[i], self.now) + count * self.caching.tiers[i].load_s_per_block
                )
        for place, block in enumerate(request.ids):
            where = next((i for i, held in enumerate(self.tiers) if block in held), None)
            if place < found:
                self.found[0 if where is None else where + 1] += 1
                self.known.add(block)
                if where is not None:
                    self.due[block] = self.link_free[where]
            if where is not None:
                self.tiers[where].remove(block)
            if block in self.kept:
                self.kept.remove(block)
        request.found, request.ready, request.loading = found, ready, ready > self.now
        if not request.loading:
            self.known.update(request.ids)

    def give_back(self, request, done):
        """Take a request out; the blocks of its prompt that were worked on stay known, the tail going first."""
        self.running.remove(request)
        others = self.in_use()
        for place in reversed(range(len(request.ids))):
            block = request.ids[place]
            if place >= done:
                self.known.discard(block)
            elif block not in others:
                self.kept.append(block)

    # --- steps ---

    def keep_answer(self, request):
        """The blocks that an answer has completed stay known, behind those of its prompt."""
        starts = np.concatenate(([0], np.cumsum(self.requests.output_counts)))
        ids = self.requests.output_ids[starts[request.index] : starts[request.index + 1]].tolist()
        others = self.in_use()
        for block in reversed(ids):
            if block in others:
                continue
            for place in [self.kept, *self.tiers]:
                if block in place:
                    place.remove(block)
            self.kept.append(block)
            self.known.add(block)

    def finish(self, request):
        if self.caching:
            self.keep_answer(request)
        self.give_back(request, len(request.ids))
        self.running.append(request)
        super().finish(request)

    def preempt(self):
        runs = [r for r in self.running if not r.loading]
        cut = [r for r in runs if r.computed < r.target]
        decoding = self.decoding()
        if self.admission.priority:
            victim = max(runs, key=lambda r: (r.priority, r.index))
        else:
            victim = cut[-1] if cut else decoding[-1]
        done = len(victim.ids)
        if victim in decoding:
            made = min(int((self.rounds - victim.join_rounds) * self.growth), victim.remaining - 1)
            victim.generated = victim.output - victim.remaining + made
        elif self.caching:
            done = victim.computed // self.caching.id_tokens
        self.give_back(victim, done)
        victim.computed = 0
        self.preemptions += 1
        self.waiting.append(victim)
        self.waiting.sort(key=lambda r: (r.priority, r.index))

    def piece(self, new, budget, alone):
        """How much of a prompt goes into the step; None: it waits."""
        if self.scheduling.chunked:
            return min(new, budget) if budget > 0 else None
        return new if new <= budget or (alone and new > self.scheduling.max_num_batched_tokens) else None

    def plan(self, decoding, *, admits):
        s, chunks = self.scheduling, []
        budget = s.max_num_batched_tokens - (len(decoding) * self.query if s.policy == "mixed" else 0)
        begun = [r for r in self.running if not r.loading and r.computed < r.target]
        loaded = [r for r in self.running if r.loading and r.ready <= self.now and admits]
        for request in begun + loaded:
            if not request.loading and budget <= 0:
                continue
            new = request.target - request.computed
            new = min(new, budget) if not request.loading else self.piece(new, budget, not chunks)
            if new is None:
                return chunks
            if request.loading:
                request.loading = False
                self.known.update(request.ids)
            chunks.append((request, new))
            budget -= new
        if admits and self.waiting and len(self.running) < s.max_num_seqs and budget > 0:
            self.trim(self.used(extra=1))
        while admits and self.waiting and len(self.running) < s.max_num_seqs and budget > 0:
            request = self.waiting[0]
            target = request.prompt + request.generated
            found, counts, ready = self.look_up(request)
            cached = min(found * self.caching.id_tokens, target - 1) if request.ids else request.cached
            new = 0 if ready > self.now else self.piece(target - cached, budget, not chunks)
            more = self.shared(request.ids) - self.shared()
            full = self.capacity - self.shared()
            commit = self.reserved(request, target, request.output - request.generated)
            if new is None or self.used(extra=1) + self.own(request, target) + more > full:
                break
            if self.fraction and sum(r.log[-1] for r in self.running) + commit > full:
                break
            self.waiting.pop(0)
            request.log.append(commit)
            self.take(request, found, counts, ready)
            request.target, request.computed = target, cached
            request.begun = target if request.loading else cached + new
            if np.isnan(request.started_s):
                request.started_s = self.now
            self.running.append(request)
            self.trim(self.used(extra=1))
            if not request.loading:
                chunks.append((request, new))
                budget -= new
        return chunks

    def next_ready(self):
        return min((r.ready for r in self.running if r.loading), default=inf)

    def step_s(self, decoding, chunks):
        """The table's words, with the tokens of whole rounds in the step."""
        if self.scheduling.policy == "static":
            return super().step_s(decoding, chunks)
        tokens = [r.base + self.rounds * self.growth for r in decoding]
        clock = StepClock(self.table)
        context = float(np.mean(tokens)) if decoding else 0.0
        if not chunks:
            return clock.row(len(decoding)).step_s(context)
        parts = [(new, request.computed) for request, new in chunks]
        return clock.mixed_step_s(len(decoding), context, parts, self.query)

    def step(self):
        preempted = self.make_room()
        skipped, self.skipped = self.skipped, None
        decoding = [r for r in self.decoding() if r not in (skipped or [])]
        chunks = self.plan(decoding, admits=not preempted) if skipped is None else []
        if not chunks and not decoding:
            return preempted
        if chunks and self.scheduling.policy == "prefill_first":
            decoding = []
        self.now += self.step_s(decoding, chunks)
        if decoding:
            gained = int((self.rounds + 1) * self.growth) - int(self.rounds * self.growth)
            for request in skipped or []:
                request.base -= gained
                request.join_rounds += 1
            self.rounds += 1
            self.trim(self.used())
        ended = [r for r in decoding if self.rounds - r.join_rounds == r.rounds_left]
        for request in ended:
            self.finish(request)
        for request, new in chunks:
            request.computed += new
            if request.computed == request.target:
                request.generated += 1
                request.remaining = request.output - request.generated
                if np.isnan(request.first_s):
                    request.first_s = self.now
                if not request.remaining:
                    self.finish(request)
                    continue
                self.joined += 1
                request.place, request.join_rounds = self.joined, self.rounds
                request.base = request.target - int(self.rounds * self.growth)
                request.rounds_left = self.rounds_for(request.index, request.remaining)
        return True


def random_chat(seed, policy):
    """A random case whose prompts share blocks, in a cache with tiers; perhaps with speculation."""
    rng = np.random.default_rng(seed)
    requests, table, scheduling, blocks, options = random_case(seed, policy)
    growth, query = [(1.0, 1), (2.3, 4), (1.7, 2)][int(rng.integers(0, 3))]
    scheduling = Scheduling(
        policy,
        scheduling.max_num_seqs,
        max(scheduling.max_num_batched_tokens, scheduling.max_num_seqs * query),
        chunked=scheduling.chunked,
        block_tokens=scheduling.block_tokens,
    )
    caching = None
    if policy != "static" and rng.random() < 0.8:
        size = scheduling.block_tokens * int(rng.integers(1, 3))
        tiers = tuple(
            OffloadTier(
                int(rng.integers(0, 12)), float(rng.choice([0.0, 0.003, 0.04]) * (0.5 + rng.random()))
            )
            for _ in range(int(rng.integers(0, 4)))
        )
        caching = PrefixCaching(size, tiers)
        counts = requests.input_tokens // size
        chats = [rng.permutation(1000)[:200] + 1000 * chat for chat in range(3)]
        ids, answers = [], []
        for count, output in zip(counts, requests.output_tokens, strict=True):
            chat, own = chats[int(rng.integers(0, 3))], int(rng.choice([count, rng.integers(0, count + 1)]))
            answers.append(chat[own : own + output // size] if own == count else chat[:0])
            fresh = rng.integers(10**6, 10**9, max(int(count) - own, 0))
            ids += [*chat[:own].tolist(), *fresh.tolist()]
        requests = Requests(
            requests.input_tokens,
            requests.output_tokens,
            requests.arrival_s,
            class_index=requests.class_index,
            block_ids=np.array(ids, dtype=np.int64),
            block_counts=counts,
            output_ids=np.concatenate(answers),
            output_counts=np.array([len(answer) for answer in answers]),
        )
    variance = float(rng.choice([0.0, 0.1, 1.0])) if growth > 1.0 else 0.0
    options |= {"caching": caching, "growth": growth, "query": query, "variance": variance}
    return requests, table, scheduling, blocks, options


def engine_of(table, scheduling, blocks, options):
    return EngineSetup(
        table,
        replace(scheduling, reserved_output_fraction=options["fraction"]),
        blocks,
        tokens_per_step=options["growth"],
        tokens_variance=options["variance"],
        query_tokens=options["query"],
        batch_timeout_s=options["timeout_s"],
        caching=options["caching"],
    )


def both(seed, policy):
    requests, table, scheduling, blocks, options = random_chat(seed, policy)
    slow = TieredReference(requests, table, scheduling, blocks, **options).run()
    fast = simulate(
        requests,
        engine_of(table, scheduling, blocks, options),
        concurrency=options["concurrency"],
        until_s=options["until_s"],
        admission=options["admission"],
    )
    return fast, slow


@pytest.mark.parametrize("policy", ["mixed", "prefill_first", "static"])
@settings(max_examples=examples(40, 300), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_events_give_what_steps_give_with_tiers_and_speculation(policy: str, seed: int) -> None:
    fast, slow = both(seed, policy)
    steps.check_same_results(fast, slow)
    if slow.caching:
        assert fast.hit_blocks == tuple(slow.found)


@POLICIES
@settings(max_examples=examples(40, 150), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_nothing_is_lost_with_tiers_and_speculation(policy: str, seed: int) -> None:
    """Every request ends in one way, every block comes back, no block is left on its way."""
    requests, table, scheduling, blocks, options = random_chat(seed, policy)
    engine = engine_of(table, scheduling, blocks, options)
    clocked, crowd = offered(requests, options["concurrency"], None)
    core = python_engine(clocked, engine, crowd=crowd)
    outcome = outcome_of(core)
    core.waits_for_output()
    done = outcome.finished
    assert outcome.count(FINISHED) + outcome.count(SHED) == len(requests)
    assert (core.capacity, core.held, core.committed, core.loading) == (blocks, 0, 0, 0)
    worked = outcome.prefill_tokens + outcome.cached_tokens
    if outcome.preemptions == 0:
        assert worked == outcome.input_tokens[done].sum()
    else:
        assert worked >= outcome.input_tokens[done].sum()
    if options["caching"]:
        cache = core.cache
        assert (cache._users, cache._absent, cache._loading) == ({}, set(), {})
        places = [cache._free, *cache._tiers]
        assert len({block for place in places for block in place}) == sum(len(place) for place in places)


@POLICIES
@settings(max_examples=examples(40, 180), deadline=None)
@given(seed=st.integers(0, 10**6), replicas=st.integers(2, 3))
def test_nothing_is_lost_when_replicas_that_load_fail_or_are_hedged(
    policy: str, seed: int, replicas: int
) -> None:
    requests, table, scheduling, blocks, options = random_chat(seed, policy)
    rng = np.random.default_rng(seed)
    clocked, crowd = offered(requests, options["concurrency"], None)
    for operation in (
        {"failures": [Failure(float(rng.random()), 0, 0.3)]},
        {"hedging": Hedging(float(rng.random() * 0.1))},
        {"routing": "least_loaded"},
    ):
        run = simulate_fleet(
            clocked, engine_of(table, scheduling, blocks, options), replicas, crowd=crowd, **operation
        )
        assert run.outcome.count(FINISHED) + run.outcome.count(SHED) == len(requests)
        assert np.isfinite(run.outcome.e2e_s[run.outcome.finished]).all()
