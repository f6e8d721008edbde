"""The event-driven simulator against one that is written to be obviously right: step by step, sequence by sequence."""

from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil, inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.live.python_core import outcome_of, python_engine
from capplan.engine.profile import Scheduling
from capplan.serving.outcome import FINISHED, SHED, UNFINISHED, Outcome
from capplan.serving.requests import BEGIN_S, Admission, Requests, offered
from capplan.serving.simulator import simulate
from capplan.serving.step_table import (
    StepTable,
    bilinear,
    decode_step_s,
    piecewise_linear,
)
from capplan.serving.terms import EngineSetup
from tests.sweeps import examples


@dataclass
class Request:
    index: int
    arrival_s: float
    enqueued_s: float
    prompt: int
    output: int
    cached: int
    deadline_s: float
    priority: int
    generated: int = 0
    computed: int = 0
    target: int = 0
    begun: int = 0
    """Tokens of the pieces of the prompt that steps have begun."""
    seat: int = 0
    """Its number in the order of admission."""
    state: str = "waiting"
    started_s: float = nan
    first_s: float = nan
    end_s: float = nan
    log: list = field(default_factory=list)
    handed: bool = False
    """Its prompt was computed elsewhere, and it has not run here."""


def standard_luck():
    """The luck of one request after the other: normal numbers of mean zero and variance one, as docs/methodology has them."""
    drawn = np.random.default_rng(7).standard_normal(4093)
    return (drawn - drawn.mean()) / drawn.std()


LUCK = standard_luck()


def front_end(requests, table, row, sent_s, reached_s):
    """When a request that was sent at a time reaches the queue: not before one that was sent earlier."""
    return max(sent_s + table.request_s + table.prompt_token_s * int(requests.input_tokens[row]), reached_s)


class Reference:
    """One step at a time; every rule as its sentence says it."""

    overshoot = 0
    """Tokens beyond its output for which a request must find room, under speculation."""
    growth = 1.0
    """Tokens that a decode step yields."""
    query = 1
    """Tokens that it yields at most, and computes."""
    variance = 0.0
    """Of the tokens that it yields; the luck of a request is one number for all its rounds."""

    def __init__(
        self, requests, table, scheduling, kv_blocks, *, concurrency, until_s, admission, fraction, timeout_s
    ):
        self.table, self.scheduling, self.capacity = table, scheduling, kv_blocks
        self.closed, self.until_s, self.admission = concurrency is not None, until_s, admission
        self.fraction, self.timeout_s = fraction, timeout_s
        self.rows = list(range(len(requests)))
        self.requests = requests
        self.now = 0.0
        self.arrivals, self.reached_s = [], 0.0
        """When requests were sent, and when each reaches the queue; None: behind the front end, which handles them in order."""
        if self.closed:
            for client in range(concurrency):
                self.release(BEGIN_S * client)
        else:
            for row in self.rows:
                self.arrivals.append((float(requests.arrival_s[row]), None))
            self.rows_open = list(self.rows)
        self.next_row = 0
        self.everyone, self.waiting, self.running = [], [], []
        self.planned, self.ended, self.seats = 0.0, [], 0
        """When the step that comes next is planned, asynchronously, and who then still has seat and blocks although it has ended."""
        self.preemptions = self.steps = self.prefill_tokens = self.cached_tokens = 0
        self.busy_s = self.sequences_s = 0.0
        self.since_look, self.held, self.gathered, self.released = 0, None, None, False
        self.most = 0
        """Pieces of prompts in a step at most so far."""
        self.skipped, self.taken = None, []

    def release(self, at_s):
        if self.closed:
            self.arrivals.append((at_s, None))
            self.arrivals.sort()

    def next_arrival(self):
        """When the next request reaches the queue."""
        if not self.arrivals or self.next_row >= len(self.rows):
            return inf
        sent_s, at_s = self.arrivals[0]
        return (
            front_end(self.requests, self.table, self.next_row, sent_s, self.reached_s)
            if at_s is None
            else at_s
        )

    def rounds_for(self, row, tokens):
        """How many steps yield so many tokens: those of the mean request plus or minus what the luck of this one takes."""
        lacking = LUCK[row % len(LUCK)] * (self.variance / self.growth) ** 0.5 * tokens**0.5
        fewest = ceil(tokens / self.query) if self.query > 1 else min(tokens, 1)
        return max(ceil((tokens + lacking) / self.growth - 1e-9), fewest) if self.growth > 1.0 else tokens

    def blocks(self, tokens):
        return ceil(tokens / self.scheduling.block_tokens)

    def own(self, request, tokens):
        block = self.scheduling.block_tokens
        return self.blocks(tokens - request.cached // block * block)

    def used(self, extra=0):
        """Blocks held: those of a sequence's tokens, and of a prompt under way those of the pieces that it has begun.

        An engine that prefills in steps of their own holds all blocks of a prompt.
        """
        total = 0
        for request in self.running:
            decoding = request.computed >= request.target
            begun = request.begun if self.scheduling.policy == "mixed" else request.target
            total += self.own(request, request.computed + extra if decoding else begun)
        return total + sum(self.own(request, request.computed) for request in self.ended)

    def reserved(self, request, target, remaining):
        block = self.scheduling.block_tokens
        own = target - request.cached // block * block
        return ceil((own + self.fraction * (remaining - 1)) / block)

    def seen(self):
        """Up to when requests must have arrived for the step that is planned."""
        return self.planned if self.scheduling.asynchronous else self.now

    def receive(self, until=None):
        until = self.seen() if until is None else until
        while True:
            leaving = [r for r in self.waiting if np.isnan(r.started_s) and r.deadline_s < inf]
            expiry = min((r.enqueued_s + r.deadline_s for r in leaving), default=inf)
            arrival = self.next_arrival()
            if expiry <= until and expiry <= arrival:
                first = min(leaving, key=lambda r: (r.enqueued_s + r.deadline_s, r.index))
                first.state = "shed"
                self.waiting.remove(first)
                self.release(expiry)
            elif arrival <= until:
                self.arrive()
            else:
                return

    def arrive(self):
        self.reached_s = enqueued = self.next_arrival()
        arrival, _ = self.arrivals.pop(0)
        row, self.next_row = self.next_row, self.next_row + 1
        of_class = 0 if self.requests.class_index is None else int(self.requests.class_index[row])
        cached = 0 if self.requests.cached_tokens is None else int(self.requests.cached_tokens[row])
        request = Request(
            row,
            arrival,
            enqueued,
            int(self.requests.input_tokens[row]),
            int(self.requests.output_tokens[row]),
            min(cached, int(self.requests.input_tokens[row]) - 1),
            self.admission.deadline_s[of_class] if self.admission.deadline_s else inf,
            self.admission.priority[of_class] if self.admission.priority else 0,
        )
        self.everyone.append(request)
        s = self.scheduling
        request.handed = s.takes_over and (s.draws_first or request.output > 1)
        request.cached *= not request.handed
        drawn = request.handed and s.draws_first
        whole = self.own(request, request.prompt + request.output - 1 + self.overshoot + drawn)
        too_long = whole > self.capacity or (
            not (s.chunked or request.handed)
            and request.prompt - request.cached > self.scheduling.max_num_batched_tokens
        )
        limit = self.admission.queue_limit
        if too_long or (limit is not None and len(self.waiting) >= limit):
            request.state = "shed"
            self.release(enqueued)
        else:
            self.waiting.append(request)
            self.waiting.sort(key=lambda r: (r.priority, r.index))

    def next_ready(self):
        """When the next request has what it waits for besides a seat: nobody waits for anything."""
        return inf

    def next_event(self):
        leaving = [r.enqueued_s + r.deadline_s for r in self.waiting if np.isnan(r.started_s)]
        return self.next_arrival(), min(leaving, default=inf)

    def step_s(self, decoding, chunks):
        context = np.mean([r.computed for r in decoding]) if decoding else 0.0
        if not chunks:
            return float(decode_step_s(self.table, float(len(decoding)), context))
        t = self.table
        tokens = len(decoding) + sum(new for _, new in chunks)
        seconds = float(piecewise_linear(t.token_knots, t.mixed_s, tokens))
        seconds += float(piecewise_linear(t.sequence_knots, t.head_s, len(decoding) + len(chunks)))
        if decoding:
            seconds += float(
                bilinear(t.sequence_knots, t.context_knots, t.decode_attention_s, len(decoding), context)
            )
        for request, new in chunks:
            seconds += float(
                new
                * bilinear(
                    t.new_knots,
                    t.past_knots,
                    t.prefill_attention_s / t.new_knots[:, None],
                    new,
                    request.computed,
                )
            )
        return max(seconds, float(np.interp(tokens, t.token_knots, t.launch_s)))

    def spend(self, decoding, chunks, held):
        """Take a step, while the engine holds these requests."""
        seconds = self.step_s(decoding, chunks)
        self.now += seconds
        self.busy_s += seconds
        self.sequences_s += seconds * len(held)
        self.steps += 1
        self.prefill_tokens += sum(new for _, new in chunks)

    def finish(self, request):
        request.state, request.end_s = "finished", self.now
        self.running.remove(request)
        if self.scheduling.asynchronous:
            self.ended.append(request)
        self.release(self.now)

    def without_a_block(self):
        """Deal blocks for the next token in order of admission, as vLLM does; return who comes after a request that gave up its own, or None."""
        order = [r for r in self.running if r.computed >= r.target]
        for place, request in enumerate(order):
            while request in self.running:
                served = [r for r in order[: place + 1] if r in self.running]
                more = sum(self.own(r, r.computed + 1) - self.own(r, r.computed) for r in served)
                if self.used() + more <= self.capacity:
                    break
                victims = set(map(id, self.running))
                self.preempt()
                if id(request) in victims - set(map(id, self.running)):
                    return order[place + 1 :]
        return None

    def preempt(self):
        if self.admission.priority:
            victim = max(self.running, key=lambda r: (r.priority, r.index))
        else:
            victim = self.running[-1]
            late = [r for r in self.ended if r.seat > victim.seat]
            if late:  # its last token is on its way, but it still has a seat
                self.ended.remove(max(late, key=lambda r: r.seat))
                self.preemptions += 1
                return
        self.running.remove(victim)
        victim.computed = 0
        self.preemptions += 1
        self.waiting.append(victim)
        self.waiting.sort(key=lambda r: (r.priority, r.index))

    def stay_out(self, decoding):
        """Whether waiting prompts must not join this step: the engine does not look, or holds them for company."""
        s = self.scheduling
        if not self.waiting:
            self.held, self.gathered, self.released = None, None, False
        if not self.waiting or any(r.computed < r.target for r in self.running):
            return False
        if not decoding:
            self.since_look, self.held, self.gathered, self.released = 0, None, None, False
            return False
        if len(self.running) >= s.max_num_seqs or self.waiting[0].handed:
            return False
        if s.poll_steps and self.since_look % s.poll_steps:
            return True
        if s.hold_steps and not self.released:
            self.held = 0 if self.held is None else self.held
            if s.hold_prompts and self.gathered is None and len(self.waiting) >= s.hold_prompts:
                self.gathered = 0
            tokens = len(decoding) + sum(r.prompt + r.generated for r in self.waiting)
            if self.gathered is not None:
                if self.gathered < s.gather_steps:
                    return True
            elif self.held < s.hold_steps and (s.hold_prompts or tokens < s.hold_tokens):
                return True
            free = s.max_num_seqs - len(self.running)
            if s.hold_seats and len(self.waiting) >= s.hold_prompts and free < self.most:
                return True
            self.held = self.gathered = None
            self.released = True
        return False

    def make_room(self):
        """Preempt until all decoding sequences have room for a token and a prompt under way for its next piece."""
        before = self.preemptions
        if self.admission.priority and self.scheduling.policy == "mixed":
            self.skipped = self.without_a_block()
            if self.skipped is not None:
                return True
        while any(r.computed >= r.target for r in self.running) and self.used(extra=1) > self.capacity:
            self.preempt()
        while any(r.computed < r.target for r in self.running):
            decoding = sum(r.computed >= r.target for r in self.running)
            under_way = next(r for r in self.running if r.computed < r.target)
            budget = max(self.scheduling.max_num_batched_tokens - decoding, 0)
            begun = under_way.begun
            under_way.begun = max(begun, min(under_way.target, under_way.computed + budget))
            if (
                self.scheduling.policy != "mixed"
                or under_way.begun == begun
                or self.used(extra=1) <= self.capacity
            ):
                break
            under_way.begun = begun
            self.preempt()
        return self.preemptions > before

    def takes(self, request):
        """Let a request decode whose prompt was computed elsewhere, if its blocks fit and that of its next token."""
        generated = int(not self.scheduling.draws_first)
        commit = self.reserved(request, request.prompt, request.output - generated)
        reserved = sum(r.log[-1] for r in self.running + self.ended) if self.fraction else 0
        if self.used(extra=1) + self.own(request, request.prompt + 1) > self.capacity or (
            self.fraction and reserved + commit > self.capacity
        ):
            return False
        self.waiting.pop(0)
        request.log.append(commit)
        request.handed, request.generated, request.started_s = False, generated, self.now
        request.first_s = self.now if generated else nan
        request.target = request.computed = request.begun = request.prompt
        self.seats += 1
        request.seat = self.seats
        self.running.append(request)
        self.taken.append(request)
        return True

    def prompts(self, decoding, *, admits):
        """Return the prompt tokens of a step, of running requests and, unless one was preempted, of those that it admits."""
        s, chunks = self.scheduling, []
        budget = s.max_num_batched_tokens - (len(decoding) if s.policy == "mixed" else 0)
        for request in self.running:
            if request.computed < request.target and budget > 0:
                new = min(request.target - request.computed, budget)
                chunks.append((request, new))
                budget -= new
        closed = not admits or self.stay_out(decoding)
        while (
            not closed
            and self.waiting
            and len(self.running) + len(self.ended) < s.max_num_seqs
            and budget > 0
        ):
            request = self.waiting[0]
            if request.handed:
                if not self.takes(request):
                    break
                continue
            target = request.prompt + request.generated
            new = target - request.cached
            if not s.chunked and new > budget and (chunks or new <= s.max_num_batched_tokens):
                break
            if s.chunked:
                new = min(new, budget)
            if self.used(extra=1) + self.own(request, target) > self.capacity:
                break
            commit = self.reserved(request, target, request.output - request.generated)
            if self.fraction and sum(r.log[-1] for r in self.running + self.ended) + commit > self.capacity:
                break
            self.waiting.pop(0)
            request.log.append(commit)
            request.target, request.computed = target, request.cached
            request.begun = request.cached + new
            self.cached_tokens += request.cached
            if np.isnan(request.started_s):
                request.started_s = self.now
            self.seats += 1
            request.seat = self.seats
            self.running.append(request)
            chunks.append((request, new))
            budget -= new
        return chunks

    def step(self):
        s = self.scheduling
        preempted = self.make_room()
        skipped, self.skipped = self.skipped, None
        decoding = [r for r in self.running if r.computed >= r.target and r not in (skipped or [])]
        chunks = self.prompts(decoding, admits=not preempted) if skipped is None else []
        decoding, self.taken = decoding + self.taken, []
        late = self.planned < self.now or bool(self.ended)
        self.planned = self.now
        self.ended.clear()
        if not chunks and not decoding:
            return preempted or (late and s.asynchronous)
        if chunks and s.policy == "prefill_first":
            decoding = []
        self.spend(decoding, chunks, self.running)
        self.since_look += bool(decoding)
        if self.held is not None:
            self.held += bool(decoding)
        if self.gathered is not None:
            self.gathered += bool(decoding)
        if chunks:
            self.since_look, self.released = 0, False
            self.most = max(self.most, len(chunks))
        for request in decoding:
            request.computed += 1
            request.generated += 1
            if np.isnan(request.first_s):
                request.first_s = self.now
            if request.generated == request.output:
                self.finish(request)
        for request, new in chunks:
            request.computed += new
            if request.computed == request.target:
                request.generated += 1
                if np.isnan(request.first_s):
                    request.first_s = self.now
                if request.generated == request.output:
                    self.finish(request)
        return True

    def static(self):
        s = self.scheduling
        arrival, expiry = self.next_event()
        if self.waiting:
            full = len(self.waiting) >= s.max_num_seqs or arrival == inf
            start = self.now if full else self.waiting[0].enqueued_s + self.timeout_s
        else:
            start = inf
        if start > self.now:
            event = min(start, arrival, expiry)
            if event >= self.until_s:
                return False
            self.now = event
            return True
        batch, held = [], 0
        while self.waiting and len(batch) < s.max_num_seqs:
            need = self.own(self.waiting[0], self.waiting[0].prompt + self.waiting[0].output - 1)
            if held + need > self.capacity:
                break
            held += need
            request = self.waiting.pop(0)
            request.started_s, request.computed, request.target = self.now, request.cached, request.prompt
            self.cached_tokens += request.cached
            batch.append(request)
        while any(r.computed < r.target for r in batch):
            budget, chunks = s.max_num_batched_tokens, []
            for request in batch:
                new = request.target - request.computed
                if new and budget:
                    if new > budget and not s.chunked:
                        break
                    chunks.append((request, min(new, budget)))
                    budget -= chunks[-1][1]
            self.spend([], chunks, batch)
            for request, new in chunks:
                request.computed += new
                if request.computed == request.target:
                    request.first_s = self.now
        for _ in range(max(self.rounds_for(r.index, r.output - 1) for r in batch)):
            self.spend(batch, [], batch)
            for request in batch:
                request.computed += self.growth
        self.running = list(batch)
        for request in batch:
            self.finish(request)
        return True

    def run(self):
        while self.now < self.until_s:
            self.receive()
            if self.scheduling.policy == "static":
                if not self.static():
                    break
            elif not self.step():
                event = min(self.next_event()[0], self.next_ready())
                if event >= self.until_s:
                    break
                self.now = max(self.now, event)
        self.receive(self.now)
        return self


def random_table(rng) -> StepTable:
    """Irregular times, so that no two events fall on the same instant by accident."""
    sequences = np.array([1.0, 3.0, 8.0])
    contexts = np.unique(rng.integers(0, 60, 4)).astype(float)
    tokens = np.array([1.0, 10.0, 40.0])
    past = np.array([0.0, 25.0])
    return StepTable(
        sequence_knots=sequences,
        decode_s=0.01 + np.cumsum(rng.random(3)) * 0.01,
        head_s=np.cumsum(rng.random(3)) * 0.001,
        context_knots=contexts,
        decode_attention_s=np.cumsum(np.cumsum(rng.random((3, contexts.size)), axis=1), axis=0) * 0.002,
        token_knots=tokens,
        mixed_s=0.01 + np.cumsum(rng.random(3)) * 0.02,
        new_knots=tokens,
        past_knots=past,
        prefill_attention_s=tokens[:, None] * np.cumsum(np.cumsum(rng.random((3, 2)), axis=1), axis=0) * 3e-4,
        request_s=float(rng.random() * 0.01),
        prompt_token_s=float(rng.spawn(1)[0].choice([0.0, 2e-4, 5e-3])),
        launch_s=0.02 + np.cumsum(rng.random(3)) * 0.02,
    )


def random_case(seed: int, policy: str):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 25))
    classes = bool(rng.random() < 0.4)
    requests = Requests(
        input_tokens=rng.integers(1, 60, count),
        output_tokens=rng.integers(1, 30, count),
        arrival_s=np.cumsum(rng.exponential(rng.choice([0.01, 0.1, 0.5]), count)),
        cached_tokens=rng.integers(0, 30, count) if rng.random() < 0.4 else None,
        class_index=rng.integers(0, 2, count) if classes else None,
    )
    seats = int(rng.integers(1, 9))
    scheduling = Scheduling(
        policy,
        max_num_seqs=seats,
        max_num_batched_tokens=int(rng.integers(max(seats, 8), 70)),
        chunked=bool(rng.random() < 0.7),
        block_tokens=int(rng.choice([1, 4, 7, 16])),
    )
    if rng.random() < 0.4:
        scheduling = replace(
            scheduling,
            hold_steps=int(rng.choice([0, 1, 5, 20])),
            hold_tokens=int(rng.integers(1, 80)),
            hold_prompts=int(rng.choice([0, 0, 1, 2, 4])),
            gather_steps=int(rng.choice([0, 1, 3, 9])),
            poll_steps=int(rng.choice([0, 1, 3, 10])),
            hold_seats=int(rng.choice([0, 0, 1])),
        )
    ahead = policy != "static" and bool(np.random.default_rng(seed + 2).random() < 0.5)
    scheduling = replace(scheduling, asynchronous=ahead)
    closed = bool(rng.random() < 0.4)
    admission = Admission(
        queue_limit=int(rng.integers(0, 6)) if rng.random() < 0.2 and not closed else None,
        deadline_s=tuple(rng.random(2) * 0.5 + 0.01) if rng.random() < 0.3 else (),
        priority=(1, 0) if classes and rng.random() < 0.6 else (),
    )
    blocks = int(rng.choice([90, 200, 1000])) // scheduling.block_tokens + 1
    return (
        requests,
        random_table(rng),
        scheduling,
        blocks,
        {
            "concurrency": int(rng.integers(1, 12)) if closed else None,
            "until_s": float(rng.random() * 5.0) if rng.random() < 0.2 else inf,
            "admission": admission,
            "fraction": float(rng.choice([0.0, 0.0, 0.5, 1.0])) if policy != "static" else 0.0,
            "timeout_s": float(rng.choice([0.0, 0.2, inf])),
        },
    )


def run_both(seed: int, policy: str) -> tuple[Outcome, Reference]:
    requests, table, scheduling, blocks, options = random_case(seed, policy)
    slow = Reference(requests, table, scheduling, blocks, **options).run()
    fast = simulate(
        requests,
        EngineSetup(
            table,
            replace(scheduling, reserved_output_fraction=options["fraction"]),
            blocks,
            batch_timeout_s=options["timeout_s"],
        ),
        concurrency=options["concurrency"],
        until_s=options["until_s"],
        admission=options["admission"],
    )
    return fast, slow


def check_same_totals(fast: Outcome, slow: Reference) -> None:
    """Same steps, tokens and time in steps."""
    assert (fast.steps, fast.prefill_tokens, fast.cached_tokens) == (
        slow.steps,
        slow.prefill_tokens,
        slow.cached_tokens,
    )
    assert fast.busy_fraction * fast.seconds == pytest.approx(slow.busy_s, rel=1e-9, abs=1e-9)
    assert fast.batch_mean * slow.busy_s == pytest.approx(slow.sequences_s, rel=1e-9, abs=1e-9)


def check_same_results(fast: Outcome, slow: Reference) -> None:
    """Same results to rounding: 1e-9 relative, for sums are taken in another order."""
    assert fast.seconds == pytest.approx(slow.now, rel=1e-9)
    assert fast.preemptions == slow.preemptions
    states = {"shed": SHED, "finished": FINISHED, "waiting": UNFINISHED}
    assert fast.status.tolist() == [states[r.state] for r in slow.everyone]
    near = {"rel": 1e-9, "abs": 1e-9, "nan_ok": True}
    begun = [r.started_s - r.enqueued_s if not np.isnan(r.first_s) else nan for r in slow.everyone]
    assert fast.queue_s == pytest.approx(np.array(begun), **near)
    assert fast.ttft_s == pytest.approx(np.array([r.first_s - r.arrival_s for r in slow.everyone]), **near)
    assert fast.e2e_s == pytest.approx(np.array([r.end_s - r.arrival_s for r in slow.everyone]), **near)


@pytest.mark.parametrize("policy", ["mixed", "prefill_first", "static"])
@settings(max_examples=examples(40, 300), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_events_give_what_steps_give(policy: str, seed: int) -> None:
    fast, slow = run_both(seed, policy)
    check_same_results(fast, slow)
    check_same_totals(fast, slow)


@pytest.mark.parametrize(("policy", "draws_first"), [*product(("mixed", "prefill_first"), (False, True))])
@settings(max_examples=examples(40, 300), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_decode_engine_by_itself_gives_what_steps_give(policy: str, draws_first: bool, seed: int) -> None:
    """With preemptions too: prompts that are computed again are admitted between others that decode at once."""
    requests, table, scheduling, blocks, options = random_case(seed, policy)
    scheduling = replace(scheduling, takes_over=True, draws_first=draws_first)
    options["until_s"] = inf
    slow = Reference(requests, table, scheduling, blocks, **options).run()
    scheduling = replace(scheduling, reserved_output_fraction=options["fraction"])
    rules = {"concurrency": options["concurrency"], "admission": options["admission"]}
    fast = simulate(requests, EngineSetup(table, scheduling, blocks), **rules)
    check_same_results(fast, slow)
    check_same_totals(fast, slow)
    assert fast.itl.weight == (fast.output_tokens - 1)[fast.finished].sum()


@pytest.mark.parametrize("policy", ["mixed", "prefill_first", "static"])
@settings(max_examples=examples(40, 200), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_nothing_is_lost(policy: str, seed: int) -> None:
    """Every request ends in one way, every token after the first leaves one gap, all blocks come back."""
    requests, table, scheduling, blocks, options = random_case(seed, policy)
    reserving = replace(scheduling, reserved_output_fraction=options["fraction"])
    clocked, crowd = offered(requests, options["concurrency"], None)
    engine = EngineSetup(table, reserving, blocks, batch_timeout_s=options["timeout_s"])
    core = python_engine(clocked, engine, crowd=crowd)
    outcome = outcome_of(core)
    assert outcome.count(FINISHED) + outcome.count(SHED) == len(requests)
    done = outcome.finished
    assert outcome.itl.weight == outcome.output_tokens[done].sum() - done.sum()
    worked = outcome.prefill_tokens + outcome.cached_tokens
    if outcome.preemptions == 0:
        assert worked == outcome.input_tokens[done].sum()
    else:
        assert worked > outcome.input_tokens[done].sum()
    assert 0.0 <= outcome.kv_occupancy_mean <= 1.0
    assert outcome.busy_fraction <= 1.0 + 1e-12
    assert outcome.timeline.busy_fraction.sum() * outcome.timeline.span_s == pytest.approx(
        outcome.busy_fraction * outcome.seconds
    )
    core.waits_for_output()
    assert (core.kv.sequences, core.kv.tokens, core.held, core.committed) == (0, 0, 0, 0)
    assert core.kv.blocks(core.counter) == core.in_flight() == outcome.count(UNFINISHED) == 0
