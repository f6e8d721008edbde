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
from capplan.hardware.device import Device, Efficiency, LayerSplit
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
    file, name = speed_file(), family_of(device)
    family = file.families[name] if name else None
    source = file.families[family.like] if family and family.like else family
    measured = source.backends.get(backend or source.usual) if source else None
    if name is None or family is None or measured is None:
        others = ", ".join(source.backends) if source else ""
        out = (
            f"known with: {others}" if others else "capplan fit --engine llamacpp says what its memory holds"
        )
        with_backend = f" with {backend}" if backend else ""
        why = f"{device.name}: no speed of llama.cpp is known of {name or device.architecture} devices{with_backend}, so none is predicted"
        return Efficiency(device.name, {}, note=f"{why}\n  {out}")
    own = Fractions(measured.memory, measured.compute * family.matrix_ratio)
    early = engine.version == LLAMACPP[0].version
    own = own.times(file.early.fractions) if early else own
    rates = BlockRates(
        family=name,
        own=own,
        most=Fractions(1.0, family.matrix_ratio),
        start_s=1e-6 * file.start_us[backend or family.usual],
        formats={key: pair.fractions for key, pair in file.formats.items()},
        vectors={
            key: min(of.vector * file.vector[backend or family.usual], 1.0)
            for key, of in file.formats.items()
        },
        experts=file.experts.fractions,
        attention=file.attention.fractions,
        recurrent=file.recurrent.fractions,
        decode_attention=file.early.decode_attention if early else 1.0,
    )
    fits = {key: fit for key, fit in links.fits.items() if key.startswith("link/")}
    offloaded = {
        "token": replace(
            rates,
            own=Fractions(file.offload.host, 1.0),
            start_s=1e-6 * file.start_us["cpu"],
            vectors=dict.fromkeys(rates.vectors, 1.0),
        ),
        "prompt": replace(rates, own=Fractions(file.offload.pcie, own.compute), sharpness=1.0),
    }
    spreads = {kind: tuple(numbers) for kind, numbers in file.intervals.items()}
    runs = backend or family.usual
    what = f"kernels of llama.cpp reach what was published of {name} devices with {runs}, flash attention on, prompts in pieces of 512 tokens"
    said = Assumption(what, "--backend", "engine")
    return Efficiency(
        f"{name} ({runs})",
        fits | block_fits(rates),
        borrowed=said,
        offloaded={kind: fits | block_fits(each) for kind, each in offloaded.items()},
        spreads=spreads,
        layer_split=LayerSplit(1e-6 * file.several.hand_over_us, file.several.stage_ratio),
    )
