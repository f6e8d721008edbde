"""A cache for searches of similar questions: layouts that were screened, replicas that were built and runs that were simulated, by keys that are the same in every process."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, fields, is_dataclass, replace
from functools import cache
from hashlib import sha256
from typing import Any

from capplan.engine.profile import EngineProfile
from capplan.fleet.load.demand import Demand
from capplan.fleet.pools.joint import Joint, JointRuns
from capplan.fleet.pools.link import LinkTerms
from capplan.fleet.review import Question, spec_of_layout
from capplan.fleet.search.latencies import Runs
from capplan.fleet.search.layouts import Built, ScreenedLayout, SearchResult, search
from capplan.fleet.search.simulated_layout import SamplePaths
from capplan.fleet.search.steady_plans import state_of_plan, steady_states_of
from capplan.fleet.search.trial import Trial
from capplan.replica.plans import StepTimes
from capplan.replica.replica import Replica, replicas_of
from capplan.replica.spec import ReplicaSpec
from capplan.replica.speculation import DraftPlan, drafting_replica
from capplan.serving.steady_state import Lengths, SteadyState


def content_key(*values: Any) -> str:
    """Return a key that is equal for equal values, whatever the order of their sets.

    Parameters
    ----------
    values : records of numbers, texts, lists, sets, mappings and arrays

    Returns
    -------
    24 hexadecimal digits

    Examples
    --------
    >>> content_key({"fp8", "bf16", "int4"}) == content_key({"int4", "fp8", "bf16"})
    True
    >>> content_key(1.0) == content_key(1)
    False
    """
    return sha256(_text([_content(value) for value in values]).encode()).hexdigest()[:24]


_text = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


@cache
def _field_names(record: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(record))


def _content(value: Any) -> Any:
    """Return a value as nested lists of what JSON knows."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return [
            type(value).__name__,
            *[[name, _content(getattr(value, name))] for name in _field_names(type(value))],
        ]
    if isinstance(value, Mapping):
        entries = ([_content(key), _content(item)] for key, item in value.items())
        return ["mapping", *sorted(entries, key=lambda entry: _text(entry[0]))]
    if isinstance(value, (set, frozenset)):
        return ["set", *sorted(map(_content, value), key=_text)]
    if isinstance(value, (list, tuple)):
        return ["list", *map(_content, value)]
    if hasattr(value, "tolist"):
        return ["array", str(value.dtype), value.tolist()]
    return [type(value).__name__, str(value)]


_RECORDS = ("network", "device", "efficiency", "profile")
"""Fields of a specification that are compared by their content; the others are plain values."""


class SearchCache:
    """Screened layouts by their question, replicas by their specification and runs by their traffic; none depends on prices."""

    def __init__(self) -> None:
        """Start empty."""
        self._searches: dict[tuple[object, ...], SearchResult] = {}
        self._times = StepTimes(self._timed_by)
        self._replicas: dict[tuple[object, ...], Replica] = {}
        self._states: dict[tuple[object, str], SteadyState] = {}
        """Steady states of replicas, by the replica and the traffic."""
        self._drafting: dict[tuple[object, ...], Replica] = {}
        self._runs: dict[tuple[object, ...], Runs] = {}
        self._joint: dict[tuple[object, ...], JointRuns] = {}
        self._keys: dict[tuple[int, Callable[[Any], Any] | None], tuple[Any, str]] = {}

    def __reduce__(self) -> tuple[type["SearchCache"], tuple[()]]:
        """Let a copy in another process begin empty: tables of compiled code cannot be copied."""
        return SearchCache, ()

    def searched(self, question: Question) -> SearchResult:
        """Return every layout that may meet the targets; a question that was asked before is not searched again."""
        key = tuple(self._content_of(getattr(question, field.name)) for field in fields(question))
        if key not in self._searches:
            self._searches[key] = search(question, Built(self._times, self.replica, self.drafting))
        return self._searches[key]

    def replica(self, spec: ReplicaSpec) -> Replica:
        """Return the running replica of a specification."""
        made_of = self._made_of(spec)
        if made_of not in self._replicas:
            self._replicas[made_of] = replicas_of([spec], self._times)[0]
        return self._replicas[made_of]

    def build(self, candidates: Sequence[ScreenedLayout], question: Question) -> None:
        """Build the replicas of layouts, and their steady states, as arrays instead of one by one."""
        alike: dict[tuple[object, ...], list[tuple[ScreenedLayout, ReplicaSpec]]] = {}
        for candidate in candidates:
            spec = spec_of_layout(candidate.layout, question)
            if candidate.speculating is None:
                of = id(spec.network), id(spec.profile), spec.kv_format, id(candidate.demand)
                alike.setdefault(of, []).append((candidate, spec))
        for group in alike.values():
            missing = [spec for _, spec in group if self._made_of(spec) not in self._replicas]
            if missing:
                for spec, replica in zip(missing, replicas_of(missing, self._times), strict=True):
                    self._replicas[self._made_of(spec)] = replica
            self._build_states(group[0][0].demand, [spec for _, spec in group])

    def _build_states(self, demand: Demand, specs: Sequence[ReplicaSpec]) -> None:
        """Compute the steady states of replicas under a demand, of those whose step times have the same knots together."""
        traffic = self._key(demand, _mean_lengths)
        alike: dict[tuple[int, ...], list[ReplicaSpec]] = {}
        for spec in specs:
            if (self._made_of(spec), traffic) not in self._states:
                table = self.replica(spec).table
                alike.setdefault(tuple(map(id, table.knots)), []).append(spec)
        for group in alike.values():
            states = steady_states_of([self.replica(spec) for spec in group], demand)
            for place, spec in enumerate(group):
                self._states[self._made_of(spec), traffic] = state_of_plan(states, place)

    def drafting(self, replica: Replica, plan: DraftPlan, context_tokens: float) -> Replica:
        """Return a replica that drafts as planned."""
        made_of = *self._made_of(replica.spec), content_key(plan), context_tokens
        if made_of not in self._drafting:
            self._drafting[made_of] = drafting_replica(replica, plan, context_tokens)
        return self._drafting[made_of]

    def trial(
        self,
        candidate: ScreenedLayout,
        question: Question,
        paths: SamplePaths,
    ) -> Trial:
        """Return the trial of a layout, reusing the replica and the runs of earlier searches."""
        spec = spec_of_layout(candidate.layout, question)
        made_of = self._made_of(spec)
        draws = (question.routing, question.requests, question.seed, question.drafting)
        traffic = self._key(question.demand, _mix), content_key(draws)
        drafts = candidate.speculating and candidate.speculating.draft_tokens
        runs = self._runs.setdefault((made_of, *traffic, drafts), Runs())
        if candidate.speculating is not None:
            return Trial(candidate, question, paths, candidate.speculating, runs)
        self.build([candidate], question)
        state = self._states[made_of, self._key(candidate.demand, _mean_lengths)]
        return Trial(candidate, question, paths, self.replica(spec), runs, state)

    def joint(self, question: Question, prefill: Replica, decode: Replica, link: LinkTerms) -> Joint:
        """Return both pools together, reusing the runs of earlier searches with the same layouts, traffic and targets."""
        drafts = prefill.draft_tokens, decode.draft_tokens, question.drafting
        drawn = content_key((question.routing, question.max_model_len, question.slo, link, drafts))
        made_of = self._made_of(prefill.spec), self._made_of(decode.spec), self._key(question.demand), drawn
        return Joint(question, prefill, decode, link, self._joint.setdefault(made_of, JointRuns()))

    def _made_of(self, spec: ReplicaSpec) -> tuple[object, ...]:
        """Return a key of everything that a replica is built from."""
        return tuple(
            self._key(value) if field.name in _RECORDS else value
            for field, value in ((field, getattr(spec, field.name)) for field in fields(spec))
        )

    def _timed_by(self, spec: ReplicaSpec) -> tuple[object, ...]:
        """Return a key of everything that step times depend on: neither the usual length of requests nor whether caches are taken over."""
        timed: dict[str, Callable[[Any], Any]] = {"profile": _timed}
        return tuple(
            self._key(getattr(spec, name), timed.get(name)) if name in _RECORDS else getattr(spec, name)
            for name in _field_names(ReplicaSpec)
            if name != "typical_context_tokens"
        )

    def _content_of(self, part: Any) -> object:
        """Return a key of a field of a question. Lists and mappings have the keys of their entries, which many questions share, in order."""
        if isinstance(part, Mapping):
            return tuple((name, self._key(value)) for name, value in part.items())
        return tuple(map(self._key, part)) if isinstance(part, (list, tuple)) else self._key(part)

    def _key(self, part: Any, of: Callable[[Any], Any] | None = None) -> str:
        """Return the content key of a record, or of what a function makes of it, computed once per record and function."""
        key = id(part), of
        if key not in self._keys:
            self._keys[key] = part, content_key(part if of is None else of(part))
        return self._keys[key][1]


def _timed(profile: EngineProfile) -> EngineProfile:
    return replace(profile, takes_over=False)


def _mix(demand: Demand) -> Demand:
    """Return the demand scaled to one request per second, since each run sets its rate; with users the demand as it is.

    Means are rounded, so that a share of each class has the runs of all requests.
    """
    rates = [request_class.request_rate_per_s for request_class in demand.classes]
    if any(rate is None for rate in rates):
        return demand
    total = sum(rate for rate in rates if rate is not None)
    classes = [
        replace(request_class, request_rate_per_s=_rounded((request_class.request_rate_per_s or 0.0) / total))
        for request_class in demand.classes
    ]
    return replace(demand, classes=tuple(classes), lengths=_lengths_of(demand))


def _lengths_of(demand: Demand) -> Lengths:
    return Lengths(*(_rounded(float(value)) for value in astuple(demand.lengths)))


def _mean_lengths(demand: Demand) -> tuple[Lengths, float] | Demand:
    """Return what the closed form knows of a demand, rounded; the demand as it is if responses decide its mixture."""
    if demand.mix_depends_on_responses:
        return demand
    return _lengths_of(demand), demand.load_s


def _rounded(value: float) -> float:
    """Return a number without the digits in which sums of the same terms differ."""
    return float(f"{value:.12g}")
