"""What the table of quantities leaves to the engine, explained: how it divides a device, what its graphs take, what an encoder caches."""

from collections.abc import Callable, Mapping

import numpy as np

from capplan.explain.record import Explained, Input, explained, input_of
from capplan.explain.subject import Subject
from capplan.explain.table import arguments, formula_in
from capplan.model.adapters import adapter_bytes_per_rank
from capplan.replica.plans import plans_of
from capplan.report.quantities import MEMORY, PLAN

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


def _stated(of: Subject, quantity: str) -> _Found:
    """Return formula and arguments as the table has them."""
    row = PLAN[quantity]
    inputs = [item for name, letter in row.arguments.items() for item in arguments(of, name, letter)]
    return formula_in(row), inputs


def _of_a_budget(of: Subject, letters: str) -> list[Input]:
    """Return the letters of a budget: of the device, and what is held of it."""
    launch = plans_of([of.spec]).launch
    total = float(np.ravel(launch.device_memory_bytes)[0])
    fraction = float(np.ravel(launch.memory_fraction)[0])
    stated = f"gpu_memory_utilization, else that of {of.engine}"
    visible = [
        input_of("M", "memory_bytes", total, "spec", f"capplan hardware {of.spec.device.name}"),
        of.of_scenario("u", "gpu_memory_utilization_fraction", fraction, stated),
    ]
    held = [
        input_of(letter, name, of.numbers[name], "derived", f"explain {name}")
        for letter, name in _BY_LETTER.items()
    ]
    return [item for item in (*visible, *held) if item.symbol in letters]


def _usable(of: Subject) -> _Found:
    (formula, letters), _ = _BUDGETS[of.spec.profile.memory.budget]
    return formula, _of_a_budget(of, letters)


def _available(of: Subject) -> _Found:
    rules = of.spec.profile.memory
    _, (formula, letters) = _BUDGETS[rules.budget]
    estimate = rules.budgeted_graph_fraction
    if rules.budget != "utilisation" or not estimate:
        return formula, _of_a_budget(of, letters)
    part = input_of("e", "budgeted_graph_fraction", estimate, "assumed", of.engine)
    return f"{formula} - e g", [*_of_a_budget(of, f"{letters}g"), part]


def _weights(of: Subject) -> _Found:
    formula, inputs = _stated(of, "weight_bytes_per_gpu")
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
    formula, inputs = _stated(of, "cuda_graph_bytes_per_gpu")
    if any(layer.experts for layer in of.spec.network.layers):
        logged = f"{MEMORY}: logged starts of {of.engine}; of a captured size"
        experts = of.spec.profile.memory.graph_expert_bytes
        formula = f"{formula} + x n"
        inputs = [*inputs, input_of("x", "graph_expert_bytes", experts, "measured", logged)]
    return f"{formula}, n sizes captured for s sequences", inputs


def _of_an_encoder(formula: str, letters: Mapping[str, str]) -> Callable[[Subject], _Found | None]:
    """Return the explanation of what holds for encoders, which cache nothing; None for other models, which the table explains."""

    def found(of: Subject) -> _Found | None:
        if not of.spec.network.bidirectional:
            return None
        return formula, [item for name, letter in letters.items() for item in arguments(of, name, letter)]

    return found


RULES: Mapping[str, Callable[[Subject], _Found | None]] = {
    "usable_bytes_per_gpu": _usable,
    "weight_bytes_per_gpu": _weights,
    "cuda_graph_bytes_per_gpu": _graphs,
    "kv_bytes_available_per_gpu": _available,
    "max_concurrency": _of_an_encoder("s, as an encoder caches nothing", {"max_num_seqs": "s"}),
    "kv_cache_tokens": _of_an_encoder(
        "s n: an encoder caches nothing, so all sequences have room", {"max_num_seqs": "s", "max_model_len": "n"}
    ),
}  # fmt: skip
"""Figure of memory -> its formula and inputs by the rules of the engine."""


def by_the_engine(of: Subject, quantity: str) -> Explained | None:
    """Explain a figure of memory by the rules of the engine; None for one that the table explains."""
    found = RULES[quantity](of)
    return None if found is None else explained(quantity, of.numbers[quantity], *found, MEMORY)
