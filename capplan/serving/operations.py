"""Operations on the replicas of a pool: start, failure, repair, scaling up and down."""

from collections.abc import Sequence
from functools import partial
from math import inf

from capplan.serving.engine_instance import EngineInstance
from capplan.serving.replicas.dispatcher import Dispatcher
from capplan.serving.replicas.engine_pool import EnginePool
from capplan.serving.replicas.fleet_terms import Autoscaling, Failure, wanted_replicas
from capplan.serving.requests import InFlight


class Operations:
    """Starts and stops the replicas of one pool."""

    __slots__ = ("_dispatcher", "_pool", "rerouted_requests")

    def __init__(self, dispatcher: Dispatcher, pool: EnginePool, replicas: int) -> None:
        """Start replicas that serve from time zero."""
        self._dispatcher = dispatcher
        self._pool = pool
        self.rerouted_requests = 0
        for number in range(replicas):
            pool.admit(pool.start(number, 0.0))

    def plan(self, failures: Sequence[Failure], autoscaling: Autoscaling | None) -> None:
        """Schedule all failures, and the first decision of the autoscaler where there is one."""
        for failure in failures:
            self._dispatcher.at(failure.time_s, partial(self._fail, failure))
        if autoscaling is not None:
            self._dispatcher.at(autoscaling.interval_s, partial(self._autoscale, autoscaling))

    def _fail(self, failure: Failure, at_s: float) -> None:
        dispatcher, pool = self._dispatcher, self._pool
        instance = pool.numbered(failure.replica)
        if instance is None:
            return
        instance.advance(at_s)
        dispatcher.settle(at_s)
        if instance.until_s < inf:
            return
        end_s = max(at_s, instance.server.now_s)
        flights = instance.evacuate()
        pool.end(instance, end_s)
        for flight in flights:
            if dispatcher.hedges and dispatcher.hedges.lost(flight):
                continue
            self.rerouted_requests += 1
            dispatcher.at(end_s, partial(self._redispatch, flight))
        if failure.repair_s < inf:
            dispatcher.at(
                max(failure.time_s + failure.repair_s, end_s), partial(self._repaired, failure.replica)
            )

    def _redispatch(self, flight: InFlight, at_s: float) -> None:
        del at_s
        self._dispatcher.dispatch(self._pool, flight)

    def _repaired(self, number: int, at_s: float) -> None:
        if self._pool.numbered(number) is None:
            self._dispatcher.admit(self._pool, self._pool.start(number, at_s))

    def _ready(self, instance: EngineInstance, at_s: float) -> None:
        del at_s
        self._dispatcher.admit(self._pool, instance)

    def _autoscale(self, autoscaling: Autoscaling, at_s: float) -> None:
        """Scale the pool to its load and schedule the next decision; no replica is removed while another one starts."""
        dispatcher, pool = self._dispatcher, self._pool
        pool.advance(at_s)
        dispatcher.settle(at_s)
        draining = sum(instance.draining for instance in pool.alive)
        replicas = len(pool.alive) - draining
        waiting = sum(instance.waiting for instance in pool.alive) + len(pool.held)
        wanted = wanted_replicas(
            autoscaling, pool.terms.max_num_seqs, replicas, pool.load + len(pool.held), waiting
        )
        for _ in range(wanted - replicas):
            instance = pool.start(pool.free_number(), at_s)
            dispatcher.at(at_s + autoscaling.start_s, partial(self._ready, instance))
        if wanted < replicas and len(pool.serving) == replicas:
            pool.drain(at_s)
        if not dispatcher.idle:
            dispatcher.at(at_s + autoscaling.interval_s, partial(self._autoscale, autoscaling))
