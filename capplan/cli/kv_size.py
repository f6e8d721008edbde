"""`capplan kv-size`: what a sequence keeps in memory."""

from functools import partial
from typing import Annotated

from capplan.cli import options as o
from capplan.cli.options import grouped, whole
from capplan.scenario.flags import ServingFlags

Contexts = Annotated[
    list[int] | None,
    whole(
        "--context",
        of="tokens",
        metavar="TOKENS",
        says="Input and output tokens so far; repeatable.",
    ),
]
Sequences = Annotated[int, whole("--sequences", of="sequences", says="Sequences in the cache at once.")]
Serving = Annotated[
    ServingFlags,
    o.SERVING.only(
        "kv_dtype",
        "tensor_parallel",
        "engine",
        "engine_version",
        "max_num_batched_tokens",
        "revision",
        "offline",
    ),
]


@grouped
def command(
    *,
    model: o.Model,
    context: Contexts = None,
    sequences: Sequences = 1,
    serving: Serving,
    picture: o.Picture = None,
    to: o.Output,
) -> int:
    """Show the KV cache and state bytes of a model, as needed and as the engine reserves them."""
    from capplan.memory.kv_size import kv_sizes
    from capplan.model.sharding import refuse_heads
    from capplan.readers.catalogue.models import read_model
    from capplan.report.answers.replica import kv_answer
    from capplan.report.show import show, shown_anyway

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
    if picture:
        from capplan.report.charts.of_answers import allocation_chart
        from capplan.report.charts.static import chart_picture

        most = max(network.max_context_tokens or 0, *(size.context_tokens for size in sizes.rows))
        with shown_anyway(answer, to):
            chart_picture(picture, [allocation_chart(sizes.rows, sizes_at((most,)).rows[0])])
    return show(answer, to)
