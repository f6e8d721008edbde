"""`capplan model`: what a model is."""

from capplan.cli.options import Form, Model, Offline, Output, Revision, WeightDtype


def command(
    model: Model,
    weight_dtype: WeightDtype = None,
    revision: Revision = None,
    offline: Offline = False,
    form: Form = None,
    output: Output = None,
) -> int:
    """Show what a model is: layers, parameters, weight bytes."""
    from capplan.inputs.model import read_model
    from capplan.report.model_answer import model_answer
    from capplan.report.show import show

    network = read_model(model, revision=revision, offline=offline)
    return show(model_answer(network, weight_dtype), form, output)
