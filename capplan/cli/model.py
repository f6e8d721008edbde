"""`capplan model`: what a model is."""

from typing import Annotated

import typer

from capplan.cli.options import Form, Offline, Output, Revision, WeightDtype, refuse_unread


def command(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Path of a config.json or its folder, a shipped id or alias, or a Hugging Face id; without one, the shipped models.",
            show_default=False,
        ),
    ] = None,
    weight_dtype: WeightDtype = None,
    revision: Revision = None,
    offline: Offline = False,
    form: Form = None,
    output: Output = None,
) -> int:
    """Show what a model is: layers, parameters, weight bytes; or list the shipped ones."""
    from capplan.readers.catalogue.model import read_model, shipped_networks
    from capplan.report.model_answer import model_answer, models_answer
    from capplan.report.show import show

    if model is None:
        refuse_unread(context, ("weight_dtype", "revision"), "belongs to a MODEL, and none is given")
        return show(models_answer(*shipped_networks()), form, output)
    network = read_model(model, revision=revision, offline=offline)
    return show(model_answer(network, weight_dtype), form, output)
