"""Fit the host times of all engines together: robust least squares on logarithmic errors, linearised and repeated.

    min  sum_i w_i rho((e_i + J_i d) / n_i) + sum_k ((x_k + d_k - p_k) / s_k)^2 P

e_i are the logarithmic errors of the values that steer the fit at numbers x, J_i how they move with each number, d the
step, n_i what values of that kind are usually off by, p a prior (the median of all eras whose hosts run the same kind of code), s its
spread, rho the Cauchy loss: a row that is wrong for another reason must not steer the host. Some numbers are those of several
eras (`owner_of`), and no model of an era weighs more than a certain number of rows, so that none decides for the others.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from typing import TypeAlias

import numpy as np
from scipy.optimize import lsq_linear

from calibrate.host_rows import FIRST_GENERATION, Era, Item, era_of, predicted_columns, steering_columns
from capplan.accuracy.replay import requests_of
from capplan.accuracy.score import weighted_quantile
from capplan.accuracy.serving import LOADS, measured_columns
from capplan.engine.profile import HostOverhead
from capplan.numbers import Array
from capplan.replica.spec import ReplicaSpec


@dataclass(frozen=True, slots=True)
class Number:
    """One fitted number: where the search starts, its range, and the step of a difference quotient."""

    name: str
    start: float
    spread: float
    largest: float
    step: float


NUMBERS = (
    Number("step_s", 1e-3, 1.5e-3, 2e-2, 2e-4),
    Number("sequence_s", 3e-6, 2e-5, 4e-4, 2e-6),
    Number("stream_s", 0.0, 1e-4, 1e-3, 1e-5),
    Number("request_s", 2e-2, 3e-2, 4e-1, 5e-3),
    Number("prompt_token_s", 1.6e-6, 1e-6, 1e-5, 2e-7),
    Number("decode_excess_ratio", 0.7, 0.1, 1.5, 0.1),
    Number("prefill_excess_ratio", 1.2, 0.4, 2.2, 0.1),
    Number("context_token_s", 0.0, 4e-9, 5e-8, 1e-9),
    Number("ranks_s", 0.0, 5e-4, 5e-3, 1e-4),
    Number("eager_latent_s", 8e-4, 4e-4, 3e-3, 1e-4),
)
"""None is below 0. The spread of `decode_excess_ratio` is what it moves by when whole models or sources are left out (0.63 to 0.75).
`prompt_token_s` starts from llm-d's page: 82 ms for 50,000 tokens; `eager_latent_s`, of SGLang alone, from vLLM's."""

EVERY: Era = ("every engine", "")
FIRST: Era = ("engines of the first generation", "")
FIRST_PYTHON: Era = ("engines of the first generation whose ranks run Python between steps", "")
TODAY: Era = ("engines of today", "")
SECOND_VLLM = (("vllm", "0.8.0"), ("vllm", "0.11.1"), ("vllm", "0.19.0"))
"""Eras of vLLM's second engine."""
FIRST_VLLM = (("vllm", "0.5.0"), ("vllm", "0.7.0"))
"""Eras of vLLM's first engine."""
PYTHON_ENGINES = (*SECOND_VLLM, ("sglang", "0.4.0"))
"""Eras whose requests pass an HTTP server in Python and a tokenising process before the engine, and come back through one."""
FRONT_ENDS = (*PYTHON_ENGINES, ("trtllm", "0.20.0"), ("trtllm", "1.0.9"))
"""Eras whose server reads and tokenises prompts in Python: `trtllm-serve` does, too, in the process of its HTTP server."""
OWNERS: Mapping[str, Mapping[Era, Era]] = {
    "step_s": dict.fromkeys(FIRST_VLLM, FIRST_VLLM[0]),
    "context_token_s": dict.fromkeys(FIRST_VLLM, FIRST_VLLM[0]),
    "request_s": dict.fromkeys(PYTHON_ENGINES, SECOND_VLLM[0]),
    "prompt_token_s": dict.fromkeys(FRONT_ENDS, SECOND_VLLM[0]),
    "prefill_excess_ratio": dict.fromkeys(SECOND_VLLM[1:], SECOND_VLLM[1]),
}
"""Number -> eras that take it from another one: vLLM's first engine has one loop and copies the same lists, front ends are alike, and vLLM has one way to
run prompts since 0.11.1. With a step of its own each era had one that a single source told: 1.2 to 2.5 ms by what was left out. With a front end of its own
SGLang's was fitted to 39 ms, and models of 45 to 62 layers without latents were 23 to 37 % too slow to begin."""
SHARED_WIDELY = frozenset(
    {"decode_excess_ratio", "ranks_s", "context_token_s", "prompt_token_s", "eager_latent_s"}
)
"""Numbers without siblings: the start of the search is their prior."""
AHEAD_STEP_S = 3.4e-4
"""Where the search for `step_s` starts of engines that plan a step while the last one runs: what decode steps of Qwen3-0.6B, whose kernels take
least, last beyond them, of 1 to 32 sequences under vLLM 0.20.2 (median; calibrate/live/results/h100)."""
FIRST_SEQUENCE_S: Mapping[Era, float] = {("vllm", "0.5.0"): 3.8e-5, ("vllm", "0.7.0"): 2.5e-5}
"""Where the search for `sequence_s` starts of vLLM's first engine, whose Python handles each sequence between steps. Its own code, 0.6.3, was run
without a model or a GPU on a core of Zen 4 (CPU time, steps of 16 and 64 sequences at a temperature of 1): scheduling takes 10 us a sequence,
the inputs of the model 10, the sampler's lists 5, and outputs with their text 13, which newer versions handle while the next step runs."""
COPYING = frozenset({("vllm", "0.5.0"), ("vllm", "0.7.0"), ("trtllm", "0.12.0")})
"""Eras whose Python copies lists of blocks and tokens of every context between steps."""
CONTEXT_TOKEN_S = 4e-9
"""Where the search for `context_token_s` starts: the lists of vLLM 0.5.4 (block numbers, their row of the block tables, the tokens so far) of 16 and
64 contexts of 192 and 3,072 tokens, copied alone on a core of Zen 4 (2.1, 0.7 and 1.4 ns a token, the last of outputs only)."""
RANKS_S = 4e-4
"""Where the search for `ranks_s` starts where Python runs between steps. The first rank of vLLM's first engine sends the others a description of each step, pickled, and nine tensors,
one by one (`broadcast_tensor_dict`, vllm/distributed/parallel_state.py of 0.5.4), at 30 us for each and 0.1 ms for the rest (an assumption)."""
COMPILED = frozenset({("trtllm", "0.7.0"), ("trtllm", "0.11.0"), ("trtllm", "0.12.0"), ("trtllm", "0.14.0")})
"""Eras of compiled engines, whose steps C++ starts. The example script of 0.12 handles their sequences in Python, as vLLM's first engine does."""

ONLINE_ONLY = frozenset({"request_s", "prompt_token_s", "stream_s"})
"""Numbers that do not apply to a run without a server."""

EAGER_LAYER_S, EAGER_EXPERTS_S, GRAPH_LAYER_S = 4.4e-4, 6.1e-4, 2e-4
"""Launching a layer from Python, what its routed experts add, and a layer under piecewise CUDA graphs: medians of vLLM 0.20.2 on the
host of one H100 (calibrate/live/results/h100). 12.2 ms in 28 layers and 15.9 ms in 36 (dense), 50.4 ms in 48 (routed), 5.8 ms in 28
(captured). Published rows hardly tell them: long prompts take longer than their launches."""

EAGER_SCALED_S, EAGER_LATENT_S = 1e-4, 8e-4
"""What a product of block-scaled fp8 and a layer with latent attention add under vLLM where published runs were made: mean TTFT of Kimi-K2.5 (vLLM
0.15 and 0.16, 28 runs of 900-token prompts) and of MiniMax-M2.5 in fp8 (vLLM 0.17, 20 runs) is 18 to 23 and 19 % too slow with `SLOW_HOST` times as
much. SGLang has none for scaled products, and its layers with latents are fitted: its MLA expands latents by itself, without the passes that vLLM
makes (`forward_mha.py`)."""
SLOW_HOST = 1.72
"""Both on the host of a second H100 (calibrate/live/results/h100), over that: 40.4 ms in 36 layers with four such products (dense), 64.5 ms in
27 layers with latent attention, 26 of them routed. Four products in each of 48 routed layers took 97.5 ms, where these numbers make 83."""

COMPILED_LAYER_S = 2e-5
"""Launching a layer from C++ (TensorRT-LLM's compiled engines): no measured row tells it apart from the rest of a step (an assumption). Its PyTorch
engines launch prompts from Python, layer by layer (`tensorrt_llm/_torch/pyexecutor`), and all routed experts of a layer as one C++ operator."""

LEAST_NOISE = 0.03
"""Least logarithmic error that values of a kind are taken to have: runs repeat themselves no better."""

NORMAL_DEVIATIONS = 1.4826
"""Standard deviation of normal errors over their median size."""

REWEIGHTINGS = 25
"""Most rounds of reweighted least squares, which is how the Cauchy loss is minimised."""

STILL = 1e-4
"""Change of every number, in spreads of its prior, below which no further round is made."""

PRIOR_ROWS = 12.0
"""Weight of rows, off by as much as their kind usually is where a number is off by its spread, that its prior counts as."""

MODEL_ROWS = 100.0
"""Rows that a model of an era weighs as much as at most."""

MOST_REQUESTS = 1000
"""Requests of one run that slopes are taken with; errors are those of the whole run."""

LOST = 1.5
"""Logarithmic error of a value that a replay does not reach."""

Hosts: TypeAlias = Mapping[tuple[Era, str], float]
"""Owner and name of a number -> its value."""


def generation(era: Era) -> Era:
    """Return the generation of an era's engine; of a number that a whole generation shares, itself."""
    return FIRST if era in FIRST_GENERATION or era in {FIRST, FIRST_PYTHON} else TODAY


def stack(era: Era, name: str) -> str:
    """Return what of a host a number of an era depends on: who else runs the same kind of code tells most of one that nobody measured.

    Examples
    --------
    >>> stack(("trtllm", "0.12.0"), "step_s"), stack(("trtllm", "0.12.0"), "sequence_s")
    ('compiled', 'Python between steps')
    """
    if generation(era) == TODAY:
        return "Python ahead of steps"
    if era in COMPILED and (era, name) != (("trtllm", "0.12.0"), "sequence_s"):
        return "compiled"
    return "Python between steps"


def start_of(era: Era, number: Number) -> float:
    """Return where the search for a number of an era starts."""
    if number.name == "step_s" and generation(era) == TODAY:
        return AHEAD_STEP_S
    if number.name == "ranks_s" and era == FIRST_PYTHON:
        return RANKS_S
    if number.name == "context_token_s" and era in COPYING:
        return CONTEXT_TOKEN_S
    return FIRST_SEQUENCE_S.get(era, number.start) if number.name == "sequence_s" else number.start


def owner_of(era: Era, name: str) -> Era:
    """Return the era that a number of another era is taken from.

    What a CUDA graph hides of its kernels is a matter of the device: one number for all engines, which engines of today
    tell. What a step of several ranks takes besides is one number where Python runs between steps (vLLM's first engine, and TensorRT-LLM's example
    script on each rank), and one of all compiled engines.

    Examples
    --------
    >>> owner_of(("vllm", "0.19.0"), "request_s"), owner_of(("vllm", "0.19.0"), "step_s")
    (('vllm', '0.8.0'), ('vllm', '0.19.0'))
    """
    if name == "decode_excess_ratio":
        return EVERY
    if name == "ranks_s":
        return FIRST_PYTHON if stack(era, "sequence_s") == "Python between steps" else FIRST
    return OWNERS.get(name, {}).get(era, era)


def keys_of(eras: Iterable[Era]) -> frozenset[tuple[Era, str]]:
    """Return the numbers that some eras tell; the discount of CUDA graphs is told by engines of today."""
    return frozenset(
        (owner_of(era, number.name), number.name)
        for era in eras
        for number in NUMBERS
        if (number.name != "decode_excess_ratio" or generation(era) == TODAY)
        and (number.name != "prompt_token_s" or era in FRONT_ENDS)
        and (number.name != "eager_latent_s" or era[0] == "sglang")
        and (number.name != "context_token_s" or era in COPYING)
        and (number.name != "ranks_s" or generation(era) == FIRST)
    )


@dataclass(frozen=True, slots=True)
class Slopes:
    """Errors of one row at given numbers, and their slopes."""

    era: Era
    parts: Mapping[str, str]
    """What the row is part of, by ruler."""
    kinds: tuple[str, ...]
    """Load and column of each value that steers the fit."""
    weight: float
    errors: Array
    """log(predicted / measured), shape (values,)."""
    slopes: Array
    """Their change with each number, shape (values, numbers)."""


def start_hosts(eras: Iterable[Era]) -> Hosts:
    """Return the numbers that a search starts from."""
    owners = [(owner_of(era, number.name), number) for era in eras for number in NUMBERS]
    return {(owner, number.name): start_of(owner, number) for owner, number in owners}


def host_of(hosts: Hosts, era: Era) -> HostOverhead:
    """Return the host times of one era."""
    fitted = {number.name: hosts[owner_of(era, number.name), number.name] for number in NUMBERS}
    if generation(era) == TODAY:
        fitted["ranks_s"] = 0.0
    if era not in FRONT_ENDS:
        fitted["prompt_token_s"] = 0.0
    if era not in COPYING:
        fitted["context_token_s"] = 0.0
    if era[0] == "trtllm":
        layer_s = EAGER_LAYER_S if generation(era) == TODAY else COMPILED_LAYER_S
        return HostOverhead.of_named(fitted | {"eager_layer_s": layer_s, "eager_latent_s": 0.0})
    own = {"eager_scaled_s": EAGER_SCALED_S, "eager_latent_s": EAGER_LATENT_S} if era[0] == "vllm" else {}
    eager = {
        "eager_layer_s": EAGER_LAYER_S,
        "eager_experts_s": EAGER_EXPERTS_S,
        "graph_layer_s": GRAPH_LAYER_S,
    }
    return HostOverhead.of_named(eager | fitted | own)


def errors_of(item: Item, host: HostOverhead, most_requests: int | None = None) -> Array:
    """Return the logarithmic errors of the values that steer the fit."""
    columns, measured = predicted_columns(item, host, most_requests), measured_columns(item.row)
    return np.array(
        [
            log(columns[name] / measured[name]) if columns.get(name, 0.0) > 0 else -LOST
            for name in steering_columns(item)
        ]
    )


def fitted_names(spec: ReplicaSpec, era: Era) -> list[str]:
    """Return the numbers that a run determines."""
    untold = set(ONLINE_ONLY) if spec.offline else set()
    if not spec.profile.streams_in_engine:
        untold.add("stream_s")
    if era not in FRONT_ENDS:
        untold.add("prompt_token_s")
    if era[0] != "sglang" or not spec.network.latent_layers:
        untold.add("eager_latent_s")
    if era not in COPYING:
        untold.add("context_token_s")
    if generation(era) == TODAY or spec.ranks == 1:
        untold.add("ranks_s")
    if generation(era) == FIRST:
        untold.add("decode_excess_ratio")
    return [number.name for number in NUMBERS if number.name not in untold]


def slopes_of(item: Item, host: HostOverhead) -> Slopes:
    """Return the errors of a row and their difference quotients."""
    errors = errors_of(item, host)
    shorter = requests_of(item.benchmark) > MOST_REQUESTS
    still = errors_of(item, host, MOST_REQUESTS) if shorter else errors
    told = fitted_names(item.replica.spec, era_of(item))
    slopes = np.zeros((errors.size, len(NUMBERS)))
    for place, number in enumerate(NUMBERS):
        if number.name not in told:
            continue
        at = getattr(host, number.name)
        moved = replace(host, **{number.name: at + number.step})
        slopes[:, place] = (errors_of(item, moved, MOST_REQUESTS) - still) / number.step
    load = LOADS[item.benchmark.kind]
    kinds = tuple(f"{load}/{name}" for name in steering_columns(item))
    return Slopes(era_of(item), item.parts, kinds, item.weight, errors, slopes)


Noise = Mapping[str, float]
"""Kind of value -> its usual logarithmic error."""


def noise_of(rows: Iterable[Slopes]) -> Noise:
    """Return the usual error of values of each kind where the slopes were taken, over all engines.

        n = 1.48 median |e|

    A burst repeats itself to 40 %, a time per token of a closed loop to 2 %: what is off by 10 % says little of a host in
    the one and much in the other.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for kind, error in zip(row.kinds, row.errors, strict=True):
            found.setdefault(kind, []).append((abs(float(error)), row.weight))
    noise = {}
    for kind, entries in found.items():
        errors, weights = np.array(entries).T
        noise[kind] = max(LEAST_NOISE, NORMAL_DEVIATIONS * weighted_quantile(errors, weights, 0.5))
    return noise


def model_weights(rows: Sequence[Slopes]) -> list[float]:
    """Return the weight of each row, so that no model of an era weighs more than a certain number of rows.

        w = w_row min(1, M / W)

    with W the weight of all rows of the model in the era and M `MODEL_ROWS`. A model of few rows is not raised: its rows
    would each speak louder than the rows of others, and the fewest rows are the noisiest.
    """
    whole: dict[tuple[Era, str], float] = defaultdict(float)
    for row in rows:
        whole[row.era, row.parts["model"]] += row.weight
    return [row.weight * min(1.0, MODEL_ROWS / whole[row.era, row.parts["model"]]) for row in rows]


@dataclass(frozen=True, slots=True)
class Equations:
    """The errors of rows and their slopes along every number of every owner."""

    keys: tuple[tuple[Era, str], ...]
    errors: Array
    """Shape (values,)."""
    slopes: Array
    """Shape (values, keys)."""
    weights: Array
    noise: Array


def equations(rows: Sequence[Slopes], noise: Noise) -> Equations:
    """Return the equations of some rows."""
    keys = tuple(
        sorted({(owner_of(row.era, number.name), number.name) for row in rows for number in NUMBERS})
    )
    place = {key: index for index, key in enumerate(keys)}
    count = sum(row.errors.size for row in rows)
    slopes, at = np.zeros((count, len(keys))), 0
    for row in rows:
        columns = [place[owner_of(row.era, number.name), number.name] for number in NUMBERS]
        slopes[at : at + row.errors.size, columns] = row.slopes
        at += row.errors.size
    return Equations(
        keys,
        np.concatenate([row.errors for row in rows]),
        slopes,
        np.repeat(model_weights(rows), [row.errors.size for row in rows]),
        np.array([noise[kind] for row in rows for kind in row.kinds]),
    )


def loss_of(rows: Sequence[Slopes], noise: Noise) -> float:
    """Return the weighted mean of the robust loss where the slopes were taken."""
    own = equations(rows, noise)
    return float((own.weights * np.log1p((own.errors / own.noise) ** 2)).sum() / own.weights.sum())


def _stepped(
    own: Equations, hosts: Hosts, prior: Callable[[tuple[Era, str]], float], trust: float
) -> dict[tuple[Era, str], float]:
    numbers = {number.name: number for number in NUMBERS}
    start = np.array([hosts[key] for key in own.keys])
    spread = np.array([numbers[name].spread for _, name in own.keys])
    largest = np.array([numbers[name].largest for _, name in own.keys])
    known_before = np.array([prior(key) for key in own.keys])
    slopes = own.slopes * spread
    low = np.maximum(-trust, -start / spread)
    bounds = (low, np.maximum(np.minimum(trust, (largest - start) / spread), low + 1e-9))
    towards = PRIOR_ROWS * (known_before - start) / spread
    step = np.zeros(start.size)
    for _ in range(REWEIGHTINGS):
        off = (own.errors + slopes @ step) / own.noise
        weighted = (own.weights / ((1.0 + off**2) * own.noise**2))[:, None] * slopes
        root = np.linalg.cholesky(slopes.T @ weighted + PRIOR_ROWS * np.eye(start.size)).T
        before = step
        step = lsq_linear(root, np.linalg.solve(root.T, towards - weighted.T @ own.errors), bounds).x
        if np.max(np.abs(step - before)) < STILL:
            break
    return {key: float(value) for key, value in zip(own.keys, start + step * spread, strict=True)}


def solved(rows: Sequence[Slopes], hosts: Hosts, noise: Noise, trust: float = inf) -> Hosts:
    """Return the best numbers for the rows, at most `trust` spreads away from where the slopes were taken.

    The prior of a number is its median over the owners whose hosts run the same kind of code (`stack`), as the rows tell it with the start of the
    search for a prior. A number that no row tells is that median.

    Parameters
    ----------
    rows : slopes at `hosts`
    hosts : where the slopes were taken; every number that is wanted
    noise : of each kind of value
    trust : [-]
        in spreads of the prior

    Returns
    -------
    the numbers
    """
    numbers = {number.name: number for number in NUMBERS}

    def start(key: tuple[Era, str]) -> float:
        return start_of(key[0], numbers[key[1]])

    own = equations(rows, noise)
    first = _stepped(own, hosts, start, trust)

    def prior(key: tuple[Era, str]) -> float:
        kind = stack(*key)
        like = [v for (era, name), v in first.items() if name == key[1] and stack(era, name) == kind]
        alone = key[1] in SHARED_WIDELY or (key[1] == "sequence_s" and key[0] in FIRST_SEQUENCE_S)
        return start(key) if alone or not like else float(np.median(like))

    told = _stepped(own, hosts, prior, trust)
    return {key: told.get(key, prior(key)) for key in hosts}
