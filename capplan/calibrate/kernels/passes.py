"""Kernels that move bytes and hardly compute, copies to and from the host, and an empty launch."""

from collections.abc import Callable

import torch
from torch.nn import functional

from capplan.calibrate.kernels.arena import ELEMENT_BYTES, LARGEST_DRAW, random_operand, result_space
from capplan.calibrate.kernels.case import Kernel, Shape, Way
from capplan.calibrate.timing import Call


def _moved_bytes(shape: Shape, _dtype: str) -> float:
    return shape["moved_bytes"]


def _copy(shape: Shape, _dtype: str, device: torch.device) -> Call:
    source = random_operand((shape["moved_bytes"] // 4,), "bf16", device)
    sink = result_space(source, device)
    return lambda: sink.copy_(source)


def _read(shape: Shape, _dtype: str, device: torch.device) -> Call:
    source = random_operand((shape["moved_bytes"] // 4,), "fp32", device)
    result = torch.empty((), device=device)
    return lambda: torch.sum(source, dim=0, out=result)


def _activation(shape: Shape, dtype: str, device: torch.device) -> Call:
    """Residual addition: two tensors read, one written."""
    count = shape["moved_bytes"] // (3 * ELEMENT_BYTES[dtype])
    first, second = random_operand((count,), dtype, device), random_operand((count,), dtype, device)
    result = result_space(first, device)
    return lambda: torch.add(first, second, out=result)


def _norm(shape: Shape, dtype: str, device: torch.device) -> Call:
    columns = int(shape["columns"])
    rows = int(shape["moved_bytes"] // (2 * ELEMENT_BYTES[dtype] * columns))
    values = random_operand((rows, columns), dtype, device)
    weight = random_operand((columns,), dtype, device)
    # layer norm stands in for the fused norms of engines: torch has a single kernel for it on every device
    return lambda: functional.layer_norm(values, (columns,), weight)


def _host_copy(*, to_device: bool) -> Callable[[Shape, str, torch.device], Call]:
    def built(shape: Shape, _dtype: str, device: torch.device) -> Call:
        size = int(shape["moved_bytes"])
        host = torch.empty(size, dtype=torch.int8, pin_memory=device.type == "cuda")
        some = torch.randint(-127, 128, (min(size, LARGEST_DRAW),), dtype=torch.int8)
        for start in range(0, size, len(some)):  # one draw, repeated: a host draws 512 MB in four seconds
            host[start : start + len(some)].copy_(some[: size - start])
        on_device = torch.empty(size, dtype=torch.int8, device=device)
        if to_device:
            return lambda: on_device.copy_(host, non_blocking=True)
        return lambda: host.copy_(on_device, non_blocking=True)

    return built


def _launch(_shape: Shape, _dtype: str, device: torch.device) -> Call:
    one = torch.zeros(1, device=device)
    return lambda: one.add_(1.0)


READ = Kernel(_moved_bytes, {"torch.sum": Way(_read)}, ("moved_bytes",))
COPY = Kernel(_moved_bytes, {"copy_": Way(_copy)}, ("moved_bytes",))
LAUNCH = Kernel(lambda _shape, _dtype: 4.0, {"add_": Way(_launch)})
ELEMENTWISE = Kernel(_moved_bytes, {"torch.add": Way(_activation)}, ("moved_bytes",))
NORM = Kernel(_moved_bytes, {"layer_norm": Way(_norm)}, ("moved_bytes",))
TO_DEVICE = Kernel(_moved_bytes, {"pinned copy": Way(_host_copy(to_device=True))}, ("moved_bytes",))
TO_HOST = Kernel(_moved_bytes, {"pinned copy": Way(_host_copy(to_device=False))}, ("moved_bytes",))
