# Types for flat_batch.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython

from capplan.serving.flat_queue cimport FlatQueue

cdef class FlatBatch(FlatQueue):
    cdef public Py_ssize_t end_count, chunks, groups
    cdef public double reserved_output_fraction
    cdef public long long query_tokens, counter
    cdef public long long phase_sum, sequences, tokens, shared_sum, held, committed, step, serials
    cdef public long long partial, last
    cdef public long long steps, preemptions, prefill_tokens, cached_tokens
    cdef public double[::1] scheduled, last_token, queue_s, ttft_s, e2e_s, group_since
    cdef public long long[::1] done, blocks, commit, base, end_step, serial, before, after, phases
    cdef public long long[::1] group_sequences, end_keys, end_rows
    cdef public long long[::1] class_prompt, class_cached, class_preempted, class_seen

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
