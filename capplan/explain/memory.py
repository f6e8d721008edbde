"""Explanations of memory: what the fullest device of a replica holds, what is left for the cache, and what a sequence takes of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from capplan.explain.record import Explained, Input, explained, formula_of, input_of, is_written
from capplan.explain.subject import MEMORY, Subject
from capplan.memory.activations import graph_bytes
from capplan.memory.capacity import reserved_bytes_per_sequence
from capplan.memory.plan import MemoryPlan
from capplan.memory.rank import rank_activation_bytes
from capplan.model.adapters import adapter_bytes_per_rank
from capplan.model.kv_cache import kv_bytes_per_token, state_bytes_per_sequence
from capplan.model.parameters import parameters, weight_bytes_by_class
from capplan.model.sharding import weight_bytes_per_rank
from capplan.model.weight_format import kv_bytes_per_element
from capplan.replica.plans import plans_of
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


@dataclass(frozen=True, slots=True)
class _Memory:
    """The replica of a plan and the memory of its fullest device."""

    of: Subject
    spec: ReplicaSpec
    plan: MemoryPlan

    @property
    def engine(self) -> str:
        return f"{self.spec.profile.engine} {self.spec.profile.version}"

    def held(self, symbol: str, quantity: str) -> Input:
        """Return a figure that is explained on its own."""
        return input_of(
            symbol, quantity, getattr(self.plan, HELD[quantity]), "derived", f"explain {quantity}"
        )


def _memory(of: Subject) -> _Memory:
    return _Memory(of, of.trial.replica.spec, of.memory)


def memory_figures(of: Subject) -> dict[str, float]:
    """Return the memory of the fullest device of a plan by the names of `fit` and `kv-size`, at the longest context that it serves."""
    memory = _memory(of)
    figures = {name: float(getattr(memory.plan, figure)) for name, figure in HELD.items()}
    return figures | {
        "kv_bytes_per_token": _growth(memory.spec),
        "state_bytes_per_sequence": _states(memory.spec),
    }


def _growth(spec: ReplicaSpec) -> float:
    """Return the bytes by which one sequence grows the caches of all devices together, each part counted once."""
    element = kv_bytes_per_element(spec.kv_format)
    return float(np.asarray(kv_bytes_per_token(spec.network, float(served_context_tokens(spec)), element)))


def _states(spec: ReplicaSpec) -> float:
    return float(np.asarray(state_bytes_per_sequence(spec.network)))


def memory_figure(of: Subject, quantity: str) -> Explained:
    """Explain a figure of the memory of a plan."""
    memory = _memory(of)
    formula, inputs = EXPLAINED[quantity](memory)
    return explained(quantity, memory_figures(of)[quantity], formula, inputs, MEMORY)


def _visible(memory: _Memory) -> list[Input]:
    launch = plans_of([memory.spec]).launch
    total = float(np.ravel(launch.device_memory_bytes)[0])
    fraction = float(np.ravel(launch.memory_fraction)[0])
    key = f"gpu_memory_utilization, else that of {memory.engine}"
    return [
        input_of("M", "memory_bytes", total, "spec", f"capplan hardware {memory.spec.device.name}"),
        memory.of.of_scenario("u", "gpu_memory_utilization_fraction", fraction, key),
    ]


def _inputs(memory: _Memory, letters: str) -> list[Input]:
    """Return the letters of a budget: of the device, and what is held of it."""
    visible = [each for each in _visible(memory) if each.symbol in letters]
    held = [memory.held(letter, name) for letter, name in _BY_LETTER.items() if letter in letters]
    return [*visible, *held]


def _usable(memory: _Memory) -> tuple[str, list[Input]]:
    (formula, letters), _ = _BUDGETS[memory.spec.profile.memory.budget]
    return formula, _inputs(memory, letters)


def _available(memory: _Memory) -> tuple[str, list[Input]]:
    rules = memory.spec.profile.memory
    _, (formula, letters) = _BUDGETS[rules.budget]
    estimate = rules.budgeted_graph_fraction
    if rules.budget != "utilisation" or not estimate:
        return formula, _inputs(memory, letters)
    part = input_of("e", "budgeted_graph_fraction", estimate, "assumed", memory.engine)
    return f"{formula} - e g", [*_inputs(memory, f"{letters}g"), part]


def _degrees(memory: _Memory) -> list[Input]:
    names = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel")
    row = {name: getattr(memory.of.plan.single.layout.sharding, name.partition("_")[0]) for name in names}
    return [
        input_of("", name, float(value), "derived", f"explain {name}")
        for name, value in row.items()
        if value != 1
    ]


def _weights(memory: _Memory) -> tuple[str, list[Input]]:
    network = memory.spec.network
    inputs = [
        input_of(
            "", "parameters", parameters(network), "config", f"capplan model {memory.of.asked.scenario.model}"
        ),
        input_of(
            "",
            "weight_bytes",
            sum(weight_bytes_by_class(network).values()),
            "config",
            _format_source(memory, "weight_dtype"),
        ),
        *_degrees(memory),
    ]
    formula = f"{formula_of(weight_bytes_per_rank)}, of the fullest rank, each matrix in bytes of its format, scales included"
    if network.adapters is None:
        return formula, inputs
    each = float(np.asarray(adapter_bytes_per_rank(network, memory.spec.sharding)))
    slots = input_of(
        "s",
        "max_loras",
        network.adapters.slots,
        "config",
        "scenario: lora.max_loras; unless stated, the default of the engine",
    )
    return f"{formula}, and s x of adapters", [
        *inputs,
        slots,
        input_of("x", "adapter_bytes", each, "derived", "capplan fit"),
    ]


def _format_source(memory: _Memory, key: str) -> str:
    """Return where the format of weights or cache is stated: a key of the scenario, else the configuration of the model."""
    written = memory.of.asked.scenario.written
    stated = next((path for path in (key, f"fleet.{key}s") if is_written(path, written)), "")
    return f"scenario: {stated}" if stated else f"config.json of {memory.spec.network.name}"


def _step_limits(memory: _Memory) -> list[Input]:
    scheduling = memory.of.trial.replica.scheduling
    return [
        input_of("t", "max_num_batched_tokens", scheduling.max_num_batched_tokens, "config", f"scenario: max_num_batched_tokens; unless stated, the default of {memory.engine}"),
        input_of("s", "max_num_seqs", scheduling.max_num_seqs, "config", f"scenario: max_num_seqs; unless stated, the default of {memory.engine}"),
    ]  # fmt: skip


def _activations(memory: _Memory) -> tuple[str, list[Input]]:
    vocabulary = memory.spec.network.vocabulary_size
    words = input_of(
        "v", "vocabulary_size", vocabulary, "config", f"config.json of {memory.spec.network.name}"
    )
    return formula_of(rank_activation_bytes), [*_step_limits(memory), words]


def _runtime(memory: _Memory) -> tuple[str, list[Input]]:
    rules, logged = memory.spec.profile.memory, f"{MEMORY}: logged starts of {memory.engine}"
    return "h, and c more where ranks share fast links", [
        input_of("h", "non_torch_bytes", rules.non_torch_bytes, "measured", logged),
        input_of("c", "collective_bytes", rules.collective_bytes, "measured", logged),
        *_degrees(memory),
    ]


def _graphs(memory: _Memory) -> tuple[str, list[Input]]:
    rules, logged = memory.spec.profile.memory, f"{MEMORY}: logged starts of {memory.engine}"
    base = input_of("g_0", "graph_base_bytes", rules.graph_base_bytes, "measured", logged)
    each = input_of(
        "g",
        "graph_bytes",
        rules.graph_bytes_per_layer,
        "measured",
        f"{logged}; of a layer and a captured size",
    )
    per_size = input_of(
        "x", "graph_expert_bytes", rules.graph_expert_bytes, "measured", f"{logged}; of a captured size"
    )
    experts = [per_size] if any(layer.experts for layer in memory.spec.network.layers) else []
    formula = formula_of(graph_bytes) + (" + x n" if experts else "")
    return f"{formula}, n sizes captured for s sequences", [
        base,
        each,
        *experts,
        _layers(memory),
        _step_limits(memory)[1],
    ]


def _context(memory: _Memory) -> Input:
    tokens = served_context_tokens(memory.spec)
    return memory.of.of_scenario(
        "n", "max_model_len", tokens, "max_model_len; unless stated, room for the longest requests"
    )


def _cache_format(memory: _Memory) -> Input:
    element = kv_bytes_per_element(memory.spec.kv_format)
    return input_of("b", "kv_bytes_per_element", element, "config", _format_source(memory, "kv_dtype"))


def _layers(memory: _Memory) -> Input:
    network = memory.spec.network
    return input_of(
        "",
        "layers",
        len(network.layers),
        "config",
        f"capplan model {memory.of.asked.scenario.model}: its mixers",
    )


def _growths(memory: _Memory) -> tuple[str, list[Input]]:
    return formula_of(kv_bytes_per_token), [_cache_format(memory), _context(memory), _layers(memory)]


def _reserved(memory: _Memory) -> tuple[str, list[Input]]:
    growth = input_of(
        "g", "kv_bytes_per_token", _growth(memory.spec), "derived", "explain kv_bytes_per_token"
    )
    block = memory.of.trial.replica.scheduling.block_tokens
    blocks = input_of("k", "block_tokens", block, "assumed", memory.engine)
    return formula_of(reserved_bytes_per_sequence), [_context(memory), growth, blocks, *_degrees(memory)]


def _running(memory: _Memory) -> Input:
    """Return the sequences that a replica runs at once, which is all that limits an encoder."""
    most = memory.of.trial.replica.scheduling.max_num_seqs
    return input_of(
        "s",
        "max_num_seqs",
        most,
        "config",
        f"scenario: max_num_seqs; unless stated, the default of {memory.engine}",
    )


def _concurrency(memory: _Memory) -> tuple[str, list[Input]]:
    if memory.spec.network.bidirectional:
        return "s, as an encoder caches nothing", [_running(memory)]
    return "A / q, in whole blocks", [
        memory.held("A", "kv_bytes_available_per_gpu"),
        memory.held("q", "reserved_bytes_per_sequence"),
    ]


EXPLAINED: Mapping[str, Callable[[_Memory], tuple[str, list[Input]]]] = {
    "usable_bytes_per_gpu": _usable,
    "weight_bytes_per_gpu": _weights,
    "activation_bytes_per_gpu": _activations,
    "non_torch_bytes_per_gpu": _runtime,
    "cuda_graph_bytes_per_gpu": _graphs,
    "kv_bytes_available_per_gpu": _available,
    "reserved_bytes_per_sequence": _reserved,
    "max_concurrency": _concurrency,
    "kv_bytes_per_token": _growths,
    "state_bytes_per_sequence": lambda memory: (formula_of(state_bytes_per_sequence), [_layers(memory)]),
}


def cache_tokens(of: Subject) -> Explained:
    """Explain the tokens that the cache of a replica holds."""
    memory = _memory(of)
    if memory.spec.network.bidirectional:
        formula, held = (
            "s n: an encoder caches nothing, so all sequences have room",
            (_running(memory), _context(memory)),
        )
        return explained("kv_cache_tokens", of.trial.candidate.kv_cache_tokens, formula, held, MEMORY)
    inputs = (
        memory.held("A", "kv_bytes_available_per_gpu"),
        input_of("g", "kv_bytes_per_token", _growth(memory.spec), "derived", "explain kv_bytes_per_token"),
        input_of("k", "block_tokens", of.trial.replica.scheduling.block_tokens, "assumed", memory.engine),
        *_degrees(memory),
    )
    formula = "A / bytes of a token on one device, in blocks of k, filled with sequences of the usual length, times the groups"
    steps = [memory_figure(of, name) for name in ("kv_bytes_available_per_gpu", "kv_bytes_per_token")]
    return explained(
        "kv_cache_tokens", of.trial.candidate.kv_cache_tokens, formula, inputs, MEMORY, steps=steps
    )
