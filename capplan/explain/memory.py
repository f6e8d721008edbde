"""Explanations of memory: what the fullest device of a replica holds, what is left for the cache, and what a sequence takes of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from capplan.memory.capacity import reserved_bytes_per_sequence
from capplan.memory.plan import MemoryPlan
from capplan.memory.rank import rank_activation_bytes
from capplan.memory.runtime import graph_bytes
from capplan.model.adapters import adapter_bytes_per_rank
from capplan.model.kv_cache import kv_bytes_per_token, state_bytes_per_sequence
from capplan.model.parameters import parameters, weight_bytes_by_class
from capplan.model.rank_weights import weight_bytes_per_rank
from capplan.model.weight_format import kv_bytes_per_element
from capplan.explain.record import Explained, Given, explained, formula_of, given
from capplan.explain.subject import MEMORY, Subject
from capplan.replica.plans import plans_of
from capplan.replica.replica import memory_of
from capplan.replica.spec import ReplicaSpec, served_context_tokens

HELD = {
    "usable_bytes_per_gpu": "usable_bytes",
    "weight_bytes_per_gpu": "weight_bytes",
    "activation_bytes_per_gpu": "activation_bytes",
    "non_torch_bytes_per_gpu": "non_torch_bytes",
    "cuda_graph_bytes_per_gpu": "cuda_graph_bytes",
    "kv_bytes_available_per_gpu": "kv_bytes_available",
    "reserved_bytes_per_sequence": "reserved_bytes_per_sequence",
    "max_concurrency": "max_concurrency",
}
"""Quantity, named as `capplan fit` names it -> the figure of the memory plan."""
_BUDGETS = {
    "utilisation": ("u M", "U - w - a - r"),
    "static_fraction": ("u (M - r)", "U - w"),
    "free_fraction": ("M - r", "u (U - w - a)"),
}
"""How an engine divides a device -> what it may use, and what of it is left for the cache."""


@dataclass(frozen=True, slots=True)
class _Memory:
    """The replica of a plan and the memory of its fullest device."""

    of: Subject
    spec: ReplicaSpec
    plan: MemoryPlan

    @property
    def engine(self) -> str:
        return f"{self.spec.profile.engine} {self.spec.profile.version}"

    def held(self, symbol: str, quantity: str) -> Given:
        """Return a figure that is explained on its own."""
        return given(symbol, quantity, getattr(self.plan, HELD[quantity]), "derived", f"explain {quantity}")


def _memory(of: Subject) -> _Memory:
    spec = of.trial.replica.spec
    return _Memory(of, spec, memory_of(spec))


def memory_figures(of: Subject) -> dict[str, float]:
    """Return the memory of the fullest device of a plan by the names of `fit` and `kv-size`, at the longest context that it serves."""
    found = _memory(of)
    figures = {name: float(getattr(found.plan, figure)) for name, figure in HELD.items()}
    return figures | {
        "kv_bytes_per_token": _growth(found.spec),
        "state_bytes_per_sequence": _states(found.spec),
    }


def _growth(spec: ReplicaSpec) -> float:
    """Return the bytes by which one sequence grows the caches of all devices together, each part counted once."""
    element = kv_bytes_per_element(spec.kv_format)
    return float(np.asarray(kv_bytes_per_token(spec.network, float(served_context_tokens(spec)), element)))


def _states(spec: ReplicaSpec) -> float:
    return float(np.asarray(state_bytes_per_sequence(spec.network)))


def memory_figure(of: Subject, quantity: str) -> Explained:
    """Explain a figure of the memory of a plan."""
    found = _memory(of)
    formula, inputs = EXPLAINED[quantity](found)
    return explained(quantity, memory_figures(of)[quantity], formula, inputs, MEMORY)


def _budget(found: _Memory) -> tuple[str, str]:
    return _BUDGETS[found.spec.profile.memory.budget]


def _visible(found: _Memory) -> list[Given]:
    launch = plans_of([found.spec]).launch
    total = float(np.ravel(launch.device_memory_bytes)[0])
    fraction = float(np.ravel(launch.memory_fraction)[0])
    key = f"gpu_memory_utilization, else that of {found.engine}"
    return [
        given("M", "memory_bytes", total, "spec", f"capplan hardware {found.spec.device.name}"),
        found.of.of_scenario("u", "gpu_memory_utilization_fraction", fraction, key),
    ]


def _usable(found: _Memory) -> tuple[str, list[Given]]:
    formula = _budget(found)[0]
    runtime = [found.held("r", "non_torch_bytes_per_gpu")] if "r" in formula else []
    return formula, [given for given in (*_visible(found), *runtime) if given.symbol in formula]


def _available(found: _Memory) -> tuple[str, list[Given]]:
    formula = _budget(found)[1]
    rules = found.spec.profile.memory
    if rules.budget == "utilisation" and rules.graphs_in_budget:
        formula += " - g"
    held = {
        "U": "usable_bytes_per_gpu",
        "w": "weight_bytes_per_gpu",
        "a": "activation_bytes_per_gpu",
        "r": "non_torch_bytes_per_gpu",
        "g": "cuda_graph_bytes_per_gpu",
    }
    fraction = [each for each in _visible(found) if each.symbol == "u" and "u" in formula]
    return formula, [
        *fraction,
        *(found.held(symbol, name) for symbol, name in held.items() if symbol in formula),
    ]


def _degrees(found: _Memory) -> list[Given]:
    names = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel")
    row = {name: getattr(found.of.plan.layout.sharding, name.partition("_")[0]) for name in names}
    return [
        given("", name, float(value), "derived", f"explain {name}")
        for name, value in row.items()
        if value != 1
    ]


def _weights(found: _Memory) -> tuple[str, list[Given]]:
    network = found.spec.network
    inputs = [
        given(
            "", "parameters", parameters(network), "config", f"capplan model {found.of.asked.scenario.model}"
        ),
        given(
            "",
            "weight_bytes",
            sum(weight_bytes_by_class(network).values()),
            "config",
            "scenario: weight_dtype, else the checkpoint's",
        ),
        *_degrees(found),
    ]
    formula = f"{formula_of(weight_bytes_per_rank)}, of the fullest rank, each matrix in bytes of its format, scales included"
    if network.adapters is None:
        return formula, inputs
    each = float(np.asarray(adapter_bytes_per_rank(network, found.spec.sharding)))
    slots = given("s", "max_loras", network.adapters.slots, "config", "scenario: lora.max_loras")
    return f"{formula}, and s x of adapters", [
        *inputs,
        slots,
        given("x", "adapter_bytes", each, "derived", "capplan fit"),
    ]


def _step_limits(found: _Memory) -> list[Given]:
    scheduling = found.of.trial.replica.scheduling
    return [
        given("t", "max_num_batched_tokens", scheduling.max_num_batched_tokens, "config", f"scenario: max_num_batched_tokens, else that of {found.engine}"),
        given("s", "max_num_seqs", scheduling.max_num_seqs, "config", f"scenario: max_num_seqs, else that of {found.engine}"),
    ]  # fmt: skip


def _activations(found: _Memory) -> tuple[str, list[Given]]:
    vocabulary = found.spec.network.vocabulary_size
    words = given("v", "vocabulary_size", vocabulary, "config", f"config.json of {found.spec.network.name}")
    return formula_of(rank_activation_bytes), [*_step_limits(found), words]


def _runtime(found: _Memory) -> tuple[str, list[Given]]:
    rules, logged = found.spec.profile.memory, f"{MEMORY}: logged starts of {found.engine}"
    return "h, and c more where ranks share fast links", [
        given("h", "non_torch_bytes", rules.non_torch_bytes, "measured", logged),
        given("c", "collective_bytes", rules.collective_bytes, "measured", logged),
        *_degrees(found),
    ]


def _graphs(found: _Memory) -> tuple[str, list[Given]]:
    rules, logged = found.spec.profile.memory, f"{MEMORY}: logged starts of {found.engine}"
    base = given("g_0", "graph_base_bytes", rules.graph_base_bytes, "measured", logged)
    each = given(
        "g",
        "graph_bytes",
        rules.graph_bytes_per_layer,
        "measured",
        f"{logged}; of a layer and a captured size",
    )
    per_size = given(
        "x", "graph_expert_bytes", rules.graph_expert_bytes, "measured", f"{logged}; of a captured size"
    )
    experts = [per_size] if any(layer.experts for layer in found.spec.network.layers) else []
    formula = formula_of(graph_bytes) + (" + x n" if experts else "")
    return f"{formula}, n sizes captured for s sequences", [
        base,
        each,
        *experts,
        _layers(found),
        _step_limits(found)[1],
    ]


def _context(found: _Memory) -> Given:
    tokens = served_context_tokens(found.spec)
    return found.of.of_scenario(
        "n", "max_model_len", tokens, "max_model_len, else room for the longest requests"
    )


def _cache_format(found: _Memory) -> Given:
    element = kv_bytes_per_element(found.spec.kv_format)
    return found.of.of_scenario(
        "b", "kv_bytes_per_element", element, "kv_dtype, else the checkpoint's or that of activations"
    )


def _layers(found: _Memory) -> Given:
    network = found.spec.network
    return given(
        "",
        "layers",
        len(network.layers),
        "config",
        f"capplan model {found.of.asked.scenario.model}: its mixers",
    )


def _growths(found: _Memory) -> tuple[str, list[Given]]:
    return formula_of(kv_bytes_per_token), [_cache_format(found), _context(found), _layers(found)]


def _reserved(found: _Memory) -> tuple[str, list[Given]]:
    growth = given("g", "kv_bytes_per_token", _growth(found.spec), "derived", "explain kv_bytes_per_token")
    block = found.of.trial.replica.scheduling.block_tokens
    blocks = given("k", "block_tokens", block, "config", found.engine)
    return formula_of(reserved_bytes_per_sequence), [_context(found), growth, blocks, *_degrees(found)]


def _running(found: _Memory) -> Given:
    """Return the sequences that a replica runs at once, which is all that limits an encoder."""
    most = found.of.trial.replica.scheduling.max_num_seqs
    return given("s", "max_num_seqs", most, "config", found.engine)


def _concurrency(found: _Memory) -> tuple[str, list[Given]]:
    if found.spec.network.bidirectional:
        return "s, as an encoder caches nothing", [_running(found)]
    return "A / q, in whole blocks", [
        found.held("A", "kv_bytes_available_per_gpu"),
        found.held("q", "reserved_bytes_per_sequence"),
    ]


EXPLAINED: Mapping[str, Callable[[_Memory], tuple[str, list[Given]]]] = {
    "usable_bytes_per_gpu": _usable,
    "weight_bytes_per_gpu": _weights,
    "activation_bytes_per_gpu": _activations,
    "non_torch_bytes_per_gpu": _runtime,
    "cuda_graph_bytes_per_gpu": _graphs,
    "kv_bytes_available_per_gpu": _available,
    "reserved_bytes_per_sequence": _reserved,
    "max_concurrency": _concurrency,
    "kv_bytes_per_token": _growths,
    "state_bytes_per_sequence": lambda found: (formula_of(state_bytes_per_sequence), [_layers(found)]),
}


def cache_tokens(of: Subject) -> Explained:
    """Explain the tokens that the cache of a replica holds."""
    found = _memory(of)
    if found.spec.network.bidirectional:
        formula, held = (
            "s n: an encoder caches nothing, so all sequences have room",
            (_running(found), _context(found)),
        )
        return explained("kv_cache_tokens", of.trial.candidate.kv_cache_tokens, formula, held, MEMORY)
    inputs = (
        found.held("A", "kv_bytes_available_per_gpu"),
        given("g", "kv_bytes_per_token", _growth(found.spec), "derived", "explain kv_bytes_per_token"),
        given("k", "block_tokens", of.trial.replica.scheduling.block_tokens, "config", found.engine),
        *_degrees(found),
    )
    formula = "A / bytes of a token on one device, in blocks of k, filled with sequences of the usual length, times the groups"
    steps = [memory_figure(of, name) for name in ("kv_bytes_available_per_gpu", "kv_bytes_per_token")]
    return explained(
        "kv_cache_tokens", of.trial.candidate.kv_cache_tokens, formula, inputs, MEMORY, steps=steps
    )
