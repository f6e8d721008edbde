"""A CUDA device made of meta tensors and a virtual clock: torch's own checks of shapes and layouts, and no arithmetic.

Tensors say that they are on cuda. Every function of torch that would start a kernel moves the clock of the card instead, by
what the truth of that card says. Graphs, events, streams, properties and memory are those of `torch.cuda`, patched.
"""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode

from capplan.calibrate import fit, kernels, measure, timing
from capplan.calibrate import machine as readings
from tests.calibrate.faked.clock import LAUNCH_S, Truth
from tests.calibrate.faked.driver import SMI, Driver
from tests.calibrate.faked.kernels import duration_of, varlen

CUDA = torch.device("cuda", 0)


class CudaError(RuntimeError):
    """What torch raises when the device fails; it stays with the process."""


@dataclass
class State:
    """The device and its clock."""

    truth: Truth
    now_s: float = 0.0
    """Of the device."""
    host_s: float = 0.0
    capturing: list | None = None
    """Durations of what the graph being recorded contains."""
    calls: dict = field(default_factory=dict)
    """Function -> how often it ran."""
    backends: list = field(default_factory=list)
    """Of attention, the preferred first."""
    capability: tuple = (9, 0)
    gaps: tuple = ()
    """Functions that the card's library does not have."""
    slowed: int = 0
    """Bits of the reasons to lower the clock."""
    temperature: int = 60
    broken: str = ""
    """The sticky error; empty on a device in order."""
    faults: list = field(default_factory=list)
    """Functions (name, tensors) -> None, which may raise."""
    slow_by: float = 1.0
    """Over the truth, while the clock is low."""
    heat: object = None
    """Called with the state after every kernel."""

    def check(self):
        if self.broken:
            raise CudaError(self.broken)

    def kernel(self, seconds):
        self.check()
        seconds = seconds * self.slow_by
        if self.capturing is not None:
            self.capturing.append(seconds)
            return
        self.host_s += LAUNCH_S
        self.now_s = max(self.now_s, self.host_s) + seconds
        if self.heat:
            self.heat(self)

    def replay(self, durations):
        self.check()
        self.now_s = max(self.now_s, self.host_s) + sum(durations) * self.slow_by
        if self.heat:
            self.heat(self)

    def synchronize(self):
        self.check()
        if self.capturing is not None:
            raise CudaError("CUDA error: operation not permitted when stream is capturing")
        self.host_s = max(self.host_s, self.now_s)


class FakedTensors(TorchFunctionMode):
    """Puts tensors of cuda on meta, and turns functions into time."""

    def __init__(self, state):
        super().__init__()
        self.state = state

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", str(func))
        if name == "__get__" and args[0].is_meta:
            asked = func.__self__.__name__
            if asked in {"device", "is_cuda"}:
                return CUDA if asked == "device" else True
        return self._run(func, name, args, kwargs)

    def _run(self, func, name, args, kwargs):
        device = kwargs.get("device")
        if kwargs.pop("pin_memory", False) or (device is not None and torch.device(device).type == "cuda"):
            kwargs["device"] = "meta"
        args = tuple("meta" if isinstance(a, torch.device) and a.type == "cuda" else a for a in args)
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        on_card = any(t.is_meta for t in tensors)
        if on_card:
            self.state.check()
            for fault in self.state.faults:
                fault(name, tensors)
        return duration_of(self.state, func, name, args, kwargs, on_card=on_card)


class Event:
    """A time on the device."""

    state = None

    def __init__(self, **_more):
        self.at_s = None

    def record(self):
        self.state.check()
        self.at_s = max(self.state.now_s, self.state.host_s)

    def synchronize(self):
        self.state.synchronize()

    def elapsed_time(self, later):
        return (later.at_s - self.at_s) * 1e3


class Stream:
    """A queue; one is as good as another here."""

    def wait_stream(self, _other):
        pass


class Nothing:
    """A context that changes nothing."""

    def __init__(self, *_words, **_more):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        return False


class Graph:
    """What was recorded between capture and replay."""

    state = None

    def __init__(self):
        self.durations = []

    def replay(self):
        self.state.replay(self.durations)


class Capture:
    """The recording of a graph, which a failure inside spoils."""

    def __init__(self, graph):
        self.graph = graph

    def __enter__(self):
        self.graph.state.check()
        self.graph.state.capturing = []

    def __exit__(self, kind, _error, _trace):
        state = self.graph.state
        self.graph.durations, state.capturing = state.capturing, None
        if kind is not None and not state.broken:
            raise CudaError("CUDA error: operation failed due to a previous error during capture")
        return False


class Clock:
    """The host's clock: what the device keeps it waiting for, and a little for Python."""

    def __init__(self, state):
        self.state = state

    def now(self):
        self.state.host_s += 2e-6
        return self.state.host_s

    monotonic = perf_counter = thread_time = now

    def sleep(self, seconds):
        self.state.host_s += seconds


def install(monkeypatch, card, truth, passes=1):
    """Make torch see one card; return its state."""
    state = State(truth)
    event, graph = type("Event", (Event,), {"state": state}), type("Graph", (Graph,), {"state": state})
    stream = Stream()
    for name, value in {
        "is_available": lambda: True, "device_count": lambda: 1, "set_device": lambda _device: None,
        "get_device_properties": lambda _device=None: card.properties(), "synchronize": state.synchronize,
        "empty_cache": state.check, "mem_get_info": lambda _d=None: (int(card.total_bytes * 0.98), card.total_bytes),
        "Event": event, "CUDAGraph": graph, "graph": Capture, "Stream": Stream, "stream": Nothing,
        "current_stream": lambda: stream,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.version, "cuda", None if card.capability.startswith("gfx") else "12.9")
    monkeypatch.setattr(torch.version, "hip", "7.1" if card.capability.startswith("gfx") else None)
    major, _, minor = card.capability.partition(".")
    state.capability = (8, 0) if card.capability.startswith("gfx") else (int(major), int(minor))
    state.gaps = card.library_gaps
    monkeypatch.setattr(torch.nn.attention, "sdpa_kernel", backends_of(state))
    # the real module takes seconds to import
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", SimpleNamespace(varlen_attn=varlen(state)))
    # a virtual clock has no noise: fewer sets, passes and starts give the same times in less of ours
    monkeypatch.setattr(kernels, "LARGEST_SETS", 3)
    monkeypatch.setattr(kernels, "MOST_ROUTINGS", 3)
    monkeypatch.setattr(timing, "MOST_CALLS", 4)
    monkeypatch.setattr(measure, "MOST_PASSES", {"cpu": 3, "cuda": passes})
    monkeypatch.setattr(measure, "PASSES", {"cpu": 3, "cuda": passes})
    monkeypatch.setattr(fit, "STARTS", (0.0,))
    clock = Clock(state)
    for module in (measure, timing):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(readings.ctypes, "CDLL", lambda _name: Driver(state))
    monkeypatch.setattr(
        readings, "smi", lambda query, _uuid: list(SMI) if query.startswith("gpu=driver") else []
    )
    return state


def backends_of(state):
    """Return what stands in for torch's choice of an attention backend."""

    class Chosen(Nothing):
        __wrapped__ = torch.nn.attention.sdpa_kernel.__wrapped__  # torch's compiler asks for it

        def __init__(self, backends, **_more):
            state.backends = [backend.name for backend in backends]

    return Chosen
