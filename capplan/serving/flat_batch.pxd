# Types for flat_batch.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython
from capplan.serving.engine_parts cimport grown
from capplan.serving.flat_queue cimport FINISHED, MOVED, UNKNOWN_S, FlatQueue
from capplan.serving.flat_trees cimport FlatEvents

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

@cython.locals(kept=cython.Py_ssize_t, place=cython.Py_ssize_t)
cdef Py_ssize_t without(Py_ssize_t row, long long[::1] rows, Py_ssize_t count) noexcept
