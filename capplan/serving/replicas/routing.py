"""The router: which replica a request is sent to."""

from collections.abc import Sequence
from random import Random

from capplan.serving.engine_instance import EngineInstance
from capplan.serving.replicas.fleet_terms import Routing
from capplan.serving.requests import InFlight

PREFIX_SLACK_REQUESTS = 4
"""A replica chosen for its prefix cache may have this many requests more than the least loaded one (an assumption)."""
PREFIX_SLACK_RATIO = 1.5
"""The same limit as a ratio; the larger of both holds (an assumption)."""


class Router:
    """Chooses among the serving replicas by one rule."""

    __slots__ = ("_id_tokens", "_last", "_random", "needs_loads", "routing")

    def __init__(self, routing: Routing, id_tokens: int) -> None:
        """Start with replica 0."""
        self.routing = routing
        self.needs_loads = routing not in {"round_robin", "random"}
        """Whether the engines must have run up to the time of the choice."""
        self._id_tokens = id_tokens
        self._last = -1
        self._random = Random(0)

    def choice(self, engines: Sequence[EngineInstance], flight: InFlight) -> EngineInstance:
        """Return one of these engines, given in order of their numbers; there must be at least one."""
        if self.routing == "round_robin":
            chosen = next((engine for engine in engines if engine.number > self._last), engines[0])
            self._last = chosen.number
            return chosen
        if self.routing == "random":
            return self._random.choice(engines)
        least = min(engine.load for engine in engines)
        if self.routing == "prefix_aware" and flight.block_ids:
            allowed = max(least + PREFIX_SLACK_REQUESTS, PREFIX_SLACK_RATIO * least)
            ids = flight.block_ids[: flight.prompt_tokens // self._id_tokens]
            return max(
                (engine for engine in engines if engine.load <= allowed),
                key=lambda engine: (engine.server.hit_blocks(ids), -engine.load, -engine.number),
            )
        return next(engine for engine in engines if engine.load == least)
