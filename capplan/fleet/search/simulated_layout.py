"""Simulation of one layout under the traffic of a question: the latencies of a replica at a load, and of a fleet."""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, inf, isnan, log2

from capplan.fleet.engine_options import tier_in_tokens
from capplan.fleet.load.demand import Demand, planned_demand
from capplan.fleet.load.offered import (
    SamplePath,
    dealt_arrival_cv,
    kinds_of_replicas,
    lengthened,
    requests_of_steady_users,
    user_share_of,
)
from capplan.fleet.review import Question, spec_of_layout
from capplan.fleet.search.latencies import (
    MISSED,
    Latencies,
    Runs,
    Seen,
    early_end,
    engine_limits,
    latencies_of,
    odds,
    seen_in,
    sent_share,
    slowed,
)
from capplan.fleet.search.layouts import ScreenedLayout, longest_responses_s, rate_slack
from capplan.fleet.search.load_scale import (
    REGULARITY,
    REGULARITY_OF_BURSTS,
    STEPS_PER_DOUBLING,
    regularity_class,
)
from capplan.fleet.search.steady_plans import carried_shares, class_responses_s, steady_states_of
from capplan.replica.replica import Replica, replica_of
from capplan.serving.steady_state import SteadyState
from capplan.serving.terms import EngineSetup
from capplan.workload.kept_contexts import SURGE
from capplan.workload.request_class import ResponseTimes, Target

DOUBLINGS = 10
"""Range of the scale below the largest rate of a replica whose requests do not wait; a plan that needs a lower load is dropped."""
SHORT_REQUESTS = 1500
SHORT_TARGET_SLACK = 1.15
"""Factor by which short runs relax the targets; whether the queue grows they leave open, as they may end before that shows."""
USER_SLACK = 4.0
"""Factor by which users may be more than the closed form says: those who wait longer ask less often."""
MANY_USERS = 48
"""Users of a replica from which one user more changes no latency by more than a run does."""
CLEARLY = 2.0 ** (2.0 / STEPS_PER_DOUBLING)
"""Factor between two loads that surely differ in a full run: two steps of the scale, where noise makes up for a part of one."""
MOST_HALVINGS = 2
"""How often the requests of a run are halved, at most, for a kind of replica of which a fleet has few."""
LEAST_OF_KIND = 3000
"""Fewest requests of such a shorter run, if a run has them."""


SamplePaths = dict[tuple[tuple[float, ...], int, tuple[float, ...], float | None], SamplePath]
"""Drawn traffic of a question by its prefix-cache hits, the number of requests and what decides their mix: response times, or a share of users."""


def _hits(demand: Demand) -> tuple[object, ...]:
    """Return the prefix-cache hits of a demand, which the runs of one layout may differ in."""
    return demand.hit_fractions, demand.load_s


def with_load_time(replica: Replica, demand: Demand) -> Replica:
    """Return a replica whose requests all wait for the mean load time of offload tiers; the same one where nothing is loaded."""
    if not demand.load_s:
        return replica
    table = replica.table
    return replace(replica, table=replace(table, request_s=table.request_s + demand.load_s))


def demand_at_replica(
    demand: Demand,
    replica: Replica,
    share: float = 1.0,
    response_s: ResponseTimes = 0.0,
    surge: float | None = None,
) -> Demand:
    """Return the demand with the prefix-cache hits of a replica, in the mean or in a surge of sessions.

    They depend on the size of its cache and, for sessions, on the share of the traffic that it carries and the response time.
    """
    if not demand.reuses:
        return demand
    spec, tokens = replica.spec, replica.kv_blocks * replica.scheduling.block_tokens
    prompt = float(demand.lengths.input_tokens)
    tiers = [
        tier_in_tokens(spec.network, spec.device, spec.sharding, spec.kv_format, size, prompt)
        for size in demand.tiers
    ]
    return demand.with_cache(float(tokens), tiers, share, response_s, surge)


class SimulatedLayout:
    """A layout that is simulated on demand, once per load."""

    doublings = DOUBLINGS
    """Range of the scale of loads."""
    classes: Sequence[int] = REGULARITY
    """Classes of replica counts whose arrivals count as equally regular."""

    def __init__(
        self,
        candidate: ScreenedLayout,
        question: Question,
        paths: SamplePaths,
        replica: Replica | None = None,
        runs: Runs | None = None,
        state: SteadyState | None = None,
    ) -> None:
        """Take the replica and its steady state, or build them; nothing is simulated yet.

        `paths` shares sample paths with other layouts, `runs` the runs of this layout with other questions.
        """
        self.candidate = candidate
        self.demand = candidate.demand
        if dealt_arrival_cv(self.demand) > 1.0:
            self.classes = REGULARITY_OF_BURSTS
        self.question = question
        spec = spec_of_layout(candidate.layout, question)
        built = replica or candidate.speculating or replica_of(spec)
        self._built = built
        self.replica = with_load_time(built, self.demand)
        if state is None:
            state = steady_states_of([self.replica], self.demand, candidate.speculating)
        self.responses_s = tuple(float(s[0, 0]) for s in class_responses_s(state, self.demand))
        """Mean response time of each class at the lightest load."""
        self.total_rate = sum(self.demand.rates_per_s(self.responses_s))
        """Requests per second of the whole traffic, with users at that response time."""
        self._state, self._shares = state, carried_shares(state, self.demand)
        shares = self._shares[0, ~state.saturated[0]]
        slack = rate_slack(question) * (USER_SLACK if self.demand.users else 1.0)
        usual_ceiling = slack * self.total_rate * float(shares.max())
        self.rate_ceiling = max(usual_ceiling, self._ceiling_of_waiting(state))
        """Upper bound on the rate of a replica within the targets, or whatever the latency without users."""
        self.doublings = DOUBLINGS + ceil(log2(self.rate_ceiling / usual_ceiling))
        self.limits: Mapping[Target, float] = {target: target.limit_s for target in question.slo.targets}
        self._gaps = any(target.metric == "itl" for target in self.limits)
        """Whether gaps between tokens are recorded."""
        self._paths = paths
        self._engines: dict[float, EngineSetup] = {}
        self._runs = runs or Runs()
        """Each has a key: whether gaps are recorded, prefix-cache hits, rate, replicas, slowness and requests; or the replicas of a fleet and its traffic."""
        self._settled_demands: dict[tuple[float, float], Demand] = {}
        """Demand with the prefix-cache hits of sessions, by the share of the traffic at a replica and the slowness."""
        self._short_steps: dict[tuple[object, ...], int] = {}
        self._kinds: dict[tuple[object, ...], Seen] = {}
        self._samples: dict[tuple[int, float, float], tuple[tuple[Seen, float], ...]] = {}

    def _ceiling_of_waiting(self, state: SteadyState) -> float:
        """Return the rate at which users load a replica who all wait for as long as the targets allow, in requests at the lightest load."""
        if not self.demand.users or not any(target.metric == "ttft" for target in self.question.slo.targets):
            return 0.0
        waits = longest_responses_s(self.question.slo, self.demand)
        shares = carried_shares(state, self.demand, waits)[0, ~state.saturated[0]]
        return rate_slack(self.question) * self.total_rate * float(shares.max())

    def _settled(
        self,
        run: Callable[[Demand, Mapping[Target, float] | None], Latencies],
        share: float,
        slowness: float,
        limits: Mapping[Target, float] | None = None,
    ) -> Latencies:
        """Return latencies with the prefix-cache hits that sessions have while responses take that long.

        Slow responses keep sessions in flight for longer, which leaves less of the cache to each; fewer hits make responses
        slower. The hits are those at the lightest load first, and fall until they stay or the queue grows.

        In a surge of sessions a cache holds less of each. If responses then take so long that as many sessions stay in flight after the
        surge, the replica does not recover from it, and its latencies are those of the surge.

        Parameters
        ----------
        run : latencies with the hits of a demand, within limits if there are any
        share : [-]
            of the traffic, at a replica
        slowness : [-]
            factor on the time of each step
        limits : by target [s]
            stop once one of them is missed, which fewer hits would not mend
        """
        if not self.demand.has_sessions:
            return run(self.demand, limits)

        def later(demand: Demand, seen: Latencies, surge: float | None) -> Demand | None:
            waits = tuple(slowness * wait_s for wait_s in seen.responses_s)
            slower = self.with_hits(share, waits, surge)
            return slower if slower.lengths.cached_tokens < demand.lengths.cached_tokens else None

        following: Demand | None = self.with_hits(share, self.responses_s)
        while following is not None:
            demand = following
            seen = run(demand, limits)
            self._settled_demands[float(f"{share:.9g}"), slowness] = demand
            if not seen.steady or (limits is not None and self.worst(seen, slowness, limits) > 1.0):
                return seen
            following = later(demand, seen, None)
        following = later(demand, seen, SURGE)
        if following is None:
            return seen
        surging = run(following, None)
        again = later(following, surging, None) if surging.steady else following
        return seen if again is None else surging

    def with_hits(self, share: float, responses_s: ResponseTimes, surge: float | None = None) -> Demand:
        """Return the demand with the prefix-cache hits of a replica that carries a share of the traffic, at response times."""
        return demand_at_replica(self.question.demand, self._built, share, responses_s, surge)

    def at(
        self,
        rate_per_s: float,
        replicas: float,
        slowness: float = 1.0,
        *,
        short: bool = False,
        limits: Mapping[Target, float] | None = None,
    ) -> Latencies:
        """Return the latencies of one of several replicas at a rate, with all steps slower by a factor.

        `short` takes them from a short run, with the most hits that sessions may have; with `limits` they may be too short or MISSED
        where one of these is missed anyway.
        """
        share = rate_per_s / self.total_rate

        def run(demand: Demand, within: Mapping[Target, float] | None) -> Latencies:
            return self._at(demand, rate_per_s, replicas, slowness, within or {}, short=short)

        if short and self.demand.has_sessions:
            return run(self.with_hits(share, self.responses_s), limits)
        return self._settled(run, share, slowness, limits)

    def _at(
        self,
        demand: Demand,
        rate_per_s: float,
        replicas: float,
        slowness: float,
        limits: Mapping[Target, float],
        *,
        short: bool,
    ) -> Latencies:
        """Return the same with the hits of a demand."""
        scaled = rate_per_s * slowness
        count = self._requests(rate_per_s, short=short)
        if self._all_users or all(item.sessions is not None for item in demand.classes):
            replicas = 1.0  # no request is dealt to replicas in turn
        load, alike = float(f"{scaled:.9g}"), (self._gaps, *_hits(demand), count)
        key = (*alike, load, replicas, slowness if demand.users else 1.0)
        if key in self._runs.latencies:
            return self._runs.latencies[key]
        limits_s = engine_limits(limits, slowness, demand.classes)
        if self._runs.exceeded(key, limits_s):
            return MISSED
        if min(limits.values(), default=0.0) > 0.0 and not demand.users and not demand.has_sessions:
            decided = self._decided(alike, load, replicas, slowness, limits)
            if decided is not None:
                return decided
        # Without users a run serves every slowness: it goes on until it misses at the predicted speed too.
        loosest_s = limits_s if demand.users else engine_limits(limits, min(slowness, 1.0), demand.classes)
        seen = self._simulated(demand, rate_per_s, replicas, slowness, count, None, key, loosest_s)
        insort(self._runs.loads.setdefault(alike, []), (load, replicas, key))
        if seen is None:
            return MISSED
        self._runs.latencies[key] = self._complete(latencies_of([(seen, 1.0)], demand.classes))
        return self._runs.latencies[key]

    def _decided(
        self,
        alike: tuple[object, ...],
        load: float,
        replicas: float,
        slowness: float,
        limits: Mapping[Target, float],
    ) -> Latencies | None:
        """Return the latencies of a clearly heavier load at which all targets clearly hold, or MISSED where one clearly does not at a lighter one; else None.

        Arrivals behind more replicas are more regular, which makes no latency longer.
        """
        known = self._runs.loads.get(alike, [])
        lower, higher = ({t: by * limit for t, limit in limits.items()} for by in (1.0 / CLEARLY, CLEARLY))
        higher_s = engine_limits(higher, slowness, self.demand.classes)
        for _, count, key in known[bisect_left(known, (load * CLEARLY,)) :]:
            seen = self._runs.latencies.get(key)
            if count <= replicas and seen is not None and self.worst(seen, slowness, lower) <= 1.0:
                return seen
        for _, count, key in reversed(known[: bisect_left(known, (load / CLEARLY,))]):
            seen = self._runs.latencies.get(key)
            if count >= replicas and (
                self._runs.exceeded(key, higher_s)
                if seen is None
                else self.worst(replace(seen, steady=True), slowness, higher) > 1.0
            ):
                return MISSED
        return None

    @property
    def _most_alike(self) -> float:
        """Replicas up to which a short run stands for all of them: next to other requests, there is a user at each replica of a short run."""
        return self.demand.users if self.demand.users and not self._all_users else inf

    @property
    def _all_users(self) -> bool:
        return len(self.demand.user_classes) == len(self.demand.classes)

    def fleet(
        self,
        replicas: int,
        slowness: float = 1.0,
        traffic_ratio: float = 1.0,
        limits: Mapping[Target, float] | None = None,
    ) -> Latencies:
        """Return the latencies of a fleet of this many replicas: those of all its requests, whichever replica serves them.

        Users are whole and stay with their replica, so a fleet has replicas with one user more than others; each kind of replica
        is simulated, and counts as often as there are replicas of it. Many users on each replica make kinds alike: the usual
        one then stands for all.

        Parameters
        ----------
        replicas : [-]
            in service
        slowness : [-]
            factor on the time of each step
        traffic_ratio : [-]
            multiple of the traffic; a part of a user counts as a user
        limits : by target [s]
            latencies may be too short or MISSED where one of these is missed anyway
        """
        if not self.demand.users:
            return self.at(self.total_rate * traffic_ratio / replicas, replicas, slowness, limits=limits)

        def run(demand: Demand, within: Mapping[Target, float] | None) -> Latencies:
            key = (self._gaps, *_hits(demand), "fleet", replicas, slowness, traffic_ratio)
            if key not in self._runs.latencies:
                limits_s = engine_limits(within or {}, slowness, demand.classes)
                together = self._of_kinds(demand, replicas, slowness, traffic_ratio, limits_s)
                if together is MISSED:
                    return together
                self._runs.latencies[key] = together
            return self._runs.latencies[key]

        return self._settled(run, traffic_ratio / replicas, slowness, limits)

    def demand_of(self, replicas: int) -> Demand:
        """Return the demand with the prefix-cache hits and the mean lengths that a fleet of this many replicas has at the peak."""
        seen = self.fleet(replicas)
        share = float(f"{1.0 / replicas:.9g}")
        demand = self._settled_demands[share, 1.0] if self.demand.has_sessions else self.demand
        return demand.of_plan(seen.responses_s, demand.hit_fractions)

    def caches_decide(
        self, replicas: int, slowness: float, limits: Mapping[Target, float], traffic_ratio: float = 1.0
    ) -> bool:
        """Return whether prefix caches decide the number of replicas: a quarter fewer would meet the targets if the hits stayed.

        Fewer replicas leave less cache to each session, so that more of each prompt is computed again. Where the work of requests decides
        instead, a quarter fewer replicas miss the targets with the same hits too.

        Parameters
        ----------
        replicas : [-]
            in service
        slowness : [-]
            factor on the time of each step that the plan allows for
        limits : by target [s]
        traffic_ratio : [-]
            multiple of the traffic at the peak, for headroom
        """
        fewer = replicas - max(1, replicas // 4)
        if fewer < 1 or not self.demand.has_sessions:
            return False
        self.fleet(replicas, slowness, traffic_ratio)
        same_hits = self._settled_demands[float(f"{traffic_ratio / replicas:.9g}"), slowness]
        if self.demand.users:
            seen = self._of_kinds(same_hits, fewer, slowness, traffic_ratio, {})
        else:
            seen = self._at(
                same_hits, self.total_rate * traffic_ratio / fewer, fewer, slowness, {}, short=False
            )
        return seen.steady and self.worst(seen, slowness, limits) <= 1.0

    def _of_kinds(
        self,
        demand: Demand,
        replicas: int,
        slowness: float,
        traffic_ratio: float,
        limits_s: Mapping[Target, float],
        samples: list[tuple[Seen, float]] | None = None,
    ) -> Latencies:
        """Return the latencies of a fleet with users; `samples` gets what the requests of each kind of replica saw."""
        kinds = self._kinds_of(replicas, traffic_ratio)
        arrivals = 1.0 if self._all_users else float(regularity_class(replicas, self.classes))
        rate = self.total_rate * traffic_ratio / replicas

        def seen_by(
            kind: tuple[int, ...], count: int, limits_s: Mapping[Target, float]
        ) -> Seen | set[Target]:
            whole = self._requests(rate, short=False)
            part = max(whole >> min(int(log2(replicas / count)), MOST_HALVINGS), min(whole, LEAST_OF_KIND))
            return self._seen_by_kind(demand, rate, arrivals, slowness, part, kind, limits_s)

        busy = [(kind, count) for kind, count in kinds if any(kind) or not self._all_users]
        exceeded = set(limits_s)
        for kind, count in busy:
            seen = seen_by(kind, count, {target: limits_s[target] for target in exceeded})
            exceeded = set() if isinstance(seen, Seen) else seen
            if not exceeded:
                break
        if exceeded:
            return MISSED
        runs = [
            (seen, float(count)) for kind, count in busy if isinstance(seen := seen_by(kind, count, {}), Seen)
        ]
        if samples is not None:
            samples += runs
        together = self._complete(latencies_of(runs, demand.classes))
        if traffic_ratio == 1.0:  # by the response times, as every page counts the requests of users
            waits = tuple(slowness * response_s for response_s in together.responses_s)
            peak = slowness * planned_demand(self.demand, waits).peak_requests_per_s
            return replace(together, requests_per_s=peak / replicas)
        working = sum(count for _, count in busy) / sum(count for _, count in kinds)
        return self._complete(replace(together, requests_per_s=together.requests_per_s * working))

    def _kinds_of(self, replicas: int, traffic_ratio: float) -> Sequence[tuple[tuple[int, ...], int]]:
        """Return the users of each kind of replica, and how many replicas of the kind there are."""
        users = [
            ceil(traffic_ratio * (self.demand.classes[index].users or 0.0) - 1e-9)
            for index in self.demand.user_classes
        ]
        kinds = kinds_of_replicas(users, replicas)
        return kinds[:1] if min(users) >= MANY_USERS * replicas else kinds

    def samples(
        self, replicas: int, slowness: float = 1.0, traffic_ratio: float = 1.0
    ) -> tuple[tuple[Seen, float], ...]:
        """Return what the requests of a fleet saw one by one, and how many replicas each run stands for; see `fleet`.

        Times are those of replicas of which every step takes `slowness` times as long.
        """
        key = replicas, slowness, traffic_ratio
        if key not in self._samples:
            share = traffic_ratio / replicas
            demand = self.demand
            if demand.has_sessions:
                self.fleet(replicas, slowness, traffic_ratio)  # which settles the hits
                demand = self._settled_demands[float(f"{share:.9g}"), slowness]
            runs: list[tuple[Seen, float]] = []
            if demand.users:
                self._of_kinds(demand, replicas, slowness, traffic_ratio, {}, runs)
            else:
                rate = self.total_rate * share
                count = self._requests(rate, short=False)
                alike = 1.0 if all(item.sessions is not None for item in demand.classes) else replicas
                seen = self._simulated(demand, rate, alike, slowness, count, None, (), {})
                assert seen is not None
                runs = [(seen, float(replicas))]
            self._samples[key] = tuple((slowed(seen, slowness), count) for seen, count in runs)
        return self._samples[key]

    def _seen_by_kind(
        self,
        demand: Demand,
        rate_per_s: float,
        arrivals: float,
        slowness: float,
        count: int,
        users: tuple[int, ...],
        limits_s: Mapping[Target, float],
    ) -> Seen | set[Target]:
        """Return what requests see at a replica with these users, or which limits they exceed in a run that ended early."""
        key = (*_hits(demand), users, None if self._all_users else rate_per_s, arrivals, slowness, count)
        if key not in self._kinds and not self._runs.exceeded(key, limits_s):
            seen = self._simulated(demand, rate_per_s, arrivals, slowness, count, users, key, limits_s)
            if seen is not None:
                self._kinds[key] = seen
        return self._kinds[key] if key in self._kinds else self._runs.exceeded(key, limits_s)

    def _complete(self, latencies: Latencies) -> Latencies:
        """Return latencies with a response time for every class, at the lightest load where no response came."""
        usual = zip(latencies.responses_s, self.responses_s, strict=True)
        return replace(
            latencies, responses_s=tuple(lightest if isnan(mean) else mean for mean, lightest in usual)
        )

    def _requests(self, rate_per_s: float, *, short: bool) -> int:
        """Return the number of requests of a run at a rate.

        Users of a slow class send few of the requests next to a quick class, and few requests may arrive next to quick users: such runs
        are up to MOST_LENGTHENED times longer.
        """
        full = self.question.requests
        share = rate_per_s / self.total_rate
        needed = requests_of_steady_users(self.demand, self.responses_s, share)
        few = min(SHORT_REQUESTS, full)
        while short and few < full:
            if (
                needed
                <= self._path(self.demand, few, self._lightest_user_share(self.demand, few, share)).of_users
            ):
                return few
            few *= 2
        user_share = self._lightest_user_share(self.demand, full, share)
        return lengthened(full, self.demand, needed, self._path(self.demand, full, user_share).arrivals)

    def _path(self, demand: Demand, count: int, user_share: float | None = None) -> SamplePath:
        """Return the draw in which users send a share of the requests; None: the share at the lightest load."""
        q = self.question
        response_s = (
            demand.responses_s(0.0) if user_share is None and not self._is_mixed else self.responses_s
        )
        key = (demand.hit_fractions, count, response_s, user_share)
        if key not in self._paths:
            self._paths[key] = SamplePath(
                demand, count=count, seed=q.seed, longest=q.max_model_len, routing=q.routing or "round_robin", response_s=response_s,
                user_share=user_share,
            )  # fmt: skip
        return self._paths[key]

    def _lightest_user_share(
        self, demand: Demand, count: int, share: float, users: Sequence[int] | None = None
    ) -> float | None:
        """Return the share of the requests at a replica that users send at the lightest load; None if all requests are of one kind."""
        return self._path(demand, count).user_share_at(share, users) if self._is_mixed else None

    @property
    def _is_mixed(self) -> bool:
        return bool(self.demand.users) and not self._all_users

    def _simulated(
        self,
        demand: Demand,
        rate_per_s: float,
        replicas: float,
        slowness: float,
        count: int,
        users: Sequence[int] | None,
        key: tuple[object, ...],
        limits_s: Mapping[Target, float],
    ) -> Seen | None:
        """Return what requests see at one replica: users' requests and others last about equally long there, so that neither part runs out first.

        How many requests users send is known after a run: where it is less than half as many as at the lightest load, the run is repeated
        with half as many, or a quarter, ..., so that loads next to each other share a draw. A run that surely exceeds a limit ends early;
        then the limit is noted by the key of the run, and the result is None.
        """
        from capplan.serving.simulator import simulate

        share = rate_per_s / self.total_rate
        user_share = self._lightest_user_share(demand, count, share, users)
        while True:
            path = self._path(demand, count, user_share)
            offered = path.offered(share, replicas=replicas, slowness=slowness, users=users)
            until = early_end(limits_s, offered)
            outcome = simulate(
                offered.requests,
                self._engine(demand),
                crowd=offered.crowd,
                gauged=self._gaps,
                early_end=until,
            )
            seen = None if outcome.missed else seen_in(outcome, demand, offered.crowd, rate_per_s * slowness)
            of_class = outcome.class_index[until.from_row :] if seen is None else seen.class_index
            fitting = sent_share(of_class, demand)
            if user_share is None or fitting is None:
                break
            halvings = int(log2(odds(user_share) / odds(fitting)))
            if halvings <= 0:
                break
            user_share = user_share_of(odds(user_share) / 2.0**halvings)
        if outcome.missed is not None:
            exceeded = {limit: target for target, limit in zip(limits_s, until.limits, strict=True)}
            self._runs.note(key, exceeded[outcome.missed], outcome.missed.limit_s)
        if seen is None or not self._gaps or user_share is None or fitting is None:
            return seen
        both = simulate(offered.requests, self._engine(demand), crowd=offered.crowd, until_s=seen.end_s)
        return replace(seen, itl=both.itl)

    def _engine(self, demand: Demand) -> EngineSetup:
        """Return the engine, whose requests wait for what a demand loads from offload tiers."""
        if demand.load_s not in self._engines:
            self._engines[demand.load_s] = with_load_time(self._built, demand).engine
        return self._engines[demand.load_s]

    def worst(self, latencies: Latencies, slowness: float, limits: Mapping[Target, float]) -> float:
        """Return the largest ratio of a target's value to its limit: at most 1 if all hold, infinite if the queue grows."""
        if not latencies.steady:
            return inf
        return max((latencies.value(t, slowness) / limit for t, limit in limits.items()), default=0.0)

    def holds(
        self,
        rate_per_s: float,
        replicas: float,
        slowness: float,
        limits: Mapping[Target, float],
        *,
        short: bool = False,
    ) -> bool:
        """Return whether all targets hold at a rate."""
        borne = {target: SHORT_TARGET_SLACK * limit for target, limit in limits.items()} if short else limits
        latencies = self.at(rate_per_s, replicas, slowness, short=short, limits=borne)
        if short:
            latencies = replace(latencies, steady=True)
        return self.worst(latencies, slowness, borne) <= 1.0
