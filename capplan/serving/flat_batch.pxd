# Types for flat_batch.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython

cdef long long SHED, UNFINISHED

cdef class FlatBatch:
    cdef public Py_ssize_t count, users, arrivals, arrived, asked, first_end, ends_count, thinking_count, position, waiting, next_waiting
    cdef public Py_ssize_t ranked_count, end_count, chunks, groups, over, last_over
    cdef public bint chunked
    cdef public double delay_s, reserved_output_fraction, now_s, next_s, growth, last_over_s
    cdef public long long max_num_seqs, budget, block_tokens, capacity
    cdef public long long query_tokens, counter
    cdef public long long phase_sum, sequences, tokens, shared_sum, held, committed, step, serials
    cdef public long long partial, last
    cdef public long long steps, preemptions, prefill_tokens, cached_tokens
    cdef public signed char[::1] of_user
    cdef public double[::1] arrival, offered_s, ends, thinking_s
    cdef public double[::1] enqueued, scheduled, first_token, last_token, queue_s, ttft_s, e2e_s
    cdef public long long[::1] offered_prompt, offered_output, offered_cached, offered_class, thinking
    cdef public long long[::1] prompt, output, cached, class_index, remaining, prompt_now, shared, done, blocks, commit
    cdef public long long[::1] base, end_step, serial, before, after, received, rank, status, phases
    cdef public long long[::1] group_sequences
    cdef public double[::1] group_since
    cdef public long long[::1] ranked_heap, end_keys, end_rows
    cdef public long long[::1] class_prompt, class_cached, class_preempted, class_seen

    @cython.locals(row=cython.Py_ssize_t)
    cpdef send(self, double at_s, tuple request, long long rank, double first_token_s)
    cpdef long long load(self, double at_s) noexcept
    @cython.locals(next_s=cython.double)
    cdef void find_next(self) noexcept
    @cython.locals(size=cython.Py_ssize_t, first=cython.Py_ssize_t, place=cython.Py_ssize_t)
    cdef void ended(self, Py_ssize_t row, double at_s) noexcept
    @cython.locals(row=cython.Py_ssize_t, place=cython.Py_ssize_t, at_s=cython.double)
    cdef void think(self) noexcept
    @cython.locals(times="double[::1]", rows="long long[::1]", size=cython.Py_ssize_t, place=cython.Py_ssize_t, child=cython.Py_ssize_t, at_s=cython.double, row=cython.longlong)
    cdef void thought(self) noexcept
    @cython.locals(place=cython.Py_ssize_t)
    cdef void bring(self, Py_ssize_t row) noexcept
    @cython.locals(row=cython.Py_ssize_t)
    cdef void receive(self) noexcept
    @cython.locals(tokens=cython.longlong)
    cdef bint too_long(self, Py_ssize_t row) noexcept
    cdef Py_ssize_t queue_head(self) noexcept
    @cython.locals(heap="long long[::1]", size=cython.Py_ssize_t, place=cython.Py_ssize_t, moved=cython.longlong, child=cython.Py_ssize_t)
    cdef void queue_pop(self) noexcept
    @cython.locals(heap="long long[::1]", place=cython.Py_ssize_t, key=cython.longlong)
    cdef void queue_push(self, long long row) noexcept
    @cython.locals(tokens=cython.longlong, place=cython.Py_ssize_t, row=cython.Py_ssize_t)
    cdef long long waiting_tokens(self) noexcept
    @cython.locals(keys="long long[::1]", rows="long long[::1]", place=cython.Py_ssize_t)
    cdef void ends_push(self, long long key, long long row) noexcept
    @cython.locals(keys="long long[::1]", rows="long long[::1]", size=cython.Py_ssize_t, place=cython.Py_ssize_t, child=cython.Py_ssize_t, key=cython.longlong, row=cython.longlong)
    cdef void ends_pop(self) noexcept
    cdef void drop_stale(self) noexcept
    cdef long long grown(self, long long step) noexcept
    cdef long long decode_steps(self, long long tokens) noexcept
    @cython.locals(block=cython.longlong, part=cython.longlong, below=cython.longlong, phase=cython.Py_ssize_t, pads=cython.longlong)
    cdef long long blocks_at(self, long long counter) noexcept
    @cython.locals(reach=cython.longlong, block=cython.longlong, low=cython.longlong, high=cython.longlong, middle=cython.longlong)
    cdef long long within(self, long long capacity, long long most) noexcept
    @cython.locals(base=cython.longlong, phase=cython.longlong)
    cdef void join(self, Py_ssize_t row) noexcept
    @cython.locals(base=cython.longlong, phase=cython.longlong)
    cdef void leave(self, Py_ssize_t row) noexcept
    @cython.locals(row=cython.Py_ssize_t, joined=cython.longlong, produced=cython.longlong)
    cdef void preempt(self) noexcept
