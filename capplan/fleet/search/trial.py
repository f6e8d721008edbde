"""The largest load at which a layout meets the targets of a question, and the replicas needed.

Loads are steps of a fixed scale (`load_scale`), so the same ones are tried for all targets, traffics and candidates: a looser target
can only move a bisection up, and no run is simulated twice unless it ended early.
"""

from collections.abc import Mapping, Sequence
from math import ceil, floor, inf, log, log2, nextafter

from capplan.accuracy.slowness import Latency, Slowness, by_latency
from capplan.fleet.search.layouts import CONFIDENCES, target_values
from capplan.fleet.search.load_scale import (
    FIRST_STEP_DOWN,
    FIRST_STRIDE,
    LIKELY_STRIDES,
    MANY_REPLICAS,
    MOST_MISSED,
    REGULARITY,
    STEPS_PER_DOUBLING,
    fewest,
    fewest_near,
    in_copies,
    last_that_holds,
    last_that_meets,
    regularity_class,
    replicas_at,
    scale_rate,
    slower_step,
    step_above,
)
from capplan.fleet.search.simulated_layout import CLEARLY, SimulatedLayout
from capplan.workload.request_class import Target

SHORT_SLACK = 1.25
"""Factor by which the limit from short runs may be below that from full runs.

Over 412 random scenarios it was at most 1.02 without users and 1.00 with them.
"""
MOST_DOUBLINGS = 60.0
"""Most doublings of slowness beyond the last load tried, where latencies hardly grow with it: more than any replica is slow, and still a number."""
LEAST_PART = 8
"""Replicas of the smallest part that a large fleet is made of: three of them are as many."""
NEXT_PARTS = 2
"""Classes below its own that a large fleet may be as slow as: those of its halves and thirds."""
FEWER = 0.8
"""Factor on replicas at which smaller fleets of users and requests are looked at."""
BETWEEN_STEPS = 0.03
"""Probability by which a plan may be more or less sure than it is by slownesses between two steps of the scale."""
SHORT_STEPS_ABOVE = 4
"""Steps by which the largest load of users in short runs is usually above that in full runs."""


class Trial(SimulatedLayout):
    """A layout whose largest load and fewest replicas within the targets are looked for."""

    @property
    def scale(self) -> tuple[int, int]:
        """Return the lowest and the highest step of the scale."""
        top = ceil(STEPS_PER_DOUBLING * log2(self.rate_ceiling))
        return top - self.doublings * STEPS_PER_DOUBLING, top

    def limit(
        self,
        replicas: float,
        slowness: float,
        limits: Mapping[Target, float],
        *,
        enough: float = inf,
        too_little: float = 0.0,
        total: float = 0.0,
        short: bool = False,
        likely: int | None = None,
    ) -> float:
        """Return the largest rate at which one of several replicas meets the targets [1/s]; 0 if no rate does.

        Parameters
        ----------
        replicas : [-]
            behind the router
        slowness : [-]
            factor on the time of each step
        limits : by target [s]
        enough : [1/s]
            stop once the limit is known to be at least this
        too_little : [1/s]
            stop once the limit is known to be below this; the result is then below this too
        total : [1/s]
            stop once the number of replicas that carry this rate is known
        short : use short runs, accurate to SHORT_SLACK
        likely : step near which users' largest load is looked for; None: that of the closed form, or of short runs
        """
        least, top = self.scale
        first, stride, growth = max((least + top) // 2, top - FIRST_STEP_DOWN), FIRST_STRIDE, 1
        if self.demand.users:
            if likely is None:
                near = self._screened_step if short else self._short_step
                likely = near(slowness, limits) - (0 if short else SHORT_STEPS_ABOVE)
            first, stride, growth = min(max(likely, least + 1), top - 1), LIKELY_STRIDES[short], 2

        def rate(step: int) -> float:
            return scale_rate(step) / slowness

        def holds(step: int) -> bool:
            return self.holds(rate(step), replicas, slowness, limits, short=short)

        def known(low: int, high: int) -> bool:
            if high - low <= 1 or rate(high) <= too_little:
                return True
            count = replicas_at(total, rate(low)) if low > least else 0
            return low > least and (rate(low) >= enough or count == replicas_at(total, rate(high - 1)) > 0)

        low, high = last_that_holds(holds, least, top, first, stride, growth, known)
        if low == least and (high - low == 1 or rate(high) > too_little) and not holds(low):
            return 0.0
        return rate(low)

    def _screened_step(self, slowness: float, limits: Mapping[Target, float]) -> int:
        """Return the step of the largest load that meets the targets in closed form, near which short runs look for it; else the lightest one."""
        within = ~self._state.saturated
        for target, limit in limits.items():
            within = within & (slowness * target_values(self._state, target) <= limit)
        share = float(self._shares[within].max(initial=float(self._shares.min())))
        return round(STEPS_PER_DOUBLING * log2(self.total_rate * share))

    def _short_step(self, slowness: float, limits: Mapping[Target, float]) -> int:
        """Return the step of the largest load in short runs, near which full runs look for it: the same whatever was asked before."""
        key = slowness, tuple(limits.items())
        if key not in self._short_steps:
            likely = None if slowness == 1.0 else slower_step(self._short_step(1.0, limits), slowness)
            rate = self.limit(REGULARITY[0], slowness, limits, short=True, likely=likely) * slowness
            least, _ = self.scale
            self._short_steps[key] = round(STEPS_PER_DOUBLING * log2(rate)) if rate > 0.0 else least
        return self._short_steps[key]

    def may_be_enough(
        self, rate_per_s: float, slowness: float, limits: Mapping[Target, float], most: float, *, short: bool
    ) -> bool:
        """Return whether at most this many replicas may meet the targets at a total rate, from one run instead of a dozen."""
        if most == inf or (self.demand.users and not short) or most > self._most_alike:
            return True
        share = regularity_class(int(most), self.classes)
        slack = SHORT_SLACK if short else CLEARLY
        step = floor(STEPS_PER_DOUBLING * log2(rate_per_s / most * slowness / slack))
        least, top = self.scale
        rate = scale_rate(max(step, least)) / slowness
        return step < top and self.holds(rate, share, slowness, limits, short=short)

    def rate_bound(
        self,
        slowness: float,
        limits: Mapping[Target, float],
        *,
        enough: float = inf,
        total: float = 0.0,
        predicted: float | None = None,
    ) -> float:
        """Return an upper bound, from short runs, on the rate at which a replica meets the targets [1/s].

        Less exact once it is at least `enough`, or once the number of replicas that carry the rate `total` is known; sooner known
        with the bound of a replica as quick as `predicted`.
        """
        near = None if predicted is None else slower_step(step_above(predicted / SHORT_SLACK), slowness)
        bound = SHORT_SLACK * self.limit(
            REGULARITY[0],
            slowness,
            limits,
            enough=enough / SHORT_SLACK,
            total=total / SHORT_SLACK,
            short=True,
            likely=near,
        )
        return bound if self._most_alike == inf else max(bound, self.total_rate / (self._most_alike + 1.0))

    def replicas_for(
        self,
        rate_per_s: float,
        slowness: float,
        limits: Mapping[Target, float],
        *,
        most: float = inf,
        at_least: int = 1,
    ) -> int | None:
        """Return the fewest replicas, from `at_least` to `most`, that meet the targets at a total rate; None if none do.

        The class of as many replicas as the closed form asks for is tried first. If it needs as many as the next larger class has, that one
        decides; if fewer than its least are enough, the next class with less regular arrivals decides, and its result is at most
        that least number.

        With users, whose number at a replica is whole, fleets of about that many replicas are simulated as they are.
        """
        if self.demand.users:
            return self._replicas_of_users(rate_per_s, slowness, limits, most, at_least)

        classes, above, lightest = self.classes, inf, self.scale[0]
        likely = replicas_at(rate_per_s * slowness, scale_rate(self._screened_step(slowness, limits)))

        def needed_of(least: int, most: float) -> float:
            """Return how many replicas, at most so many, meet the targets with the arrivals of a class; fewer than its least need no exact number."""

            def enough(count: int) -> bool:
                step = max(step_above(rate_per_s / count * slowness), lightest)
                return step < self.scale[1] and self.holds(
                    scale_rate(step) / slowness, least, slowness, limits
                )

            from_count = max(at_least, least - 1, 1)
            reached = max(replicas_at(rate_per_s * slowness, scale_rate(lightest)), from_count)
            return fewest_near(likely, range(from_count, int(min(most, reached)) + 1), enough) or inf

        place = classes.index(regularity_class(max(int(min(max(likely, at_least), most)), 1), classes))
        while (
            place and (larger := classes[place - 1]) <= most and needed_of(classes[place], larger - 1) == inf
        ):
            place -= 1
        for least in classes[place:]:
            needed = needed_of(least, min(most, above - 1))
            if max(needed, at_least) >= least:
                needed = max(min(needed, above), at_least)
                if needed > most or needed == inf:
                    return None
                return self._fewest_of_classes(int(needed), at_least, rate_per_s, slowness, limits)
            above = least
        return None

    def _fewest_of_classes(
        self, needed: int, at_least: int, rate_per_s: float, slowness: float, limits: Mapping[Target, float]
    ) -> int:
        """Return the fewest replicas whose arrivals are as regular as those of their own class or of a smaller one."""
        for least in self._parts_of(needed):
            while needed > max(at_least, least):
                step = step_above(rate_per_s / (needed - 1) * slowness)
                limit = scale_rate(step) / slowness
                if step >= self.scale[1] or not self.holds(limit, least, slowness, limits):
                    break
                needed = max(replicas_at(rate_per_s, limit), at_least)
        return needed

    def _parts_of(self, replicas: int) -> Sequence[int]:
        """Return the classes of replica counts that a large fleet can be made of.

        A fleet carries what parts of it carry. Their arrivals are less regular, but a run of them may hold at a load at which the run of
        the whole misses by noise: so k times the load never takes more than k times the replicas.
        """
        return [least for least in self.classes if LEAST_PART <= least < replicas >= MANY_REPLICAS]

    def _about(self, rate_per_s: float, slowness: float, limits: Mapping[Target, float]) -> int | None:
        """Return about how many replicas meet the targets at a total rate, users in parts; None if none do."""
        above = inf
        for least in self.classes[-1:] if self._all_users else self.classes:
            too_little = rate_per_s / (above - 1) if above > 1 else inf
            enough = rate_per_s / (least - 1) if least > 1 else inf
            limit = self.limit(
                least, slowness, limits, enough=enough, too_little=too_little, total=rate_per_s
            )
            needed = replicas_at(rate_per_s, limit) if limit > 0.0 else inf
            if needed >= least:
                return None if min(needed, above) == inf else int(min(needed, above))
            above = least
        return 1

    def sure_replicas(
        self,
        rate_per_s: float,
        confidence: float,
        limits: Mapping[Target, float],
        *,
        most: float = inf,
        at_least: int = 1,
    ) -> int | None:
        """Return the fewest replicas, from `at_least` to `most`, that meet the targets at a total rate with a probability; None if none do.

        The targets of each latency have to hold with that probability by themselves. Where there are two, replicas are added until both
        hold together.
        """
        by_name, each = limits_by_latency(limits), self.candidate.slowness.each(confidence)
        needed, ratio = at_least, rate_per_s / self.total_rate
        for place, (name, own) in enumerate(by_name.items()):
            if place and self.meets(needed, each[name], own, ratio):
                continue
            found = self.replicas_for(rate_per_s, each[name], own, most=most, at_least=needed)
            if found is None:
                return None
            needed = found
        if len(by_name) == 1:
            return needed
        lightest = replicas_at(rate_per_s, scale_rate(self.scale[0]))
        most = min(most, max(needed, ceil(ratio * self.demand.users) if self._all_users else lightest))

        def sure(count: int) -> bool:
            return self._sure(count, confidence, limits, ratio)

        if sure(needed):
            return needed
        if needed < most and sure(needed + 1):
            return needed + 1
        if not sure(int(most)):
            return None
        count, too_few, stride = int(min(needed + 1, most)), needed, 1
        while count < most and not sure(count):
            count, too_few, stride = int(min(count + 2 * stride, most)), count, 2 * stride
        return fewest(range(too_few + 1, count + 1), sure)

    def probability(self, replicas: int) -> float:
        """Return the probability that all targets hold at the peak: that no latency is slower than its targets allow."""
        probability = self.candidate.slowness.probability(self._slowest_of_each(replicas))
        for level in {self.question.slo.confidence, *CONFIDENCES}:
            # what was simulated counts more than what lies between two steps of the scale
            if abs(probability - level) <= BETWEEN_STEPS and (probability >= level) != self._sure(
                replicas, level, self.limits, 1.0
            ):
                probability = level if probability < level else nextafter(level, 0.0)
        return probability

    def _sure(
        self, replicas: int, confidence: float, limits: Mapping[Target, float], traffic_ratio: float
    ) -> bool:
        """Return whether all targets hold with a confidence.

        They do where both latencies hold as slow as is equally likely, and do not where neither does. If only one does, it has to hold as slow as
        makes up for the other.
        """
        by_name, slowness = limits_by_latency(limits), self.candidate.slowness
        alike = {
            name: self.meets(replicas, slower, by_name[name], traffic_ratio)
            for name, slower in slowness.equally(confidence).items()
        }
        if all(alike.values()) or not any(alike.values()):
            return all(alike.values())
        short, able = sorted(alike, key=alike.__getitem__)
        slowest = self.slowest(replicas, by_name[short], traffic_ratio)
        wanted = slowness.other_needed(short, slowest, confidence)
        return wanted < inf and self.meets(replicas, wanted, by_name[able], traffic_ratio)

    def target_probability(self, replicas: int, target: Target) -> float:
        """Return the probability that one target holds at the peak, whether or not the others do; at least that of all together."""
        alone = self.slowness_of(target).probability(self.slowest(replicas, {target: target.limit_s}))
        return max(alone, self.probability(replicas))

    def sure_slowness(self, replicas: int) -> dict[Latency, float]:
        """Return how slow the replicas of a fleet may be, by latency, with the required confidence: one with room to its limit keeps it."""
        slowest = self._slowest_of_each(replicas)
        return self.candidate.slowness.shared_out(slowest, self.question.slo.confidence)

    def _slowest_of_each(self, replicas: int) -> dict[Latency, float]:
        """Return how slow replicas may be while the targets on a latency hold at the peak, by latency."""
        return {name: self.slowest(replicas, own) for name, own in limits_by_latency(self.limits).items()}

    def sure_rate_limit(self, replicas: int) -> float:
        """Return the largest rate of one replica of a fleet that is as slow as the required confidence allows for; see `rate_limit`."""
        by_name = limits_by_latency(self.limits)
        slower = self.sure_slowness(replicas)
        return min(self.rate_limit(replicas, slower[name], own) for name, own in by_name.items())

    def rate_limit(self, replicas: int, slowness: float, limits: Mapping[Target, float]) -> float:
        """Return the largest rate of one replica of a fleet within the targets [1/s], in the requests that the fleet gets at the peak.

            l = x R

        x is the largest share of the traffic with which a replica meets the targets, and R the peak at the
        response times of the fleet: R / l replicas carry the peak, for arrivals and for users.
        """
        share = self.limit(regularity_class(replicas, self.classes), slowness, limits) / self.total_rate
        if not self.demand.users:
            return share * self.total_rate
        if share * replicas < 1.0 and self.meets(replicas, slowness, limits):
            share = 1.0 / replicas
        return share * self.fleet(replicas).requests_per_s * replicas

    def meets(
        self, replicas: int, slowness: float, limits: Mapping[Target, float], traffic_ratio: float = 1.0
    ) -> bool:
        """Return whether a fleet of this many replicas meets the targets: at its load, or in parts, see `_copies_of` and `_parts_of`."""
        if self.demand.users:
            return any(
                self._meets(replicas // copies, slowness, limits, traffic_ratio / copies)
                for copies in self._copies_of(replicas)
            )
        if self._meets(replicas, slowness, limits, traffic_ratio):
            return True
        step = step_above(self.total_rate * traffic_ratio / replicas * slowness)
        return step < self.scale[1] and any(
            self.holds(scale_rate(step) / slowness, least, slowness, limits)
            for least in self._parts_of(replicas)
        )

    def _meets(
        self, replicas: int, slowness: float, limits: Mapping[Target, float], traffic_ratio: float = 1.0
    ) -> bool:
        """Return whether a fleet that gets a multiple of the traffic meets the targets as a whole."""
        seen = self.fleet(replicas, slowness, traffic_ratio, limits)
        return self.worst(seen, slowness, limits) <= 1.0

    def _copies_of(self, replicas: int) -> list[int]:
        """Return the numbers of equal parts in which a fleet of users is sized, see `in_copies` and `_users_in_parts`."""
        large = self.demand.users and replicas >= MANY_REPLICAS
        return [copies for copies in ((1, 2, 3) if large else (1,)) if replicas % copies == 0]

    def _replicas_of_users(
        self, rate_per_s: float, slowness: float, limits: Mapping[Target, float], most: float, at_least: int
    ) -> int | None:
        """Return the fewest replicas that meet the targets, from about as many as short runs say; None above `most`, or if none do."""
        short_limit = scale_rate(self._short_step(slowness, limits)) / slowness
        about = replicas_at(rate_per_s, short_limit)
        enough = self._fewest(about, rate_per_s, slowness, limits, min(most, 2 * about), at_least)
        if enough is None and most > 2 * about:
            exact = self._about(rate_per_s, slowness, limits)
            enough = exact and self._fewest(exact, rate_per_s, slowness, limits, most, at_least)
        ratio = rate_per_s / self.total_rate
        if self._all_users:
            return self._users_in_parts(enough, rate_per_s, slowness, limits, most, at_least)
        if enough and enough >= MANY_REPLICAS:
            fewer = self._fewer(enough, at_least, ratio, slowness, limits)
            enough = self._fewest(fewer, rate_per_s, slowness, limits, enough, at_least)
        return enough and in_copies(
            enough, at_least, lambda part, copies: self._meets(part, slowness, limits, ratio / copies)
        )

    def _users_in_parts(
        self,
        enough: int | None,
        rate_per_s: float,
        slowness: float,
        limits: Mapping[Target, float],
        most: float,
        at_least: int,
    ) -> int | None:
        """Return the replicas of two or three fleets for a half or a third of the users, if they are fewer than one fleet needs.

        Users of fixed lengths keep in step, so one more at each replica may meet the targets where one fewer misses them, and a search by
        strides may pass such a number. So k times the users never take more than k times the replicas.
        """
        for copies in (2, 3):
            within = most if enough is None else enough - 1
            if max(MANY_REPLICAS, at_least) <= within < inf:
                part = self._replicas_of_users(
                    rate_per_s / copies, slowness, limits, within // copies, ceil(at_least / copies)
                )
                enough = copies * part if part else enough
        return enough

    def _fewer(
        self, enough: int, at_least: int, ratio: float, slowness: float, limits: Mapping[Target, float]
    ) -> int:
        """Return fewer replicas that meet the targets if there are some far below a number that does.

        With users next to requests, more replicas may take longer for a token: users who wait less send more, and a
        percentile over all requests then counts more of theirs.
        """
        count, missed = enough, 0
        while missed < MOST_MISSED and count > at_least:
            count = max(int(FEWER * count), at_least)
            if self._meets(count, slowness, limits, ratio):
                enough, missed = count, 0
            else:
                missed += 1
        return enough

    def _fewest(
        self,
        about: int,
        rate_per_s: float,
        slowness: float,
        limits: Mapping[Target, float],
        most: float,
        at_least: int,
    ) -> int | None:
        """Return the fewest replicas near a number that meet the targets; None if they are more than `most`, or than the scale of loads or the users allow.

        Numbers next to the first are tried, as users of fixed lengths may suit only one of them.
        """
        ratio = rate_per_s / self.total_rate
        alone = ceil(ratio * self.demand.users)
        lightest = replicas_at(rate_per_s, scale_rate(self.scale[0]) / slowness)
        reached = max(alone, at_least, 1 if self._all_users else lightest)
        counts = range(at_least, int(min(most, reached)) + 1)
        return fewest_near(about, counts, lambda count: self._meets(count, slowness, limits, ratio))

    def slowness_of(self, target: Target) -> Slowness:
        """Return the distribution of slowness that decides about one target."""
        question, candidate = self.question, self.candidate
        network = question.networks[candidate.layout.weight_format]
        served = question.served(network, candidate.layout, candidate.usual_batch)
        return question.slowness([target], network, candidate.usual_step_s, candidate.layout.device, served)

    def slowest(self, replicas: int, limits: Mapping[Target, float], traffic_ratio: float = 1.0) -> float:
        """Return the largest factor by which all steps of a fleet may be slower than predicted while it meets the targets at a multiple of the peak.

        A large fleet may be as slow as the parts in which it was sized, see `_copies_of` and `_parts_of`.
        """
        if self.demand.users:
            parts = [(replicas // copies, traffic_ratio / copies) for copies in self._copies_of(replicas)]
            return max(self._slowest(part, part, limits, ratio) for part, ratio in parts)
        shares = (regularity_class(replicas, self.classes), *self._parts_of(replicas)[-NEXT_PARTS:])
        return max(self._slowest(replicas, share, limits, traffic_ratio) for share in shares)

    def _slowest(
        self, replicas: int, share: int, limits: Mapping[Target, float], traffic_ratio: float
    ) -> float:
        """Return the same of a fleet whose arrivals are as regular as those of `share` replicas."""
        rate_per_s = self.total_rate * traffic_ratio / replicas
        base = floor(STEPS_PER_DOUBLING * log2(rate_per_s))

        def slowness(step: int) -> float:
            return scale_rate(step - base) if self.demand.users else scale_rate(step) / rate_per_s

        def excess(step: int, of: Mapping[Target, float] | None = None) -> float:
            factor = slowness(step)
            seen = (
                self.fleet(replicas, factor, traffic_ratio, limits=of)
                if self.demand.users
                else self.at(rate_per_s, share, factor, limits=of)
            )
            return self.worst(seen, factor, limits)

        least, top = base - 2 * STEPS_PER_DOUBLING, base + 3 * STEPS_PER_DOUBLING
        likely = min(self.candidate.slowness.each(self.question.slo.confidence).values())
        first = base + round(STEPS_PER_DOUBLING * log2(likely))
        if self.demand.users:
            low, high = last_that_meets(lambda step: excess(step, limits), least, top, first)
        else:  # the loads that `limit` tries, some of which it has
            top = max(base + 2, self.scale[1])
            first = min(max(first, least + 1), top - 1)
            low, high = last_that_holds(
                lambda step: excess(step, limits) <= 1.0, least, top, first, LIKELY_STRIDES[True], 2
            )
        below, over = excess(low), excess(high)
        if not 0.0 < below <= 1.0 or not below < over < inf:
            return slowness(low)
        doublings = log(1.0 / below) / log(over / below) / STEPS_PER_DOUBLING
        return float(slowness(low) * 2.0 ** min(doublings, MOST_DOUBLINGS))


def limits_by_latency(limits: Mapping[Target, float]) -> dict[Latency, dict[Target, float]]:
    """Return limits by the latency that they are on; without any, the time of steps decides whether queues grow."""
    return {name: {target: limits[target] for target in own} for name, own in by_latency(limits).items()}
