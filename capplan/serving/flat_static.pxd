# Types for flat_static.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython
from capplan.serving.flat_engine cimport FlatEngine
from capplan.serving.flat_trees cimport NEVER_S

cdef class FlatStatic(FlatEngine):
    cdef double timeout_s
    cdef long long[::1] batch_rows
    cdef Py_ssize_t batch

    @cython.locals(start_s=cython.double, event_s=cython.double)
    cpdef void advance(self, double until_s) except *
    cdef double start_s(self) noexcept
    @cython.locals(total=cython.longlong, row=cython.Py_ssize_t, tokens=cython.longlong, blocks=cython.longlong)
    cdef long long fill_batch(self) noexcept
    @cython.locals(start=cython.double, steps=cython.longlong, prompts=cython.longlong, place=cython.Py_ssize_t, row=cython.Py_ssize_t, context=cython.double, first_s=cython.double, all_s=cython.double, later_s=cython.double)
    cdef int run_batch(self, long long blocks) except -1
    @cython.locals(first=cython.Py_ssize_t, place=cython.Py_ssize_t, row=cython.Py_ssize_t, budget=cython.longlong, new=cython.longlong)
    cdef void prefill_batch(self) noexcept
