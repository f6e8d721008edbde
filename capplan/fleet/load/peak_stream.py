"""The traffic of a scenario at its peak as a stream of requests: what `simulate` runs, and what pools are sized with."""

from capplan.fleet.load.demand import Demand
from capplan.fleet.load.offered import WARM_UP_SHARE, SamplePath
from capplan.fleet.load.session_load import offered_with_sessions, session_block_tokens, session_warm_up_s
from capplan.fleet.load.waits import waits_of
from capplan.fleet.simulation import Stream
from capplan.serving.terms import Routing
from capplan.workload.request_class import ResponseTimes

SAMPLED_SECONDS = 600.0
MOST_SAMPLED = 1_000_000


def peak_stream(
    demand: Demand,
    *,
    replicas: int,
    seed: int,
    longest: int,
    seconds: float | None = None,
    response_s: ResponseTimes = 0.0,
    routing: Routing | None,
) -> Stream:
    """Return the requests of some time at the peak.

    Parameters
    ----------
    demand : with the prefix-cache hits of a replica
    replicas : [-]
        each of which gets at least two requests
    seed : of all random draws
    longest : [tokens]
        input plus output are truncated to it
    seconds : [s]
        None: SAMPLED_SECONDS
    response_s : [s]
        approximate response times of users and of the turns of sessions
    routing : of the router

    Returns
    -------
    Stream; a fleet with sessions starts without any of them, and its warm-up comes before the time that is asked for; otherwise
    the warm-up is the first part of it
    """
    rate = sum(demand.rates_per_s(response_s))
    warm_up_s = session_warm_up_s(demand, response_s)
    span = SAMPLED_SECONDS if seconds is None else seconds
    count = min(max(round(rate * span), 2 * replicas, 10), MOST_SAMPLED)
    if demand.has_sessions:
        offered = offered_with_sessions(
            demand,
            seconds=count / rate,
            seed=seed,
            longest=longest,
            response_s=response_s,
            warm_up_s=warm_up_s,
        )
    else:
        offered = SamplePath(demand, count=count, seed=seed, longest=longest, response_s=response_s).offered(
            1.0
        )
    names = tuple(request_class.name for request_class in demand.classes)
    blocks = session_block_tokens(demand)
    return Stream(
        offered.requests, names, blocks, crowd=offered.crowd, routing=routing, seed=seed, warm_up_s=warm_up_s,
        warm_up_share=0.0 if warm_up_s else WARM_UP_SHARE, waits=waits_of(demand.classes).at_the_peak,
    )  # fmt: skip
