# Types for flat_core.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython

from capplan.serving.flat_batch cimport FlatBatch

cdef Py_ssize_t HISTOGRAM_ZERO, HISTOGRAM_BINS, TIMELINE_BINS, OCCUPANCY_BINS
cdef long long FINISHED
cdef double BINS_PER_E

cdef class FlatEngine(FlatBatch):
    cdef public Py_ssize_t knots, batch_size, zero_bin
    cdef public long long stages
    cdef public double stage_tokens, stage_fraction, filled
    cdef public double itl_none, itl_weight, itl_total, block_seconds, busy_s, span_s
    cdef public double[::1] context_knots, decode_base, decode_values, decode_slopes
    cdef public double[::1] mixed, head, new_knots, past_knots, prefill
    cdef public double[::1] itl, batch_s, occupancy_s, by_batch, by_blocks, by_busy
    cdef public long long[::1] chunk_rows, chunk_tokens

    @cython.locals(preempted=cython.bint)
    cpdef void advance(self, double until_s)
    @cython.locals(new=cython.longlong)
    cdef long long piece(self, Py_ssize_t row, long long budget)
    @cython.locals(row=cython.Py_ssize_t, running=cython.longlong, budget=cython.longlong, used=cython.longlong, new=cython.longlong, private=cython.longlong, blocks=cython.longlong, commit=cython.longlong, reserved=cython.double)
    cdef void plan(self)
    @cython.locals(index=cython.longlong)
    cdef void admit(self, Py_ssize_t row, long long blocks, long long commit)
    @cython.locals(start=cython.double, decoding=cython.longlong, chunks=cython.Py_ssize_t, held=cython.longlong, context=cython.double, seconds=cython.double, place=cython.Py_ssize_t, row=cython.Py_ssize_t)
    cdef void work_on(self)
    @cython.locals(tokens=cython.longlong, seconds=cython.double, place=cython.Py_ssize_t)
    cdef double step_s(self, long long decoding, double context)
    @cython.locals(stages=cython.longlong, beside=cython.longlong, before=cython.double, tokens=cython.longlong, longest=cython.longlong, decode_s=cython.double, attention_s=cython.double, chunks_s=cython.double, place=cython.Py_ssize_t, room=cython.double, largest=cython.longlong, filled=cython.double, seconds=cython.double, part=cython.double, ratio=cython.double)
    cdef double turn_s(self, long long decoding, double context)
    cdef void prompt_ends(self, Py_ssize_t row)
    @cython.locals(start=cython.double, sequences=cython.longlong, steps=cython.longlong, limit=cython.double, before=cython.longlong, context=cython.double, first=cython.longlong, seconds=cython.double, after=cython.longlong)
    cdef void decode(self, double until_s, bint preempted)
    @cython.locals(offset=cython.Py_ssize_t, last=cython.Py_ssize_t, base=cython.double, i=cython.Py_ssize_t, done=cython.longlong, total=cython.double, rise=cython.double, first=cython.double, count=cython.longlong, seconds=cython.double, half=cython.double)
    cdef double run(self, long long sequences, double context, long long steps, double limit_s)
    @cython.locals(low=cython.Py_ssize_t, high=cython.Py_ssize_t, middle=cython.Py_ssize_t)
    cdef Py_ssize_t knot_below(self, double context)
    cdef double attention_s(self, long long sequences, double context)
    @cython.locals(offset=cython.Py_ssize_t, i=cython.Py_ssize_t)
    cdef double decode_s(self, long long sequences, double context)
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
