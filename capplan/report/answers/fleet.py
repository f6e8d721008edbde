"""What `capplan fleet` shows: the decision, the plans, what was rejected, and a mix of fleets."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from capplan.assumption import Assumption
from capplan.fleet.answer import SUREST_WITHIN, FleetAnswer, Mix, Uneconomical
from capplan.fleet.group import RoutedRequests
from capplan.fleet.plan import Plan, paid_by_the_gpu
from capplan.fleet.review import Question, kernel_assumptions
from capplan.questions.fleet import AskedFleet, demand_of_plan, prices_of_others
from capplan.questions.fleet_answer import FAR_DEARER
from capplan.questions.money.energy import Outlook
from capplan.questions.plans.plan_row import certainty_row, plan_inputs, plan_row
from capplan.readers.plan_file import data_digests, plan_origin
from capplan.report.answer import Answer, Table, columns, row_of
from capplan.report.answers.fleet_money import (
    cash_result,
    cash_tables,
    cash_texts,
    class_texts,
    commitments_closing,
    commitments_result,
    commitments_tables,
    commitments_text,
    currency_texts,
    in_currency,
    mix_usd_per_month,
    mixed_usd,
    offers_closing,
    offers_tables,
    outside_rows,
    outside_tables,
    outside_texts,
    paid_usd,
    term_rows,
    term_tables,
    total_result,
    total_texts,
)
from capplan.report.answers.fleet_outlook import (
    energy_result,
    energy_tables,
    growth_closing,
    growth_result,
    growth_tables,
    outlook_over_time,
    over_time_assumptions,
    over_time_tables,
)
from capplan.report.answers.fleet_words import (
    ALL_HOURS,
    WITH_MIX,
    above,
    acquired_text,
    budget_texts,
    engines_texts,
    first_pools_texts,
    host_memory_texts,
    layout_text,
    measured_saving,
    measuring_texts,
    month_titles,
    more_text,
    most_assumed_texts,
    narrower_text,
    next_steps_result,
    next_steps_rows,
    owned_cost_text,
    paid_text,
    pools_closing,
    pools_result,
    pools_tables,
    published_texts,
    purchase_text,
    rejected_text,
    relaxation_text,
    router_text,
    row_text,
    seconds_text,
    several_kv_dtypes,
    slices_texts,
    sure,
    surer_text,
    thin_texts,
    tight_texts,
    uneconomical_text,
    unlisted_texts,
    usd_per_job,
)
from capplan.report.answers.order import (
    failure_text,
    idle_texts,
    network_texts,
    order_tables,
    order_texts,
    ordered_texts,
    owned_rows,
    owned_texts,
    rack_texts,
)
from capplan.report.answers.replica import unknown_intervals
from capplan.report.safe_text import plain
from capplan.scenario.scenario_file import Scenario
from capplan.workload.request_class import Target

_SHOWN_FIRST = columns(
    "hardware layout gpus owned usd_per_month usd_per_job mix_usd_per_month slo_met_probability"
)
_ROWS_ON_FIRST = 4
_OWNED = "owned"
"""Column of the GPUs of replicas on machines that are there already."""


MOST_NAMED = 8
"""GPUs without a plan that the first screen names; more of them are counted."""


def first_screen(asked: AskedFleet, answer: FleetAnswer, outlook: Outlook) -> Answer | None:
    """Return the answer in few lines; None where no plan is recommended: the whole answer says why."""
    plan = answer.chosen
    if plan is None:
        return None
    from capplan.report.answers.waterfall import why_texts

    promised, shown = bool(asked.scenario.slo.targets), _shown_first(answer, plan)
    assumptions = (*assumed_kernels([plan], asked.question), *asked.assumptions)
    guessed = [at for at, item in enumerate(shown) if any(group.label == "assumed" for group in item.groups)]
    marked = bool(guessed) and promised
    return Answer(
        command="fleet",
        result=None,
        tables=(_first_table(answer, shown, guessed, outlook, promised=promised),),
        headline=decision_sentence(asked, answer, outlook),
        closing=(
            *(["*: some of its kernels were not timed on this GPU, so it is less certain"] * marked),
            *why_texts(plan),
            *delivered_texts(asked.scenario.slo.targets, plan),
            *unlisted_texts(answer, plan),
            *_uneconomical_texts(answer),
            *first_pools_texts(answer),
            *engines_texts(asked, answer),
            *_bottleneck_texts(answer, plan, outlook),
            *(hits_texts(asked, plan) if asked.question.demand.reuses else ()),
            *(_certainty_texts(answer, plan) if promised else ()),
            *(published_texts(plan, asked) if promised else ()),
            *most_assumed_texts(assumptions),
            *commitments_text(outlook.mixes),
            *total_texts(plan, outlook.total),
            *owned_texts(asked, answer),
            *ordered_texts([plan]),
            *network_texts(plan),
            *rack_texts(plan),
            *idle_texts(plan),
            failure_text(plan),
            *budget_texts(asked, answer),
            more_text(assumptions=len(assumptions), plans=len(answer.plans) - len(shown)),
        ),
    )


def _shown_first(answer: FleetAnswer, plan: Plan) -> list[Plan]:
    """Return the plans of the first screen: one row a device, the recommended one among them."""
    kept = first_rows([item.hardware for item in answer.plans], _ROWS_ON_FIRST)
    if plan in answer.plans and plan not in [answer.plans[at] for at in kept]:
        kept = sorted([*kept[:-1], answer.plans.index(plan)])
    return [answer.plans[at] for at in kept]


def _first_table(
    answer: FleetAnswer, shown: Sequence[Plan], guessed: Sequence[int], outlook: Outlook, *, promised: bool
) -> Table:
    """Return the table of the first screen; the probabilities of the rows `guessed` are marked, if targets were promised."""
    of_job = usd_per_job(answer, shown[0].usd_per_month) is not None
    cost = "usd_per_job" if of_job else "usd_per_month"
    kv = several_kv_dtypes(shown)
    rows: list[dict[str, Any]] = [
        {
            **plan_row(item),
            **mixed_usd(item, outlook),
            "layout": row_text(item, kv=kv),
            _OWNED: item.gpus_owned,
        }
        for item in shown
    ]
    return Table(
        rows,
        shown=_known(_SHOWN_FIRST, shown, outlook, of_job=of_job, promised=promised),
        assumed=frozenset((at, "slo_met_probability") for at in guessed),
        titles={"slo_met_probability": "chance", cost: "", _OWNED: "yours", **month_titles(answer)},
        spare=() if len({row["hardware"] for row in rows}) < len(rows) else ("layout",),
        drawn=(cost, "slo_met_probability"),
    )


def _known(
    names: Sequence[str],
    plans: Sequence[Plan],
    outlook: Outlook,
    *,
    of_job: bool,
    promised: bool,
    pooled: bool = False,
    powered: bool = False,
) -> tuple[str, ...]:
    """Return those columns of plans that their traffic, prices and targets give a meaning.

    Parameters
    ----------
    names : of all columns
    plans : one a row
    outlook : with the mixes of commitments
    of_job : whether plans are paid for until a job is done
    promised : whether the scenario has targets
    pooled : whether requests generate no tokens
    powered : whether electricity is paid on top of the price
    """
    prices = [group.quote for plan in plans for group in plan.groups if group.quote is not None]
    known = {
        _OWNED: any(plan.gpus_owned for plan in plans),
        "price_basis": any(price.offers < FEW_OFFERS for price in prices),
        **dict.fromkeys(("watts", "energy_usd_per_hour"), powered),
        "usd_per_month": not of_job,
        "usd_per_job": of_job,
        "mix_usd_per_month": bool(outlook.mixes) and not of_job,
        **dict.fromkeys(("usd_per_million_output_tokens_at_mean", "tpot_s.p95"), not pooled),
        **dict.fromkeys(("usd_per_million_tokens_at_mean", "usd_per_thousand_requests"), pooled),
        "slo_met_probability": promised,
    }
    return tuple(name for name in names if known.get(name, True))


def first_rows(names: Sequence[str], count: int) -> list[int]:
    """Return the rows of a list that is cut: the first one of each name, then the next ones, in their order.

    Parameters
    ----------
    names : GPU of each plan, the cheapest plan first
    count : most rows that are kept

    Examples
    --------
    >>> first_rows(["b200", "b200", "b200", "h100", "b200", "l4"], 4), first_rows(["l4"], 4)
    ([0, 1, 3, 5], [0])
    """
    order = sorted(range(len(names)), key=lambda at: (names.index(names[at]) != at, at))
    return sorted(order[:count])


def decision_sentence(asked: AskedFleet, answer: FleetAnswer, outlook: Outlook) -> str:
    """Return what to buy, for how much, and how likely it meets its targets; or that nothing is enough."""
    plan = answer.chosen
    if plan is None:
        budget = " within the budget" if asked.scenario.budget_usd_per_month is not None else ""
        return f"{asked.scenario.name}: no plan meets the SLO targets on the allowed hardware{budget}"
    usd = plan.usd_per_month
    cost = " at an unknown price" if usd is None else f" for {paid_text(answer, usd)}"
    if (mix := mix_usd_per_month(outlook)) is not None:
        cost = f" for ${mix:,.0f} per month {WITH_MIX}"
    if owned := owned_cost_text(plan):
        cost = f"{cost}, {owned}" if usd else f", {owned}"
    sentence = f"{asked.scenario.name}: {acquired_text(plan)}{cost}"
    if not asked.scenario.slo.targets:
        return f"{sentence}, sized for throughput only"
    return f"{sentence}; the chance to meet the SLO is {sure(plan.slo_met_probability)}"


def _uneconomical_texts(answer: FleetAnswer) -> tuple[str, ...]:
    """Return the devices of which no plan is worth a row, in one line; many without a plan are counted."""
    rows = answer.uneconomical
    none = [row for row in rows if row.gpus is None]
    counted = none if len(none) > MOST_NAMED else []
    said = [f"{row.hardware} ({_dear_text(answer, row)})" for row in rows if row not in counted]
    if counted:
        dear = any(row.reason == FAR_DEARER for row in counted)
        said.append(f"{len(counted)} GPUs ({'far more expensive, or ' if dear else ''}no plan)")
    return (f"left out: {', '.join(said)}",) if said else ()


def _dear_text(answer: FleetAnswer, row: Uneconomical) -> str:
    """Return how large the best plan of a device is that has no row, and what it costs: next to the cheapest plan, unless that costs nothing."""
    if row.gpus is None:
        return "no plan"
    cost = "price unknown" if row.usd_per_month is None else paid_text(answer, row.usd_per_month)
    cost = cost if row.cost_ratio is None else f"{row.cost_ratio:.2g} x the cost"
    return f"{row.gpus:,} GPU{'s' * (row.gpus > 1)}, {cost}"


def _bottleneck_texts(answer: FleetAnswer, plan: Plan, outlook: Outlook) -> Iterator[str]:
    """Yield what a replica spends its time on, what narrower weights save, and the SLO target that leaves its GPUs idle, if one does."""
    lever = narrower_text(plan, outlook.narrower)
    if plan.bottleneck:
        yield f"bottleneck: {plan.bottleneck}{lever and f'; {lever}'}"
    tight = answer.tight
    if tight is not None and plan == answer.chosen:
        yield (
            f"{tight.target} decides: it is {seconds_text(tight.value_s)} on an idle replica and may be "
            f"{seconds_text(tight.limit_s)}, so the fleet uses {tight.used_fraction:.0%} of its throughput"
        )


def delivered_texts(targets: Sequence[Target], plan: Plan) -> tuple[str, ...]:
    """Return in one line what requests see of each SLO target at the peak, next to its limit, and what a million tokens cost at the mean load, unless they are free.

    Without a target it is both latencies, but for a job, in which nobody waits.
    """
    seen = [
        f"{target.metric.upper()} {target.statistic} {seconds_text(plan.value(target))} (limit {seconds_text(target.stated_s)})"
        for target in targets
    ]
    if not targets and not (plan.money and plan.money.job_hours):
        seen = [
            f"{name} p95 {seconds_text(spread.p95)} (no limit)"
            for name, spread in (("TTFT", plan.seen.ttft_s), ("TPOT", plan.tpot_s))
            if spread.p95
        ]
    texts = [f"at the peak: {', '.join(seen)}"] if seen else []
    if (costs := plan.money) is not None and plan.usd_per_hour:
        output = costs.usd_per_million_output_tokens_at_mean
        of_output = "" if output is None else f", ${output:,.2f} for output"
        texts.append(f"${costs.usd_per_million_tokens_at_mean:,.2f} per million tokens{of_output}")
    return ("; ".join(texts),) if texts else ()


def hits_texts(asked: AskedFleet, plan: Plan) -> Iterator[str]:
    """Yield what prefix caches hold of the prompts of each class, on which the number of replicas rests; nothing without hits."""
    if plan.prefix_hit_fraction:
        found = zip(asked.scenario.classes, plan.class_prefix_hit_fractions, strict=True)
        each = ", ".join(f"{item.name} {hit:.0%}" for item, hit in found)
        by_class = f" ({each})" if len(asked.scenario.classes) > 1 else ""
        yield f"the plan finds {plan.prefix_hit_fraction:.0%} of the prompt tokens in prefix caches{by_class}"


def _certainty_texts(answer: FleetAnswer, plan: Plan) -> tuple[str, ...]:
    """Return what a higher required confidence costs, and what a measurement would save."""
    parts = [text] if (text := surer_text(plan, answer)) else []
    if (saving := measured_saving(answer)) is not None and plan == answer.chosen:
        steps, usd = saving
        gpus = plan.gpus - steps.as_predicted.gpus
        saved = f"{gpus} GPU{'s' * (gpus > 1)}" if usd is None else paid_text(answer, usd)
        parts.append(f"capplan verify-plan on one replica may save {saved}")
    return (f"confidence: {'; '.join(parts)}",) if parts else ()


_SHOWN = columns(
    "hardware plan replicas gpus_per_replica gpus owned usd_per_gpu_hour price_basis watts "
    "energy_usd_per_hour usd_per_hour usd_per_month usd_per_job mix_usd_per_month "
    "usd_per_million_output_tokens_at_mean usd_per_million_tokens_at_mean usd_per_thousand_requests "
    "ttft_s.p95 tpot_s.p95 slo_met_probability"
)
_TITLES = {
    "confidence_fraction": "required confidence",
    "usd_per_month_low": "at best",
    "usd_per_month_high": "at worst",
}
_SPARE = columns(
    "price_basis gpus_per_replica usd_per_hour usd_per_million_output_tokens_at_mean "
    "usd_per_million_tokens_at_mean usd_per_thousand_requests watts energy_usd_per_hour "
    "usd_per_gpu_hour tpot_s.p95 ttft_s.p95 replicas plan"
)
"""Columns of plans that a narrow screen leaves out, the first one first."""
_PREDICTED = ("ttft_s.p95", "tpot_s.p95", "slo_met_probability")
"""Columns that rest on kernel efficiencies; marked where those were borrowed from another device."""
FEW_OFFERS = 3
"""Prices from fewer offers are marked."""
_REJECTED = ("hardware", "reason", "count")
_MET_READING = (
    "chance to meet the SLO: the probability that all targets are met at the peak, taking all replicas to be slower or faster than "
    "predicted by about the same factor"
)
_TOKENS_READING = f"$/Mtok out at mean load: cost per million output tokens at the mean load; {_MET_READING}"
_PROMPTS_READING = (
    f"$/Mtok at mean load: cost per million tokens of the prompts at the mean load; {_MET_READING}"
)


def _reading(scenario: Scenario, plans: Sequence[Plan]) -> Iterator[str]:
    """Yield how to read the plans."""
    prices, pooled = scenario.prices, scenario.pooled
    money = "GPUs x $/GPU/h = $/h" if paid_by_the_gpu(plans) else "$/h is the price of whole machines"
    if prices.electricity is not None:
        money = (
            f"power (W) / 1000 x {prices.power_ratio:g} (facility ratio) x {prices.electricity:g} $/kWh = power ($/h); "
            "GPUs x $/GPU/h + power = $/h"
        )
    yield f"replicas (spares included) x GPUs each = GPUs; {money}; $/h x 730 = $/month"
    yield _PROMPTS_READING if pooled else _TOKENS_READING


def choice_rows(answer: FleetAnswer) -> list[dict[str, Any]]:
    """Return the three choices, each with its name."""
    if answer.choices is None:
        return []
    plans = {
        "cheapest": answer.choices.cheapest,
        f"highest chance, for at most {SUREST_WITHIN - 1.0:.0%} more": answer.choices.surest,
        "fewest GPUs": answer.choices.fewest,
    }
    kv = several_kv_dtypes(answer.plans)
    return [
        {"choice": name, **plan_row(plan), "plan": layout_text(plan, kv=kv)} for name, plan in plans.items()
    ]


def assumed_kernels(plans: Sequence[Plan], question: Question) -> tuple[Assumption, ...]:
    """Return the kernels of the plans that were not measured on their device, once per device and format."""
    groups = [group for plan in plans for group in plan.groups]
    return tuple(dict.fromkeys(item for group in groups for item in kernel_assumptions(group, question)))


def decision_tables(answer: FleetAnswer, *, promised: bool) -> list[Table]:
    """Return the three choices, and the cost of the required confidence; without targets there is none."""
    names: tuple[str, ...] = ("choice", "hardware", "plan", "gpus", "usd_per_month", "slo_met_probability")
    rows = choice_rows(answer)
    if not promised:
        names, rows = names[:-1], [row for row in rows if not row["choice"].startswith("highest")]
    if any(row["usd_per_job"] for row in rows):
        names = tuple("usd_per_job" if name == "usd_per_month" else name for name in names)
    cost = "usd_per_job" if "usd_per_job" in names else "usd_per_month"
    titles = {**_TITLES, **month_titles(answer)}
    certain, steps = (
        [
            {
                **row,
                "confidence_fraction": row["confidence"],
                **{
                    name.replace("month", "job"): usd_per_job(answer, row[name])
                    for name in ("usd_per_month", "more_usd_per_month")
                    if name in row
                },
            }
            for row in sizes
        ]
        for sizes in (map(certainty_row, answer.certainty), next_steps_rows(answer))
    )
    return [
        Table(rows, title="Choices", shown=names, titles=titles, spare=("plan", "hardware")),
        Table(
            certain,
            title="Cost of confidence: the cheapest fleet that meets all targets, by required confidence",
            shown=("confidence_fraction", "hardware", "gpus", cost),
            titles=titles,
        ),
        Table(
            steps,
            title="More confidence in the recommended plan: more replicas of the same GPU and layout",
            shown=("confidence_fraction", "gpus", "more_gpus", cost, f"more_{cost}"),
            titles=titles,
        ),
    ]


def _fleet_result(
    asked: AskedFleet, answer: FleetAnswer, plans: list[dict[str, Any]], outlook: Outlook
) -> dict[str, Any]:
    """Return the answer with the keys of the interface; the recommended plan and the choices are indices into the plans."""
    written, choices, budget = answer.written, answer.choices, asked.scenario.budget_usd_per_month
    recommended, over = (
        written.index(choices.recommended) if choices else None,
        answer.over_budget_usd_per_month,
    )
    return {
        "scenario": asked.scenario.name,
        "demand": asdict(demand_of_plan(asked, answer.chosen)),
        "plans": plans,
        "rejected": [asdict(item) for item in answer.rejected],
        "evaluated": answer.evaluated,
        "chosen": None if recommended is None else plans[recommended],
        "recommended": recommended,
        "why": choices.why if choices else None,
        "choices": {name: written.index(getattr(choices, name)) for name in ("cheapest", "surest", "fewest")}
        if choices
        else None,
        "certainty": [certainty_row(row) for row in answer.certainty],
        "next_steps": next_steps_result(answer),
        "tight_target": answer.tight and asdict(answer.tight),
        "uneconomical": [
            {**asdict(row), "sentence": uneconomical_text(row, answer)} for row in answer.uneconomical
        ],
        "disaggregated": pools_result(answer),
        "commitments": commitments_result(outlook.mixes),
        "currency": in_currency(asked.scenario.file.currency, paid_usd(answer, outlook)),
        "energy": energy_result(outlook.energy),
        "growth": growth_result(outlook.growth),
        "cash": cash_result(outlook.cash),
        "total_cost": total_result(outlook.total),
        "prices_by_term": term_rows(outlook.terms),
        "outside": outside_rows(answer.chosen.outside) if answer.chosen and answer.chosen.outside else None,
        "over_budget": plan_row(answer.over_budget) if answer.over_budget else None,
        "over_budget_usd_per_month": over,
        "missed_usd_per_month": above(over, budget),
        "narrower_weights": row_of(outlook.narrower, "weight_dtype gpus usd_per_month")
        if outlook.narrower
        else None,
        "carried": answer.carried
        and row_of(answer.carried, "traffic_fraction usd_per_month")
        | {"plan": plan_row(answer.carried.plan)},
        "mix": mix_result(answer),
        "owned": owned_rows(asked, answer),
        "over_time": outlook_over_time(outlook),
        "relaxations": [
            {**row_of(each, "target limit_s needed_s"), "hardware": each.layout.device.name}
            for each in answer.relaxations
        ],
    }


def _recommendation(answer: FleetAnswer) -> tuple[str, ...]:
    if answer.choices is None or answer.choices.recommended.has_pools:
        return pools_closing(answer)
    why = f"recommended: {purchase_text(answer.choices.recommended)}; {answer.choices.why}"
    return why, *pools_closing(answer)


def _closing(asked: AskedFleet, answer: FleetAnswer, outlook: Outlook) -> Iterator[str]:
    """Yield what the tables do not say: the recommendation, totals, and how to read them."""
    yield from _recommendation(answer)
    yield from unlisted_texts(answer, answer.chosen) if answer.chosen else ()
    yield from slices_texts(answer.alike)
    yield from tight_texts(answer)
    yield from measuring_texts(answer)
    yield from thin_texts(answer.plans)
    if answer.chosen and asked.scenario.slo.targets:
        yield from published_texts(answer.chosen, asked)
    yield from (uneconomical_text(row, answer) for row in answer.uneconomical)
    yield from commitments_closing(outlook.mixes) if outlook.mixes else offers_closing(answer.chosen)
    yield from currency_texts(asked.scenario.file.currency, paid_usd(answer, outlook))
    yield from growth_closing(outlook.growth, asked.scenario)
    yield from cash_texts(outlook.cash)
    yield from total_texts(answer.chosen, outlook.total)
    yield from owned_texts(asked, answer)
    yield from order_texts(answer.chosen)
    yield from mix_texts(answer)
    yield from hits_texts(asked, answer.chosen) if answer.chosen else ()
    yield from _reading(asked.scenario, answer.plans) if answer.plans else ()
    yield from outside_texts(answer.chosen)
    yield from class_texts(answer.chosen, asked.scenario.slo)
    yield from budget_texts(asked, answer)
    yield from host_memory_texts(asked, answer)
    yield from (relaxation_text(item) for item in answer.relaxations)


def _plans_table(
    asked: AskedFleet, answer: FleetAnswer, outlook: Outlook, rows: Sequence[dict[str, Any]]
) -> Table:
    """Return every plan, with the columns that its traffic, its prices and its targets give a meaning."""
    kv, scenario = several_kv_dtypes(answer.plans), asked.scenario
    guessed = [
        at for at, plan in enumerate(answer.plans) if "assumed" in {each.label for each in plan.groups}
    ]
    return Table(
        [
            {**row, **mixed_usd(plan, outlook), "plan": row_text(plan, kv=kv), _OWNED: plan.gpus_owned}
            for row, plan in zip(rows, answer.plans, strict=True)
        ],
        title=f"Plans, cheapest {f'{ALL_HOURS} ' if answer.by_commitments else ''}first",
        shown=_known(
            _SHOWN,
            answer.plans,
            outlook,
            of_job=any(row["usd_per_job"] for row in rows),
            promised=bool(scenario.slo.targets),
            pooled=scenario.pooled,
            powered=scenario.prices.electricity is not None,
        ),
        titles={**_TITLES, _OWNED: "yours", **month_titles(answer)},
        assumed=frozenset((at, name) for at in guessed for name in _PREDICTED),
        spare=_SPARE,
    )


def _tables(
    asked: AskedFleet, answer: FleetAnswer, outlook: Outlook, rows: Sequence[dict[str, Any]]
) -> Iterator[Table]:
    """Yield the plans, what follows from the recommended one, and what was rejected; some tables have no rows."""
    yield _plans_table(asked, answer, outlook, rows)
    if answer.chosen is not None:
        from capplan.report.answers.waterfall import waterfall_tables

        yield from waterfall_tables(answer.chosen, month_titles(answer))
    yield from pools_tables(answer)
    yield from order_tables(answer.chosen)
    yield from mix_tables(answer)
    yield from groups_tables(answer.chosen)
    yield from commitments_tables(outlook.mixes)
    yield from growth_tables(outlook.growth)
    yield from cash_tables(outlook.cash)
    yield from energy_tables(outlook.energy)
    yield from outside_tables(answer.chosen)
    yield from decision_tables(answer, promised=bool(asked.scenario.slo.targets))
    if not outlook.mixes:
        yield from offers_tables(answer.plans)
    yield from term_tables(outlook.terms)
    rejected = [asdict(item) for item in answer.rejected]
    yield Table(rejected, title=rejected_text(answer), shown=_REJECTED, titles={"count": "candidates"})


def fleet_answer(
    asked: AskedFleet, answer: FleetAnswer, outlook: Outlook | None = None, settings: Sequence[str] = ()
) -> Answer:
    """Return the plans, cheapest first, and the rejections by reason; exit code 4 where nothing is feasible."""
    outlook = outlook or Outlook()
    over_time = outlook.over_time
    plans = [plan_row(plan) for plan in answer.written]
    own = {group.hardware for group in answer.chosen.groups} if answer.chosen else set(asked.prices)
    others = prices_of_others(asked, own)
    unlisted = None if answer.unlisted is None else answer.written.index(answer.unlisted)
    listed = [row for place, row in enumerate(plans) if place != unlisted]
    result = _fleet_result(asked, answer, plans, outlook)
    inputs = plain(plan_inputs(asked, answer.chosen))
    data = data_digests((item.name for item in asked.question.devices), asked.scenario.model)
    origin = plan_origin(
        asked.scenario.path,
        settings,
        asked.scenario.price_file,
        plain(result),
        unlisted,
        inputs,
        data,
    )
    return Answer(
        command="fleet",
        result={**result, "plan_file": origin},
        tables=(
            *_tables(asked, answer, outlook, listed),
            *(table for pool, part in over_time.items() for table in over_time_tables(part, pool)),
        ),
        headline=decision_sentence(asked, answer, outlook),
        closing=tuple(_closing(asked, answer, outlook)),
        assumptions=(
            *(item for item in asked.assumptions if item not in others),
            *others,
            *assumed_kernels(answer.plans, asked.question),
            *(item for part in list(over_time.values())[:1] for item in over_time_assumptions(part)),
            *outlook.assumptions,
        ),
        warnings=(
            *asked.warnings,
            *outlook.warnings,
            *(unknown_intervals(answer.chosen) if answer.chosen else ()),
        ),
        exit_code=0 if answer.plans else 4,
        first_screen=first_screen(asked, answer, outlook),
    )


def mix_result(answer: FleetAnswer) -> dict[str, Any] | None:
    """Return the mix with the keys of JSON; None if it was not asked for."""
    mix = answer.mix
    if mix is None:
        return None
    if not isinstance(mix, Mix):
        return {**row_of(mix, "reason tried"), "skipped": list(mix.skipped)}
    return {
        **row_of(mix, "by threshold_tokens usd_per_month single_usd_per_month saved_fraction"),
        **row_of(mix.plan, "gpus slo_met_probability"),
        "tried": mix.tried,
        "skipped": list(mix.skipped),
        "parts": [
            {
                "requests": requests.rule,
                **row_of(requests, "classes request_fraction"),
                "plan": plan_row(part),
            }
            for part, requests in _routed(mix)
        ],
    }


def _routed(mix: Mix) -> list[tuple[Plan, RoutedRequests]]:
    """Return each group of a mix by itself, with the requests that the router sends to it."""
    return [(part, part.single.requests) for part in mix.parts if part.single.requests is not None]


def mix_tables(answer: FleetAnswer) -> list[Table]:
    """Return the fleets of a mix; none without one."""
    mix = answer.mix
    if not isinstance(mix, Mix):
        return []
    rows = [
        {
            "requests": requests.rule,
            "request_fraction": requests.request_fraction,
            "fleet": purchase_text(part),
            **row_of(part, "usd_per_month slo_met_probability"),
        }
        for part, requests in _routed(mix)
    ]
    return [Table(rows, title="Mix: a fleet for each part of the requests", shown=tuple(rows[0]))]


def groups_tables(plan: Plan | None) -> list[Table]:
    """Return what the requests of each group and each class of a mix see, next to those of all; none for other plans."""
    if plan is None or not plan.is_mix:
        return []
    seen = [("all requests", plan), *zip(plan.group_names, plan.groups, strict=True)]
    of_classes = plan.class_latencies if len(plan.class_latencies) > 1 else ()
    rows = [
        {
            "requests": name,
            **{
                f"{latency}_s.{part}": getattr(getattr(item, f"{latency}_s"), part)
                for latency in ("ttft", "tpot", "e2e")
                for part in ("p50", "p95", "p99")
                if getattr(item, f"{latency}_s") is not None
            },
        }
        for name, item in (*seen, *((f"class {item.name}", item) for item in of_classes))
    ]
    title = "Latency at the peak; the targets are met over all requests, and no group has a queue that grows"
    return [Table(rows, title=title)]


def mix_texts(answer: FleetAnswer) -> Iterator[str]:
    """Yield what a mix costs and how requests are routed, or why there is none."""
    mix = answer.mix
    if mix is None:
        return
    if not isinstance(mix, Mix):
        yield f"no mix of fleets: {mix.reason} ({mix.tried} ways to divide the requests tried)"
    else:
        yield (
            f"a mix costs ${mix.usd_per_month:,.0f} per month, {mix.saved_fraction:.1%} less than the ${mix.single_usd_per_month:,.0f} of "
            f"the cheapest fleet for all requests: {router_text(mix.plan)}; of {mix.tried} ways to divide the requests it is the cheapest"
        )
    yield from (f"fleet.mix does not try {text}" for text in mix.skipped)
