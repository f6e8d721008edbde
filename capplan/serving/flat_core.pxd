# Types for flat_core.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython

from capplan.serving.flat_steps cimport FlatSteps

cdef Py_ssize_t HISTOGRAM_ZERO, HISTOGRAM_BINS, TIMELINE_BINS, OCCUPANCY_BINS
cdef long long FINISHED
cdef double BINS_PER_E

cdef class FlatEngine(FlatSteps):
    cdef public Py_ssize_t batch_size, zero_bin
    cdef public bint shared_steps, released
    cdef public long long hold_steps, hold_tokens, hold_prompts, gather_steps, poll_steps, looked, hold_from, gather_from
    cdef public double itl_none, itl_weight, itl_total, block_seconds, busy_s, span_s
    cdef public double[::1] itl, batch_s, occupancy_s, by_batch, by_blocks, by_busy

    @cython.locals(preempted=cython.bint)
    cpdef void advance(self, double until_s) noexcept
    @cython.locals(preempted=cython.bint, block=cython.longlong, after=cython.longlong, room=cython.longlong)
    cdef bint make_room(self) noexcept
    @cython.locals(budget=cython.longlong, tokens=cython.longlong, more=cython.longlong)
    cdef bint extends(self, Py_ssize_t row) noexcept
    @cython.locals(new=cython.longlong)
    cdef long long piece(self, Py_ssize_t row, long long budget) noexcept
    @cython.locals(row=cython.Py_ssize_t, running=cython.longlong, budget=cython.longlong, used=cython.longlong, new=cython.longlong, blocks=cython.longlong, commit=cython.longlong)
    cdef void plan(self) noexcept
    cdef long long piece_blocks(self, Py_ssize_t row, long long new, long long whole) noexcept
    cdef bint waits(self) noexcept
    cdef bint lacks_company(self) noexcept
    @cython.locals(steps=cython.longlong)
    cdef long long steps_until_look(self) noexcept
    cdef void group(self, long long sequences, double since_s) noexcept
    @cython.locals(place=cython.Py_ssize_t)
    cdef void end_groups(self) noexcept
    @cython.locals(used=cython.longlong, blocks=cython.longlong, commit=cython.longlong)
    cdef bint take_over(self, Py_ssize_t row) noexcept
    @cython.locals(private=cython.longlong, reserved=cython.double)
    cdef long long reserved_blocks(self, Py_ssize_t row) noexcept
    @cython.locals(index=cython.longlong)
    cdef void admit(self, Py_ssize_t row, long long blocks, long long commit) noexcept
    @cython.locals(start=cython.double, decoding=cython.longlong, chunks=cython.Py_ssize_t, held=cython.longlong, context=cython.double, seconds=cython.double, place=cython.Py_ssize_t, row=cython.Py_ssize_t, joined=cython.longlong)
    cdef void work_on(self) noexcept
    cdef void prompt_ends(self, Py_ssize_t row) noexcept
    @cython.locals(start=cython.double, sequences=cython.longlong, steps=cython.longlong, limit=cython.double, before=cython.longlong, context=cython.double, first=cython.longlong, seconds=cython.double, after=cython.longlong)
    cdef void decode(self, double until_s, bint preempted) noexcept
    @cython.locals(row=cython.Py_ssize_t)
    cdef void complete(self) noexcept
    cdef void finish(self, Py_ssize_t row) noexcept
    @cython.locals(key=cython.Py_ssize_t)
    cdef void gap(self, double value, double weight) noexcept
    @cython.locals(place=cython.Py_ssize_t, span=cython.double, first=cython.Py_ssize_t, end=cython.double, part=cython.double)
    cdef void gauge(self, double start_s, double seconds, long long sequences, double blocks) noexcept
    cdef void count_span(self, Py_ssize_t place, double seconds, double sequences, double blocks) noexcept
    @cython.locals(place=cython.Py_ssize_t, bins="double[::1]")
    cdef void double_span(self) noexcept
