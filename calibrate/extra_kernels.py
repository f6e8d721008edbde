"""Kernels that a calibration leaves out, timed on the card at hand: for campaigns.

    python -m calibrate.extra_kernels OUT.json --device cuda

4-bit weights with 16-bit inputs (torch's kernel, in the shapes that engines run with Marlin), experts in mxfp4 unpacked to 16
bits (what torch can do; engines multiply them packed), and one layer launched kernel by kernel against the same layer in a CUDA graph.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from capplan.calibrate.kernels import matmul
from capplan.calibrate.kernels.matmul import GROUPED, SEPARATE, can_group, draw_routing, routed_experts
from capplan.calibrate.layers import Choice, RealLayer, built, choices, refusal
from capplan.calibrate.machine import Target, opened
from capplan.calibrate.run import DeviceLostError, settle
from capplan.calibrate.timing import QUICK, Call, drop_arenas, random_operand, sampled, torch_dtype
from capplan.calibrate.verify import layer_copies
from capplan.model.network import layer_counts
from capplan.readers.catalogue.models import read_model

INT4_MATRICES = ((4096, 4096), (4096, 28672), (14336, 4096), (8192, 8192))
INT4_ROWS = (1, 4, 16, 64, 256)
MXFP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
GPT_OSS = (32, 4, 2880, 2880)
"""Experts, experts per token, width, inner width of gpt-oss-20b."""
EXPERT_TOKENS = (1, 16, 64, 512)
LAYER_MODELS = ("llama-3.1-8b", "qwen3-30b-a3b")
LAYER_BATCHES = (1, 32, 256)
CONTEXT_TOKENS = 1024
Rows = Iterator[tuple[dict[str, Any], list[Call], bool]]


def int4_products(target: Target) -> Rows:
    """Yield products of 4-bit weights: what it is, the calls, and whether they run in a graph."""
    for inputs, outputs in INT4_MATRICES:
        for rows in INT4_ROWS:
            shape = {"rows": float(rows), "inputs": float(inputs), "outputs": float(outputs)}
            one = inputs * outputs / 2
            sets = int(max(min(target.cold_bytes // one, 16), 1))
            way = matmul.BY_FORMAT["w4a16"]["torch._weight_int4pack_mm"]
            calls = [way.built(shape, "w4a16", target.device) for _ in range(sets)]
            yield {"what": "w4a16 product", **shape}, calls, True


def mxfp4_experts(target: Target) -> Rows:
    """Yield experts whose 4-bit weights are unpacked before they are multiplied."""
    experts, chosen, width, inner = GPT_OSS
    device, wide = target.device, target.abilities.wide
    kind = torch_dtype(wide, device)
    table = torch.tensor([*MXFP4_VALUES, *(-value for value in MXFP4_VALUES)]).to(kind).to(device)
    packed = [
        random_operand((experts, rows, columns // 2), "int8", device).view(torch.uint8)
        for rows, columns in ((width, 2 * inner), (inner, width))
    ]
    way = GROUPED if can_group(target.abilities, {}) else SEPARATE
    for count in EXPERT_TOKENS:
        tokens = random_operand((count, width), wide, device)
        routing = draw_routing(count, experts, chosen, device)

        def call(tokens: torch.Tensor = tokens, routing: Any = routing) -> torch.Tensor:
            gate_up, down = (unpacked(one, table) for one in packed)
            return routed_experts(tokens, routing.scores, gate_up, down, chosen, way=way, routing=routing)

        what = {"what": "mxfp4 experts, unpacked", "tokens": count, "experts": experts, "way": way}
        yield what, [call], True
    yield (
        {"what": "mxfp4 weights, unpacked only", "experts": experts},
        [partial(unpacked, packed[0], table)],
        True,
    )


def unpacked(packed: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return the values of two 4-bit numbers in each byte; without their scales, which cost one product more.

    Examples
    --------
    >>> unpacked(torch.tensor([[0x21]], dtype=torch.uint8), torch.arange(16.0)).tolist()
    [[1.0, 2.0]]
    """
    halves = torch.stack((packed & 15, packed >> 4), dim=-1)
    return table[halves.to(torch.int64)].reshape(*packed.shape[:-1], -1)


def layers(target: Target) -> Rows:
    """Yield one decode step of a layer, eager and in a graph."""
    device, wide = target.device, target.abilities.wide
    for model in LAYER_MODELS:
        network = read_model(model, offline=True)
        layer = layer_counts(network)[0][0]
        if refusal(layer):
            continue
        copies = layer_copies(layer, target)
        real = [built(layer, device, wide) for _ in range(copies)]
        choice = _working(real[0], network.hidden_size, target)
        real = [replace(one, choice=choice) for one in real]
        for batch in LAYER_BATCHES:
            residual = torch.randn((batch, network.hidden_size), device=device).to(torch_dtype(wide, device))
            calls: list[Call] = [
                partial(one.decode, residual, one.caches(batch, CONTEXT_TOKENS, device, wide)) for one in real
            ]
            for graph in (True, False):
                what = {"what": "layer, decode", "model": model, "sequences": batch, "captured": graph}
                yield what, calls, graph


def _working(layer: RealLayer, hidden_size: int, target: Target) -> Choice:
    """Return the first kernels of torch with which a layer runs on this device."""
    device, wide = target.device, target.abilities.wide
    residual = torch.randn((1, hidden_size), device=device).to(torch_dtype(wide, device))
    caches = layer.caches(1, CONTEXT_TOKENS, device, wide)
    possible = list(choices(layer.layer, target.abilities))
    for choice in possible:
        try:
            replace(layer, choice=choice).decode(residual, caches)
        except RuntimeError as error:
            why = str(error)[:200]
        else:
            return choice
        settle(target, lost=why)
    return possible[-1]


def timed_rows(target: Target) -> list[dict[str, Any]]:
    """Return every row with its time, or with the reason why it has none.

    Parameters
    ----------
    target : the device
    """
    drop_arenas()
    rows: list[dict[str, Any]] = []
    for source in (int4_products, mxfp4_experts, layers):
        try:
            with torch.inference_mode():
                for what, calls, graph in source(target):
                    rows.append({**what, **_timed(target, calls, graph=graph)})
        except DeviceLostError as error:
            rows.append({"what": source.__name__, "failed": f"the device failed: {error}"})
            break
        except Exception as error:  # noqa: BLE001 - each source stands for itself
            rows.append({"what": source.__name__, "failed": str(error)[:200]})
            settle(target)
    return rows


def _timed(target: Target, calls: Sequence[Call], *, graph: bool) -> dict[str, Any]:
    try:
        sample = sampled(target, calls, QUICK, graph=graph)
    except RuntimeError as error:
        why = str(error)[:200]
    else:
        return {
            "median_s": sample.seconds,
            "spread_fraction": sample.spread_fraction,
            "repeats": sample.repeats,
        }
    settle(target, lost=why)
    return {"failed": why}


def main(words: Sequence[str] | None = None) -> int:
    """Time everything and write it to a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args(words)
    target = opened(asked.device, force=True)
    rows = timed_rows(target)
    asked.file.write_text(
        json.dumps({"device": target.machine.name, "rows": rows}, indent=1), encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
