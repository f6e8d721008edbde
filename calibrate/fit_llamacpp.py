"""Fit what llama.cpp's kernels reach of devices, on published speeds of GGUF models.

    python -m calibrate.fit_llamacpp FILE [--score]

FILE is gguf_published.csv. Writes the numbers of hardware_specs/llamacpp/speed.yaml, with --score nothing, and prints errors with whole devices left
out. A fitted number belongs to a family of devices with a backend, to a class of weight formats, to a kind of kernel or to the builds before 2025;
none to a model, a device or a row. Two numbers of layers over several devices follow from runs on one and on several, then two fractions of weights on a host, which rest on the file
as it was: fit twice where its families moved. Rows of one source, device, model and quantisation share their weight: their count to the power 1/2. Of LocalScore,
an old llamafile, only rows of older families and models above 3 GB count, with two factors of their own that do not ship.
"""

import csv
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from capplan.accuracy.bounded import PROBABILITIES
from capplan.engine.lookup import profile
from capplan.errors import CapplanError
from capplan.hardware.device import HOST, Efficiency
from capplan.memory.capacity import stage_shares
from capplan.model.network import Network, layer_counts
from capplan.model.parameters import weight_bytes
from capplan.model.sharding import WHOLE
from capplan.model.weight_format import kv_bytes_per_element
from capplan.numbers import Array
from capplan.operators.llamacpp import (
    ENGINE,
    BlockRates,
    Fractions,
    block_fits,
    rate_class,
    split_prompt_ratio,
)
from capplan.phases.cost import OperatorCost, StepRates
from capplan.phases.step import decode_attention_costs, prefill_attention_costs
from capplan.phases.token_work import head_costs, layer_costs
from capplan.questions.gguf_speeds import is_early, network_of, rate_of, replica_of_run
from capplan.readers.catalogue.efficiency import shipped_efficiency
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.llamacpp import family_of, speed_file
from capplan.readers.text_file import data_folder
from capplan.readers.yaml_file import yaml_text
from capplan.recorded.gguf_speeds import GgufRun, run_of_row
from capplan.replica.plans import step_rates
from capplan.replica.replica import replica_of

CLASSES = ("q8_0", "legacy", "k", "i", "mxfp4")
VECTOR = ("matrix", "experts")
"""Kernels that multiply one row without matrix units."""
KERNELS = ("experts", "attention", "recurrent")
ONE = Fractions(1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Row:
    """A published speed, and what its operators read and compute."""

    run: GgufRun
    source: str
    device: str
    key: tuple[str, str]
    """Family and backend."""
    seconds: float
    """Measured, of a token or of a prompt."""
    classes: tuple[tuple[str, str], ...]
    """Kernel and class of weights of each operator."""
    memory_s: Array
    compute_s: Array
    """At the whole bandwidth and at the whole peak."""
    starts: float
    early: bool
    """Of a build before 2025."""
    largest: float
    """Layers of the device with most of them over all layers; 1 on one device."""
    foreign: bool
    """Of LocalScore, whose llamafile has factors of its own."""


def neutral_rates(network: Network, run: GgufRun, start_s: float) -> StepRates:
    """Return rates at which every operator takes its floor, and a start."""
    every = ("16bit", *CLASSES)
    rates = BlockRates(
        "", ONE, ONE, start_s, dict.fromkeys(every, ONE), dict.fromkeys(every, 1.0), ONE, ONE, ONE
    )
    links = {key: fit for key, fit in shipped_efficiency("h100").fits.items() if key.startswith("link/")}
    efficiency = Efficiency("", links | block_fits(rates))
    rules = replace(profile(ENGINE), ubatch_tokens=float(run.ubatch_tokens))
    return step_rates(network, device(run.hardware), efficiency, profile=rules, kv_format=run.kv_dtype).rates


def costs_of(network: Network, run: GgufRun, rates: StepRates) -> list[tuple[str, str, OperatorCost]]:
    """Return kernel, class of weights and cost of every operator of a token or of a prompt."""
    kv = kv_bytes_per_element(run.kv_dtype)
    decode, most = not run.prompt_tokens, float(run.ubatch_tokens)
    tokens = float(run.parallel if decode else min(run.prompt_tokens, most))
    pieces = 1.0 if decode else run.prompt_tokens / tokens
    found = []
    for layer, count in layer_counts(network):
        formats = {p.name: p.multiplied_in or p.weight_format for p in layer.projections}
        if layer.experts:
            formats["experts"] = layer.experts.weight_format
        for cost in layer_costs(network, layer, tokens, WHOLE, rates, decode=decode):
            kernel = (
                "experts" if cost.operator == "experts" else "matrix" if cost.operator in formats else "pass"
            )
            name = rate_class(formats[cost.operator]) if cost.operator in formats else "16bit"
            found.append((kernel, name, cost.times(count * pieces)))
    context = run.depth_tokens + run.generated_tokens / 2.0
    mixers = (
        decode_attention_costs(network, float(run.parallel), context, WHOLE, kv, rates)
        if decode
        else prefill_attention_costs(
            network, 1.0, float(run.prompt_tokens), float(run.depth_tokens), WHOLE, kv, rates
        )
    )
    for cost in mixers:
        found.append(("attention" if cost.operator == "attention" else "recurrent", "16bit", cost))
    for cost in head_costs(network, float(run.parallel), WHOLE, rates):
        kernel = "matrix" if cost.operator == "lm_head" else "pass"
        name = rate_class(network.lm_head.weight_format) if kernel == "matrix" else "16bit"
        found.append((kernel, name, cost))
    return found


SPARE = ("pascal", "volta", "turing", "turing-gtx", "ampere", "ada", HOST)
"""Families of which rows of LocalScore count: on newer ones its old llamafile runs low."""
LEAST_BYTES = 3e9
"""Weights of rows of LocalScore, except on processors."""
MOST_FULL = 0.9
"""Part of a memory above which weights overflow into that of the host, silently."""


def has_experts(network: Network) -> bool:
    """Return whether a model has routed experts."""
    return any(layer.experts for layer, _ in layer_counts(network))


def as_plain(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row of LocalScore as one of its middle shape: 1,024 tokens of a prompt, 256 generated after as many."""
    prompt = "pp" in row["test"]
    shape = {"prompt_tokens": "1024", "gen_tokens": "0", "depth_tokens": "0"}
    if not prompt:
        shape = {"prompt_tokens": "", "gen_tokens": "256", "depth_tokens": "1024"}
    return {**row, **shape, "tool": "llama-bench", "notes": "", "test": "pp" if prompt else "tg"}


def row_of(row: Mapping[str, str]) -> Row | None:
    """Return a row of the file; None where the run cannot be predicted."""
    foreign = "localscore" in (row.get("tool") or "")
    run = run_of_row(as_plain(row) if foreign else row)
    if isinstance(run, str) or run.host_bytes_per_s is not None:
        return None
    card = device(run.hardware)
    name = family_of(card)
    if name is None or card.cards or "fp32" not in card.peak_flop_per_s:
        return None
    family, network = speed_file().families[name], network_of(run)
    size = weight_bytes(network)
    if size > MOST_FULL * card.memory_bytes * run.devices or (
        foreign and (name not in SPARE or (size < LEAST_BYTES and name != HOST) or has_experts(network))
    ):
        return None
    plain, started = (costs_of(network, run, neutral_rates(network, run, start_s)) for start_s in (0.0, 1.0))
    of_vector = card.peak_flop_per_s["fp32"]
    peak = of_vector * family.matrix_ratio
    return Row(
        run,
        row["source"],
        card.name,
        (family.like or name, run.backend or family.usual),
        (run.parallel if run.kind == "generation" else run.prompt_tokens) / float(row["tok_s"]),
        tuple((kernel, of) for kernel, of, _ in plain),
        np.array([float(cost.moved_bytes) / card.memory_bytes_per_s for *_, cost in plain]),
        np.array(
            [
                float(cost.flop) / (of_vector if kernel in VECTOR and run.kind == "generation" else peak)
                for kernel, _, cost in plain
            ]
        ),
        sum(float(b.seconds) - float(a.seconds) for (*_, a), (*_, b) in zip(plain, started, strict=True)),
        early=is_early(run),
        largest=float(stage_shares(network, np.array([run.devices]))[0][0]),
        foreign=foreign,
    )


Name = tuple[str, Any]
"""A fitted number: memory, compute or start, of a family with a backend, a class of formats, a kernel, or builds and programs."""
MEMORY, COMPUTE, UNPACK, START = "memory", "compute", "vector", "start"
SHARED: tuple[Name, ...] = (
    *((kind, of) for of in (*CLASSES, *KERNELS) for kind in (MEMORY, COMPUTE)),
    *((UNPACK, of) for of in CLASSES),
    (MEMORY, "early"),
    (COMPUTE, "early"),
    (MEMORY, "early attention"),
    (MEMORY, "localscore"),
    (COMPUTE, "localscore"),
)
PRIORS: Mapping[Name, float] = {
    (MEMORY, "i"): 0.8,
    (MEMORY, "experts"): 0.7,
    (COMPUTE, "experts"): 0.4,
    (MEMORY, "attention"): 0.8,
    (COMPUTE, "attention"): 0.3,
    (MEMORY, "recurrent"): 0.5,
    (COMPUTE, "recurrent"): 0.2,
    (MEMORY, "early"): 0.9,
    (COMPUTE, "early"): 0.75,
    (MEMORY, "early attention"): 0.6,
}
"""Where a number lies without any row; others at 1."""
NOISE = 0.1
"""Deviation of a row about its prediction, as a logarithm."""


def names_of(rows: Sequence[Row]) -> list[Name]:
    """Return the numbers that are fitted on some rows."""
    keys = sorted({row.key for row in rows})
    own = [(kind, key) for key in keys for kind in (MEMORY, COMPUTE)]
    backends = sorted({backend for _, backend in keys})
    return [*own, *((kind, backend) for backend in backends for kind in (START, UNPACK)), *SHARED]


def prior_of(name: Name) -> tuple[float, float, float]:
    """Return the logarithm that a number is drawn to, its deviation, and its largest value."""
    kind, of = name
    if kind == START:
        return float(np.log(4e-6)), 1.0, float(np.log(1e-4))
    if kind == UNPACK:
        return float(np.log(0.5 if of in CLASSES else 0.15)), 0.5, 0.5 if of in CLASSES else 0.0
    if isinstance(of, tuple):
        usual = 0.75 if kind == MEMORY else 0.8 if of[1] == "metal" else 0.3
        return float(np.log(usual)), 0.25 if kind == MEMORY else 0.5, 0.0
    most = 0.05 if of in CLASSES and kind == MEMORY else 0.7
    return float(np.log(PRIORS.get(name, 1.0))), 0.3 if of in CLASSES else 0.5, most


class Problem:
    """The operators of all rows in one array, so that a prediction and its slopes are a few sums."""

    def __init__(self, rows: Sequence[Row], names: Sequence[Name]) -> None:
        """Place the factors of every operator."""
        place = {name: at for at, name in enumerate(names)}
        operators = [(row, kernel, of) for row in rows for kernel, of in row.classes]
        self.memory, self.compute = (np.zeros((len(operators), len(names))) for _ in range(2))
        for at, (row, kernel, of) in enumerate(operators):
            factors = [row.key, *([of] if of in CLASSES else []), *([kernel] if kernel in KERNELS else [])]
            factors += ["early"] * row.early + ["localscore"] * row.foreign
            self.memory[at, [place[MEMORY, factor] for factor in factors]] = 1.0
            if kernel in VECTOR and row.run.kind == "generation":
                factors = [row.key[1], *([of] if of in CLASSES else [])]
                self.compute[at, [place[UNPACK, factor] for factor in factors]] = 1.0
            else:
                self.compute[at, [place[COMPUTE, factor] for factor in factors]] = 1.0
            if row.early and kernel == "attention":
                self.memory[at, place[MEMORY, "early attention"]] = 1.0
        self.memory_s = np.concatenate([row.memory_s for row in rows])
        self.compute_s = np.concatenate([row.compute_s for row in rows])
        self.first = np.cumsum([0, *(len(row.classes) for row in rows)])[:-1]
        self.starts = np.array([row.starts for row in rows])
        self.start_at = np.array([place[START, row.key[1]] for row in rows])

    def seconds(self, x: Array) -> tuple[Array, Array]:
        """Return the time of each row, and its slopes by the logarithms of the numbers."""
        fractions = [np.minimum(matrix @ x, 0.0) for matrix in (self.memory, self.compute)]
        read_s, computed_s = self.memory_s / np.exp(fractions[0]), self.compute_s / np.exp(fractions[1])
        reads = read_s >= computed_s
        slopes = np.where(reads[:, None], -read_s[:, None] * self.memory, -computed_s[:, None] * self.compute)
        capped = np.where(reads, self.memory @ x, self.compute @ x) > 0.0
        slopes[capped] = 0.0
        total = np.add.reduceat(np.maximum(read_s, computed_s), self.first)
        by_row = np.add.reduceat(slopes, self.first, axis=0)
        begun = self.starts * np.exp(x[self.start_at])
        by_row[np.arange(begun.size), self.start_at] += begun
        return total + begun, by_row


def shares(rows: Sequence[Row]) -> Array:
    """Return the weight of each row: rows of one source, device, model and quantisation together have the root of their count."""
    groups = [
        (row.source, row.device, row.run.model, row.run.weight_dtype, row.run.kind, row.key) for row in rows
    ]
    counted, own = Counter(groups), [0.5 if row.foreign else 1.0 for row in rows]
    weights: Array = np.array([counted[group] ** -0.5 for group in groups]) * np.array(own)
    return weights


def solved(rows: Sequence[Row], names: Sequence[Name], start: Array | None = None) -> Array:
    """Return the logarithms of the numbers that some rows ask for, searched from the middle of their priors or from others."""
    problem, weight = Problem(rows, names), shares(rows) / NOISE
    measured = np.log([row.seconds for row in rows])
    middle, deviation, most = np.array([prior_of(name) for name in names]).T

    def residuals(x: Array) -> Array:
        return np.concatenate([(np.log(problem.seconds(x)[0]) - measured) * weight, (x - middle) / deviation])

    def slopes(x: Array) -> Array:
        seconds, by_row = problem.seconds(x)
        return np.concatenate([by_row / seconds[:, None] * weight[:, None], np.diag(1.0 / deviation)])

    least = np.where([name[0] == START for name in names], np.log(1e-8), -4.0)
    inside = np.clip(middle if start is None else start, least + 1e-3, most - 1e-3)
    found = least_squares(
        residuals, inside, jac=slopes, bounds=(least, most), loss="soft_l1", max_nfev=60, ftol=1e-5
    )
    return np.asarray(found.x)


def left_out(rows: Sequence[Row], names: Sequence[Name], ruler: str, start: Array) -> Array:
    """Return the prediction of every row by the numbers that the rows of other devices, or sources, ask for.

    A source with a quarter of all rows is not left out: without it there is nothing to know of most families.
    """
    predicted = np.full(len(rows), np.nan)
    counted = Counter(getattr(row, ruler) for row in rows)
    for one in sorted(name for name, count in counted.items() if count < len(rows) / 4):
        here = np.array([getattr(row, ruler) == one for row in rows])
        others = [row for row, mine in zip(rows, here, strict=True) if not mine]
        keys = {row.key for row in others}
        asked = np.array([mine and row.key in keys for row, mine in zip(rows, here, strict=True)])
        if asked.any():
            mine = [row for row, its in zip(rows, asked, strict=True) if its]
            predicted[asked] = Problem(mine, names).seconds(solved(others, names, start))[0]
    return predicted


def score_line(what: str, rows: Sequence[Row], predicted: Array) -> str:
    """Return the median error of speeds, and its percentiles, of some rows."""
    known = np.isfinite(predicted)
    ratio = predicted[known] / np.array([row.seconds for row in rows])[known]
    error = np.abs(1.0 / ratio - 1.0)
    low, high = np.quantile(ratio, [0.1, 0.9])
    return f"{what:40s} {known.sum():4d} rows  median error {np.median(error):6.1%}  predicted over measured time {low:.2f} to {high:.2f}"


def ends_of(ratios: Array, weight: Array, counts: tuple[int, int, int]) -> list[float]:
    """Return measured over predicted time at the quantiles of intervals, then rows, devices and sources."""
    order = np.argsort(ratios)
    reached = (np.cumsum(weight[order]) - 0.5 * weight[order]) / weight.sum()
    ends = np.exp(np.interp(PROBABILITIES, reached, np.log(ratios[order])))
    return [*(round(float(end), 3) for end in ends), *map(float, counts)]


def intervals_of(rows: Sequence[Row], predicted: Array) -> dict[str, list[float]]:
    """Return the intervals of both kinds of speed, of rows whose device was left out."""
    found = {}
    for kind in ("generation", "prompt"):
        here = np.array([row.run.kind == kind and not row.foreign for row in rows]) & np.isfinite(predicted)
        mine = [row for row, its in zip(rows, here, strict=True) if its]
        ratios = np.array([row.seconds for row in mine]) / predicted[here]
        counts = len(mine), len({row.device for row in mine}), len({row.source for row in mine})
        found[kind] = ends_of(ratios, shares(mine) ** 2, counts)
    return found


def coverage_line(
    what: str, rows: Sequence[Row], predicted: Array, intervals: Mapping[str, list[float]]
) -> str:
    """Return how many of some rows lie in their 80% interval."""
    inside = [
        intervals[row.run.kind][LOW_AT] <= row.seconds / seconds <= intervals[row.run.kind][HIGH_AT]
        for row, seconds in zip(rows, predicted, strict=True)
        if np.isfinite(seconds) and not row.foreign
    ]
    return f"{what:40s} {len(inside):4d} rows  {np.mean(inside):6.1%} in the 80% interval"


LOW_AT, HIGH_AT = PROBABILITIES.index(0.1), PROBABILITIES.index(0.9)


class Several:
    """Rows of several devices, whose time on one device the fit of single devices gives."""

    def __init__(self, rows: Sequence[Row], alone_s: Array) -> None:
        """Keep what two numbers are fitted on: the further devices of tokens, and the pieces of prompts."""
        self.alone_s = alone_s
        self.generates = np.array([row.run.kind == "generation" for row in rows], dtype=bool)
        self.further = np.array([row.run.devices - 1.0 for row in rows])
        self.largest = np.array([row.largest for row in rows])
        self.pieces = np.array([max(row.run.prompt_tokens / row.run.ubatch_tokens, 1.0) for row in rows])

    def seconds(self, x: Array) -> Array:
        """Return the time of each row, from the logarithms of the time between devices and of the ratio of stages."""
        ratio = split_prompt_ratio(self.pieces, self.largest, float(np.exp(x[1])))
        return np.where(self.generates, self.alone_s + self.further * np.exp(x[0]), self.alone_s * ratio)


BETWEEN_S = 2e-4
"""Time between two devices from which the search begins."""


def several_solved(rows: Sequence[Row], several: Sequence[Row]) -> Array:
    """Return the logarithms of the two numbers of layers over several devices, from runs that a source published on one device too."""
    alone_s = {_on_one(row): row.seconds for row in rows}
    pairs = [row for row in several if _on_one(row) in alone_s]
    of = Several(pairs, np.array([alone_s[_on_one(row)] for row in pairs]))
    measured, weight = np.log([row.seconds for row in pairs]), shares(pairs) / NOISE
    found = least_squares(
        lambda x: (np.log(of.seconds(x)) - measured) * weight, np.log([BETWEEN_S, 1.1]), loss="soft_l1"
    )
    return np.asarray(found.x)


def _on_one(row: Row) -> tuple[str, str, GgufRun]:
    return row.source, row.device, replace(row.run, devices=1)


def several_left_out(
    rows: Sequence[Row], several: Sequence[Row], names: Sequence[Name], ruler: str, start: Array
) -> Array:
    """Return the prediction of rows of several devices by the rows of other devices, or sources, whether one device or several."""
    predicted = np.full(len(several), np.nan)
    for one in sorted({getattr(row, ruler) for row in several}):
        others, rest = ([row for row in part if getattr(row, ruler) != one] for part in (rows, several))
        known, paired = {row.key for row in others}, {_on_one(row) for row in others}
        asked = np.array([getattr(row, ruler) == one and row.key in known for row in several])
        if asked.any() and any(_on_one(row) in paired for row in rest):
            mine = [row for row, its in zip(several, asked, strict=True) if its]
            alone_s = Problem(mine, names).seconds(solved(others, names, start))[0]
            predicted[asked] = Several(mine, alone_s).seconds(several_solved(others, rest))
    return predicted


@dataclass(frozen=True, slots=True)
class OffloadedRow:
    """A published speed with weights in the memory of a host; the card's part is as the shipped file predicts it."""

    run: GgufRun
    source: str
    device: str
    """The device and its host, as printed."""
    key: str
    """Kind of speed."""
    seconds: float
    card_s: float
    moved_s: float
    """Time of the weights on the host at the whole bandwidth of the host, or of PCIe."""

    def predicted_s(self, fraction: float) -> float:
        """Return the time where a fraction of the bandwidth is reached."""
        return self.card_s + self.moved_s / fraction


def offloaded_row(row: Mapping[str, str]) -> OffloadedRow | None:
    """Return a row with weights on a host; None for others. Twice the bandwidth tells the part of the host from that of the card."""
    run = run_of_row(row)
    if isinstance(run, str) or run.host_bytes_per_s is None:
        return None
    try:
        replica = replica_of_run(run)
    except CapplanError:
        return None
    spec, offload = replica.spec, speed_file().offload
    assert spec.offload is not None
    assert spec.device.pcie_bytes_per_s is not None
    faster = (
        replace(spec, device=replace(spec.device, pcie_bytes_per_s=2.0 * spec.device.pcie_bytes_per_s))
        if run.prompt_tokens
        else replace(spec, offload=replace(spec.offload, bytes_per_s=2.0 * spec.offload.bytes_per_s))
    )
    count = run.prompt_tokens or run.parallel
    slow_s, fast_s = (count / rate_of(run, one) for one in (replica, replica_of(faster)))
    moved_s = 2.0 * (slow_s - fast_s)
    return OffloadedRow(
        run,
        row["source"],
        row["device"],
        run.kind,
        count / float(row["tok_s"]),
        slow_s - moved_s,
        moved_s * (offload.pcie if run.prompt_tokens else offload.host),
    )


def offload_fraction(rows: Sequence[OffloadedRow]) -> float:
    """Return the fraction of the bandwidth that rows of one kind ask for; each device with its host counts as the root of its rows."""
    counted = Counter(row.device for row in rows)
    weight = np.array([counted[row.device] ** -0.5 for row in rows])

    def residuals(x: Array) -> Array:
        ratios = [row.predicted_s(float(np.exp(x[0]))) / row.seconds for row in rows]
        return np.asarray(np.log(ratios) * weight)

    return float(np.exp(least_squares(residuals, [np.log(0.5)], loss="soft_l1", f_scale=NOISE).x[0]))


def offload_left_out(rows: Sequence[OffloadedRow]) -> Array:
    """Return measured over predicted time of rows of one kind, by the fraction that the other devices and hosts ask for."""
    found = [
        row.seconds / row.predicted_s(offload_fraction([one for one in rows if one.device != row.device]))
        for row in rows
    ]
    return np.array(found)


FEWEST_SPARE = 4
"""Rows of LocalScore that a family without any other row needs."""


def is_known(rows: Sequence[Row], key: tuple[str, str]) -> bool:
    """Return whether prompts and generation of a family with a backend were published; else one of its numbers is only a prior."""
    own = [row for row in rows if row.key == key]
    enough = len(own) >= FEWEST_SPARE or not all(row.foreign for row in own)
    return enough and len({row.run.kind for row in own}) == len(("generation", "prompt"))


def write(
    names: Sequence[Name],
    x: Array,
    between: Array,
    fractions: Mapping[str, float],
    processors: Mapping[str, Any],
    rows: Sequence[Row],
    intervals: Mapping[str, list[float]],
) -> None:
    """Write the fitted numbers into the file, whose families stay as they are."""
    value = {name: float(f"{np.exp(log):.4g}") for name, log in zip(names, x, strict=True)}
    counted = Counter(row.key for row in rows)
    file = speed_file()

    def pair(of: Any) -> dict[str, float]:
        return {MEMORY: value[MEMORY, of], COMPUTE: value[COMPUTE, of]}

    families = {}
    for name, family in file.families.items():
        own = {
            backend: {**pair((name, backend)), "rows": counted[name, backend]}
            for of, backend in sorted(counted)
            if of == name and is_known(rows, (name, backend))
        }
        own |= {"cpu": processors["measured"]} if name == HOST else {}
        stated = family.model_dump(exclude={"backends"}, exclude_defaults=True)
        families[name] = {**stated, "backends": own}
    record = {
        "families": families,
        "start_us": file.start_us
        | {of: round(1e6 * value[START, of], 2) for kind, of in names if kind == START},
        "vector": file.vector
        | {of: value[kind, of] for kind, of in names if kind == UNPACK and of not in CLASSES},
        "formats": {"16bit": dict.fromkeys((MEMORY, COMPUTE, UNPACK), 1.0)}
        | {of: {**pair(of), UNPACK: value[UNPACK, of]} for of in CLASSES},
        **{of: pair(of) for of in KERNELS},
        "several": {
            "hand_over_us": round(1e6 * float(np.exp(between[0])), 1),
            "stage_ratio": round(float(np.exp(between[1])), 3),
        },
        "offload": dict(fractions),
        "processors": processors["processors"],
        "early": {**pair("early"), "decode_attention": value[MEMORY, "early attention"]},
        "intervals": {**file.intervals, **intervals},
    }
    path = data_folder("hardware_specs") / "llamacpp" / "speed.yaml"
    path.write_text(HEAD + yaml_text(record, short=True, width=150), encoding="utf-8")


HEAD = """# Fractions of bandwidth and peak that llama.cpp reaches, by family of devices and backend; written by python -m calibrate.fit_llamacpp.
# Families are chosen by hand, and so are matrix ratios: int8 or fp16 operations of the matrix units for one in fp32.
# Apple states over four times the GPU compute of an M4 for the M5, whose cores have matrix units: https://the-decoder.com/apples-m5-chip-brings-faster-ai-to-macbook-ipad-and-vision-pro/
"""


def offload_answer(rows: Sequence[OffloadedRow]) -> tuple[dict[str, float], list[float]]:
    """Return both fractions of offloaded weights and their interval; print what they show of a device and host that are left out."""
    fractions, left_out_ratios, counted = {}, [], Counter(row.device for row in rows)
    for kind, name in (("generation", "host"), ("prompt", "pcie")):
        mine = [row for row in rows if row.key == kind]
        fractions[name] = round(offload_fraction(mine), 3)
        own = [row.predicted_s(fractions[name]) / row.seconds for row in mine]
        others = 1.0 / offload_left_out(mine)
        for what, ratios in (("in sample", np.array(own)), ("device and host left out", others)):
            error = np.median(np.abs(1.0 / ratios - 1.0))
            print(
                f"offloaded {kind}, {what}: {len(mine)} rows, median error {error:.1%}, {name} at {fractions[name]:.3f}"
            )
        left_out_ratios += list(1.0 / others)
    weight = np.array(
        [1.0 / counted[row.device] for kind in ("generation", "prompt") for row in rows if row.key == kind]
    )
    counts = len(rows), len(counted), len({row.source for row in rows})
    return fractions, ends_of(np.array(left_out_ratios), weight, counts)


def several_answer(
    rows: Sequence[Row], several: Sequence[Row], names: Sequence[Name], x: Array
) -> tuple[Array, Array]:
    """Return the two numbers of several devices and the predictions with devices left out; print their errors."""
    alone_s = Problem(several, names).seconds(x)[0]
    between = several_solved(rows, several)
    predictions = {"in sample": Several(several, alone_s).seconds(between)}
    for ruler in ("device", "source"):
        predictions[f"{ruler} left out"] = several_left_out(rows, several, names, ruler, x)
    for kind in ("generation", "prompt"):
        here = np.array([row.run.kind == kind for row in several])
        mine = [row for row, its in zip(several, here, strict=True) if its]
        for what, predicted in predictions.items():
            if np.isfinite(predicted[here]).any():
                print(score_line(f"{kind}, several devices, {what}", mine, predicted[here]))
    return between, predictions["device left out"]


def main(arguments: Sequence[str]) -> None:
    """Fit, print the scores, and write the file unless only the scores are asked for."""
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return
    with Path(arguments[0]).open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    every = [found for row in table if (found := row_of(row))]
    rows = [row for row in every if row.run.devices == 1 and row.key[0] != HOST]
    several = [row for row in every if row.run.devices > 1 and is_known(rows, row.key)]
    names = names_of(rows)
    x = solved(rows, names)
    predictions = {"in sample": Problem(rows, names).seconds(x)[0]}
    for ruler in ("device", "source"):
        predictions[f"{ruler} left out"] = left_out(rows, names, ruler, x)
    for kind in ("generation", "prompt"):
        here = np.array([row.run.kind == kind and not row.foreign for row in rows])
        mine = [row for row, its in zip(rows, here, strict=True) if its]
        for what, predicted in predictions.items():
            print(score_line(f"{kind}, {what}", mine, predicted[here]))
    between, of_several = several_answer(rows, several, names, x)
    intervals = intervals_of(rows, predictions["device left out"])
    for what, predicted in predictions.items():
        print(coverage_line(what, rows, predicted, intervals))
    print(coverage_line("several devices, device left out", several, of_several, intervals))
    fractions, intervals["offloaded"] = offload_answer([one for row in table if (one := offloaded_row(row))])
    from calibrate.fit_processors import NAMES, processor_answer

    processors, of_processors = processor_answer([row for row in every if row.key[0] == HOST])
    intervals |= of_processors
    shipped = [*NAMES, *(name for name in names if name[1] != "localscore")]
    print(
        f"{len(shipped) + len(between) + len(fractions)} fitted numbers, {len({row.key for row in rows})} families and backends, {len({row.device for row in rows})} devices"
    )
    if "--score" not in arguments:
        write(names, x, between, fractions, processors, rows, intervals)


if __name__ == "__main__":
    main(sys.argv[1:])
