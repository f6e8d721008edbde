"""`capplan hardware`: the catalogue of devices."""

from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.completion import devices
from capplan.cli.options import grouped
from capplan.errors import InputError, nearest, unknown

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="Name, alias or path of a hardware YAML, or the sku of a machine; without one, the list.",
        show_default=False,
        autocompletion=devices,
    ),
]


@grouped
def command(*, name: Name = None, to: o.Output) -> int:
    """List the devices of the catalogue, or show a device or a machine with its sources."""
    from capplan.readers.catalogue.hardware import device, device_names, slices
    from capplan.report.answers.replica import device_answer, devices_answer, machine_answer
    from capplan.report.show import show

    if name is None:
        return show(devices_answer([device(known) for known in device_names()]), to)
    try:
        one = device(name)
    except InputError:
        from capplan.readers.catalogue.prices import machine_names, sku_of

        if (sold := sku_of(name)) is not None:
            return show(machine_answer(sold), to)
        if nearest(name, device_names()) or not nearest(name, machine_names()):
            raise
        raise unknown("machine", name, machine_names(), hint="all of them: capplan list machines") from None
    return show(device_answer(one, slices(one)), to)
