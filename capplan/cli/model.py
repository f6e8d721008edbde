"""`capplan model`: what a model is."""

from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.completion import models
from capplan.cli.options import grouped
from capplan.scenario.flags import ServingFlags

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help=f"{o.MODEL}; without one, the shipped models.",
        show_default=False,
        autocompletion=models,
    ),
]
Serving = Annotated[ServingFlags, o.SERVING.only("weight_dtype", "revision", "offline")]


@grouped
def command(context: typer.Context, *, model: Model = None, serving: Serving, to: o.Output) -> int:
    """Show what a model is: layers, parameters, weight bytes; or list the shipped ones."""
    from capplan.readers.catalogue.models import read_model, shipped_networks, stored_model
    from capplan.report.answers.replica import model_answer, models_answer
    from capplan.report.show import show

    if model is None:
        o.refuse_unread(context, ("weight_dtype", "revision"), "belongs to a MODEL, and none is given")
        return show(models_answer(*shipped_networks()), to)
    network = read_model(model, revision=serving.revision, offline=serving.offline)
    return show(model_answer(network, serving.weight_dtype, stored_model(model)), to)
