# Types for flat_trees.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython

cdef double NEVER_S

@cython.final
cdef class FlatEvents:
    cdef Py_ssize_t count
    cdef long long added
    cdef double[::1] times
    cdef long long[::1] serials, values

    cdef double next_s(self) noexcept
    @cython.locals(place=cython.Py_ssize_t)
    cdef void push(self, double at_s, long long value) noexcept
    @cython.locals(size=cython.Py_ssize_t, place=cython.Py_ssize_t, child=cython.Py_ssize_t, value=cython.longlong, at_s=cython.double, serial=cython.longlong)
    cdef long long pop(self) noexcept

cdef class FlatStarts:
    cdef Py_ssize_t leaves
    cdef double[::1] times

    @cython.locals(place=cython.Py_ssize_t)
    cdef Py_ssize_t first(self) noexcept
    @cython.locals(place=cython.Py_ssize_t)
    cdef void set(self, Py_ssize_t engine, double at_s) noexcept

@cython.locals(tree="long long[::1]", counts="long long[::1]", row=cython.Py_ssize_t, place=cython.longlong, others=cython.longlong)
cpdef counts_of_greater(long long[::1] ranks, long long span)
