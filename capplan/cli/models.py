"""What exists: `capplan model`, `kv-size`, `hardware` and `list`."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capplan.cli import options as o
from capplan.cli.completion import devices, models
from capplan.cli.options import grouped, whole
from capplan.errors import InputError, nearest, unknown
from capplan.scenario.flags import MODEL, ServingFlags

if TYPE_CHECKING:
    from capplan.report.charts.of_answers import Chart

_MODEL = typer.Argument(
    metavar="MODEL",
    help=f"{MODEL}; without one, the shipped models.",
    show_default=False,
    autocompletion=models,
)
ModelServing = Annotated[ServingFlags, o.SERVING.only("weight_dtype", "revision", "offline")]


@grouped
def model_command(
    context: typer.Context,
    *,
    model: Annotated[str | None, _MODEL] = None,
    serving: ModelServing,
    to: o.Output,
) -> int:
    """Show what a model is: layers, parameters, weight bytes; or list the shipped ones."""
    from capplan.readers.catalogue.models import read_model, shipped_networks, stored_model
    from capplan.report.answers.models import model_answer, models_answer
    from capplan.report.show import show

    if model is None:
        o.refuse_unread(context, ("weight_dtype", "revision"), "belongs to a MODEL, and none is given")
        return show(models_answer(*shipped_networks()), to)
    network = read_model(model, revision=serving.revision, offline=serving.offline)
    return show(model_answer(network, serving.weight_dtype, stored_model(model)), to)


_CONTEXTS = whole(
    "--context",
    of="tokens",
    metavar="TOKENS",
    says="Input and output tokens so far; repeatable.",
)
Sequences = Annotated[int, whole("--sequences", of="sequences", says="Sequences in the cache at once.")]
_CACHE_SERVING = o.SERVING.only(
    "kv_dtype",
    "tensor_parallel",
    "engine",
    "engine_version",
    "max_num_batched_tokens",
    "revision",
    "offline",
)


@grouped
def kv_size_command(
    *,
    model: o.Model,
    context: Annotated[list[int] | None, _CONTEXTS] = None,
    sequences: Sequences = 1,
    serving: Annotated[ServingFlags, _CACHE_SERVING],
    picture: o.Picture = None,
    to: o.Output,
) -> int:
    """Show the KV cache and state bytes of a model, as needed and as the engine reserves them."""
    from capplan.memory.kv_sizes import kv_sizes
    from capplan.model.sharding import refuse_heads
    from capplan.readers.catalogue.models import read_model
    from capplan.report.answers.models import kv_answer
    from capplan.report.show import show_drawn

    network = read_model(model, revision=serving.revision, offline=serving.offline)
    refuse_heads(network, serving.tensor_parallel)
    sizes_at = partial(
        kv_sizes,
        network,
        sequences=sequences,
        kv_dtype=serving.kv_dtype,
        tensor_parallel=serving.tensor_parallel,
        engine=serving.engine,
        engine_version=serving.engine_version,
        max_num_batched_tokens=serving.max_num_batched_tokens,
    )
    sizes = sizes_at(context or ())
    answer = kv_answer(sizes)

    def charts() -> "list[Chart]":
        from capplan.report.charts.of_answers import allocation_chart

        most = max(network.max_context_tokens or 0, *(size.context_tokens for size in sizes.rows))
        return [allocation_chart(sizes.rows, sizes_at((most,)).rows[0])]

    return show_drawn(answer, to, picture, charts)


_NAME = typer.Argument(
    metavar="NAME",
    help="Name, alias or path of a hardware YAML, or the sku of a machine; without one, the list.",
    show_default=False,
    autocompletion=devices,
)


@grouped
def hardware_command(*, name: Annotated[str | None, _NAME] = None, to: o.Output) -> int:
    """List the devices of the catalogue, or show a device or a machine with its sources."""
    from capplan.readers.catalogue.hardware import device, device_names, slices
    from capplan.report.answers.catalogue import device_answer, devices_answer, machine_answer
    from capplan.report.show import show

    if name is None:
        from capplan.readers.catalogue.workstations import gpu_names

        return show(devices_answer([device(known) for known in (*device_names(), *gpu_names())]), to)
    try:
        one = device(name)
    except InputError:
        from capplan.readers.catalogue.hardware import sku_of
        from capplan.readers.catalogue.prices import machine_names

        if (sold := sku_of(name)) is not None:
            return show(machine_answer(sold), to)
        if nearest(name, device_names()) or not nearest(name, machine_names()):
            raise
        raise unknown("machine", name, machine_names(), hint="all of them: capplan list machines") from None
    return show(device_answer(one, slices(one)), to)


_KINDS = ("scenarios", "models", "hardware", "machines", "engines", "prices", "apis")
_KIND = typer.Argument(
    metavar="KIND", help=f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}.", autocompletion=lambda: list(_KINDS)
)
_WORD = typer.Argument(metavar="[WORD]", help="Show only entries that contain this word.")
_CHECK = typer.Option("--check", help="Show which prices or APIs are old, retired or contradicted.")
_PRICES = typer.Option(
    "--prices",
    metavar="FILE",
    help="Newer list to check apis against: a token-price YAML, or the price file of LiteLLM.",
)
_DAY = typer.Option(
    "--date",
    metavar="DAY",
    help="Date of a list that states none, such as the file of LiteLLM.",
)


@grouped
def list_command(
    *,
    kind: Annotated[str, _KIND],
    word: Annotated[str | None, _WORD] = None,
    check: Annotated[bool, _CHECK] = False,
    prices: Annotated[Path | None, _PRICES] = None,
    date: Annotated[str | None, _DAY] = None,
    to: o.Output,
) -> int:
    """List shipped scenarios, models, hardware, machines, engines, prices or hosted APIs, all or by a word."""
    from capplan.questions.listing import checked, having, listed
    from capplan.report.answers.catalogue import listing_answer
    from capplan.report.show import show

    if kind not in _KINDS:
        raise unknown("list", kind, _KINDS)
    if check and kind not in ("prices", "apis"):
        raise InputError(
            f"--check: {kind} have no prices; capplan list prices --check, capplan list apis --check"
        )
    if prices is not None and not (check and kind == "apis"):
        raise InputError(
            "--prices: is what hosted prices are checked against; capplan list apis --check --prices FILE"
        )
    if date is not None and prices is None:
        raise InputError("--date: is the day of a price file, and none is given; --prices FILE")
    if check:
        from capplan.keys import current_day

        rows = having(kind, checked(kind, str(prices) if prices else None, date, current_day()), word)
        return show(listing_answer(f"{kind} --check", rows), to)
    return show(listing_answer(kind, listed(kind, word)), to)
