# Types for flat_slots.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython
from capplan.serving.flat_batch cimport without
from capplan.serving.flat_engine cimport FlatEngine

cdef double LEAST_SIMILARITY

cdef class FlatSlots(FlatEngine):
    cdef long long[::1] slot_rows, left_at, vacated_slots
    cdef Py_ssize_t vacated, releases, found_blocks
    cdef list kept_ids
    cdef double began_s

    cdef Py_ssize_t common_blocks(self, Py_ssize_t slot, list block_ids) except -1
    @cython.locals(budget=cython.longlong, slot=cython.Py_ssize_t, row=cython.Py_ssize_t)
    cdef int plan(self, bint preempted) except -1
    @cython.locals(slot=cython.Py_ssize_t, place=cython.Py_ssize_t)
    cdef void empty_slots(self) noexcept
    @cython.locals(row=cython.Py_ssize_t)
    cdef void seat(self) except *
    @cython.locals(slot=cython.Py_ssize_t, found=cython.Py_ssize_t, prompt=cython.longlong, other=cython.Py_ssize_t, common=cython.Py_ssize_t)
    cdef Py_ssize_t take(self, Py_ssize_t row, list free) except -1
    @cython.locals(place=cython.Py_ssize_t, row=cython.Py_ssize_t)
    cdef int work_on(self) except -1
    @cython.locals(start_s=cython.double, step=cython.longlong)
    cdef int decode(self, double until_s, bint one) except -1
    cdef int close(self, Py_ssize_t row) except -1
    @cython.locals(slot=cython.Py_ssize_t)
    cdef int release(self, Py_ssize_t row, long long worked_on) except -1
    @cython.locals(slot=cython.Py_ssize_t)
    cdef Py_ssize_t slot_of(self, Py_ssize_t row) noexcept
