"""`capplan kv-size`: what a sequence keeps in memory."""

from typing import Annotated

from capplan.cli import options as o
from capplan.cli.groups import grouped
from capplan.cli.kinds import whole
from capplan.questions.flags import ServingFlags

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
    *, model: o.Model, context: Contexts = None, sequences: Sequences = 1, serving: Serving, to: o.Output
) -> int:
    """Show the KV cache and state bytes of a model, as needed and as the engine reserves them."""
    from capplan.fleet.refusal import refuse_heads
    from capplan.memory.kv_size import kv_sizes
    from capplan.readers.catalogue.model import read_model
    from capplan.report.answers.kv_size import kv_answer
    from capplan.report.show import show

    network = read_model(model, revision=serving.revision, offline=serving.offline)
    refuse_heads(network, serving.tensor_parallel)
    sizes = kv_sizes(
        network,
        context or (),
        sequences=sequences,
        kv_dtype=serving.kv_dtype,
        tensor_parallel=serving.tensor_parallel,
        engine=serving.engine,
        engine_version=serving.engine_version,
        max_num_batched_tokens=serving.max_num_batched_tokens,
    )
    return show(kv_answer(sizes), to)
