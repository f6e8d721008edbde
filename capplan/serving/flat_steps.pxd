# Types for flat_steps.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython
from capplan.serving.flat_batch cimport FlatBatch

cdef class FlatSteps(FlatBatch):
    cdef Py_ssize_t knots, last_knot
    cdef long long stages
    cdef bint separate_prefill_pass
    cdef double stage_tokens, stage_fraction, filled, fill_ratio, chunks_s
    cdef long long data_groups, most_tokens
    cdef long long[::1] own_tokens
    cdef double[::1] own_s, shared_mixed
    cdef double[::1] context_knots, decode_base, decode_values, decode_slopes
    cdef double[::1] mixed, head, launch, chunk_knots, prefill
    cdef Py_ssize_t new_count, past_count
    cdef long long[::1] chunk_rows, chunk_tokens

    @cython.locals(tokens=cython.longlong, seconds=cython.double, place=cython.Py_ssize_t)
    cdef double step_s(self, long long decoding, double context) noexcept
    @cython.locals(beside=cython.longlong, tokens=cython.longlong, fullest=cython.longlong, seconds=cython.double)
    cdef double step_of_groups_s(self, long long decoding, double context) noexcept
    @cython.locals(last=cython.longlong, end_s=cython.double)
    cdef double own_mixed_s(self, long long tokens) noexcept
    @cython.locals(groups=cython.longlong, tokens=cython.longlong, most=cython.longlong, whole_s=cython.double, most_s=cython.double, group=cython.Py_ssize_t, place=cython.Py_ssize_t, seconds=cython.double)
    cdef long long deal(self, long long beside) noexcept
    @cython.locals(stages=cython.longlong, beside=cython.longlong, before=cython.double, tokens=cython.longlong, longest=cython.longlong, decode_s=cython.double, attention_s=cython.double, place=cython.Py_ssize_t, room=cython.double, largest=cython.longlong, filled=cython.double, fullest=cython.longlong, seconds=cython.double, part=cython.double, ratio=cython.double)
    cdef double pipeline_pass_s(self, long long decoding, double context) noexcept
    @cython.locals(offset=cython.Py_ssize_t, last=cython.Py_ssize_t, base=cython.double, i=cython.Py_ssize_t, done=cython.longlong, total=cython.double, slope=cython.double, rise=cython.double, first=cython.double, count=cython.longlong, seconds=cython.double, half=cython.double)
    cdef double run(self, long long sequences, double context, long long steps, double limit_s) noexcept
    @cython.locals(low=cython.Py_ssize_t, high=cython.Py_ssize_t, middle=cython.Py_ssize_t)
    cdef Py_ssize_t knot_below(self, double context) noexcept
    cdef double attention_s(self, long long sequences, double context) noexcept
    @cython.locals(offset=cython.Py_ssize_t, i=cython.Py_ssize_t)
    cdef double decode_s(self, long long sequences, double context) noexcept
    @cython.locals(knots=cython.Py_ssize_t, width=cython.Py_ssize_t, i=cython.Py_ssize_t, j=cython.Py_ssize_t, u=cython.double, v=cython.double, low=cython.Py_ssize_t, high=cython.Py_ssize_t, at_low=cython.double, at_high=cython.double)
    cdef double prefill_s(self, double new_tokens, double past_tokens) noexcept
    @cython.locals(low=cython.Py_ssize_t, high=cython.Py_ssize_t, middle=cython.Py_ssize_t)
    cdef Py_ssize_t place_below(self, Py_ssize_t first, Py_ssize_t count, double value) noexcept

@cython.locals(half=cython.double, linear=cython.double, root=cython.double, guess=cython.double, steps=cython.longlong)
cdef long long steps_to_reach(double first_s, double rise_s, double limit_s, long long most) noexcept
