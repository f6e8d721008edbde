"""Numbers of a plan as the table of quantities explains them: the formula of a function, with the value and the origin of each argument."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from capplan.accuracy.slowness import Latency, by_latency
from capplan.explain.subject import (
    Explained,
    Input,
    PlanSubject,
    Subject,
    explained,
    formula_of,
    in_words,
    input_of,
    is_written,
)
from capplan.fleet.plan import RANGE
from capplan.memory.capacity import waiting_ring_bytes
from capplan.model.parameters import parameters, weight_bytes_by_class
from capplan.model.sharding import adapter_bytes_per_rank
from capplan.model.weight_format import kv_bytes_per_element
from capplan.money.order import OWN, Machine, OrderLine
from capplan.money.price import HOURS_PER_MONTH
from capplan.replica.estimate import FRONT_END, LAUNCHES
from capplan.replica.plans import graph_sequences, plans_of, prefill_graph_tokens, tightest_card
from capplan.replica.spec import served_context_tokens
from capplan.report.quantities import (
    ACCURACY,
    ARGUMENTS,
    KERNELS,
    MEMORY,
    PLAN,
    Quantity,
    quantity_of,
)
from capplan.workload.request_class import WARM_UP_SHARE


class Stated(NamedTuple):
    """The value of an argument, and its origin where that depends on the plan."""

    value: Any
    source: str = ""
    """Empty: as the table says."""
    label: str = ""
    """Empty: as the table says."""
    name: str = ""
    """Empty: as the table says."""


def function_of(row: Quantity) -> object:
    """Return the function, method or property whose docstring states the formula of a quantity; None where words state it.

    Examples
    --------
    >>> function_of(Quantity("", "money.price.usd_per_month")).__name__
    'usd_per_month'
    """
    if row.function is None:
        return None
    names = row.function.split(".")
    depth = next(at for at, name in enumerate(names) if name[0].isupper() or at == len(names) - 1)
    found: object = import_module(".".join(["capplan", *names[:depth]]))
    for name in names[depth:]:
        found = getattr(found, name)
    return found


def formula_in(row: Quantity) -> str:
    """Return the formula of a quantity: of its function, or in words."""
    return row.formula if row.function is None else formula_of(function_of(row))


def tabled(
    of: PlanSubject,
    path: str,
    explain: Callable[[str], Explained] | None = None,
    given: Mapping[str, Stated | list[Stated]] = MappingProxyType({}),
    row: Quantity | None = None,
) -> Explained:
    """Return a number of a plan explained as the table says.

    Parameters
    ----------
    of : the plan
    path : of the number
    explain : explanation of another number of the plan, which is a step; None: without steps
    given : arguments that this number has for itself
    row : what the number is, where the kind of plan makes it another; None: as of any plan
    """
    row = row or quantity_of(path)
    assert row is not None, path
    group = path[: path.index(".") + 1] if path.startswith("groups[") else ""
    lists: list[tuple[str, list[Input]]] = []
    steps = []
    for name, letter in row.arguments.items():
        if name in given:
            items = stated_inputs(name, letter, given[name])
        elif name in ARGUMENTS:
            items = list(arguments(of, name, letter))
        elif name.startswith("groups[]."):
            of_groups = [name.replace("[]", f"[{at}]") for at in range(len(of.plan.groups))]
            items = [of.number(letter, each) for each in of_groups]
            steps += [explain(each) for each in of_groups] if explain else []
        else:
            other = quantity_of(name)
            assert other is not None, name
            items = [of.number(letter, f"{group}{name}", of.label if other.predicted else "derived")]
            if explain is not None and other.arguments and not name.endswith(".mean"):
                steps.append(explain(f"{group}{name}"))
        lists.append((letter, items))
    label = of.label if row.predicted else "derived"
    found = with_sums(formula_in(row), lists)
    return explained(path, float(of.numbers[path]), *found, row.page, label=label, steps=steps)


def written_out(formula: str, terms: Mapping[str, int]) -> str:
    """Return a formula whose sums are written out.

    Parameters
    ----------
    formula : with `sum(...)` of letters that stand for several values
    terms : letter -> number of its values

    Examples
    --------
    >>> written_out("g sum(f w)", {"g": 1, "f": 2, "w": 2}), written_out("sum(c) + p", {"c": 1, "p": 1})
    ('g (f_0 w_0 + f_1 w_1)', 'c + p')
    """
    found = re.search(r"sum\(([^()]*(?:\([^()]*\))?[^()]*)\)", formula)
    if found is None:
        return formula
    before, after = formula[: found.start()], formula[found.end() :]
    many = [letter for letter in re.findall(r"[A-Za-z]\w*", found[1]) if terms.get(letter, 1) > 1]
    number = terms[many[0]] if many else 1
    indexed = re.sub(rf"\b({'|'.join(many)})\b", r"\1_{0}", found[1]) if many else found[1]
    total = " + ".join(indexed.format(at) for at in range(number))
    bare = number == 1 or (before[-2:] in ("", "+ ") and after[:2] in ("", " +"))
    return written_out(f"{before}{total if bare else f'({total})'}{after}", terms)


def with_sums(formula: str, lists: Sequence[tuple[str, list[Input]]]) -> tuple[str, list[Input]]:
    """Return a formula with its sums written out, and its inputs; those of a letter that stands for several are numbered."""
    written = written_out(formula, {letter: len(items) for letter, items in lists})
    return written, [
        replace(item, symbol=f"{letter}_{at}") if letter and len(items) > 1 else item
        for letter, items in lists
        for at, item in enumerate(items)
    ]


def stated_inputs(name: str, letter: str, stated: Stated | list[Stated]) -> list[Input]:
    """Return an argument that is no number of the plan: one input, or one for each value that a formula adds up."""
    return [stated_input(name, letter, each) for each in (stated if isinstance(stated, list) else [stated])]


def arguments(of: PlanSubject, name: str, letter: str) -> Iterable[Input]:
    """Return an argument that is no number of the plan; several where it stands for all SLO targets, jobs, or degrees of a layout."""
    if name in _OF_ANY_PLAN:
        return stated_inputs(name, letter, _OF_ANY_PLAN[name](of))
    assert isinstance(of, Subject), name
    if name == "slo":
        return of.limits()
    if name == "parallelism":
        degrees = of.plan.single.layout.degrees
        return [input_of("", name, float(value), "derived", f"explain {name}") for name, value in degrees.items() if value != 1]  # fmt: skip
    if name == "jobs":
        return _jobs(of)
    return stated_inputs(name, letter, _OF_REPLICAS[name](of))


def stated_input(name: str, letter: str, stated: Stated) -> Input:
    """Return an argument that is no number of the plan, with the label and the source of the table unless the plan has others."""
    known = ARGUMENTS[name]
    label, source = stated.label or known.label, stated.source or known.source
    return input_of(letter, stated.name or known.name or name, stated.value, label, source)


def _jobs(of: Subject) -> list[Input]:
    return [
        item
        for at, job in enumerate(of.facts.demand.classes)
        for item in (
            input_of("n_k", f"{job.name} requests", job.job_requests, "config", f"scenario: traffic[{at}]"),
            input_of("r_k", f"{job.name} request_rate", job.request_rate_at(), "config", f"scenario: traffic[{at}]"),
        )
    ]  # fmt: skip


def _replicas_on_machines(of: PlanSubject) -> Stated:
    order = of.plan.order
    return Stated(None if order is None else sum(line.replicas for line in order.lines))


def _link(of: PlanSubject) -> Stated:
    assert of.plan.transfer is not None
    name, key = of.plan.transfer.at_peak.link, of.plan.transfer.terms.key
    return Stated(None, f"its rate in the catalogue, or {key}", name=f"link {name}")


def _lines(of: PlanSubject, stated: Callable[[OrderLine, str], Stated]) -> list[Stated]:
    order = of.plan.order
    assert order is not None
    return [stated(line, line.machine.sku or "by the GPU") for line in order.lines]


def _stated_by(machine: Machine) -> tuple[str, str]:
    """Return who states what a machine is and costs, and the label of that."""
    if not machine.source:
        return f"scenario: {'fleet.own' if machine.provider == OWN else 'prices.per_gpu_hour'}", "config"
    return f"{machine.source}, {machine.provider}, {machine.date or 'date unknown'}", "spec"


_OF_ANY_PLAN: Mapping[str, Callable[[PlanSubject], Stated | list[Stated]]] = {
    "machine_count": lambda of: _lines(of, lambda line, sku: Stated(line.count, name=f"machines {sku}")),
    "machine_gpus": lambda of: _lines(of, lambda line, sku: Stated(line.machine.gpus, line.machine.source or "the scenario", name=f"gpus_per_machine {sku}")),
    "owned_machine_gpus": lambda of: _lines(of, lambda line, sku: Stated(line.machine.gpus if line.machine.is_owned else 0, "scenario: fleet.own", name=f"gpus_per_owned_machine {sku}")),
    "machine_usd_per_hour": lambda of: _lines(of, lambda line, sku: Stated(line.machine.usd_per_hour, *_stated_by(line.machine), f"machine_usd_per_hour {sku}")),
    "order_energy": lambda of: Stated(sum((group.price.energy_usd_per_hour or 0.0) * group.order.gpus for group in of.plan.groups if group.price and group.order)),
    "group_tdp_w": lambda of: [Stated(group.layout.device.tdp_w, f"capplan hardware {group.hardware}") for group in of.plan.groups],
    "group_energy_usd_per_gpu_hour": lambda of: [Stated((group.price.energy_usd_per_hour if group.price else None) or 0.0) for group in of.plan.groups],
    "group_powered_gpus": lambda of: [Stated(group.ordered_gpus) for group in of.plan.groups],
    "hours": lambda _: Stated(HOURS_PER_MONTH),
    "count": lambda of: Stated(of.plan.groups[0].survive.count, f"scenario: {of.plan.groups[0].survive.key}"),
    "hours_to_repair": lambda of: Stated(of.plan.groups[0].survive.failures.repair_s / 3600.0),
    "machine_failures_per_month": lambda of: Stated(of.plan.availability.now.failures_per_month if of.plan.availability else 0.0),
    "link": _link,
    "replicas_held": _replicas_on_machines,
    "stated_spare_replicas": lambda of: Stated(of.plan.spare_replicas, f"scenario: {of.plan.groups[0].survive.key}"),
}  # fmt: skip
"""Argument -> its value, of plans of any kind."""


def _peak(of: Subject) -> Stated:
    peak = of.facts.peak_requests_per_s
    if of.facts.demand.users:
        source = "scenario: traffic.users over the think time and the mean response, explain e2e_s.mean"
        return Stated(peak, source, "derived")
    return Stated(peak)


def _power(of: Subject) -> Stated:
    device = of.plan.single.layout.device
    keys = device.figure_sources.get("tdp_w", ())
    titles = ", ".join(item.title for item in device.sources if item.key in keys)
    return Stated(device.tdp_w, titles or "hardware_specs", device.labels.get("tdp_w", "spec"))


def _slowness(of: Subject, slower: Mapping[Latency, float], source: str) -> list[Stated]:
    """Return how slow replicas may be, as each latency shows it."""
    found = []
    for name, ratio in slower.items():
        slowness = of.facts.slowness.by_latency[name]
        runs = f"{slowness.rows} measured runs"
        rests_on = slowness.rests_on if slowness.left_out_error_fraction is not None else runs
        found.append(Stated(ratio, f"{source} {rests_on}, by {name.upper()}"))
    return found


def format_source(of: Subject, key: str) -> str:
    """Return where the format of weights or cache is stated: a key of the scenario, else the configuration of the model."""
    written = of.asked.scenario.written
    stated = next((path for path in (key, f"fleet.{key}s") if is_written(path, written)), "")
    return f"scenario: {stated}" if stated else f"config.json of {of.facts.replica.spec.network.name}"


_OF_REPLICAS: Mapping[str, Callable[[Subject], Stated | list[Stated]]] = {
    "request_rate": _peak,
    "busy_replicas": lambda of: Stated(of.busy),
    "headroom_fraction": lambda of: Stated(of.plan.single.headroom_fraction),
    "slowness_ratio": lambda _: Stated(1.0),
    "sure_slowness_ratio": lambda of: _slowness(of, of.facts.sure_slowness, f"by no latency exceeded in {of.confidence:.0%} of"),
    "low_slowness_ratio": lambda of: _slowness(of, of.facts.slowness.each(RANGE[0]), f"{RANGE[0]:.0%} point of"),
    "high_slowness_ratio": lambda of: _slowness(of, of.facts.slowness.each(RANGE[1]), f"{RANGE[1]:.0%} point of"),
    "powered_gpus": lambda of: Stated(of.plan.groups[0].ordered_gpus),
    "energy_usd_per_gpu_hour": lambda of: Stated(of.price.energy_usd_per_hour or 0.0),
    "tdp_w": _power,
    "output_tokens_per_s": lambda of: Stated(of.facts.peak_tokens_per_s[1]),
    "total_tokens_per_s": lambda of: Stated(sum(of.facts.peak_tokens_per_s)),
    "mean_output_tokens_per_s": lambda of: Stated(of.facts.mean_tokens_per_s[1]),
    "mean_total_tokens_per_s": lambda of: Stated(sum(of.facts.mean_tokens_per_s)),
    "block_tokens": lambda of: Stated(of.facts.replica.scheduling.block_tokens, of.engine),
    "max_num_seqs": lambda of: Stated(of.facts.replica.scheduling.max_num_seqs, f"scenario: max_num_seqs; unless stated, the default of {of.engine}"),
    "max_num_batched_tokens": lambda of: Stated(of.facts.replica.scheduling.max_num_batched_tokens, f"scenario: max_num_batched_tokens; unless stated, the default of {of.engine}"),
    "max_model_len": lambda of: Stated(served_context_tokens(of.spec)),
    "vocabulary_size": lambda of: Stated(of.spec.network.vocabulary_size, f"config.json of {of.spec.network.name}"),
    "drawn_requests": lambda of: Stated(of.asked.question.requests, f"requests of a simulated run, the first {WARM_UP_SHARE:.0%} left out"),
    "layers": lambda of: Stated(len(of.spec.network.layers), f"capplan model {of.asked.scenario.model}: its mixers"),
    "kv_bytes_per_element": lambda of: Stated(kv_bytes_per_element(of.spec.kv_format), format_source(of, "kv_dtype")),
    "logged_non_torch_bytes": lambda of: Stated(of.spec.profile.memory.non_torch_bytes, f"{MEMORY}: logged starts of {of.engine}"),
    "collective_bytes": lambda of: Stated(of.spec.profile.memory.collective_bytes, f"{MEMORY}: logged starts of {of.engine}"),
    "graph_base_bytes": lambda of: Stated(of.spec.profile.memory.graph_base_bytes, f"{MEMORY}: logged starts of {of.engine}"),
    "graph_bytes": lambda of: Stated(of.spec.profile.memory.graph_bytes_per_layer, f"{MEMORY}: logged starts of {of.engine}; of a layer and a captured size"),
    "parameters": lambda of: Stated(parameters(of.spec.network), f"capplan model {of.asked.scenario.model}"),
    "weight_bytes": lambda of: Stated(sum(weight_bytes_by_class(of.spec.network).values()), format_source(of, "weight_dtype")),
}  # fmt: skip
"""Argument -> its value, of plans of identical replicas."""


_Formula = tuple[str, str]
"""A formula and its letters."""
_BUDGETS: Mapping[str, tuple[_Formula, _Formula]] = {
    "utilisation": (("u M", "uM"), ("U - w - a - r", "Uwar")),
    "static_fraction": (("u (M - r)", "uMr"), ("U - w", "Uw")),
    "free_fraction": (("M - r", "Mr"), ("u (U - w - a)", "uUwa")),
}
"""How an engine divides a device -> what it may use, and what of it is left for the cache."""
_BY_LETTER = {
    "U": "usable_bytes_per_gpu",
    "w": "weight_bytes_per_gpu",
    "a": "activation_bytes_per_gpu",
    "r": "non_torch_bytes_per_gpu",
    "g": "cuda_graph_bytes_per_gpu",
}
_Found = tuple[str, list[Input]]


def _stated_by_engine(of: Subject, quantity: str) -> _Found:
    """Return formula and arguments as the table has them."""
    row = PLAN[quantity]
    inputs = [item for name, letter in row.arguments.items() for item in arguments(of, name, letter)]
    return formula_in(row), inputs


def _of_a_budget(of: Subject, letters: str) -> list[Input]:
    """Return the letters of a budget: of the device, and what is held of it."""
    tight, _ = tightest_card(of.spec)
    launch = plans_of([tight]).launch
    total = float(np.ravel(launch.device_memory_bytes)[0])
    fraction = float(np.ravel(launch.memory_fraction)[0])
    stated = f"gpu_memory_utilization, else that of {of.engine}"
    visible = [
        input_of("M", "memory_bytes", total, "spec", f"capplan hardware {tight.device.name}"),
        of.of_scenario("u", "gpu_memory_utilization_fraction", fraction, stated),
    ]
    held = [of.number(letter, name) for letter, name in _BY_LETTER.items()]
    return [item for item in (*visible, *held) if item.symbol in letters]


def _usable(of: Subject) -> _Found:
    (formula, letters), _ = _BUDGETS[of.spec.profile.memory.budget]
    return formula, _of_a_budget(of, letters)


def _available(of: Subject) -> _Found:
    rules = of.spec.profile.memory
    _, (formula, letters) = _BUDGETS[rules.budget]
    estimate = rules.budgeted_graph_fraction
    tight, _ = tightest_card(of.spec)
    rings = float(np.max(waiting_ring_bytes(of.spec.network, plans_of([tight]).launch, rules)))
    if rings:
        part = input_of("y", "waiting_ring_bytes", rings, "derived", of.engine)
        return f"{formula} - y", [*_of_a_budget(of, letters), part]
    if rules.budget != "utilisation" or not estimate:
        return formula, _of_a_budget(of, letters)
    part = input_of("e", "budgeted_graph_fraction", estimate, "assumed", of.engine)
    return f"{formula} - e g", [*_of_a_budget(of, f"{letters}g"), part]


def _weights(of: Subject) -> _Found:
    formula, inputs = _stated_by_engine(of, "weight_bytes_per_gpu")
    formula = f"{formula}, of the fullest rank, each matrix in bytes of its format, scales included"
    adapters = of.spec.network.adapters
    if adapters is None:
        return formula, inputs
    each = float(np.asarray(adapter_bytes_per_rank(of.spec.network, of.spec.sharding)))
    stated = "scenario: lora.max_loras; unless stated, the default of the engine"
    slots = input_of("s", "max_loras", adapters.slots, "config", stated)
    one = input_of("x", "adapter_bytes", each, "derived", "capplan fit")
    return f"{formula}, and s x of adapters", [*inputs, slots, one]


def _graphs(of: Subject) -> _Found:
    formula, inputs = _stated_by_engine(of, "cuda_graph_bytes_per_gpu")
    if any(layer.experts for layer in of.spec.network.layers):
        logged = f"{MEMORY}: logged starts of {of.engine}; of a captured size"
        experts = of.spec.profile.memory.graph_expert_bytes
        formula = f"{formula} + x n"
        inputs = [*inputs, input_of("x", "graph_expert_bytes", experts, "measured", logged)]
    most = of.spec.profile.most_graph_sequences
    if most is None:
        return f"{formula}, n sizes captured for s sequences", inputs
    inputs = [*inputs, of.of_scenario("c", "cuda_graphs", most, "cuda_graphs")]
    return f"{formula}, n sizes captured for s sequences, at most c; nothing if c is 0", inputs


def _of_an_encoder(formula: str, letters: Mapping[str, str], of: Subject) -> _Found | None:
    """Return the explanation of what holds for encoders, which cache nothing; None for other models, which the table explains."""
    if not of.spec.network.bidirectional:
        return None
    return formula, [item for name, letter in letters.items() for item in arguments(of, name, letter)]


RULES: Mapping[str, Callable[[Subject], _Found | None]] = {
    "usable_bytes_per_gpu": _usable,
    "weight_bytes_per_gpu": _weights,
    "cuda_graph_bytes_per_gpu": _graphs,
    "kv_bytes_available_per_gpu": _available,
    "max_concurrency": partial(_of_an_encoder, "s, as an encoder caches nothing", {"max_num_seqs": "s"}),
    "kv_cache_tokens": partial(
        _of_an_encoder, "s n: an encoder caches nothing, so all sequences have room", {"max_num_seqs": "s", "max_model_len": "n"}
    ),
}  # fmt: skip
"""Figure of memory -> its formula and inputs by the rules of the engine."""


def by_the_engine(of: Subject, quantity: str) -> Explained | None:
    """Explain a figure of memory by the rules of the engine; None for one that the table explains."""
    found = RULES[quantity](of)
    return None if found is None else explained(quantity, of.numbers[quantity], *found, MEMORY)


BOUNDS = {"low": "low_ratio", "high": "high_ratio"}


def latency(of: Subject, path: str) -> Explained:
    """Explain a statistic of a latency: that of a simulation, whose steps are sums of operators; or an end of the interval around the mean."""
    metric, _, statistic = path.partition(".")
    if statistic in BOUNDS:
        return end_of_interval(of, metric, statistic)
    value = float(getattr(getattr(of.facts.latencies, metric), statistic))
    found = tabled(of, path)
    inputs, steps = found.inputs, tuple(operators(of))
    label = of.plan.single.label
    return explained(
        path, value, f"{in_words(statistic)} {found.formula}", inputs, found.page, label=label, steps=steps
    )


def operators(of: Subject) -> Iterator[Explained]:
    """Yield the operators of one prefill and one decode step at the mean load, slowest first."""
    profile = of.spec.profile
    captured = prefill_graph_tokens(of.spec)
    outside = f"over {captured:g} tokens" if graph_sequences(of.spec) else "any size"
    for row in sorted(of.facts.operators, key=lambda row: -row.seconds):
        inputs = (
            input_of("F", "flop", row.flop, "derived", "config.json of the model, at the mean load"),
            input_of("Q", "moved_bytes", row.bytes, "derived", "config.json of the model, at the mean load"),
        )
        of_host = {
            "host": f"per step and per sequence, fitted for {profile.engine} {profile.version}",
            FRONT_END: f"per request and per token of its prompt, fitted for {profile.engine} {profile.version}",
            LAUNCHES: f"launches of the kernels of a step of {outside}, one by one, less the time that they run",
        }
        formula = of_host.get(row.operator, f"t(F, Q), bound by {row.bound}: {of.kernels}")
        yield explained(
            f"{row.phase}.{row.operator}_s", row.seconds, formula, inputs, KERNELS, label=of.plan.single.label
        )


def end_of_interval(of: Subject, metric: str, end: str) -> Explained:
    """Explain an end of the interval around a mean; that of the E2E latency is the sum of its parts."""
    if metric == "e2e_s":
        return end_of_whole(of, end)
    interval = of.facts.interval(metric.removesuffix("_s"))
    name, source = BOUNDS[end], f"measured over predicted, {interval.rests_on}"
    ratio = Stated(float(getattr(interval, name)), source, name=name)
    found, mean = tabled(of, f"{metric}.{end}", given={"interval": ratio}), latency(of, f"{metric}.mean")
    return explained(
        found.quantity, mean.value * ratio.value, found.formula, found.inputs, found.page, steps=(mean,)
    )


def end_of_whole(of: PlanSubject, end: str) -> Explained:
    """Explain an end of the interval of the mean E2E latency, by that of its parts where they are known."""
    path, numbers = f"e2e_s.{end}", of.numbers
    first, token = (numbers.get(f"{part}.{end}") for part in ("ttft_s", "tpot_s"))
    if first is not None and token is not None:
        return tabled(of, path)
    if first is not None and numbers.get("tpot_s.mean") is None:  # no token comes after the first
        only = of.number("t", f"ttft_s.{end}", of.label)
        return explained(path, float(numbers[path]), "t", (only,), ACCURACY, label=of.label)
    mean = of.number("m", "e2e_s.mean", of.label)
    formula = "mean times an end of the 80% interval of measured over predicted, and no less than its parts that are known"
    return explained(path, float(numbers[path]), formula, (mean,), ACCURACY, label=of.label)


def probability(of: Subject, quantity: str) -> Explained:
    """Explain the probability that one target, or all together, hold."""
    key = quantity.partition(".")[2]
    value = of.plan.target_probabilities[key] if key else of.plan.slo_met_probability
    slowest, measured = [], []
    for name, targets in by_latency(target for target in of.facts.limits if key in ("", target.key)).items():
        limits = {target: of.facts.limits[target] for target in targets}
        slowest.append(Stated(of.facts.slowest(limits), label=of.plan.single.label))
        slowness = of.facts.slowness_of(targets[0]) if key else of.facts.slowness.by_latency[name]
        source = f"{ARGUMENTS['slowness'].source}, by {name.upper()}: {slowness.rests_on}"
        measured.append(Stated(None, source))
    given: dict[str, Stated | list[Stated]] = {
        "slowest_ratio": slowest,
        "slowness": measured,
        "slowness_correlation": Stated(of.facts.slowness.correlation),
    }
    row = PLAN["target_probabilities.*"] if len(slowest) == 1 else None
    found = tabled(of, quantity, given=given, row=row)
    inputs = [*(item for item in found.inputs if item.symbol), *of.limits(key)]
    return explained(quantity, value, found.formula, inputs, found.page)
