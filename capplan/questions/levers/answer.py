"""What every lever of a scenario is worth, separately and combined: each a changed scenario put to the search of `fleet`."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, product
from math import inf
from pathlib import Path

from capplan.errors import CapplanError, InputError, unknown
from capplan.fleet.answer import FleetAnswer
from capplan.fleet.plan import Plan, cost_of, costs_less
from capplan.fleet.pools.search import pools_decision
from capplan.fleet.review import Question
from capplan.fleet.search.cheapest import Search, layout_name, search_of
from capplan.fleet.search.recommended import near_cheapest, plan_of, recommended
from capplan.fleet.search.search_cache import SearchCache
from capplan.money.price import HOURS_PER_MONTH
from capplan.questions.fleet import AskedFleet, asked_fleet, replicas_by_group, terms_of
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.levers import changes
from capplan.questions.levers.changes import REGIONS, region_rows, routing, speculations
from capplan.questions.levers.cores import results_of
from capplan.questions.levers.lever import (
    Base,
    Combination,
    Lever,
    LeverRow,
    LeversAnswer,
    first_line,
    idle,
    lever_row,
    merged_settings,
    most_saved_first,
    price_doubt,
    put_off,
    saves_nothing,
    scaled_plan,
    why_dearer,
)
from capplan.questions.money.budget import mix_within_budget, mixed_plan, paid_by_mix
from capplan.questions.money.commitments import group_over_time
from capplan.questions.plans.plan_file import asked_of_plan
from capplan.readers.catalogue.scenarios import scenario_file, scenario_folder
from capplan.readers.plan_file import read_plan_file
from capplan.readers.yaml_file import Document
from capplan.scenario.money_terms import memory_usd_per_month
from capplan.scenario.reading import overridden, scenario_record
from capplan.scenario.scenario import DEFAULT_HARDWARE, scenario_document, scenario_from
from capplan.scenario.scenario_file import Scenario, ScenarioFile
from capplan.scenario.traffic import rate_line

DEVICE = "device"
PREFIX_HITS = "prefix-hits"
DISAGGREGATION = "disaggregation"
MIX = "mix"
LEVERS: dict[str, Callable[[Base], list[Lever]]] = {
    "weight-dtype": changes.weight_dtypes,
    "kv-dtype": changes.kv_dtypes,
    "prefix-caching": changes.prefix_caching,
    PREFIX_HITS: changes.prefix_hits,
    "prefix-routing": routing,
    "speculation": speculations,
    "chunked-prefill": changes.chunked_prefill,
    "token-budget": changes.token_budget,
    "max-num-seqs": changes.sequences,
    "parallelism": changes.parallelism,
    DISAGGREGATION: changes.disaggregation,
    "kv-offload": changes.kv_offload,
    DEVICE: changes.devices,
    "engine": changes.engines,
    MIX: changes.mixes,
    "commitment": changes.commitments,
    "target": changes.looser_targets,
    "outside": changes.quicker_outside,
    "prompts": changes.shorter_prompts,
    "answers": changes.shorter_answers,
    "admission-control": changes.admission_control,
}
"""Name of a lever -> its changes."""
AUTOSCALING = "autoscaling"
"""The lever that is priced over time instead of asked again."""


@dataclass(frozen=True, slots=True)
class Asking:
    """The scenario that levers change, and what changed questions share."""

    path: Path
    settings: tuple[str, ...]
    document: Document
    """The scenario with those keys overridden: that of the path, or that of a plan file."""
    offline: bool
    shared: SearchCache = field(default_factory=SearchCache)

    @property
    def folder(self) -> Path:
        """The folder that paths in the scenario are relative to."""
        return scenario_folder(scenario_file(self.path))

    def changed(self, settings: Sequence[str]) -> AskedFleet:
        """Return the question with more keys overridden, whose searches share the runs of all others."""
        changed = overridden(self.document, settings)
        scenario = scenario_from(changed, self.folder, (*self.settings, *settings))
        asked = asked_fleet(scenario, offline=self.offline)
        return replace(asked, cache=self.shared)

    def trials(self, asked: AskedFleet) -> Search:
        """Return the search of a question."""
        return search_of(asked.question, terms_of(asked), self.shared)

    def plans(
        self, asked: AskedFleet, near: Plan | None = None, under: float = inf
    ) -> tuple[Plan | None, Plan | None]:
        """Return the plan that `fleet` recommends for a question, and the cheapest; None where none meets its targets.

        The layout of the plan `near` is sized first. None also where the cheapest would cost `under` per hour or more.
        """
        if asked.scenario.fleet.mix != "off":
            choices = fleet_for(asked).choices
            return (choices.recommended, choices.cheapest) if choices else (None, None)
        affordable = mix_within_budget(asked.scenario, partial(replicas_by_group, asked))
        trials = self.trials(asked)
        first = layout_name(near.single.layout) if near and len(near.groups) == 1 else None
        fleets = [] if _only_pools(asked) else near_cheapest(trials, first, under)
        if asked.scenario.budget_usd_per_month is not None:
            fleets = [fleet for fleet in fleets if affordable(fleet.plan)]
        paid = paid_by_mix(asked.scenario, partial(replicas_by_group, asked))
        best = recommended(fleets, trials.terms, paid)[0].plan if fleets else None
        apart = next(filter(affordable, self.pools(asked, (best and best.usd_per_hour) or under)), None)
        if best is not None:
            return _less(apart, best), _less(apart, fleets[0].plan)
        if apart is None and not _only_pools(asked):
            apart = mixed_plan(asked.scenario, trials)
        return apart, apart

    def pools(self, asked: AskedFleet, under: float) -> tuple[Plan, ...]:
        """Return the plans with separate pools that cost less per hour, cheapest first; none where a scenario does not allow them.

        Under a cost in dollars, a device without a price is left out: no plan of it is known to cost less.
        """
        limits, terms = asked.scenario.fleet.pools, terms_of(asked)
        if limits is None:
            return ()
        devices = limits.prefill_devices, limits.decode_devices
        if under < inf and any(terms.priced(device.name) for device in (*devices[0], *devices[1])):
            prefill, decode = (tuple(item for item in of if terms.priced(item.name)) for of in devices)
            limits = replace(limits, prefill_devices=prefill, decode_devices=decode)
        if not limits.prefill_devices or not limits.decode_devices:
            return ()
        return pools_decision(
            asked.question, limits, terms, beyond=False, cache=self.shared, most_usd_per_hour=under
        )[0]

    def cheapest(self, asked: AskedFleet, confidence: float, under: float) -> tuple[Plan | None, Question]:
        """Return the cheapest plan of a question below a cost and within the budget, and the question as it was searched."""
        if asked.scenario.fleet.mix != "off":
            least = self.plans(asked)[1]
            return least if least is not None and cost_of(least) < under else None, asked.question
        trials = self.trials(asked)
        affordable = mix_within_budget(asked.scenario, partial(replicas_by_group, asked))
        item = None if _only_pools(asked) else trials.cheapest(confidence, under=under)
        plan = None if item is None else plan_of(item, trials.terms)
        if plan is not None and not affordable(plan):
            plan = mixed_plan(asked.scenario, trials)
        most = under if plan is None else min(under, cost_of(plan))
        apart = next(filter(affordable, self.pools(asked, most)), None)
        return apart if apart is not None and cost_of(apart) < most else plan, trials.question

    def why_none(self, asked: AskedFleet) -> str:
        """Return why a question has no plan: the commonest reason, where nothing is left to simulate."""
        if _only_pools(asked):
            return "no plan with separate pools meets the targets"
        result, words = self.shared.searched(asked.question), Counter[str]()
        for (_, why), count in result.rejected.items():
            words[why.words] += count
        said = "no plan meets the targets"
        return said if result.candidates or not words else f"{said}: {words.most_common(1)[0][0]}"


def _only_pools(asked: AskedFleet) -> bool:
    limits = asked.scenario.fleet.pools
    return limits is not None and limits.only


def checked_names(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the levers to try: those named, or else all that somebody can pull."""
    known = (*LEVERS, AUTOSCALING, REGIONS)
    for name in names or ():
        if name not in known:
            raise unknown("lever", name, known, place="--lever")
    return tuple(name for name in known if (name in names if names else name != PREFIX_HITS))


def asked_levers(
    scenario: Path | None,
    plan: Path | None,
    settings: tuple[str, ...] = (),
    *,
    offline: bool = False,
) -> tuple[Asking, Base]:
    """Return the scenario as it is with its plan: searched, or that of a plan file.

    Raises
    ------
    InputError
        no scenario and no plan file, or keys overridden together with a plan file
    """
    if plan is not None:
        if settings:
            raise InputError("--set: cannot be combined with --plan, whose keys are those it was made with")
        asked, answer = asked_of_plan(scenario, plan, offline=offline)
        assert answer is not None
        return levers_beside(asking_of(scenario, plan, settings, offline=offline), asked, answer)
    asking = asking_of(scenario, plan, settings, offline=offline)
    asked = asking.changed(())
    chosen, cheapest = asking.plans(asked)
    return asking, Base(_record(asking), asked, chosen, cheapest, "" if chosen else asking.why_none(asked))


def asking_of(
    scenario: Path | None, plan: Path | None, settings: tuple[str, ...], *, offline: bool
) -> Asking:
    """Return how a scenario is asked, or the one that a plan file was made for."""
    if plan is not None:
        file = read_plan_file(plan)
        document = scenario_document(scenario, file.settings) if scenario else file.document
        return Asking(scenario or file.scenario, file.settings, document, offline)
    if scenario is None:
        raise InputError("no scenario is given\n  e.g. support-chat, the path of a YAML, or --plan plan.json")
    return Asking(scenario, settings, scenario_document(scenario, settings), offline)


def levers_beside(asking: Asking, asked: AskedFleet, answer: FleetAnswer) -> tuple[Asking, Base]:
    """Return the scenario as it is, with the plan that was found for it."""
    best = answer.choices.cheapest if answer.choices else None
    missing = "" if answer.chosen else asking.why_none(asked)
    return asking, Base(_record(asking), asked, answer.chosen, best, missing)


def _record(asking: Asking) -> ScenarioFile:
    return scenario_record(asking.document, asking.folder)[0]


def _less(apart: Plan | None, together: Plan) -> Plan:
    """Return a plan with separate pools if there is one and it costs less than identical replicas."""
    return apart if apart is not None and costs_less(apart, together) else together


def levers_of(
    asking: Asking,
    base: Base,
    names: Sequence[str],
    progress: Callable[[int, int], None] | None = None,
    found: Callable[[LeverRow], None] | None = None,
    *,
    cores: int = 1,
) -> LeversAnswer:
    """Return every lever separately, most saved first, and the best combination of those that save; what was found if Ctrl-C ends it.

    Parameters
    ----------
    asking : how changed scenarios are asked
    base : the scenario as it is
    names : of the levers to try; all of them: those that cannot save are not sized
    progress : called with the changes tried, and all of them
    found : called with each row
    cores : on which levers are sized at once
    """
    named = tuple(names) != checked_names(None)
    tried: dict[int, LeverRow] = {}
    rows: list[LeverRow] = []
    best, interrupted = None, False
    try:
        levers = [lever for name in names if name in LEVERS for lever in LEVERS[name](base)]
        levers = levers if named else [put_off(lever) for lever in levers]
        work = partial(_row, asking, base, sized=named)
        for place, row in results_of(work, levers, cores, slow=lambda lever: lever.name == MIX):
            tried[place] = row
            if found:
                found(row)
            if progress:
                progress(len(tried), len(levers) + 1)
        rows = [tried[place] for place in sorted(tried)]
        if AUTOSCALING in names:
            rows += _autoscaled(base)
        if REGIONS in names:
            rows += region_rows(partial(_planned, asking), base)
        best = _best(asking, base, rows)
    except KeyboardInterrupt:
        rows, interrupted = rows or [tried[place] for place in sorted(tried)], True
    return LeversAnswer(base.plan, most_saved_first(rows), best, base.memory_usd_per_month, interrupted)


def _planned(asking: Asking, settings: Sequence[str]) -> tuple[AskedFleet, Plan | None]:
    """Return a changed question and its plan."""
    asked = asking.changed(settings)
    return asked, asking.plans(asked)[0]


def _row(asking: Asking, base: Base, lever: Lever, *, sized: bool = True) -> LeverRow:
    if lever.reason:
        return lever_row(lever, None, base.plan)
    if lever.sized is not None:
        plan = lever.sized()
        why = "" if plan else "no plan meets the targets"
        return lever_row(lever, plan, base.plan, why, _memory(base, base.asked.scenario, plan))
    try:
        asked = asking.changed(lever.settings)
    except CapplanError as error:
        return lever_row(idle(lever.name, lever.change, first_line(error)), None, base.plan)
    if all(price is None for price in asked.prices.values()) and any(base.asked.prices.values()):
        why = "no device of the scenario has such a price"
        return lever_row(idle(lever.name, lever.change, why), None, base.plan)
    under = inf if sized else _worth_sizing(base, lever)
    plan = asking.plans(asked, base.plan, under)[0]
    if plan is None and under < inf and asking.shared.searched(asked.question).candidates:
        return saves_nothing(lever)
    if plan is None:
        return lever_row(lever, None, base.plan, asking.why_none(asked))
    row = lever_row(lever, plan, base.plan, "", _memory(base, asked.scenario, plan))
    if base.plan is None or row.gpus_saved is None or row.gpus_saved >= 0:
        return row
    return replace(row, dearer=why_dearer(base.asked, asked, base.plan, asking.shared))


def _worth_sizing(base: Base, lever: Lever) -> float:
    """Return the cost from which on a plan saves nothing [$/h]; infinite where commitments pay, or a new price takes no new search."""
    plan, scenario = base.plan, base.asked.scenario
    repriced = all(setting.startswith("prices.") for setting in lever.settings)
    if plan is None or plan.usd_per_hour is None or scenario.file.commitments is not None or repriced:
        return inf
    return _with_memory(base.asked, plan) * (1.0 + 1e-6)


def _memory(base: Base, scenario: Scenario, plan: Plan | None) -> tuple[float, float]:
    """Return the cost of host memory in offload tiers, with a lever and as it is [$/month]."""
    return (memory_usd_per_month(scenario, plan) if plan else 0.0), base.memory_usd_per_month


def _autoscaled(base: Base) -> list[LeverRow]:
    """Return the plan with replicas that follow the load: as observed, and ahead of a load that is known."""
    name, plan, scenario = AUTOSCALING, base.plan, base.asked.scenario
    ways = {"replicas follow the load": False, "replicas are started ahead of a known load": True}
    line = rate_line(scenario, plan.responses_s) if plan else None
    if plan is None or line is None or plan.usd_per_hour is None:
        why = "there is no plan to scale" if plan is None else "the plan has no price"
        if plan is not None and line is None:
            why = "traffic is at its peak at all hours: give daily_curve, active_hours or a trace"
        return [lever_row(idle(name, next(iter(ways)), why), None, plan)]
    limits = replace(scenario.fleet, burst_ratio=1.0)
    followed = replace(scenario, fleet=limits)
    needs = zip(plan.groups, replicas_by_group(base.asked, plan), strict=True)
    parts = [group_over_time(followed, group, line, replicas_at) for group, replicas_at in needs]
    over_time = [part for part in parts if part is not None]
    short = max(part.short_fraction for part in over_time)
    late = f"{short:.1%} of the requests arrive while replicas are still starting"
    kept = {False: short == 0.0, True: True}
    risks = {False: late, True: "a load that was not foreseen finds too few replicas"}
    rows = []
    for change, ahead in ways.items():
        scaled = scaled_plan(plan, over_time, foreseen=ahead)
        lever = Lever(name, change, risk=risks[ahead], keeps=kept[ahead], broken=late)
        rows.append(lever_row(lever, scaled, plan, "", _memory(base, scenario, scaled)))
    return rows


def _best(asking: Asking, base: Base, rows: Sequence[LeverRow]) -> Combination | None:
    """Return the cheapest plan of all combinations of the levers that save separately; None where nothing meets the targets.

    A saving that rests on an estimated price, or on offers without a term, is not combined. Lists of the search take all additions at once. Of the changes that exclude each other every selection is tried, fewest
    changes first. What is tried depends on the scenario and only on the levers that are allowed, so that one more lever adds
    combinations and takes none away.
    """
    saving = [
        row
        for row in rows
        if row.plan is not None
        and _cheaper(row, row.plan, base.plan)
        and not price_doubt(row.plan, base.plan)
    ]
    adding = [lever for row in saving if (lever := _added(row)) is not None]
    choices: dict[str, list[Lever]] = {}
    for row in saving:
        if row.lever.combines:
            choices.setdefault(row.lever.name, []).append(row.lever)
    listed = _listed(base)
    best, cost = _best_alone(asking, base, saving, listed)
    tried = 0
    selections = product(*(((), *((lever,) for lever in levers)) for levers in choices.values()))
    for selected in sorted((tuple(chain(*parts)) for parts in selections), key=len):
        levers = [*adding, *selected]
        if not levers:
            continue
        tried += 1
        settings = merged_settings(levers, listed)
        try:
            asked = asking.changed(settings)
        except CapplanError:
            continue
        plan, question = asking.cheapest(asked, base.asked.question.slo.confidence, cost)
        if plan is not None and not price_doubt(plan, base.plan) and _with_memory(asked, plan) < cost:
            used = (*_used(adding, plan, listed), *selected)
            cost, memory = _with_memory(asked, plan), memory_usd_per_month(asked.scenario, plan)
            best = Combination(plan, used, settings, tried, question, memory)
    return None if best is None else replace(_as_planned(asking, base, rows, best), tried=tried)


def _best_alone(
    asking: Asking, base: Base, saving: Sequence[LeverRow], listed: Mapping[str, Sequence[str | int]]
) -> tuple[Combination | None, float]:
    """Return the cheapest of the plan as it is and of the rows that a combination may use, and what it costs, with its host memory [$/h]."""
    best = None if base.plan is None else Combination(base.plan, (), (), 0)
    cost = inf if base.cheapest is None else _with_memory(base.asked, base.cheapest)
    for row in saving:
        lever = _added(row) or row.lever
        if row.plan is None or not (lever.adds or lever.combines):
            continue
        usd = cost_of(row.plan) + row.memory_usd_per_month / HOURS_PER_MONTH
        if usd < cost:
            settings, memory = merged_settings((lever,), listed), row.memory_usd_per_month
            question = asking.changed(settings).question
            best, cost = Combination(row.plan, (row.lever,), settings, 1, question, memory), usd
    return best, cost


def _as_planned(asking: Asking, base: Base, rows: Sequence[LeverRow], best: Combination) -> Combination:
    """Return a combination with the plan that `fleet` recommends for its settings, if that costs no more: of one change the plan of its row."""
    if not best.levers:
        return best
    asked = asking.changed(best.settings)
    own = next((row.plan for row in rows if row.plan and row.lever.settings == best.settings), None)
    plan = own or asking.plans(asked, base.plan)[0]
    if plan is None or _with_memory(asked, plan) > _with_memory(asked, best.plan) * (1.0 + 1e-9):
        return best
    return replace(best, plan=plan, memory_usd_per_month=memory_usd_per_month(asked.scenario, plan))


def _with_memory(asked: AskedFleet, plan: Plan) -> float:
    """Return the cost of a plan as `cost_of` counts it, with the host memory of its offload tiers."""
    return cost_of(plan) + memory_usd_per_month(asked.scenario, plan) / HOURS_PER_MONTH


def _cheaper(row: LeverRow, plan: Plan, base: Plan | None) -> bool:
    if base is None:
        return True
    if row.usd_per_month_saved is not None:
        return row.usd_per_month_saved > 0.0
    same = (plan.usd_per_hour is None) == (base.usd_per_hour is None)
    return same and cost_of(plan) < cost_of(base)


def _added(row: LeverRow) -> Lever | None:
    """Return a lever with what it adds to the lists of a search; of all other devices that is the one of its plan."""
    if row.lever.name == DEVICE and row.plan is not None:
        names = dict.fromkeys(group.layout.device.name for group in row.plan.groups)
        return replace(row.lever, adds={"fleet.hardware": tuple(names)})
    return row.lever if row.lever.adds else None


def _listed(base: Base) -> dict[str, Sequence[str | int]]:
    """Return the lists that a search has, as written or by default."""
    given = base.file.fleet
    return {
        "fleet.weight_dtypes": given.weight_dtypes or (),
        "fleet.kv_dtypes": given.kv_dtypes or (),
        "fleet.hardware": given.hardware or DEFAULT_HARDWARE,
        "fleet.tensor_parallel": given.tensor_parallel or (),
        "fleet.pipeline_parallel": given.pipeline_parallel or (),
    }


def _used(added: Sequence[Lever], plan: Plan, listed: Mapping[str, Sequence[str | int]]) -> tuple[Lever, ...]:
    """Return the levers without which the search would not have found a plan."""
    layouts = [group.layout for group in plan.groups]
    has: dict[str, set[str | int]] = {
        "fleet.weight_dtypes": {group.weight_dtype for group in plan.groups},
        "fleet.kv_dtypes": {layout.kv_format for layout in layouts},
        "fleet.hardware": {layout.device.name for layout in layouts},
        "fleet.tensor_parallel": {int(layout.sharding.tensor) for layout in layouts},
        "fleet.pipeline_parallel": {int(layout.sharding.pipeline) for layout in layouts},
    }
    return tuple(
        lever
        for lever in added
        if any(has[key] & set(values) - set(listed[key]) for key, values in lever.adds.items())
    )
