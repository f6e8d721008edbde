# Types for flat_queue.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython

cdef long long SHED, UNFINISHED

cdef class FlatQueue:
    cdef public Py_ssize_t count, users, arrivals, arrived, asked, first_end, ends_count, thinking_count, position, waiting, next_waiting
    cdef public Py_ssize_t ranked_count, over, last_over
    cdef public bint chunked
    cdef public double delay_s, now_s, next_s, growth, last_over_s
    cdef public long long max_num_seqs, budget, block_tokens, capacity
    cdef public double[::1] arrival, offered_s, ends, thinking_s, enqueued, first_token
    cdef public long long[::1] offered_prompt, offered_output, offered_cached, offered_class, thinking
    cdef public long long[::1] user_group, taken_row, taken_group, ends_group, next_of_group, end_of_group
    cdef public long long[::1] prompt, output, cached, class_index, remaining, prompt_now, shared, received, rank, status
    cdef public long long[::1] ranked_heap

    @cython.locals(row=cython.Py_ssize_t)
    cdef send(self, double at_s, double arrival_s, long long prompt, long long output, long long cached, long long class_index, double first_token_s, long long rank)
    cpdef make_rows(self, Py_ssize_t more)
    cdef long long unfinished(self, double at_s) noexcept
    @cython.locals(next_s=cython.double)
    cdef void find_next(self) noexcept
    @cython.locals(group=cython.Py_ssize_t, size=cython.Py_ssize_t, first=cython.Py_ssize_t, place=cython.Py_ssize_t)
    cdef void ended(self, Py_ssize_t row, double at_s) noexcept
    @cython.locals(kept=cython.Py_ssize_t, size=cython.Py_ssize_t, first=cython.Py_ssize_t, place=cython.Py_ssize_t)
    cdef void drop_ends(self, Py_ssize_t group) noexcept
    @cython.locals(group=cython.Py_ssize_t, taken=cython.Py_ssize_t, row=cython.Py_ssize_t, place=cython.Py_ssize_t, at_s=cython.double)
    cdef void think(self) noexcept
    @cython.locals(times="double[::1]", rows="long long[::1]", size=cython.Py_ssize_t, place=cython.Py_ssize_t, child=cython.Py_ssize_t, at_s=cython.double, row=cython.longlong)
    cdef void thought(self) noexcept
    @cython.locals(place=cython.Py_ssize_t, taken=cython.Py_ssize_t)
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
