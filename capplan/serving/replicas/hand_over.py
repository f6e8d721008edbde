"""Handover from prefill to decode engines: the KV cache of a prompt goes over a link."""

from functools import partial

from capplan.serving.engine_instance import EngineInstance
from capplan.serving.replicas.dispatcher import Dispatcher
from capplan.serving.replicas.fleet_terms import KvLink, transfer_s
from capplan.serving.requests import InFlight


class HandOver:
    """Moves requests whose prefill is done from the first pool of a dispatcher to the second."""

    __slots__ = ("_dispatcher", "_link")

    def __init__(self, dispatcher: Dispatcher, link: KvLink) -> None:
        """Start with an idle link."""
        self._dispatcher = dispatcher
        self._link = link

    def prepare(self, flight: InFlight) -> bool:
        """Prepare a request for the prefill engines; return False if no decode engine could ever hold it."""
        flight.output_ids = []  # the response is generated on another engine than the prompt's blocks are on
        flight.remaining_tokens = flight.output_tokens - 1
        cached, flight.received = flight.cached_tokens, True
        fits = flight.remaining_tokens == 0 or not self._dispatcher.pools[1].terms.too_long(flight)
        flight.cached_tokens, flight.received = cached, False
        flight.remaining_tokens = 1
        return fits

    def transfer(self, instance: EngineInstance, flight: InFlight, at_s: float) -> bool:
        """Send a prefilled request to a decode engine; return False if it is complete or was decoded already."""
        if flight.output_tokens == 1 or instance not in self._dispatcher.pools[0].instances:
            return False
        flight.remaining_tokens = flight.output_tokens - 1
        flight.received = True
        flight.block_ids = []
        flight.cached_tokens = flight.shared_tokens = 0
        link = self._link
        begin_s = max(at_s, instance.link_free_s)
        instance.link_free_s = begin_s + transfer_s(
            flight.prompt_tokens, link.bytes_per_token, link.bytes_per_s, 0.0
        )
        self._dispatcher.at(instance.link_free_s + link.latency_s, partial(self._arrives, flight))
        return True

    def _arrives(self, flight: InFlight, at_s: float) -> None:
        del at_s
        self._dispatcher.dispatch(self._dispatcher.pools[1], flight)
