"""What `detect` shows of this machine, and `fit any` of the models that run on a device."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from capplan.assumption import Assumption
from capplan.hardware.device import Device, engine_memory_bytes
from capplan.questions.runnable import Runnable
from capplan.readers.catalogue.hardware import device
from capplan.readers.local_machine import LocalMachine
from capplan.report.answer import Answer, Table, row_of


def machine_here_answer(machine: LocalMachine) -> Answer:
    """Return the devices of this machine, its host, and what each tool said."""
    devices = [
        {
            "device": one.printed,
            "count": one.count,
            "hardware": one.hardware or " or ".join(one.may_be) or None,
            **row_of(one, "memory_bytes usable_bytes memory_bytes_per_s tool"),
        }
        for one in machine.devices
    ]
    host = {"processor": machine.host.printed, **asdict(machine.host)}
    del host["printed"]
    tools = [{"tool": tool, "said": problem or "answered"} for tool, problem in machine.tools.items()]
    return Answer(
        command="detect",
        result={
            "devices": [asdict(one) for one in machine.devices],
            "host": host,
            "tools": dict(machine.tools),
        },
        tables=(Table(devices, "GPUs"), Table([host], "Host", upright=True), Table(tools, "Tools")),
        headline=_headline(machine),
        closing=("capplan fit any --hardware this lists the models that run here",),
        assumptions=_host_assumptions(machine),
        warnings=tuple(_warnings(machine)),
        csv_rows=devices,
    )


def _headline(machine: LocalMachine) -> str:
    known = [f"{one.count} x {one.hardware or one.printed}" for one in machine.devices]
    host = machine.host.hardware or machine.host.printed or "an unknown processor"
    return f"{', '.join(known) or 'no GPU found'}; host: {host}"


def _host_assumptions(machine: LocalMachine) -> tuple[Assumption, ...]:
    if machine.host.memory_bytes_per_s is None:
        return ()
    what = "every channel of the host has the fastest memory that its processor supports"
    return (Assumption(what, "capplan calibrate --device cpu", "calibration"),)


def _warnings(machine: LocalMachine) -> Iterator[str]:
    yield from (
        f"{one.printed!r} is not one device of the catalogue"
        + (f"; it has {', '.join(one.may_be)}" if one.may_be else "")
        + "; give --hardware NAME, or the path of a hardware YAML"
        for one in machine.devices
        if one.hardware is None
    )
    if machine.host.printed and machine.host.memory_bytes_per_s is None:
        yield (
            f"the memory bandwidth of {machine.host.printed!r} is unknown: the catalogue does not have this processor; "
            "capplan calibrate --device cpu measures it"
        )


def more_here(machine: LocalMachine, hardware: str) -> tuple[str, ...]:
    """Return what else of this machine llama.cpp could use: further equal devices, and the memory of the host next to a GPU."""
    said, host = [], machine.host
    of = next((one for one in machine.devices if one.hardware == hardware), None)
    if of is not None and of.count > 1:
        said.append(f"this machine has {of.count} of them: -pp {of.count} gives each its layers")
    shares = of is None or device(hardware).pcie_bytes_per_s is None
    if not shares and host.memory_bytes_per_s and host.memory_bytes:
        rate, size = host.memory_bytes_per_s / 1e9, host.memory_bytes / 1e9
        said.append(
            f"--host-bandwidth '{rate:.0f} GB/s' --host-memory '{size:.0f} GB' adds the models that run with a part on this host"
        )
    return tuple(said)


def _headline_of_models(
    target: Device, rows: Sequence[Runnable], available_bytes: float, devices: int
) -> str:
    """Return how many models fit, and how many more run with a part in the memory of the host."""
    on = target.title if devices == 1 else f"{devices} x {target.title}"
    split = sum(bool(row.split) for row in rows)
    more = f"; {split} more run with a part of their weights on the host" if split else ""
    return f"{len(rows) - split} models fit on {on}, which gives them {available_bytes / 1e9:.1f} GB{more}"


def runnable_answer(
    target: Device, rows: Sequence[Runnable], kv_dtype: str, devices: int = 1, more: Sequence[str] = ()
) -> Answer:
    """Return the models that run on a device, or on several, with their speeds, the best quantisation first."""
    left_out = (
        ("quality", "reason")
        if any(row.split for row in rows)
        else ("quality", "reason", "split", "host_weight_bytes")
    )
    shown = [{name: value for name, value in asdict(row).items() if name not in left_out} for row in rows]
    unknown = dict.fromkeys(row.reason for row in rows if row.reason)
    available = devices * engine_memory_bytes(target)
    assumed = (
        Assumption("nothing else uses the memory", "a smaller --hardware NAME:SIZE", "fleet.hardware"),
        Assumption(f"one sequence, its cache in {kv_dtype}", "--kv-dtype", "kv_dtype"),
        Assumption(
            "llama.cpp runs the model, in the formats that llama-quantize writes without an importance matrix",
            "capplan fit FILE.gguf",
            "weight_dtype",
        ),
    )
    return Answer(
        command="fit",
        result={"hardware": target.name, "available_bytes": available, "models": shown},
        tables=(Table(shown, spare=("parameters", "host_weight_bytes")),),
        headline=_headline_of_models(target, rows, available, devices),
        closing=(
            "capplan fit MODEL --engine llamacpp --hardware NAME --weight-dtype DTYPE shows what uses the memory",
            *more,
        ),
        assumptions=assumed,
        warnings=tuple(f"no speed: {reason}" for reason in list(unknown)[:1]),
        exit_code=0 if rows else 3,
    )
