"""`capplan export`: what starts the fleet of a plan."""

from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import grouped, one_of
from capplan.scenario.flags import OutputFlags

_TARGETS = (
    "vllm",
    "sglang",
    "trtllm",
    "compose",
    "k8s",
    "kserve",
    "llm-d",
    "dynamo",
    "keda",
    "skypilot",
    "grafana",
)
Target = Annotated[
    str,
    one_of(
        "--target",
        _TARGETS,
        says=f"{', '.join(_TARGETS[:-1])} or {_TARGETS[-1]}.",
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="OWNER/NAME",
        help="Served instead of the plan's model: its weights in the plan's dtype.",
    ),
]
Draft = Annotated[
    str | None,
    typer.Option("--draft", metavar="OWNER/NAME", help="Checkpoint of the draft, where the plan names none."),
]
Image = Annotated[
    str | None,
    typer.Option(
        "--image",
        metavar="NAME:TAG",
        help="Of the containers; default: the engine's release, where it is known.",
    ),
]
Text = Annotated[OutputFlags, o.OUTPUT.only("file")]


@grouped
def command(
    *,
    plan_file: o.NeededPlan,
    target: Target,
    checkpoint: Checkpoint = None,
    draft: Draft = None,
    image: Image = None,
    to: Text,
) -> int:
    """Export a plan as what starts or watches its fleet: engine commands, a Compose file, Kubernetes manifests, a Grafana dashboard."""
    from capplan.deploy.export import export_text
    from capplan.deploy.fleet_launch import fleet_launch
    from capplan.readers.plan_file import read_plan_file
    from capplan.report.show import say, send

    file = read_plan_file(plan_file)
    text = export_text(file, fleet_launch(file, checkpoint=checkpoint, draft=draft, image=image), target)
    for remark in file.remarks:
        say(f"warning: {remark}")
    send(text, to.file)
    return 0
