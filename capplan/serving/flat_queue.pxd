# Types for flat_queue.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython
from capplan.serving.engine_parts cimport KvBlocks
from capplan.serving.flat_trees cimport NEVER_S, FlatEvents

cdef long long FINISHED, SHED, UNFINISHED, MOVED
cdef double UNKNOWN_S

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
    cdef double delay_s, token_delay_s, reached_s, tokens_per_step, last_over_s
    cdef long long max_num_seqs, budget, block_tokens, sequence_blocks, queue_limit, id_tokens, id_blocks
    cdef public double[::1] arrival, offered_s, enqueued, scheduled, first_token, ready, report_s
    cdef double[::1] ends, deadline_s
    cdef long long[::1] offered_prompt, offered_output, offered_cached, offered_class, level
    cdef public long long[::1] report_rows
    cdef long long[::1] user_group, taken_row, taken_group, ends_group, next_of_group, end_of_group
    cdef public long long[::1] prompt, output, cached, class_index, remaining, prompt_now, shared, kv_transferred_in, rank, status

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
