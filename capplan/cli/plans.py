"""Plans: `capplan fleet`, and the commands that read its answer."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date as day
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from capplan.cli import options as o
from capplan.cli.completion import plans_and_scenarios
from capplan.cli.options import Group, declared, fraction, grouped, measure, one_of, whole
from capplan.errors import InputError
from capplan.ranges import Positive
from capplan.scenario.command_flags import ScenarioFlags, StartedFlags
from capplan.scenario.flags import OutputFlags, ServingFlags, option

if TYPE_CHECKING:
    from capplan.recorded.traces.prometheus_server import Observed

_FULL = typer.Option("--full", help="Show every table instead of the first screen.")


@grouped
def fleet_command(
    *,
    scenario: o.Scenario,
    asked: o.Asked,
    offline: o.Offline = False,
    picture: o.Picture = None,
    full: Annotated[bool, _FULL] = False,
    to: o.Assuming,
) -> int:
    """Find the cheapest fleet that serves a scenario, with the runners-up and what was rejected; -o plan.json keeps the plan."""
    from capplan.library import planned
    from capplan.report.show import row_progress, show_drawn

    scenario, changed = o.line_of(scenario, asked)
    with row_progress("plans") as progress:
        found, charts = planned(scenario, changed, progress, pictured=picture is not None, offline=offline)
    return show_drawn(found, to, picture, lambda: charts, full=full)


_OF_LOAD = typer.Argument(
    metavar="SCENARIO|MODEL|PLAN",
    help="Scenario YAML or name, a model, or a plan written by capplan fleet -o plan.json, whose GPUs are asked about.",
    autocompletion=plans_and_scenarios,
)
_GPUS = typer.Option(
    "--gpus",
    metavar="N x NAME",
    help="GPUs that you have, spares included, such as '8 x h100-sxm' or '8 x h100-sxm, 4 x l40s'.",
)
_BUDGET = measure(
    "--budget", "BUDGET", metavar="USD", says="Dollars per month that GPUs may cost, instead of --gpus."
)
Loaded = Annotated[ScenarioFlags, o.ASKED.only(*(name for name in o.ASKED if name != "save"))]


@grouped
def capacity_command(
    *,
    scenario: Annotated[Path, _OF_LOAD],
    gpus: Annotated[str | None, _GPUS] = None,
    budget: Annotated[float | None, _BUDGET] = None,
    asked: Loaded,
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Find the largest load that GPUs or a budget carry within the targets, what limits it, and what would carry more; exits 4 if none."""
    from capplan.questions.capacity import asked_capacity, think_time
    from capplan.report.answers.capacity import capacity_answer
    from capplan.report.show import row_progress, show

    think_s, assumed, asked = think_time(asked)
    scenario, settings = o.line_of(scenario, asked)
    with row_progress("changes") as progress:
        question, answer = asked_capacity(
            scenario, settings, gpus, budget, think_s, progress, offline=offline
        )
    return show(capacity_answer(question, answer, assumed), to)


_BEFORE = typer.Argument(
    metavar="A",
    help="Scenario YAML, or plan written by capplan fleet -o plan.json: before.",
    autocompletion=plans_and_scenarios,
)
_AFTER = typer.Argument(
    metavar="B", help="Scenario YAML, or plan: after.", autocompletion=plans_and_scenarios
)


@grouped
def diff_command(
    *,
    before: Annotated[Path, _BEFORE],
    after: Annotated[Path, _AFTER],
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Show what changed between two scenarios or plans: inputs, GPUs, dollars, latency and the chance to meet the SLO."""
    from capplan.questions.plans.plan_check import both_sides
    from capplan.report.answers.plan_files import diff_answer
    from capplan.report.show import row_progress, show

    with row_progress("plans") as progress:
        sides = both_sides(before, after, progress, offline=offline)
    return show(diff_answer(*sides), to)


NEVER_OLD_DAYS = 36_500
"""Prices of any date hold for a plan that is searched again."""
_PRICE_AGE = whole(
    "--max-price-age", of="days", metavar="DAYS", says="A price older than this no longer holds."
)


@dataclass(frozen=True, slots=True)
class WatchedServer:
    """A Prometheus server, and what is read of it."""

    prometheus: str | None = option(
        "Prometheus server that scrapes the engines of the plan; a bearer token comes from PROMETHEUS_BEARER_TOKEN.",
        metavar="URL",
    )
    window_s: float | None = option(
        "Read this much time up to now; default: 1 d.", Positive("7 d"), flag="--window"
    )
    model_name: str | None = option(o.SERVED_MODEL, metavar="NAME")

    def seen(self, *, offline: bool) -> "Observed | None":
        """Return what the engines did; None if no server is named."""
        if self.prometheus is None:
            if self != WatchedServer():
                raise InputError(
                    "--window and --model-name are of --prometheus: name the server they are read from"
                )
            return None
        from capplan.recorded.traces.prometheus_server import observed
        from capplan.workload.statistics import DAY_S

        window_s = self.window_s or DAY_S
        return observed(self.prometheus, "--prometheus", window_s, self.model_name, offline=offline)


Server = Annotated[WatchedServer, declared(WatchedServer, "What engines did")]


@grouped
def check_command(
    *,
    scenario: o.ScenarioOfPlan = None,
    plan_file: o.PlanFile = None,
    max_price_age: Annotated[int, _PRICE_AGE] = 365,
    settings: o.Settings = None,
    server: Server,
    offline: o.Offline = False,
    to: o.Assuming,
) -> int:
    """Show whether a plan still holds: SLO targets and the chance to meet them, capacity, budget and the dates of its prices, or what its engines did (--prometheus); exits 4 if not."""
    from capplan.keys import current_day
    from capplan.questions.fleet import asked_fleet
    from capplan.questions.plans.plan_check import check_plan
    from capplan.questions.plans.plan_file import scenario_beside
    from capplan.readers.plan_file import read_plan_file
    from capplan.report.answers.plan_files import check_answer
    from capplan.report.show import show

    file = read_plan_file(o.needed_plan(plan_file))
    if seen := server.seen(offline=offline):
        from capplan.questions.plans.drift import asked_as_observed, watched
        from capplan.readers.catalogue.efficiency import shipped_intervals
        from capplan.report.answers.watched import watch_answer

        asked = asked_as_observed(scenario, file, settings or (), seen, offline=offline)
        watch = watched(asked, file, seen, shipped_intervals(), current_day(), max_price_age)
        return show(watch_answer(asked, file, watch), to)
    asked = asked_fleet(scenario_beside(scenario, file, settings or ()), offline=offline)
    return show(check_answer(asked, file, check_plan(asked, file, current_day(), max_price_age)), to)


_BAND = fraction(
    "--band", says="A plan that saves a smaller share than this is not worth a change; default: 10 %."
)
_PRICES_OF = one_of(
    "--prices", ("pinned", "today"), says="Prices: pinned (the plan's) or today's; default: pinned."
)


@grouped
def replan_command(
    *,
    plan: o.PlanArgument = None,
    plan_file: o.PlanFile = None,
    server: Server,
    prices: Annotated[Literal["pinned", "today"], _PRICES_OF] = "pinned",
    band: Annotated[float, _BAND] = 0.1,
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Find the cheapest fleet for the traffic that a plan's engines had, as a diff with the cost of changing; exits 4 if none meets the targets."""
    from capplan.keys import current_day
    from capplan.questions.plans.drift import asked_again, replanned, watched
    from capplan.readers.catalogue.efficiency import shipped_intervals
    from capplan.readers.plan_file import read_plan_file
    from capplan.report.answers.watched import replan_answer
    from capplan.report.show import row_progress, show

    file, seen = read_plan_file(o.needed_plan(plan, plan_file)), server.seen(offline=offline)
    if seen is None:
        raise InputError("replan needs what the engines of the plan did: --prometheus URL")
    asked = asked_again(file, seen, prices, offline=offline)
    watch = watched(asked, file, seen, shipped_intervals(), current_day(), NEVER_OLD_DAYS)
    with row_progress("plans") as progress:
        found = replanned(asked, file, watch, band, progress)
    return show(replan_answer(asked, file, watch, found), to)


_RESULTS = typer.Option(
    "--results",
    metavar="FILE",
    help="Result of a benchmark tool, or Prometheus text of a server; given twice: two scrapes, the earlier one first.",
)
_URL = typer.Option(
    "--endpoint",
    metavar="URL",
    help="One running replica, which gets the traffic of the plan instead: an OpenAI-compatible address.",
)
_MINUTES = typer.Option(
    "--minutes", metavar="N", min=0.01, max=600.0, help="With --endpoint: time to send traffic for."
)
_INTERVAL = measure("--interval", says="Time between two scrapes of Prometheus, such as '10 min'.")
Replicas = Annotated[int, whole("--replicas", of="replicas", says="Replicas that the results are of.")]

_MIX_GROUP = whole("--group", of="a group of a mix", says="Group of a mix that the results are of, from 1.")


@grouped
def verify_plan_command(
    *,
    plan: o.PlanArgument = None,
    plan_file: o.PlanFile = None,
    results: Annotated[list[Path] | None, _RESULTS] = None,
    endpoint: Annotated[str | None, _URL] = None,
    minutes: Annotated[float | None, _MINUTES] = None,
    interval: Annotated[float | None, _INTERVAL] = None,
    replicas: Replicas = 1,
    group: Annotated[int | None, _MIX_GROUP] = None,
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Verify a plan with measured results: predicted next to measured, what to recalibrate, the scenario's next version; exits 4 if it does not hold."""
    from capplan.questions.plans.plan_verification import measured_result, planned, verified
    from capplan.readers.catalogue.efficiency import shipped_intervals
    from capplan.report.answers.plan_files import verify_plan_answer
    from capplan.report.show import say, show

    _refuse_other_source(results, endpoint, minutes, interval, replicas)
    asked, planned_fleet = planned(o.needed_plan(plan, plan_file), group, offline=offline)
    if endpoint:
        from capplan.calibrate.endpoint.client import endpoint_of
        from capplan.calibrate.endpoint.plan_traffic import measured_plan

        measurement = (
            measured_plan(endpoint_of(endpoint), asked, planned_fleet, minutes=minutes, tell=say),
            0.0,
        )
    else:
        measurement = measured_result(results or [], interval)
    intervals = shipped_intervals()
    verification = verified(
        asked, planned_fleet, *measurement, replicas, intervals, own_traffic=bool(endpoint)
    )
    return show(verify_plan_answer(asked, planned_fleet, verification, tuple(results or ())), to)


def _refuse_other_source(
    results: list[Path] | None,
    endpoint: str | None,
    minutes: float | None,
    interval: float | None,
    replicas: int,
) -> None:
    """Refuse none or both of results and a server, and what the given one does not read."""
    if bool(results) == bool(endpoint):
        raise InputError(
            "verify-plan needs what was measured: --results FILE, or --endpoint URL of one running replica"
        )
    if endpoint and (interval is not None or replicas != 1):
        raise InputError("--interval and --replicas are of --results: an endpoint is one replica")
    if results and minutes is not None:
        raise InputError("--minutes is of --endpoint: results were measured before")


_PLAN = typer.Argument(
    metavar="PLAN",
    help="Plan written by capplan fleet -o plan.json, or a scenario YAML.",
    autocompletion=plans_and_scenarios,
)
_QUANTITY = typer.Argument(
    metavar="[QUANTITY]",
    help="Path in the JSON of fleet, such as ttft_s.p95, or COMMAND.PATH, such as bill.classes[0].usd; "
    "a part of a path, or none, lists the numbers there.",
)
_API = typer.Option(
    "--api",
    metavar="PROVIDER/MODEL",
    help="Hosted API of compare, such as openai/gpt-5; repeatable; default: all listed ones that serve the scenario's model.",
)


@grouped
def explain_command(
    *,
    plan_file: Annotated[Path, _PLAN],
    quantity: Annotated[str | None, _QUANTITY] = None,
    api: Annotated[list[str] | None, _API] = None,
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Explain a number that a command printed of a plan: its formula, what went into it, and where each of those is from."""
    from capplan.explain.plans import Planned
    from capplan.explain.printed import explain_answer
    from capplan.questions.plans.plan_file import answered
    from capplan.report.show import row_progress, show

    with row_progress("plans") as progress:
        planned = Planned(*answered(plan_file, progress, offline=offline), tuple(api or ()))
    return show(explain_answer(planned, quantity), to)


_TARGETS = (
    "vllm",
    "sglang",
    "trtllm",
    "llamacpp",
    "ollama",
    "lmstudio",
    "compose",
    "k8s",
    "kserve",
    "llm-d",
    "dynamo",
    "keda",
    "skypilot",
    "grafana",
)
_TARGET = one_of(
    "--target",
    _TARGETS,
    says=f"{', '.join(_TARGETS[:-1])} or {_TARGETS[-1]}.",
)
Instead = Annotated[StartedFlags, declared(StartedFlags, "Instead of what the plan names")]
Text = Annotated[OutputFlags, o.OUTPUT.only("file")]
_OF_REPLICA = (
    "pipeline_parallel", "weight_dtype", "kv_dtype", "engine_version", "n_gpu_layers", "tensor_split", "split_mode", "main_gpu", "n_cpu_moe",
    "host_bandwidth", "host_memory", "max_model_len", "max_num_seqs", "offline",
)  # fmt: skip
_WITHOUT_A_PLAN = ("hardware", *_OF_REPLICA[:-1])
Exported = Annotated[ServingFlags, o.SERVING.only(*_OF_REPLICA)]
OfModel = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="MODEL", help="Write one replica of llama.cpp with this model, instead of a plan."
    ),
]
OfHardware = Annotated[str | None, o.HARDWARE]


@grouped
def export_command(
    context: typer.Context,
    *,
    plan: o.PlanArgument = None,
    plan_file: o.PlanFile = None,
    target: Annotated[str, _TARGET],
    instead: Instead,
    model: OfModel = None,
    hardware: OfHardware = None,
    serving: Exported,
    to: Text,
) -> int:
    """Export a plan as what starts or watches its fleet: engine commands, a Compose file, Kubernetes manifests, a Grafana dashboard."""
    from capplan.deploy.export import export_text, exported_replica
    from capplan.deploy.fleet_launch import fleet_launch
    from capplan.readers.plan_file import read_plan_file
    from capplan.report.show import say, send

    if model is not None:
        o.refuse_unread(
            context, ("plan", "plan_file", "draft", "image"), "is of a plan; leave it or --model out"
        )
        send(exported_replica(model, hardware, serving, target, instead.checkpoint), to.file)
        return 0
    o.refuse_unread(context, _WITHOUT_A_PLAN, "is of one replica; name it with --model")
    file = read_plan_file(o.needed_plan(plan, plan_file))
    text = export_text(file, fleet_launch(file, **asdict(instead)), target)
    for remark in file.remarks:
        say(f"warning: {remark}")
    send(text, to.file)
    return 0


_NAMES = typer.Option(
    "--lever", metavar="NAME", help="Try only this lever, such as commitment; repeatable; default: all."
)


@grouped
def levers_command(
    *,
    scenario: o.ScenarioOfPlan = None,
    plan_file: o.PlanFile = None,
    levers: Annotated[list[str] | None, _NAMES] = None,
    settings: o.Settings = None,
    offline: o.Offline = False,
    to: o.Assuming,
) -> int:
    """Show what each change to a scenario is worth: GPUs, dollars, latency and risk of every lever separately, and of the best combination."""
    from capplan.questions.levers.answer import asked_levers, checked_names, levers_of
    from capplan.questions.levers.cores import usable_cores
    from capplan.report.answers.levers import lever_found, levers_answer
    from capplan.report.show import row_progress, show

    names = checked_names(levers)
    with row_progress("levers") as progress:
        asking, base = asked_levers(scenario, plan_file, tuple(settings or ()), offline=offline)
        found = lever_found(progress, base) if progress else None
        answer = levers_of(asking, base, names, progress, found, cores=usable_cores())
    return show(levers_answer(asking, base, answer), to)


@grouped
def what_if_command(
    *,
    scenario: o.ScenarioOfPlan = None,
    plan_file: o.PlanFile = None,
    settings: o.Settings = None,
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Show the cheapest fleet at other loads, TTFT targets, required probabilities and prices, all of them together; exits 4 without a plan."""
    from capplan.questions.fleet_answer import fleet_for
    from capplan.questions.plans.plan_file import asked_of_plan
    from capplan.questions.what_if import surface_of
    from capplan.report.answers.what_if import points_found, what_if_answer
    from capplan.report.show import row_progress, show

    asked, answer = asked_of_plan(scenario, plan_file, settings or (), offline=offline)
    with row_progress("loads and targets") as progress:
        found = points_found(progress) if progress else None
        surface = surface_of(asked, answer or fleet_for(asked), progress, found)
    return show(what_if_answer(asked, surface), to)


_FORMATS = ("table", "json", "csv", "markdown", "html")
_FORM = one_of(
    "--format",
    _FORMATS,
    metavar="FORMAT",
    says="table, json, csv, markdown or html; default: by the suffix of --output, else table.",
)


Page = Annotated[OutputFlags, Group("Output", form=_FORM, file=o.OUTPUT["file"])]


@dataclass(frozen=True, slots=True)
class PageFlags:
    """What a page has in addition to its plan."""

    author: str | None = option("Author of the page, printed below its title.", metavar="TEXT")
    date: str | None = option(
        "Date below the title; never the clock's, so that the same inputs give the same page.",
        metavar="YYYY-MM-DD",
    )
    levers: bool = option(
        "Show what every lever is worth; takes a search for each.",
        default=False,
    )

    def __post_init__(self) -> None:
        """Refuse a date that is no day."""
        try:
            day.fromisoformat(self.date or "2026-11-22")
        except ValueError:
            raise InputError(f"--date: {self.date!r} is not a day; e.g. 2026-11-22") from None


_BESIDE = declared(PageFlags, "The page")


@grouped
def report_command(
    *,
    scenario: o.ScenarioOfPlan = None,
    plan_file: o.PlanFile = None,
    settings: o.Settings = None,
    page: Annotated[PageFlags, _BESIDE],
    offline: o.Offline = False,
    to: Page,
) -> int:
    """Write the page for the planning review of a scenario: the decision first, then its evidence."""
    from capplan.questions.fleet_answer import fleet_for
    from capplan.questions.levers.answer import asking_of
    from capplan.questions.plans.plan_file import asked_of_plan
    from capplan.readers.catalogue.models import model_source
    from capplan.report.show import row_progress
    from capplan.review.findings import findings
    from capplan.review.levers import tried_levers
    from capplan.review.page import review_of, review_output, show_review, written_with

    to_page = review_output(to)
    with written_with(to_page):
        asked, answer = asked_of_plan(scenario, plan_file, settings or (), offline=offline)
        with row_progress("plans") as progress:
            answer = answer or fleet_for(asked, progress)
    levers = None
    if page.levers:
        asking = asking_of(scenario, plan_file, tuple(settings or ()), offline=offline)
        levers = tried_levers(asking, asked, answer)
    source = model_source(asked.scenario.model, asked.scenario.file.revision)
    words = _command_line(scenario, plan_file, settings or (), page, offline=offline, to=to)
    others = to_page.form != "markdown"
    found = findings(
        asked, answer, words, source, date=page.date, author=page.author, levers=levers, others=others
    )
    return show_review(review_of(found), to_page)


def _command_line(
    scenario: Path | None,
    plan_file: Path | None,
    settings: Sequence[str],
    page: PageFlags,
    *,
    offline: bool,
    to: OutputFlags,
) -> str:
    """Return the command as it is typed."""
    words = ["capplan", "report", *([str(scenario)] if scenario else [])]
    words += ["--plan", str(plan_file)] if plan_file else []
    words += [part for setting in settings for part in ("--set", setting)]
    words += (["--author", page.author] if page.author else []) + (["--date", page.date] if page.date else [])
    words += ["--levers"] if page.levers else []
    words += [*(["--offline"] if offline else [])]
    words += (["--format", to.form] if to.form else []) + (["-o", str(to.file)] if to.file else [])
    return shlex.join(words)
