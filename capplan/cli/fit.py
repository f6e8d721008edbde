"""`capplan fit`: whether a replica fits, and what it leaves for sequences."""

from typing import Annotated

from capplan.cli import options as o
from capplan.cli.options import grouped
from capplan.scenario.flags import ServingFlags

Serving = Annotated[ServingFlags, o.SERVED.only(*(name for name in o.SERVED if name != "calibration"))]


@grouped
def command(
    *, model: o.Model, hardware: o.Hardware, serving: Serving, picture: o.Picture = None, to: o.Output
) -> int:
    """Show whether a model fits, what uses the memory, and how many sequences there is room for."""
    from capplan.fleet.fit import fit
    from capplan.readers.catalogue.hardware import device, device_names
    from capplan.report.answers.replica import fit_answer, waterfall
    from capplan.report.charts.of_answers import memory_chart
    from capplan.report.charts.static import chart_picture
    from capplan.report.show import show, shown_anyway
    from capplan.scenario.replica import asked_replica

    asked = asked_replica(model, hardware, serving)
    memory = fit(asked.spec, [device(name) for name in device_names()])
    answer = fit_answer(memory, asked.assumptions, asked.warnings)
    if picture:
        with shown_anyway(answer, to):
            chart_picture(picture, [memory_chart(asked.spec.device.name, waterfall(memory))])
    return show(answer, to)
