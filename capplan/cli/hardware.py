"""`capplan hardware`: the catalogue of devices."""

from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.completion import devices
from capplan.cli.groups import grouped

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="Name, alias or path of a hardware YAML; without one, the list.",
        show_default=False,
        autocompletion=devices,
    ),
]


@grouped
def command(*, name: Name = None, to: o.Output) -> int:
    """List the devices of the catalogue, or show one with its sources."""
    from capplan.readers.catalogue.hardware import device, device_names, slices
    from capplan.report.answers.hardware import device_answer, devices_answer
    from capplan.report.show import show

    if name is None:
        return show(devices_answer([device(known) for known in device_names()]), to)
    one = device(name)
    return show(device_answer(one, slices(one)), to)
