"""Interchangeable replicas: which of them start, serve, drain or have ended."""

from bisect import insort
from collections import deque
from math import inf

from capplan.serving.engine_life import EngineLife, Report
from capplan.serving.requests import Admission, InFlight
from capplan.serving.routing import Router
from capplan.serving.step_clock import StepClock
from capplan.serving.terms import EngineTerms


class EnginePool:
    """Identical replicas behind one router."""

    __slots__ = ("_admission", "_clock", "_report", "alive", "held", "lives", "router", "serving", "terms")

    def __init__(
        self, clock: StepClock, terms: EngineTerms, admission: Admission, router: Router, report: Report
    ) -> None:
        """Start without replicas."""
        self._clock = clock
        self._admission = admission
        self._report = report
        self.terms = terms
        self.router = router
        self.lives: list[EngineLife] = []
        """All of them, in order of start, ended ones included."""
        self.alive: list[EngineLife] = []
        """Starting, serving or draining."""
        self.serving: list[EngineLife] = []
        """Those that receive requests, by number."""
        self.held: deque[InFlight] = deque()
        """Requests that arrived while no replica was serving."""

    @property
    def load(self) -> int:
        """Return the requests sent to replicas that have not ended."""
        return sum(life.load for life in self.alive)

    def start(self, number: int, at_s: float) -> EngineLife:
        """Start a replica; it receives requests once it is admitted."""
        life = EngineLife(number, at_s, self._clock, self.terms, self._admission, self._report)
        self.lives.append(life)
        self.alive.append(life)
        return life

    def admit(self, life: EngineLife) -> bool:
        """Let a replica receive requests; return False if it has ended meanwhile."""
        if life.until_s < inf:
            return False
        insort(self.serving, life, key=lambda other: other.number)
        return True

    def end(self, life: EngineLife, at_s: float) -> None:
        """End a replica."""
        life.until_s = at_s
        life.draining = False
        self.alive.remove(life)
        if life in self.serving:
            self.serving.remove(life)

    def drain(self, at_s: float) -> None:
        """Stop sending requests to the least loaded replica (the last one of a tie); it ends when it is empty."""
        life = min(self.serving, key=lambda other: (other.load, -other.number))
        self.serving.remove(life)
        life.draining = True
        if not life.load:
            self.end(life, max(at_s, life.server.now_s))  # a cancelled copy may have started a step

    def numbered(self, number: int) -> EngineLife | None:
        """Return the live replica with this number."""
        return next((life for life in self.alive if life.number == number), None)

    def free_number(self) -> int:
        """Return the lowest number that no live replica has."""
        taken = {life.number for life in self.alive}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def advance(self, until_s: float) -> None:
        """Run every step of every replica that starts before a time."""
        for life in self.alive:
            life.advance(until_s)
