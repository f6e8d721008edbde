"""Interchangeable replicas: which of them start, serve, drain or have ended."""

from bisect import insort
from collections import deque
from math import inf

from capplan.serving.engine_instance import EngineInstance, Report
from capplan.serving.replicas.routing import Router
from capplan.serving.requests import Admission, InFlight
from capplan.serving.step_clock import StepClock
from capplan.serving.terms import EngineTerms


class EnginePool:
    """Identical replicas behind one router."""

    __slots__ = (
        "_admission",
        "_clock",
        "_report",
        "alive",
        "held",
        "instances",
        "router",
        "serving",
        "terms",
    )

    def __init__(
        self, clock: StepClock, terms: EngineTerms, admission: Admission, router: Router, report: Report
    ) -> None:
        """Start without replicas."""
        self._clock = clock
        self._admission = admission
        self._report = report
        self.terms = terms
        self.router = router
        self.instances: list[EngineInstance] = []
        """All of them, in order of start, ended ones included."""
        self.alive: list[EngineInstance] = []
        """Starting, serving or draining."""
        self.serving: list[EngineInstance] = []
        """Those that receive requests, by number."""
        self.held: deque[InFlight] = deque()
        """Requests that arrived while no replica was serving."""

    @property
    def load(self) -> int:
        """Return the requests sent to replicas that have not ended."""
        return sum(instance.load for instance in self.alive)

    def start(self, number: int, at_s: float) -> EngineInstance:
        """Start a replica; it receives requests once it is admitted."""
        instance = EngineInstance(number, at_s, self._clock, self.terms, self._admission, self._report)
        self.instances.append(instance)
        self.alive.append(instance)
        return instance

    def admit(self, instance: EngineInstance) -> bool:
        """Let a replica receive requests; return False if it has ended meanwhile."""
        if instance.until_s < inf:
            return False
        insort(self.serving, instance, key=lambda other: other.number)
        return True

    def end(self, instance: EngineInstance, at_s: float) -> None:
        """End a replica."""
        instance.until_s = at_s
        instance.draining = False
        self.alive.remove(instance)
        if instance in self.serving:
            self.serving.remove(instance)

    def drain(self, at_s: float) -> None:
        """Stop sending requests to the least loaded replica (the last one of a tie); it ends when it is empty."""
        instance = min(self.serving, key=lambda other: (other.load, -other.number))
        self.serving.remove(instance)
        instance.draining = True
        if not instance.load:
            self.end(instance, max(at_s, instance.server.now_s))  # a cancelled copy may have started a step

    def numbered(self, number: int) -> EngineInstance | None:
        """Return the live replica with this number."""
        return next((instance for instance in self.alive if instance.number == number), None)

    def free_number(self) -> int:
        """Return the lowest number that no live replica has."""
        taken = {instance.number for instance in self.alive}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def advance(self, until_s: float) -> None:
        """Run every step of every replica that starts before a time."""
        for instance in self.alive:
            instance.advance(until_s)
