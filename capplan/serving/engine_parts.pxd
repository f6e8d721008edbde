# Types for engine_parts.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython

cdef Py_ssize_t TIMELINE_BINS, OCCUPANCY_BINS

@cython.final
cdef class KvBlocks:
    cdef public long long block_tokens, sequences, tokens
    cdef long long phase_sum, part, below
    cdef long long[::1] phases

    @cython.locals(phase=cython.longlong)
    cpdef void join(self, long long base) noexcept
    @cython.locals(phase=cython.longlong)
    cpdef void leave(self, long long base) noexcept
    @cython.locals(block=cython.longlong, part=cython.longlong, pads=cython.longlong)
    cpdef long long blocks(self, long long counter) noexcept
    @cython.locals(reach=cython.longlong, low=cython.longlong, high=cython.longlong, middle=cython.longlong)
    cpdef long long within(self, long long counter, long long capacity, double tokens_per_step, long long step, long long most) noexcept

cpdef long long grown(double tokens_per_step, long long steps) noexcept

@cython.final
cdef class PromptHold:
    cdef public long long hold_steps, hold_tokens, hold_seats
    cdef long long hold_prompts, gather_steps, poll_steps, looked, hold_from, gather_from
    cdef long long group_tokens, most_pieces, pieces, tokens_left
    cdef public bint applies
    cdef bint released, lacks_seats

    cpdef void end(self) noexcept
    cpdef void look(self, long long step) noexcept
    cpdef void note_step(self) noexcept
    cpdef void note_piece(self, long long tokens) noexcept
    cpdef bint keeps(self, long long step, long long waiting, long long tokens, long long seats) noexcept
    cdef bint lacks_company(self, long long step, long long waiting, long long tokens) noexcept
    @cython.locals(steps=cython.longlong)
    cpdef long long steps_until_look(self, long long step) noexcept

@cython.final
cdef class Gauges:
    cdef public long long capacity
    cdef public bint recorded
    cdef public double block_seconds, busy_s, span_s
    cdef public double[::1] batch_s, occupancy_s, by_batch, by_blocks, by_busy

    @cython.locals(place=cython.Py_ssize_t, span=cython.double, first=cython.Py_ssize_t, end=cython.double, part=cython.double)
    cpdef void add(self, double start_s, double seconds, long long sequences, double blocks) noexcept
    cdef void count_span(self, Py_ssize_t place, double seconds, double sequences, double blocks) noexcept
    @cython.locals(place=cython.Py_ssize_t, bins="double[::1]")
    cdef void double_span(self) noexcept
