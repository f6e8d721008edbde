"""The fitted speed of llama.cpp by family of devices: `hardware_specs/llamacpp/speed.yaml`, written by `python -m calibrate.fit_llamacpp`."""

import re
from dataclasses import replace
from functools import cache
from typing import Annotated

from pydantic import Field

from capplan.assumption import Assumption
from capplan.engine.profile import EngineProfile
from capplan.engine.profiles import LLAMACPP
from capplan.errors import unknown
from capplan.hardware.device import HOST, Device, Efficiency, LayerSplit
from capplan.operators.llamacpp import BlockRates, Fractions, block_fits
from capplan.readers.catalogue.efficiency import LLAMACPP_FILE
from capplan.readers.record import Record, validated
from capplan.readers.yaml_file import read_yaml

Ratio = Annotated[float, Field(gt=0.0)]


class Pair(Record):
    """Two fractions: of the bandwidth and of the peak."""

    memory: Ratio
    compute: Ratio

    @property
    def fractions(self) -> Fractions:
        """As operators read them."""
        return Fractions(self.memory, self.compute)


class Format(Pair):
    """A class of weight formats."""

    vector: Ratio
    """Fraction of the peak in products of one row, which unpack their weights."""


class Measured(Pair):
    """What a family reaches with a backend, in 16 bits."""

    rows: int
    """Published rows behind it."""


class Family(Record):
    """Devices of which llama.cpp reaches the same parts."""

    architecture: str
    """Regular expression of the architectures of its devices."""
    names: str = ""
    """Regular expression that some part of their catalogue names matches; empty: any."""
    matrix_ratio: Ratio = 1.0
    """Operations of its matrix units for one of its fp32 units: the peak is this times that of fp32."""
    like: str | None = None
    """Family whose fractions it reaches, of a peak with other matrix units."""
    usual: str
    """Backend that runs unless another one is named."""
    backends: dict[str, Measured] = Field(default_factory=dict)
    """Backend -> what it reaches; none: nothing was published."""


class Early(Pair):
    """What builds before 2025 reach, relative to later ones."""

    decode_attention: Ratio
    """A further fraction of the bandwidth in attention of generated tokens: without flash attention."""


class Offloaded(Record):
    """Weights in the memory of the host."""

    host: Ratio
    """Fraction of its bandwidth that a generated token reaches."""
    pcie: Ratio
    """Fraction of the bandwidth of PCIe that a piece of a prompt reaches."""


class Several(Record):
    """Layers over several devices."""

    hand_over_us: Annotated[float, Field(ge=0.0)]
    """Time of a generated token for each further device [us]."""
    stage_ratio: Ratio
    """Time of the slowest device between two pieces of a prompt, over its part of the layers."""


class Processors(Record):
    """What processors reach by themselves, where it is not that of all devices."""

    formats: dict[str, Ratio]
    """Class of weight formats -> fraction of the peak, relative to that in 16 bits."""
    experts: Ratio
    """Fraction of the peak in routed experts, relative to a matrix of their format."""
    attention: Ratio
    """Fraction of the peak in attention, relative to matrices in 16 bits."""
    longest_context_tokens: Annotated[int, Field(ge=1)]
    """Longest context that is predicted."""


class SpeedFile(Record):
    """The speed of llama.cpp: one table for all models and devices."""

    families: dict[str, Family]
    """Families of devices, the first that fits."""
    start_us: dict[str, Annotated[float, Field(ge=0.0)]]
    """Backend -> start of an operator [us]."""
    formats: dict[str, Format]
    """Class of weight formats -> its fractions relative to those in 16 bits."""
    vector: dict[str, Ratio]
    """Backend -> fraction of the peak in fp32 that products of one row reach in 16 bits."""
    experts: Pair
    """Routed experts, relative to a matrix of their format."""
    attention: Pair
    """Attention, relative to matrices in 16 bits."""
    recurrent: Pair
    """Linear attention and state spaces, relative to matrices in 16 bits."""
    several: Several
    """Layers over several devices."""
    offload: Offloaded
    """Weights in the memory of the host."""
    early: Early
    """Builds before 2025."""
    processors: Processors
    """Processors by themselves."""
    intervals: dict[str, Annotated[list[float], Field(min_length=10, max_length=10)]]
    """Kind of speed -> measured over predicted time at seven quantiles, then rows, devices and sources."""


BACKENDS = ("cuda", "metal", "vulkan", "rocm", "sycl", "cpu")
"""Backends of llama.cpp that are told apart."""


@cache
def speed_file() -> SpeedFile:
    """Return the file that ships."""
    return validated(SpeedFile, read_yaml(LLAMACPP_FILE, kind="the speed of llama.cpp"))


def family_of(device: Device) -> str | None:
    """Return the family that a device is of; None for one of none."""
    return next(
        (
            name
            for name, family in speed_file().families.items()
            if re.fullmatch(family.architecture, device.architecture.lower())
            and re.search(family.names, device.name)
        ),
        None,
    )


def backend_of(device: Device, backend: str | None) -> str | None:
    """Return the backend that runs on a device: the one that is asked for, or its usual one; None where neither is known."""
    name = family_of(device)
    return backend or (speed_file().families[name].usual if name else None)


def llamacpp_efficiency(device: Device, engine: EngineProfile, links: Efficiency) -> Efficiency:
    """Return the fits of llama.cpp's kernels on a device.

    Parameters
    ----------
    device : as the vendor states it
    engine : its build and backend
    links : fits of another engine, of which those of links are taken

    Returns
    -------
    the fits; none, with a note that says why, where nothing was published of its family with the backend
    """
    backend = engine.backend
    if backend is not None and backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    if device.cards:
        return _of_cards(device, engine, links)
    file, name = speed_file(), family_of(device)
    family = file.families[name] if name else None
    source = file.families[family.like] if family and family.like else family
    measured = source.backends.get(backend or source.usual) if source else None
    if name is None or family is None or measured is None:
        return Efficiency(
            device.name, {}, note=_nothing_known(device, backend, list(source.backends) if source else [])
        )
    if name == HOST and not device.peak_flop_per_s:
        why = f"{device.name}: the cores of a series are not known, so no speed is predicted\n  name the processor, such as ryzen-9-7950x; capplan list hardware has them"
        return Efficiency(device.name, {}, note=why)
    runs = backend or family.usual
    rates = _block_rates(name, family, measured, runs, early=engine.version == LLAMACPP[0].version)
    fits = {key: fit for key, fit in links.fits.items() if key.startswith("link/")}
    what = f"kernels of llama.cpp reach what was published of {name} devices with {runs}, flash attention on, prompts in pieces of 512 tokens"
    return Efficiency(
        f"{name} ({runs})",
        fits | block_fits(rates),
        borrowed=Assumption(what, "--backend", "engine"),
        offloaded={kind: fits | block_fits(each) for kind, each in _offloaded(rates).items()},
        spreads=_spreads(processor=runs == "cpu"),
        longest_context_tokens=file.processors.longest_context_tokens if runs == "cpu" else None,
        layer_split=LayerSplit(1e-6 * file.several.hand_over_us, file.several.stage_ratio),
    )


def _nothing_known(device: Device, backend: str | None, known: list[str]) -> str:
    """Return why no speed of a device is predicted, and the way out."""
    with_backend = f" with {backend}" if backend else ""
    of = family_of(device) or device.architecture
    out = (
        f"known with: {', '.join(known)}"
        if known
        else "capplan fit --engine llamacpp says what its memory holds"
    )
    return f"{device.name}: no speed of llama.cpp is known of {of} devices{with_backend}, so none is predicted\n  {out}"


def _of_cards(machine: Device, engine: EngineProfile, links: Efficiency) -> Efficiency:
    """Return the fits of a machine of cards: those of each card, which one build runs together."""
    runs = sorted({backend_of(card, engine.backend) or "" for card in machine.cards})
    each = tuple(llamacpp_efficiency(card, engine, links) for card in machine.cards)
    note = next((one.note for one in each if not one.fits), "")
    if len(runs) > 1 and not note:
        note = f"{machine.name}: {' and '.join(runs)} are builds of their own, and one runs all cards of a machine\n  name one that runs them all: --backend vulkan"
    if note:
        each = tuple(replace(one, fits={}, note=note) for one in each)
    families = " and ".join(dict.fromkeys(one.device for one in each))
    what = f"kernels of llama.cpp reach what was published of {families}, layer by layer, and a hand-over between cards takes what it takes between equal ones; all of them count as one GPU"
    return replace(
        each[0], device=families, cards=each, borrowed=Assumption(what, "--tensor-split", "engine")
    )


def _block_rates(name: str, family: Family, measured: Measured, backend: str, *, early: bool) -> BlockRates:
    """Return what a family reaches with a backend: its own fractions, and those that all families share."""
    file = speed_file()
    own = Fractions(measured.memory, measured.compute * family.matrix_ratio)
    vector = file.vector[backend]
    shared = BlockRates(
        family=name,
        own=own.times(file.early.fractions) if early else own,
        most=Fractions(1.0, family.matrix_ratio),
        start_s=1e-6 * file.start_us[backend],
        formats={key: pair.fractions for key, pair in file.formats.items()},
        vectors={key: min(of.vector * vector, 1.0) for key, of in file.formats.items()},
        experts=file.experts.fractions,
        attention=file.attention.fractions,
        recurrent=file.recurrent.fractions,
        decode_attention=file.early.decode_attention if early else 1.0,
    )
    if backend != "cpu":
        return shared
    return replace(
        shared,
        formats={key: Fractions(1.0, ratio) for key, ratio in file.processors.formats.items()},
        vectors=dict.fromkeys(file.formats, vector),
        experts=Fractions(1.0, file.processors.experts),
        attention=Fractions(1.0, file.processors.attention),
    )


def _spreads(*, processor: bool) -> dict[str, tuple[float, ...]]:
    """Return the intervals of a device by kind of speed; those of a processor are its own."""
    own = "processor_" if processor else ""
    kinds = ("generation", "prompt", "offloaded")
    every = speed_file().intervals
    return {kind: tuple(every.get(f"{own}{kind}", every[kind])) for kind in kinds}


def _offloaded(rates: BlockRates) -> dict[str, BlockRates]:
    """Return the rates of weights in the memory of the host: of a token, which the host reads, and of a prompt, for which they cross PCIe."""
    file = speed_file()
    token = replace(
        rates,
        own=Fractions(file.offload.host, 1.0),
        start_s=1e-6 * file.start_us["cpu"],
        vectors=dict.fromkeys(rates.vectors, 1.0),
    )
    own = Fractions(file.offload.pcie, rates.own.compute)
    return {"token": token, "prompt": replace(rates, own=own, sharpness=1.0)}
