# Types for flat_router.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython

from capplan.serving.flat_core cimport FlatEngine

cdef class FlatRouter:
    cdef list cores
    cdef bint by_load
    cdef Py_ssize_t turn

    @cython.locals(prompt="long long[::1]", output="long long[::1]", cached="long long[::1]", class_index="long long[::1]", chosen="long long[::1]", place=cython.Py_ssize_t, row=cython.Py_ssize_t, core=FlatEngine)
    cpdef serve(self, long long[::1] order, double[::1] at_s, double[::1] arrival_s, tuple columns, double[::1] first_token_s)
    @cython.locals(turn=cython.Py_ssize_t, best=cython.Py_ssize_t, least=cython.longlong, load=cython.longlong, place=cython.Py_ssize_t, core=FlatEngine)
    cdef Py_ssize_t choice(self, double at_s) except -1

cdef run(FlatEngine core, double until_s)
