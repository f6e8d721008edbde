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
    from capplan.readers.catalogue.hardware import device, device_names
    from capplan.report.answers.hardware import device_answer, devices_answer
    from capplan.report.show import show

    answer = device_answer(device(name)) if name else devices_answer([device(n) for n in device_names()])
    return show(answer, to)
