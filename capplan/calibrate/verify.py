"""Verification: measured times of real layers, and results of an engine, against the predictions of the calibration.

The layers run the torch kernels that were fitted, so it proves the sum of kernels and what lies between them. It says nothing
about an engine's kernels: results of an engine do (`--results`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from capplan.calibrate.layers import Choice, RealLayer, built, cache_bytes, choices, layer_bytes, refusal
from capplan.calibrate.machine import Target
from capplan.calibrate.refit import run_of
from capplan.calibrate.run import DeviceLostError, settle
from capplan.calibrate.timing import (
    ELEMENT_BYTES,
    FULL,
    QUICK,
    SEED,
    TRIAL,
    Call,
    Effort,
    Sample,
    drop_arenas,
    sampled,
    torch_dtype,
)
from capplan.engine.lookup import profile
from capplan.errors import CapplanError, InputError
from capplan.hardware.device import Device, Efficiency
from capplan.model.network import Layer, Network, layer_counts
from capplan.model.sharding import Sharding
from capplan.phases.cost import StepRates, total_s
from capplan.phases.mixer_work import decode_cost, prefill_cost
from capplan.phases.token_work import layer_costs
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.recorded.results.record import BenchmarkResult
from capplan.replica.plans import step_rates
from capplan.replica.spec import ReplicaSpec

COPIES = 3
"""Layers run in sequence, at least where memory allows."""
MOST_COPIES = 64
CUDA_DECODES = tuple((batch, context) for batch in (1, 8, 32, 128, 256) for context in (512, 4096, 16384))
CUDA_PREFILLS = ((1, 256), (1, 1024), (1, 4096), (1, 8192), (4, 512))
CPU_DECODES = ((1, 256), (1, 2048), (4, 256), (4, 1024), (16, 256))
CPU_PREFILLS = ((1, 32), (1, 128), (1, 512), (2, 64))


def verified(
    network: Network,
    target: Target,
    device: Device,
    efficiency: Efficiency,
    *,
    quick: bool,
    tell: Callable[[str], None] = lambda _line: None,
) -> list[dict[str, Any]]:
    """Return measured and predicted times of one layer of each kind in a model.

    Parameters
    ----------
    network : the model; whatever its format, weights and cache are in the one that was timed: bf16 where that is native
    target : the machine
    device : the same machine in the predictions
    efficiency : from its calibration
    quick : fewer repeats
    tell : receives progress messages

    Returns
    -------
    one row per kind of layer with how many of these the model has, phase, batch and tokens, measured and predicted time, and its error;
    tokens are new ones of each sequence in prefill, cached ones in decode; kinds that torch cannot run are left out and reported
    """
    plain = _in_format(network, target.abilities.wide)
    drop_arenas()
    torch.manual_seed(SEED)
    decodes, prefills = (CUDA_DECODES, CUDA_PREFILLS) if target.is_cuda else (CPU_DECODES, CPU_PREFILLS)
    proofs: list[dict[str, Any]] = []
    refused: list[str] = []
    for number, (layer, count) in enumerate(layer_counts(plain)):
        title = _layer_title(number, layer)
        try:
            why = refusal(layer)
            if not why:
                trial = _trial(plain, layer, title, count, target, device, efficiency, tell, quick=quick)
                trial.add_rows(proofs, decodes, prefills, tell)
        except DeviceLostError as error:
            refused.append(f"the device failed: {error}")
            tell(f"the device failed: {error}; the rows so far are kept")
            break
        except RuntimeError as error:  # torch lacks a kernel, or memory for the weights
            why = (str(error).splitlines() or [type(error).__name__])[0][:100]
            settle(target)
        if why:
            refused.append(f"{title}: {why}")
            tell(f"left out: {title}: {why}")
    if not proofs:
        raise InputError(f"{network.name}: none of its layers can be built\n  " + "\n  ".join(refused))
    return proofs


def _trial(
    plain: Network,
    layer: Layer,
    title: str,
    count: int,
    target: Target,
    device: Device,
    efficiency: Efficiency,
    tell: Callable[[str], None],
    *,
    quick: bool,
) -> "_Trial":
    fitting = fitted_to_memory(layer, target, tell)
    rates = step_rates(
        _of(plain, fitting), device, efficiency, profile=profile("vllm"), kv_format=target.abilities.wide
    ).rates
    return _Trial(plain, fitting, title, count, target, _evenly_routed(rates), QUICK if quick else FULL)


def layer_copies(layer: Layer, target: Target) -> int:
    """Return how many copies of a layer run in sequence: as many as the caches forget, and memory holds.

    Examples
    --------
    An L2 of 126 MB forgets after 504 MB, which is seventeen layers of 30 MB.
    """
    wide = target.abilities.wide
    one = touched_layer_bytes(layer, wide)
    wanted = max(COPIES, -(-target.cold_bytes // one)) if target.is_cuda else COPIES
    whole = layer_bytes(layer, wide)
    room = target.usable_bytes - whole
    return int(np.clip(min(wanted, room // (2 * whole) + 1), 1, MOST_COPIES))


def touched_layer_bytes(layer: Layer, wide: str = "bf16") -> float:
    """Return the weights that one token reads of a layer [B]: few of its experts."""
    every = layer_bytes(layer, wide)
    if not layer.experts:
        return every
    share = layer.experts.experts_per_token / layer.experts.experts
    return every - ELEMENT_BYTES[wide] * layer.experts.parameters * (1.0 - share)


def _layer_title(number: int, layer: Layer) -> str:
    """Return a short name of the kind of layer."""
    mixer = "mla" if any(type(m).__name__ == "LatentAttention" for m in layer.mixers) else "attention"
    feed = f"{layer.experts.experts} experts" if layer.experts else "dense"
    return f"{number + 1}: {mixer}, {feed}"


def _in_format(network: Network, wide: str) -> Network:
    """Return the network with every matrix in one format."""
    layers = tuple(
        replace(
            layer,
            projections=tuple(replace(p, weight_format=wide) for p in layer.projections),
            experts=replace(layer.experts, weight_format=wide) if layer.experts else None,
        )
        for layer in network.layers
    )
    return replace(network, layers=layers, lm_head=replace(network.lm_head, weight_format=wide))


def _evenly_routed(rates: StepRates) -> StepRates:
    """Return the rates for a router that spreads tokens evenly, as the random weights of the built layers do."""
    return replace(
        rates, experts={name: replace(one, router_skew=0.0) for name, one in rates.experts.items()}
    )


def _of(network: Network, layer: Layer) -> Network:
    return replace(network, layers=(layer,))


def fitted_to_memory(layer: Layer, target: Target, tell: Callable[[str], None]) -> Layer:
    """Return the layer, with fewer experts if one copy of it would take more than half of the usable memory."""
    trial, wide = layer, target.abilities.wide
    while layer_bytes(trial, wide) > target.usable_bytes / 2 and trial.experts:
        if trial.experts.experts // 2 < trial.experts.experts_per_token:
            break
        trial = replace(trial, experts=replace(trial.experts, experts=trial.experts.experts // 2))
    if trial.experts and layer.experts and trial.experts.experts < layer.experts.experts:
        tell(
            f"memory holds {trial.experts.experts} of {layer.experts.experts} experts: timing and prediction both use that many"
        )
        router = tuple(
            replace(p, outputs=trial.experts.experts) if p.name == "router" else p for p in trial.projections
        )
        trial = replace(trial, projections=router)
    if layer_bytes(trial, wide) > target.usable_bytes / 2:
        raise InputError(
            f"one layer takes {layer_bytes(trial, wide) / 1e9:.1f} GB, but only {target.usable_bytes / 1e9:.1f} GB may be used\n"
            "  verify a smaller model on this device"
        )
    return trial


@dataclass(frozen=True, slots=True)
class _Trial:
    """One kind of layer on one machine."""

    network: Network
    layer: Layer
    title: str
    count: int
    target: Target
    rates: StepRates
    effort: Effort

    def add_rows(
        self,
        proofs: list[dict[str, Any]],
        decodes: Sequence[tuple[int, int]],
        prefills: Sequence[tuple[int, int]],
        tell: Callable[[str], None],
    ) -> None:
        """Add a row for each shape, at once: what was measured stays where the device fails later."""
        able = self.target.abilities
        copies = layer_copies(self.layer, self.target)
        room = self.target.usable_bytes - copies * layer_bytes(self.layer, able.wide)
        real = [built(self.layer, self.target.device, able.wide) for _ in range(copies)]
        for phase, shapes in (("prefill", prefills), ("decode", decodes)):
            for sequences, tokens in shapes:
                what = f"{self.title} {phase} of {sequences} x {tokens}"
                if copies * cache_bytes(self.layer, sequences, tokens, able.wide) > room / 2:
                    tell(f"left out: {what}: its cache does not fit")
                    continue
                measured_s = self.measured_s(real, phase, sequences, tokens)
                if isinstance(measured_s, str):
                    tell(f"left out: {what}: {measured_s}")
                    continue
                predicted_s = self.predicted_s(phase, sequences, tokens)
                proofs.append(
                    {
                        "layer": self.title,
                        "layers": self.count,
                        "phase": phase,
                        "sequences": sequences,
                        "tokens": tokens,
                        "measured_s": measured_s,
                        "predicted_s": predicted_s,
                        "error_fraction": predicted_s / measured_s - 1.0,
                    }
                )

    def measured_s(self, real: Sequence[RealLayer], phase: str, sequences: int, tokens: int) -> float | str:
        """Return the time of one layer with the quickest of its kernels, or why none of them runs."""
        possible = list(choices(self.layer, self.target.abilities))
        why = "no kernel for it"
        best: tuple[float, Choice] | None = None
        for choice in possible if len(possible) > 1 else ():
            sample = self._sampled(real, choice, phase, sequences, tokens, TRIAL)
            if isinstance(sample, str):
                why = sample
            elif best is None or sample.seconds < best[0]:
                best = sample.seconds, choice
        if len(possible) > 1 and best is None:
            return why
        chosen = best[1] if best else possible[0]
        sample = self._sampled(real, chosen, phase, sequences, tokens, self.effort)
        return sample if isinstance(sample, str) else sample.seconds

    def _sampled(
        self,
        real: Sequence[RealLayer],
        choice: Choice,
        phase: str,
        sequences: int,
        tokens: int,
        effort: Effort,
    ) -> Sample | str:
        try:
            with torch.inference_mode():
                calls = self._calls([replace(one, choice=choice) for one in real], phase, sequences, tokens)
                return sampled(self.target, calls, effort)
        except torch.OutOfMemoryError:
            why = "out of memory"
        except RuntimeError as error:
            why = (str(error).splitlines() or [type(error).__name__])[0][:100]
        settle(self.target, lost=why)
        return why

    def _calls(self, real: Sequence[RealLayer], phase: str, sequences: int, tokens: int) -> list[Call]:
        """Return one call per copy of the layer, each with a residual, and so a routing, of its own."""
        device, wide = self.target.device, self.target.abilities.wide
        rows = sequences * tokens if phase == "prefill" else sequences
        calls: list[Call] = []
        for one in real:
            one.routings.clear()
            residual = torch.randn((rows, self.network.hidden_size), device=device).to(
                torch_dtype(wide, device)
            )
            if phase == "prefill":
                calls.append(partial(one.prefill, residual, sequences))
            else:
                calls.append(partial(one.decode, residual, one.caches(sequences, tokens, device, wide)))
        return calls

    def predicted_s(self, phase: str, sequences: int, tokens: int) -> float:
        sharding, decode = Sharding(), phase == "decode"
        rows, wide = float(sequences if decode else sequences * tokens), self.target.abilities.wide
        element_bytes = ELEMENT_BYTES[wide]
        costs = layer_costs(self.network, self.layer, rows, sharding, self.rates, decode=decode)
        for mixer in self.layer.mixers:
            if decode:
                costs.append(
                    decode_cost(mixer, float(sequences), float(tokens), 1.0, element_bytes, self.rates)
                )
            else:
                costs.append(
                    prefill_cost(
                        mixer, float(sequences), float(tokens), 0.0, 1.0, element_bytes, self.rates, wide
                    )
                )
        return float(total_s(costs))


def engine_proofs(pairs: Sequence[tuple[BenchmarkResult, ReplicaSpec]]) -> list[dict[str, Any]]:
    """Return measured and replayed times of an engine, with and without the calibration.

    Parameters
    ----------
    pairs : results, each with the replica it was measured on, whose efficiency is that of the calibration

    Returns
    -------
    one row for each value: its measured time, its prediction with the calibration and with the shipped kernels; an error names the reason where no result can be replayed
    """
    rows: list[dict[str, Any]] = []
    reasons = []
    for result, spec in pairs:
        try:
            run = run_of(result, spec)
            shipped = run_of(result, replace(spec, efficiency=efficiency_for(spec.device)))
        except CapplanError as error:
            run = shipped = str(error).splitlines()[0]
        if isinstance(run, str) or isinstance(shipped, str):
            reasons.append(f"{result.path}: {run}")
            continue
        host = spec.profile.host
        both = zip(run.values, run.replayed_s(host), shipped.replayed_s(host), strict=True)
        rows += [
            {
                "result": result.path,
                "metric": value.metric,
                "engine": spec.profile.engine,
                "measured_s": value.seconds,
                "predicted_s": own,
                "shipped_s": without,
                "error_fraction": own / value.seconds - 1.0,
            }
            for value, own, without in both
        ]
    if not rows:
        raise InputError("no result can be replayed\n  " + "\n  ".join(reasons or ["no results were given"]))
    return rows
