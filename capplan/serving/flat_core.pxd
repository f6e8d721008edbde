# Types for flat_core.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython
from capplan.serving.engine_parts cimport Gauges, KvBlocks, PromptHold, grown

cdef long long SHED, UNFINISHED, MOVED
cdef double NEVER_S, UNKNOWN_S, LEAST_SIMILARITY

@cython.final
cdef class FlatEvents:
    cdef Py_ssize_t count
    cdef long long added
    cdef double[::1] times
    cdef long long[::1] serials, values

    cdef double next_s(self) noexcept
    @cython.locals(times="double[::1]", place=cython.Py_ssize_t)
    cdef void push(self, double at_s, long long value) noexcept
    @cython.locals(times="double[::1]", serials="long long[::1]", size=cython.Py_ssize_t, place=cython.Py_ssize_t, child=cython.Py_ssize_t, value=cython.longlong, at_s=cython.double, serial=cython.longlong)
    cdef long long pop(self) noexcept

cdef class FlatQueue:
    cdef public Py_ssize_t position
    cdef public Py_ssize_t arrivals
    cdef public Py_ssize_t waiting
    cdef Py_ssize_t count, users, visits, arrived, asked, first_end, ends_count, next_waiting
    cdef public Py_ssize_t reports
    cdef public Py_ssize_t over
    cdef Py_ssize_t last_over
    cdef bint chunked, draws_first, takes_over, in_slots, is_sent, is_ranked, is_caching, has_deadlines, has_priorities
    cdef public bint reporting, announcing
    cdef FlatEvents thinking, ranked
    cdef list expiring, offered_ids, offered_output_ids
    cdef public list ids, output_ids
    cdef public KvBlocks kv
    cdef public double now_s
    cdef public double next_s
    cdef double delay_s, token_delay_s, reached_s, growth, last_over_s
    cdef long long max_num_seqs, budget, block_tokens, sequence_blocks, queue_limit, id_tokens, id_blocks
    cdef public double[::1] arrival, offered_s, enqueued, scheduled, first_token, ready, report_s
    cdef double[::1] ends, deadline_s
    cdef long long[::1] offered_prompt, offered_output, offered_cached, offered_class, level
    cdef public long long[::1] report_rows
    cdef long long[::1] user_group, taken_row, taken_group, ends_group, next_of_group, end_of_group
    cdef public long long[::1] prompt, output, cached, class_index, remaining, prompt_now, shared, received, rank, status

    @cython.locals(row=cython.Py_ssize_t)
    cpdef send(self, double at_s, double arrival_s, long long prompt, long long output, long long cached, long long class_index, double first_token_s, long long rank)
    @cython.locals(row=cython.Py_ssize_t)
    cpdef next_flight(self)
    cpdef make_rows(self, Py_ssize_t more)
    cdef long long unfinished(self, double at_s) noexcept
    @cython.locals(next_s=cython.double, place=cython.Py_ssize_t)
    cdef void find_next(self) noexcept
    @cython.locals(group=cython.Py_ssize_t, size=cython.Py_ssize_t, first=cython.Py_ssize_t, place=cython.Py_ssize_t)
    cpdef void ended(self, Py_ssize_t row, double at_s) noexcept
    @cython.locals(kept=cython.Py_ssize_t, size=cython.Py_ssize_t, first=cython.Py_ssize_t, place=cython.Py_ssize_t)
    cdef void drop_ends(self, Py_ssize_t group) noexcept
    @cython.locals(group=cython.Py_ssize_t, taken=cython.Py_ssize_t, row=cython.Py_ssize_t, at_s=cython.double)
    cdef void think(self) noexcept
    @cython.locals(place=cython.Py_ssize_t, taken=cython.Py_ssize_t)
    cdef int bring(self, Py_ssize_t row) except -1
    cdef int name(self, Py_ssize_t row, Py_ssize_t place) except -1
    @cython.locals(expiry_s=cython.double)
    cdef int receive(self, double until_s) except -1
    cdef void enqueue(self, Py_ssize_t row) noexcept
    cdef void shed(self, Py_ssize_t row, double at_s) noexcept
    cdef FlatEvents expiring_of(self, Py_ssize_t of_class)
    @cython.locals(of_class=cython.Py_ssize_t, earliest=cython.double, line=FlatEvents)
    cdef double next_expiry_s(self) noexcept
    cdef bint awaits(self, Py_ssize_t row) noexcept
    @cython.locals(of_class=cython.Py_ssize_t, line=FlatEvents)
    cdef void expire(self, double at_s) noexcept
    @cython.locals(row=cython.Py_ssize_t, whole=cython.Py_ssize_t)
    cdef Py_ssize_t arrive(self) except -1
    cdef void report(self, Py_ssize_t row, double at_s) noexcept
    @cython.locals(tokens=cython.longlong)
    cdef bint too_long(self, Py_ssize_t row) noexcept
    @cython.locals(rank=cython.longlong)
    cdef long long key(self, Py_ssize_t row) noexcept
    cdef Py_ssize_t queue_head(self) noexcept
    cdef void queue_pop(self) noexcept
    cdef void queue_push(self, Py_ssize_t row) noexcept
    @cython.locals(tokens=cython.longlong, place=cython.Py_ssize_t, row=cython.Py_ssize_t)
    cdef long long waiting_tokens(self) noexcept

cdef class FlatBatch(FlatQueue):
    cdef public Py_ssize_t loading
    cdef Py_ssize_t chunks, groups, firsts, ended_sequences, paused
    cdef bint is_asynchronous
    cdef bint has_cache
    cdef public object cache
    cdef FlatEvents joined_ends
    cdef double reserved_output_fraction
    cdef long long query_tokens, counter, capacity, kv_blocks, step, last, admissions
    cdef public long long held
    cdef public long long committed
    cdef public long long shared_sum
    cdef public long long partial
    cdef public long long steps, preemptions, prefill_tokens, cached_tokens
    cdef public double[::1] last_token, queue_s, ttft_s, e2e_s
    cdef double[::1] group_since, paused_since, luck
    cdef public long long[::1] done, blocks, commit, base, end_step, serial, before, after, hits, admitted, found, admission
    cdef long long[::1] group_sequences, first_rows, loading_rows, ended_rows, paused_rows, dealt_rows, dealt_blocks
    cdef public long long[::1] class_prompt, class_cached, class_preempted, class_seen

    @cython.locals(ends=FlatEvents)
    cdef void drop_stale(self) noexcept
    @cython.locals(extra=cython.double, steps=cython.longlong)
    cdef long long decode_steps(self, Py_ssize_t row, long long tokens) noexcept
    @cython.locals(base=cython.longlong)
    cdef void join(self, Py_ssize_t row) noexcept
    cdef void decode_from_here(self, Py_ssize_t row) noexcept
    cdef void leave(self, Py_ssize_t row) noexcept
    @cython.locals(lowest=cython.Py_ssize_t, row=cython.Py_ssize_t)
    cdef Py_ssize_t lowest(self) noexcept
    cdef long long standing(self, Py_ssize_t row) noexcept
    cdef void number(self, Py_ssize_t row) noexcept
    @cython.locals(row=cython.Py_ssize_t)
    cdef int preempt(self) except -1
    @cython.locals(worked_on=cython.longlong, joined=cython.longlong, produced=cython.longlong)
    cdef int give_up(self, Py_ssize_t row) except -1
    @cython.locals(row=cython.Py_ssize_t)
    cpdef Py_ssize_t take_in(self, double at_s, flight) except -1
    cpdef void write(self, Py_ssize_t row, flight) except *
    @cython.locals(since_s=cython.double)
    cpdef void cancel(self, Py_ssize_t row) except *
    @cython.locals(place=cython.Py_ssize_t)
    cdef bint runs(self, Py_ssize_t row) noexcept
    @cython.locals(later=cython.Py_ssize_t, place=cython.Py_ssize_t)
    cdef Py_ssize_t group_place(self, Py_ssize_t row) noexcept
    @cython.locals(place=cython.Py_ssize_t)
    cdef double gap_since_s(self, Py_ssize_t row) noexcept
    @cython.locals(place=cython.Py_ssize_t, later=cython.Py_ssize_t)
    cdef void forget_gap(self, Py_ssize_t row) noexcept
    cdef int release(self, Py_ssize_t row, long long worked_on) except -1
    cdef int close(self, Py_ssize_t row) except -1
    cdef int trim(self, long long private) except -1
    cdef long long private_blocks(self) noexcept
    cdef void count_preempted(self, Py_ssize_t row) noexcept
    @cython.locals(lost=cython.Py_ssize_t, place=cython.Py_ssize_t)
    cdef bint lost_ended(self, Py_ssize_t last) noexcept

cdef class FlatSteps(FlatBatch):
    cdef Py_ssize_t knots, last_knot
    cdef long long stages
    cdef bint two_passes
    cdef double stage_tokens, stage_fraction, filled
    cdef double[::1] context_knots, decode_base, decode_values, decode_slopes
    cdef double[::1] mixed, head, launch, new_knots, past_knots, prefill
    cdef long long[::1] chunk_rows, chunk_tokens

    @cython.locals(tokens=cython.longlong, seconds=cython.double, place=cython.Py_ssize_t)
    cdef double step_s(self, long long decoding, double context) noexcept
    @cython.locals(stages=cython.longlong, beside=cython.longlong, before=cython.double, tokens=cython.longlong, longest=cython.longlong, decode_s=cython.double, attention_s=cython.double, chunks_s=cython.double, place=cython.Py_ssize_t, room=cython.double, largest=cython.longlong, filled=cython.double, seconds=cython.double, part=cython.double, ratio=cython.double)
    cdef double turn_s(self, long long decoding, double context) noexcept
    @cython.locals(offset=cython.Py_ssize_t, last=cython.Py_ssize_t, base=cython.double, i=cython.Py_ssize_t, done=cython.longlong, total=cython.double, slope=cython.double, rise=cython.double, first=cython.double, count=cython.longlong, seconds=cython.double, half=cython.double)
    cdef double run(self, long long sequences, double context, long long steps, double limit_s) noexcept
    @cython.locals(knots="double[::1]", low=cython.Py_ssize_t, high=cython.Py_ssize_t, middle=cython.Py_ssize_t)
    cdef Py_ssize_t knot_below(self, double context) noexcept
    cdef double attention_s(self, long long sequences, double context) noexcept
    @cython.locals(offset=cython.Py_ssize_t, i=cython.Py_ssize_t)
    cdef double decode_s(self, long long sequences, double context) noexcept
    @cython.locals(new="double[::1]", past="double[::1]", width=cython.Py_ssize_t, i=cython.Py_ssize_t, j=cython.Py_ssize_t, u=cython.double, v=cython.double, low=cython.Py_ssize_t, high=cython.Py_ssize_t, at_low=cython.double, at_high=cython.double)
    cdef double prefill_s(self, double new_tokens, double past_tokens) noexcept

@cython.locals(kept=cython.Py_ssize_t, place=cython.Py_ssize_t)
cdef Py_ssize_t without(Py_ssize_t row, long long[::1] rows, Py_ssize_t count) noexcept

@cython.locals(low=cython.Py_ssize_t, high=cython.Py_ssize_t, middle=cython.Py_ssize_t)
cdef Py_ssize_t place_below(double[::1] knots, double value) noexcept

@cython.locals(half=cython.double, linear=cython.double, root=cython.double, guess=cython.double, steps=cython.longlong)
cdef long long steps_to_reach(double first_s, double rise_s, double limit_s, long long most) noexcept

cdef Py_ssize_t HISTOGRAM_ZERO, HISTOGRAM_BINS
cdef long long FINISHED
cdef double BINS_PER_E

cdef class FlatEngine(FlatSteps):
    cdef public Py_ssize_t zero_bin
    cdef public Gauges gauges
    cdef PromptHold hold
    cdef bint shared_steps
    cdef public bint gauged
    cdef double planned_s, judged_until_s
    cdef Py_ssize_t judged_from, judged
    cdef public Py_ssize_t missed
    cdef long long[::1] judged_metrics, judged_left
    cdef double[::1] judged_limits_s
    cdef public double itl_none, itl_weight, itl_total
    cdef public double[::1] itl

    @cython.locals(preempted=cython.bint, freed=cython.bint, event_s=cython.double)
    cpdef void advance(self, double until_s) except *
    cpdef void receive_arrived(self) except *
    cpdef Py_ssize_t in_flight(self) noexcept
    @cython.locals(earliest=cython.double, place=cython.Py_ssize_t)
    cpdef double loaded_s(self) noexcept
    cdef double seen_s(self) noexcept
    @cython.locals(idle=cython.bint, waited=cython.bint, place=cython.Py_ssize_t)
    cdef bint waits_for_output(self) except -1
    @cython.locals(preempted=cython.bint, block=cython.longlong, after=cython.longlong, room=cython.longlong)
    cdef bint make_room(self) except -1
    @cython.locals(count=cython.Py_ssize_t, row=cython.Py_ssize_t, dealt=cython.longlong, place=cython.Py_ssize_t, more=cython.longlong, lowest=cython.Py_ssize_t, other=cython.Py_ssize_t)
    cdef void deal_blocks(self) except *
    cdef long long blocks_at(self, Py_ssize_t row, long long counter) noexcept
    @cython.locals(place=cython.Py_ssize_t, row=cython.Py_ssize_t)
    cdef void pause(self, Py_ssize_t first, Py_ssize_t end) noexcept
    @cython.locals(place=cython.Py_ssize_t, row=cython.Py_ssize_t)
    cdef void resume(self) noexcept
    @cython.locals(budget=cython.longlong, tokens=cython.longlong, more=cython.longlong, used=cython.longlong)
    cdef bint extends(self, Py_ssize_t row) except -1
    @cython.locals(new=cython.longlong)
    cdef long long piece(self, Py_ssize_t row, long long budget) noexcept
    cdef long long piece_blocks(self, Py_ssize_t row, long long new, long long whole) noexcept
    @cython.locals(row=cython.Py_ssize_t, is_open=cython.bint, is_held=cython.bint)
    cdef int plan(self, bint preempted) except -1
    @cython.locals(running=cython.longlong, budget=cython.longlong)
    cdef int plan_prompts(self, Py_ssize_t row, bint preempted) except -1
    cdef long long step_budget(self) noexcept
    cdef long long add_chunk(self, Py_ssize_t row, long long new) noexcept
    @cython.locals(used=cython.longlong, row=cython.Py_ssize_t, pinned=cython.longlong, new=cython.longlong, blocks=cython.longlong, commit=cython.longlong, is_named=cython.bint)
    cdef int admit_waiting(self, long long budget, long long running) except -1
    cdef int look_up(self, Py_ssize_t row) except -1
    @cython.locals(place=cython.Py_ssize_t, row=cython.Py_ssize_t, new=cython.longlong)
    cdef long long plan_loaded(self, long long budget) except? -1
    @cython.locals(sequences=cython.longlong, tokens=cython.longlong)
    cdef bint waits(self) noexcept
    @cython.locals(used=cython.longlong, tokens=cython.longlong, commit=cython.longlong)
    cdef bint take_over(self, Py_ssize_t row) noexcept
    cdef void begin(self, Py_ssize_t row) noexcept
    cdef void stream(self, Py_ssize_t row) noexcept
    cdef void shows(self, Py_ssize_t row) noexcept
    @cython.locals(private=cython.longlong, reserved=cython.double)
    cdef long long reserved_blocks(self, Py_ssize_t row) noexcept
    cdef int admit(self, Py_ssize_t row, long long blocks, long long commit) except -1
    @cython.locals(index=cython.longlong)
    cdef void count_admitted(self, Py_ssize_t row) noexcept
    cdef int pin(self, Py_ssize_t row) except -1
    @cython.locals(start=cython.double, decoding=cython.longlong, chunks=cython.Py_ssize_t, held=cython.longlong, context=cython.double, seconds=cython.double, place=cython.Py_ssize_t, row=cython.Py_ssize_t, joined=cython.longlong)
    cdef int work_on(self) except -1
    cdef void group(self, long long sequences, double since_s) noexcept
    @cython.locals(place=cython.Py_ssize_t)
    cdef void end_groups(self) noexcept
    cdef int prompt_ends(self, Py_ssize_t row) except -1
    @cython.locals(start=cython.double, sequences=cython.longlong, first=cython.longlong, steps=cython.longlong, limit=cython.double, before=cython.longlong, context=cython.double, seconds=cython.double, awaited=cython.bint, after=cython.longlong, pinned=cython.longlong)
    cdef int decode(self, double until_s, bint one) except -1
    @cython.locals(ends=FlatEvents, row=cython.Py_ssize_t)
    cdef int complete(self) except -1
    cdef int finish(self, Py_ssize_t row) except -1
    @cython.locals(place=cython.Py_ssize_t)
    cdef void judge(self, Py_ssize_t row, long long metric, double value_s) noexcept
    @cython.locals(key=cython.Py_ssize_t)
    cdef void gap(self, double value, double weight) noexcept

cdef class FlatSlots(FlatEngine):
    cdef long long[::1] slot_rows, left_at, vacated_slots
    cdef Py_ssize_t vacated, releases, found_blocks
    cdef list kept_ids
    cdef double began_s

    cdef Py_ssize_t common_blocks(self, Py_ssize_t slot, list block_ids) except -1
    @cython.locals(budget=cython.longlong, slot=cython.Py_ssize_t, row=cython.Py_ssize_t)
    cdef int plan(self, bint preempted) except -1
    @cython.locals(slot=cython.Py_ssize_t, place=cython.Py_ssize_t)
    cdef void empty_slots(self) noexcept
    @cython.locals(row=cython.Py_ssize_t)
    cdef void seat(self) except *
    @cython.locals(slot=cython.Py_ssize_t, found=cython.Py_ssize_t, prompt=cython.longlong, other=cython.Py_ssize_t, common=cython.Py_ssize_t)
    cdef Py_ssize_t take(self, Py_ssize_t row, list free) except -1
    @cython.locals(place=cython.Py_ssize_t, row=cython.Py_ssize_t)
    cdef int work_on(self) except -1
    @cython.locals(start_s=cython.double, step=cython.longlong)
    cdef int decode(self, double until_s, bint one) except -1
    cdef int close(self, Py_ssize_t row) except -1
    @cython.locals(slot=cython.Py_ssize_t)
    cdef int release(self, Py_ssize_t row, long long worked_on) except -1
    @cython.locals(slot=cython.Py_ssize_t)
    cdef Py_ssize_t slot_of(self, Py_ssize_t row) noexcept

cdef class FlatStatic(FlatEngine):
    cdef double timeout_s
    cdef long long[::1] batch_rows
    cdef Py_ssize_t batch

    @cython.locals(start_s=cython.double, event_s=cython.double)
    cpdef void advance(self, double until_s) except *
    cdef double start_s(self) noexcept
    @cython.locals(total=cython.longlong, row=cython.Py_ssize_t, tokens=cython.longlong, blocks=cython.longlong)
    cdef long long fill_batch(self) noexcept
    @cython.locals(start=cython.double, steps=cython.longlong, prompts=cython.longlong, place=cython.Py_ssize_t, row=cython.Py_ssize_t, context=cython.double, first_s=cython.double, all_s=cython.double, later_s=cython.double)
    cdef int run_batch(self, long long blocks) except -1
    @cython.locals(first=cython.Py_ssize_t, place=cython.Py_ssize_t, row=cython.Py_ssize_t, budget=cython.longlong, new=cython.longlong)
    cdef void prefill_batch(self) noexcept

cdef class FlatRouter:
    cdef list cores

    @cython.locals(prompt="long long[::1]", output="long long[::1]", cached="long long[::1]", class_index="long long[::1]", place=cython.Py_ssize_t, row=cython.Py_ssize_t, core=FlatEngine)
    cpdef serve(self, long long[::1] order, double[::1] at_s, double[::1] arrival_s, tuple columns, double[::1] first_token_s)
    @cython.locals(best=FlatEngine, least=cython.longlong, load=cython.longlong, place=cython.Py_ssize_t, core=FlatEngine)
    cdef FlatEngine least_loaded(self, double at_s)

cdef class FlatStarts:
    cdef Py_ssize_t leaves
    cdef double[::1] times

    @cython.locals(place=cython.Py_ssize_t)
    cdef Py_ssize_t first(self) noexcept
    @cython.locals(times="double[::1]", place=cython.Py_ssize_t)
    cdef void set(self, Py_ssize_t engine, double at_s) noexcept

cdef class FlatPools(FlatQueue):
    cdef list cores
    cdef Py_ssize_t prefills, turn_first, turn_later
    cdef bint loaded_first, loaded_later
    cdef double bytes_per_token, bytes_per_s, latency_s
    cdef public double[::1] e2e_s
    cdef double[::1] link_free_s
    cdef long long[::1] load, stalled
    cdef FlatStarts starts
    cdef FlatEvents done, moving

    @cython.locals(event_s=cython.double, place=cython.Py_ssize_t)
    cpdef serve(self, double until_s)
    @cython.locals(core=FlatEngine, start_s=cython.double)
    cdef start(self, Py_ssize_t place)
    @cython.locals(core=FlatEngine, entry=cython.Py_ssize_t, start_s=cython.double)
    cdef note(self, Py_ssize_t place)
    @cython.locals(row=cython.Py_ssize_t)
    cdef handle(self, double at_s)
    @cython.locals(at_s=cython.double, end=cython.longlong, place=cython.Py_ssize_t, core=FlatEngine, there=cython.Py_ssize_t, row=cython.Py_ssize_t, needs_s=cython.double)
    cdef settle(self, double until_s)
    cdef void close(self, Py_ssize_t row, double at_s, long long status) noexcept
    @cython.locals(place=cython.Py_ssize_t, output=cython.longlong)
    cdef send_first(self, Py_ssize_t row)
    @cython.locals(place=cython.Py_ssize_t)
    cdef send_later(self, Py_ssize_t row)
    @cython.locals(place=cython.Py_ssize_t, best=cython.Py_ssize_t)
    cdef Py_ssize_t least_loaded(self, Py_ssize_t first, Py_ssize_t end) except -1
    @cython.locals(core=FlatEngine)
    cdef send_to(self, Py_ssize_t place, Py_ssize_t row, long long output, long long cached, double first_token_s)

cdef run(FlatEngine core, double until_s)

@cython.locals(free_s="double[::1]", arrives_s="double[::1]", row=cython.Py_ssize_t, place=cython.Py_ssize_t)
cpdef link_arrivals(Py_ssize_t engines, long long[::1] engine, double[::1] ends_s, double[::1] needs_s, double latency_s)

@cython.locals(tree="long long[::1]", counts="long long[::1]", row=cython.Py_ssize_t, place=cython.longlong, others=cython.longlong)
cpdef counts_of_greater(long long[::1] ranks, long long span)
