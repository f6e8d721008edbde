"""All fits of one device: its timings by kernel key and part, put together into complete records."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from calibrate.kernel_parts import (
    START_AND_RANGE,
    UNTOLD,
    PartFit,
    Timing,
    record_numbers,
)
from calibrate.kernel_pools import known_numbers, pool_of
from calibrate.pooled_fit import interval_80, pooled_fits
from capplan.accuracy.kernels import ABSORBED_PROMPTS, DEVICES, PROMPT_NUMBERS, module_terms
from capplan.hardware.device import Device, Efficiency, Fit, fit_of
from capplan.readers.calibration.measured_device import BMM

MODULES = frozenset({"prefill_module", "decode_module"})
ATTENTION_ORDER = ("flash", "trtllm", "own", "flashinfer", "triton", "fa4")
EXPERTS_ORDER = (
    "gptoss", "monolithic", "flashinfer_trtllm", "moe_torch_flow_cutlass", "fused_moe_triton", "flashinfer_cutlass",
)  # fmt: skip
"""Which of several kernels an engine takes by itself in the versions that were timed (parts of the names for
experts); others follow by rows."""
SMALLEST = 4
"""Fewer timings than this are not fitted."""

Group = tuple[str, str]
Pooled = dict[Group, PartFit]
"""Key and part -> the fit to all devices together."""


def pooled_parts(
    devices: Mapping[str, Device], timings: Sequence[Timing], *, held_out: bool
) -> dict[str, Pooled]:
    """Return the fits of every part of every kernel to the timings of all devices.

    Parameters
    ----------
    devices : as the vendors state them, by catalogue name
    timings : of all of them
    held_out : whether to refit without each part of the shape families

    Returns
    -------
    by device, then by key and part
    """
    pools: dict[tuple[str, str, str], dict[Group, list[Timing]]] = {}
    for timing in timings:
        case = timing.case
        if case.part not in MODULES:
            groups = pools.setdefault((case.kernel, pool_of(case), case.part), {})
            groups.setdefault((case.device, case.key), []).append(timing)
    found: dict[str, Pooled] = {name: {} for name in devices}
    numbers: dict[str, dict[str, dict[str, float]]] = {name: {} for name in devices}
    for _, every in sorted(pools.items()):
        groups = {group: own for group, own in every.items() if len(own) >= SMALLEST}
        if not groups:
            continue
        known = {group: known_numbers(own[0].case, numbers[group[0]]) for group, own in groups.items()}
        for (name, key), fit in pooled_fits(devices, groups, known, held_out=held_out).items():
            part = groups[name, key][0].case.part
            found[name][key, part] = replace(fit, numbers={**known[name, key], **fit.numbers})
            numbers[name][key] = {**numbers[name].get(key, {}), **found[name][key, part].numbers}
    return found


def _engine_of(key: str) -> str:
    return key.partition("@")[2].partition(":")[0]


def _borrowed(
    key: str, numbers: Mapping[str, dict[str, float]], name: str, *, itself: bool = False
) -> float | None:
    """Return a number from another fit of the same kernel: of the same engine first, of the same format next.

    With `itself` the fit of the key counts too. So attention has the products that absorb queries and outputs as its engine computes them:
    in 16 bits, whatever the format of the checkpoint, because vLLM (`get_and_maybe_dequant_weights`) and SGLang on CUDA
    (`block_quant_dequant`, srt/models/deepseek_v2.py) widen these weights when they load them.
    """
    kernel, _, rest = key.partition("/")
    fmt = rest.partition("@")[0]
    best: tuple[int, float] | None = None
    for other, own in numbers.items():
        if (other == key and not itself) or other.partition("/")[0] != kernel or name not in own:
            continue
        close = 2 * (_engine_of(other) == _engine_of(key)) + (
            other.partition("/")[2].partition("@")[0] == fmt
        )
        if best is None or close > best[0]:
            best = (close, own[name])
    return None if best is None else best[1]


def _rank(key: str, rows: int) -> tuple[str, int, str, int]:
    start, _, variant = key.partition(":")
    if key.startswith("experts/"):
        order = next((i for i, name in enumerate(EXPERTS_ORDER) if name in variant), len(EXPERTS_ORDER))
    else:
        order = ATTENTION_ORDER.index(variant) if variant in ATTENTION_ORDER else len(ATTENTION_ORDER)
    kernel, _, engine = start.partition("@")
    return kernel, order, engine, -rows


def _completed(
    numbers: Mapping[str, dict[str, float]], rows: Mapping[str, int]
) -> dict[str, tuple[dict[str, float], list[str]]]:
    """Return complete records: numbers that a fit's timings do not determine come from its neighbours."""
    complete: dict[str, tuple[dict[str, float], list[str]]] = {}
    for key in sorted(numbers, key=lambda name: _rank(name, rows[name])):
        kernel = key.partition("/")[0]
        values, guessed = dict(numbers[key]), []
        ratio = values.pop("loop_l2_ratio", 1.0)
        for name in record_numbers(kernel, {}):
            if name in values or name not in START_AND_RANGE.keys() | UNTOLD.keys():
                continue  # the others have defaults
            if name in UNTOLD:
                values[name] = UNTOLD[name]
                continue
            found = _borrowed(key, numbers, name)
            if found is None and kernel == "latent_attention":
                found = _borrowed(f"latent_bmm/bf16@{_engine_of(key)}", numbers, name, itself=True)
            values[name] = START_AND_RANGE[name][0] if found is None else found
            guessed.append(name)
        complete[key] = ({**values, "loop_l2_ratio": ratio}, guessed)
    return complete


def fitted_device(device: Device, own: Sequence[Timing], pooled: Pooled) -> dict[str, Fit]:
    """Return all fits of one device.

    Parameters
    ----------
    device : as the vendor states it
    own : its timings
    pooled : what the timings of all devices say of this one

    Returns
    -------
    fits by key, an engine's default kernel before its others
    """
    numbers: dict[str, dict[str, float]] = {}
    parts: dict[str, dict[str, PartFit]] = {}
    for (key, part), fit in pooled.items():
        numbers[key] = {**numbers.get(key, {}), **fit.numbers}
        parts.setdefault(key, {})[part] = fit
    rows = {key: sum(len(p.errors) for p in found.values()) for key, found in parts.items()}
    fits = {
        key: _fit(values, guessed, parts[key]) for key, (values, guessed) in _completed(numbers, rows).items()
    }
    modules = _module_fits(device, fits, own)
    return with_expanded_prompts({**fits, **_layer_records(fits, modules), **modules}, device.name)


def _fit(values: Mapping[str, float], guessed: Sequence[str], by_part: Mapping[str, PartFit]) -> Fit:
    parts = list(by_part.values())
    errors = np.concatenate([part.errors for part in parts])
    unseen = np.concatenate([part.held_out_errors for part in parts])
    unseen = unseen[~np.isnan(unseen)]
    versions = sorted({version for part in parts for version in part.versions})
    text = ", ".join(versions[:4])
    if guessed:
        text += f"; taken over from neighbouring fits: {', '.join(guessed)}"
    return Fit(
        numbers={name: value for name, value in values.items() if name != "loop_l2_ratio"},
        label="measured",
        rows=len(errors),
        median_error_fraction=float(np.median(errors)),
        mean_error_fraction=float(np.mean(errors)),
        held_out_median_error_fraction=float(np.median(unseen)) if len(unseen) else None,
        fitted_on=text,
        loop_l2_ratio=values["loop_l2_ratio"],
        fitted_numbers=sum(part.told for part in parts),
        intervals={name: part.interval for name, part in by_part.items() if part.interval != (1.0, 1.0)},
    )


def with_expanded_prompts(fits: Mapping[str, Fit], device: str) -> dict[str, Fit]:
    """Return the fits of a device with prompts of latent attention as engines compute them, where one was timed in the absorbed form.

    What that says of prompts with expanded keys and values is 3.4 times their arithmetic at nearly the same rate, and whole layers of vLLM took the shape
    of its curve: at 6,144 tokens and more they were predicted 1.7 times too slow. All take the numbers of TensorRT-LLM, whose prompts were timed expanded.
    """
    if not any(DEVICES[gpu] == device for _, gpu in ABSORBED_PROMPTS):
        return dict(fits)
    found = dict(fits)
    for key, fit in fits.items():
        kernel, _, engine = key.partition("@")
        timed = fits.get(f"{kernel}@trtllm")
        if kernel.startswith("latent_attention/") and engine in {"sglang", "vllm"} and timed is not None:
            prompts = {name: timed.numbers[name] for name in PROMPT_NUMBERS}
            found[key] = replace(fit, numbers={**fit.numbers, **prompts})
    return found


def _layer_records(fits: Mapping[str, Fit], modules: dict[str, Fit]) -> dict[str, Fit]:
    """Return attention records of engines that were only timed by whole layers: another's, faster or slower.

    The factors are taken out of `modules`, because the records have them then.
    """
    found: dict[str, Fit] = {}
    efficiency = Efficiency("", fits)
    for key, module in list(modules.items()):
        inner, engine = key.partition("/")[2].split("@")
        factors = {
            n.removeprefix("attention_"): v for n, v in module.numbers.items() if n.startswith("attention_")
        }
        for fmt, slower in factors.items():
            own = f"latent_attention/{fmt}@{engine}"
            like, _ = fit_of(efficiency, "latent_attention", (fmt, "fp8", "fp8_query", "bf16"), engine)
            base = found.get(own, like)
            products, _ = fit_of(efficiency, "latent_bmm", ("bf16",), engine)
            numbers = dict(base.numbers) | {name: products.numbers[name] for name in BMM}
            for name, value in base.numbers.items():
                if name.startswith(inner) and name.endswith("_fraction") and "tail" not in name:
                    numbers[name] = min(1.0, value / slower)
                elif name == f"{inner}_floor_s":
                    numbers[name] = value * slower
            text = f"whole layers of {module.fitted_on}; shape of the curve as in {like.fitted_on}"
            found[own] = replace(
                base, numbers=numbers, rows=module.rows, median_error_fraction=module.median_error_fraction,
                mean_error_fraction=module.mean_error_fraction, held_out_median_error_fraction=None, fitted_on=text,
                fitted_numbers=1.0,
            )  # fmt: skip
        modules[key] = replace(
            module, numbers={n: v for n, v in module.numbers.items() if not n.startswith("attention_")}
        )
    return found


def _module_fits(device: Device, fits: Mapping[str, Fit], own: Sequence[Timing]) -> dict[str, Fit]:
    """Return the time of a whole MLA layer beyond its matmuls and attention: small kernels, as floor and passes.

    An engine whose attention was not timed by itself gets the record of another one, as much faster or slower
    as its layers say, format by format.
    """
    efficiency = Efficiency(device.name, fits)
    found: dict[str, Fit] = {}
    for part in sorted(MODULES):
        inner = part.partition("_")[0]
        for engine in sorted({t.case.engine for t in own if t.case.part == part}):
            timings = [t for t in own if t.case.part == part and t.case.engine == engine]
            bare = any(key.startswith("latent_attention/") and _engine_of(key) == engine for key in fits)
            known, attention_s, pass_s = np.array(
                [module_terms(t.case, device, efficiency) for t in timings]
            ).T
            formats = sorted({t.case.format for t in timings})
            place = np.array([formats.index(t.case.format) for t in timings])
            seconds = np.array([t.seconds for t in timings])

            def ratio(logs: Any, terms: Any = (known, attention_s, pass_s, place, seconds, bare)) -> Any:
                known, attention_s, pass_s, place, seconds, bare = terms
                slower = 1.0 if bare else np.exp(logs[2:])[place]
                return (known + slower * attention_s + np.exp(logs[0]) + np.exp(logs[1]) * pass_s) / seconds

            low, high = [1e-8, 1e-3, *(0.2 for _ in formats)], [3e-4, 60.0, *(5.0 for _ in formats)]
            solved = least_squares(
                lambda logs, ratio=ratio: np.log(ratio(logs)), np.log([1e-5, 1.0, *(1.0 for _ in formats)]),
                loss="soft_l1", f_scale=0.05, bounds=(np.log(low), np.log(high)),
            )  # fmt: skip
            ratios = ratio(solved.x)
            errors = np.abs(ratios - 1.0)
            floor_s, passes, *slower = (float(v) for v in np.exp(solved.x))
            numbers = {"floor_s": floor_s, "passes": passes}
            if not bare:
                numbers |= {f"attention_{fmt}": value for fmt, value in zip(formats, slower, strict=True)}
            found[f"latent_module/{inner}@{engine}"] = Fit(
                numbers, "measured", len(timings), float(np.median(errors)), float(np.mean(errors)), None,
                ", ".join(sorted({f"{engine} {t.version}" for t in timings})), fitted_numbers=2.0,
                intervals={part: interval_80(1.0 / ratios, 1.0 / ratios)},
            )  # fmt: skip
    return found
