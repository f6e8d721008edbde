# Types for flat_engine.py when Cython compiles it; without a compiler nothing reads this file.
cimport cython
from capplan.serving.engine_parts cimport Gauges, PromptHold, grown
from capplan.serving.flat_batch cimport without
from capplan.serving.flat_queue cimport FINISHED, UNKNOWN_S
from capplan.serving.flat_steps cimport FlatSteps
from capplan.serving.flat_trees cimport NEVER_S, FlatEvents

cdef Py_ssize_t HISTOGRAM_ZERO, HISTOGRAM_BINS
cdef double BINS_PER_E

cdef class FlatEngine(FlatSteps):
    cdef public Py_ssize_t zero_bin
    cdef public Gauges gauges
    cdef PromptHold hold
    cdef bint shared_steps
    cdef public bint gauged
    cdef double planned_s, judged_until_s, credit
    cdef Py_ssize_t judged_from, judged
    cdef public Py_ssize_t missed
    cdef long long[::1] judged_metrics, judged_left
    cdef double[::1] judged_limits_s
    cdef public double itl_none, itl_weight, itl_total
    cdef public double[::1] itl

    @cython.locals(preempted=cython.bint, freed=cython.bint, event_s=cython.double)
    cpdef void advance(self, double until_s) except *
    cpdef void expire_seen(self, double until_s) except *
    cpdef void receive_arrived(self) except *
    cpdef Py_ssize_t in_flight(self) noexcept
    @cython.locals(earliest=cython.double, place=cython.Py_ssize_t)
    cpdef double loaded_s(self) noexcept
    cdef double seen_s(self) noexcept
    cpdef bint plans_ahead(self) noexcept
    @cython.locals(idle=cython.bint, waited=cython.bint, place=cython.Py_ssize_t)
    cdef bint waits_for_output(self) except -1
    @cython.locals(preempted=cython.bint, block=cython.longlong, after=cython.longlong, room=cython.longlong)
    cdef bint make_room(self) except -1
    @cython.locals(count=cython.Py_ssize_t, row=cython.Py_ssize_t, dealt=cython.longlong, place=cython.Py_ssize_t, more=cython.longlong, lowest=cython.Py_ssize_t, other=cython.Py_ssize_t)
    cdef void deal_blocks(self) except *
    cdef long long blocks_at(self, Py_ssize_t row, long long counter) noexcept
    @cython.locals(place=cython.Py_ssize_t, row=cython.Py_ssize_t)
    cdef void pause(self, Py_ssize_t first, Py_ssize_t end) noexcept
    @cython.locals(place=cython.Py_ssize_t, row=cython.Py_ssize_t)
    cdef void resume(self) noexcept
    @cython.locals(budget=cython.longlong, tokens=cython.longlong, more=cython.longlong, used=cython.longlong)
    cdef bint extends(self, Py_ssize_t row) except -1
    @cython.locals(new=cython.longlong)
    cdef long long piece(self, Py_ssize_t row, long long budget) noexcept
    cdef long long piece_blocks(self, Py_ssize_t row, long long new, long long whole) noexcept
    @cython.locals(row=cython.Py_ssize_t, is_open=cython.bint, is_held=cython.bint)
    cdef int plan(self, bint preempted) except -1
    @cython.locals(running=cython.longlong, budget=cython.longlong)
    cdef int plan_prompts(self, Py_ssize_t row, bint preempted) except -1
    cdef long long step_budget(self) noexcept
    cdef long long add_chunk(self, Py_ssize_t row, long long new) noexcept
    @cython.locals(used=cython.longlong, row=cython.Py_ssize_t, pinned=cython.longlong, new=cython.longlong, blocks=cython.longlong, commit=cython.longlong, is_named=cython.bint)
    cdef int admit_waiting(self, long long budget, long long running) except -1
    cdef int look_up(self, Py_ssize_t row) except -1
    @cython.locals(place=cython.Py_ssize_t, row=cython.Py_ssize_t, new=cython.longlong)
    cdef long long plan_loaded(self, long long budget) except? -1
    @cython.locals(sequences=cython.longlong, tokens=cython.longlong, prompts=cython.longlong)
    cdef bint waits(self) noexcept
    @cython.locals(used=cython.longlong, tokens=cython.longlong, commit=cython.longlong)
    cdef bint take_over(self, Py_ssize_t row) noexcept
    cdef void begin(self, Py_ssize_t row) noexcept
    cdef void stream(self, Py_ssize_t row) noexcept
    cdef void shows(self, Py_ssize_t row) noexcept
    @cython.locals(private=cython.longlong, reserved=cython.double)
    cdef long long reserved_blocks(self, Py_ssize_t row) noexcept
    cdef int admit(self, Py_ssize_t row, long long blocks, long long commit) except -1
    @cython.locals(index=cython.longlong)
    cdef void count_admitted(self, Py_ssize_t row) noexcept
    cdef int pin(self, Py_ssize_t row) except -1
    @cython.locals(start=cython.double, decoding=cython.longlong, chunks=cython.Py_ssize_t, held=cython.longlong, context=cython.double, seconds=cython.double, place=cython.Py_ssize_t, row=cython.Py_ssize_t, joined=cython.longlong)
    cdef int work_on(self) except -1
    @cython.locals(busy=cython.longlong)
    cdef long long counted_blocks(self) noexcept
    cdef bint others_decode(self) noexcept
    cdef void group(self, long long sequences, double since_s) noexcept
    @cython.locals(place=cython.Py_ssize_t)
    cdef void end_groups(self) noexcept
    cdef int prompt_ends(self, Py_ssize_t row) except -1
    @cython.locals(start=cython.double, sequences=cython.longlong, first=cython.longlong, steps=cython.longlong, limit=cython.double, before=cython.longlong, context=cython.double, seconds=cython.double, awaited=cython.bint, after=cython.longlong, pinned=cython.longlong)
    cdef int decode(self, double until_s, bint one) except -1
    @cython.locals(ends=FlatEvents, row=cython.Py_ssize_t)
    cdef int complete(self) except -1
    cdef int finish(self, Py_ssize_t row) except -1
    @cython.locals(place=cython.Py_ssize_t)
    cdef void judge(self, Py_ssize_t row, long long metric, double value_s) noexcept
    @cython.locals(key=cython.Py_ssize_t)
    cdef void gap(self, double value, double weight) noexcept
