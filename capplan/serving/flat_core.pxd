# Types for flat_core.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython

cdef Py_ssize_t HISTOGRAM_ZERO, HISTOGRAM_BINS, TIMELINE_BINS, OCCUPANCY_BINS
cdef long long FINISHED, SHED, UNFINISHED
cdef double BINS_PER_E

cdef class FlatEngine:
    cdef public Py_ssize_t count, first_release, release_count, knots, position, waiting, next_waiting
    cdef public Py_ssize_t preempted_count, end_count, chunks, batch_size, zero_bin
    cdef public bint closed, chunked
    cdef public double delay_s, reserved_output_fraction, now_s, next_s
    cdef public double itl_none, itl_weight, itl_total, block_seconds, busy_s, span_s
    cdef public long long max_num_seqs, budget, block_tokens, capacity
    cdef public long long phase_sum, sequences, tokens, shared_sum, held, committed, step, serials
    cdef public long long partial, last, oldest
    cdef public long long steps, preemptions, prefill_tokens, cached_tokens
    cdef public double[::1] arrival, releases, context_knots, decode_base, decode_values, decode_slopes
    cdef public double[::1] mixed, head, new_knots, past_knots, prefill
    cdef public double[::1] enqueued, scheduled, first_token, last_token, queue_s, ttft_s, e2e_s
    cdef public double[::1] itl, batch_s, occupancy_s, by_batch, by_blocks, by_busy
    cdef public long long[::1] prompt, output, cached, class_index, remaining, prompt_now, shared, done, blocks, commit
    cdef public long long[::1] base, end_step, serial, before, after, status, phases
    cdef public long long[::1] preempted_heap, end_keys, end_rows, chunk_rows, chunk_tokens
    cdef public long long[::1] class_prompt, class_cached, class_preempted, class_seen

    @cython.locals(preempted=cython.bint)
    cpdef void advance(self, double until_s)
    cdef void find_next(self)
    @cython.locals(size=cython.Py_ssize_t, place=cython.Py_ssize_t)
    cdef void ended(self, double at_s)
    @cython.locals(row=cython.Py_ssize_t)
    cdef void receive(self)
    @cython.locals(tokens=cython.longlong)
    cdef bint too_long(self, Py_ssize_t row)
    cdef Py_ssize_t queue_head(self)
    @cython.locals(heap="long long[::1]", size=cython.Py_ssize_t, place=cython.Py_ssize_t, moved=cython.longlong, child=cython.Py_ssize_t)
    cdef void queue_pop(self)
    @cython.locals(heap="long long[::1]", place=cython.Py_ssize_t)
    cdef void queue_push(self, long long row)
    @cython.locals(keys="long long[::1]", rows="long long[::1]", place=cython.Py_ssize_t)
    cdef void ends_push(self, long long key, long long row)
    @cython.locals(keys="long long[::1]", rows="long long[::1]", size=cython.Py_ssize_t, place=cython.Py_ssize_t, child=cython.Py_ssize_t, key=cython.longlong, row=cython.longlong)
    cdef void ends_pop(self)
    cdef void drop_stale(self)
    @cython.locals(block=cython.longlong, part=cython.longlong, below=cython.longlong, phase=cython.Py_ssize_t, pads=cython.longlong)
    cdef long long blocks_at(self, long long counter)
    @cython.locals(reach=cython.longlong, block=cython.longlong, low=cython.longlong, high=cython.longlong, middle=cython.longlong)
    cdef long long within(self, long long capacity, long long most)
    @cython.locals(base=cython.longlong, phase=cython.longlong)
    cdef void join(self, Py_ssize_t row)
    @cython.locals(base=cython.longlong, phase=cython.longlong)
    cdef void leave(self, Py_ssize_t row)
    @cython.locals(preempted=cython.bint, block=cython.longlong, after=cython.longlong, room=cython.longlong)
    cdef bint make_room(self)
    @cython.locals(row=cython.Py_ssize_t, joined=cython.longlong, produced=cython.longlong)
    cdef void preempt(self)
    @cython.locals(new=cython.longlong)
    cdef long long piece(self, Py_ssize_t row, long long budget)
    @cython.locals(row=cython.Py_ssize_t, running=cython.longlong, budget=cython.longlong, used=cython.longlong, new=cython.longlong, private=cython.longlong, blocks=cython.longlong, commit=cython.longlong, reserved=cython.double)
    cdef void plan(self)
    @cython.locals(index=cython.longlong)
    cdef void admit(self, Py_ssize_t row, long long blocks, long long commit)
    @cython.locals(start=cython.double, decoding=cython.longlong, chunks=cython.Py_ssize_t, held=cython.longlong, context=cython.double, tokens=cython.longlong, seconds=cython.double, place=cython.Py_ssize_t, row=cython.Py_ssize_t)
    cdef void work_on(self)
    cdef void prompt_ends(self, Py_ssize_t row)
    @cython.locals(start=cython.double, sequences=cython.longlong, steps=cython.longlong, limit=cython.double, before=cython.longlong, context=cython.double, first=cython.longlong, seconds=cython.double, after=cython.longlong)
    cdef void decode(self, double until_s, bint preempted)
    @cython.locals(offset=cython.Py_ssize_t, last=cython.Py_ssize_t, base=cython.double, i=cython.Py_ssize_t, done=cython.longlong, total=cython.double, rise=cython.double, first=cython.double, count=cython.longlong, seconds=cython.double, half=cython.double)
    cdef double run(self, long long sequences, double context, long long steps, double limit_s)
    @cython.locals(low=cython.Py_ssize_t, high=cython.Py_ssize_t, middle=cython.Py_ssize_t)
    cdef Py_ssize_t knot_below(self, double context)
    @cython.locals(offset=cython.Py_ssize_t, i=cython.Py_ssize_t, base=cython.double, step_s=cython.double)
    cdef double attention_s(self, long long sequences, double context)
    @cython.locals(new="double[::1]", past="double[::1]", width=cython.Py_ssize_t, i=cython.Py_ssize_t, j=cython.Py_ssize_t, u=cython.double, v=cython.double, low=cython.Py_ssize_t, high=cython.Py_ssize_t, at_low=cython.double, at_high=cython.double)
    cdef double prefill_s(self, double new_tokens, double past_tokens)
    @cython.locals(row=cython.Py_ssize_t)
    cdef void complete(self)
    cdef void finish(self, Py_ssize_t row)
    @cython.locals(key=cython.Py_ssize_t)
    cdef void gap(self, double value, double weight)
    @cython.locals(place=cython.Py_ssize_t, span=cython.double, first=cython.Py_ssize_t, end=cython.double, part=cython.double)
    cdef void gauge(self, double start_s, double seconds, long long sequences, double blocks)
    cdef void count_span(self, Py_ssize_t place, double seconds, double sequences, double blocks)
    @cython.locals(place=cython.Py_ssize_t, bins="double[::1]")
    cdef void double_span(self)

@cython.locals(low=cython.Py_ssize_t, high=cython.Py_ssize_t, middle=cython.Py_ssize_t)
cdef Py_ssize_t place_below(double[::1] knots, double value)

@cython.locals(half=cython.double, linear=cython.double, root=cython.double, guess=cython.double, steps=cython.longlong)
cdef long long steps_to_reach(double first_s, double rise_s, double limit_s, long long most)
