# Types for flat_pools.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython
from capplan.serving.flat_engine cimport FlatEngine
from capplan.serving.flat_queue cimport FINISHED, SHED, UNKNOWN_S, FlatQueue
from capplan.serving.flat_trees cimport NEVER_S, FlatEvents, FlatStarts

cdef class FlatRouter:
    cdef list cores

    @cython.locals(prompt="long long[::1]", output="long long[::1]", cached="long long[::1]", class_index="long long[::1]", place=cython.Py_ssize_t, row=cython.Py_ssize_t, core=FlatEngine)
    cpdef serve(self, long long[::1] order, double[::1] at_s, double[::1] arrival_s, tuple columns, double[::1] first_token_s)
    @cython.locals(best=FlatEngine, least=cython.longlong, load=cython.longlong, place=cython.Py_ssize_t, core=FlatEngine)
    cdef FlatEngine least_loaded(self, double at_s)

cdef class FlatPools(FlatQueue):
    cdef list cores
    cdef Py_ssize_t prefills, turn_first, turn_later
    cdef bint loaded_first, loaded_later
    cdef double bytes_per_token, bytes_per_s, latency_s
    cdef public double[::1] e2e_s
    cdef double[::1] link_free_s
    cdef long long[::1] load, stalled
    cdef FlatStarts starts
    cdef FlatEvents done, moving

    @cython.locals(event_s=cython.double, place=cython.Py_ssize_t)
    cpdef serve(self, double until_s)
    @cython.locals(core=FlatEngine, start_s=cython.double)
    cdef start(self, Py_ssize_t place)
    @cython.locals(core=FlatEngine, entry=cython.Py_ssize_t, start_s=cython.double)
    cdef note(self, Py_ssize_t place)
    @cython.locals(row=cython.Py_ssize_t)
    cdef handle(self, double at_s)
    @cython.locals(at_s=cython.double, end=cython.longlong, place=cython.Py_ssize_t, core=FlatEngine, there=cython.Py_ssize_t, row=cython.Py_ssize_t, needs_s=cython.double)
    cdef settle(self, double until_s)
    cdef void close(self, Py_ssize_t row, double at_s, long long status) noexcept
    @cython.locals(place=cython.Py_ssize_t, output=cython.longlong)
    cdef send_first(self, Py_ssize_t row)
    @cython.locals(place=cython.Py_ssize_t)
    cdef send_later(self, Py_ssize_t row)
    @cython.locals(place=cython.Py_ssize_t, best=cython.Py_ssize_t)
    cdef Py_ssize_t least_loaded(self, Py_ssize_t first, Py_ssize_t end) except -1
    @cython.locals(core=FlatEngine)
    cdef send_to(self, Py_ssize_t place, Py_ssize_t row, long long output, long long cached, double first_token_s)

cdef run(FlatEngine core, double until_s)

@cython.locals(free_s="double[::1]", arrives_s="double[::1]", row=cython.Py_ssize_t, place=cython.Py_ssize_t)
cpdef link_arrivals(Py_ssize_t engines, long long[::1] engine, double[::1] ends_s, double[::1] needs_s, double latency_s)
