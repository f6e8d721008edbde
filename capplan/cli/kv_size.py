"""`capplan kv-size`: what a sequence keeps in memory."""

from typing import Annotated

import typer

from capplan.cli.options import (
    Engine,
    EngineVersion,
    Form,
    KvDtype,
    MaxNumBatchedTokens,
    Model,
    Offline,
    Output,
    Revision,
    TensorParallel,
    whole,
)


def command(
    model: Model,
    context: Annotated[
        list[int] | None,
        typer.Option(
            "--context",
            parser=whole("--context", "tokens"),
            metavar="TOKENS",
            help="Prompt and output so far; may be given several times.",
        ),
    ] = None,
    sequences: Annotated[
        int,
        typer.Option(
            "--sequences", parser=whole("--sequences", "sequences"), metavar="N", help="Held at once."
        ),
    ] = 1,
    kv_dtype: KvDtype = None,
    tensor_parallel: TensorParallel = 1,
    engine: Engine = "vllm",
    engine_version: EngineVersion = None,
    max_num_batched_tokens: MaxNumBatchedTokens = None,
    revision: Revision = None,
    offline: Offline = False,
    form: Form = None,
    output: Output = None,
) -> int:
    """Show the KV cache and state bytes of a model, as needed and as the engine reserves them."""
    from capplan.fleet.refusal import refuse_heads
    from capplan.memory.kv_size import kv_sizes
    from capplan.readers.catalogue.model import read_model
    from capplan.report.answers.kv_size import kv_answer
    from capplan.report.show import show

    network = read_model(model, revision=revision, offline=offline)
    refuse_heads(network, tensor_parallel)
    sizes = kv_sizes(
        network,
        context or (),
        sequences=sequences,
        kv_dtype=kv_dtype,
        tensor_parallel=tensor_parallel,
        engine=engine,
        engine_version=engine_version,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    return show(kv_answer(sizes), form, output)
