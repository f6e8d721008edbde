"""Published speeds of GGUF models -> predictions, with the code of `estimate`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log2

from capplan.accuracy.bounded import Interval, Intervals
from capplan.accuracy.cells import number_in
from capplan.accuracy.score import Prediction
from capplan.engine.lookup import profile
from capplan.engine.profiles import LLAMACPP
from capplan.errors import CapplanError, DoesNotFitError
from capplan.model.network import Network
from capplan.model.weight_format import in_weight_format
from capplan.operators.llamacpp import ENGINE
from capplan.readers.catalogue.llamacpp import backend_of, family_of
from capplan.readers.catalogue.models import read_model
from capplan.recorded.gguf_speeds import GgufRun, run_of_row
from capplan.recorded.measured import impossible_number
from capplan.replica.replica import Replica, replica_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica

BATCH_TOKENS = 2048
"""Tokens that llama.cpp takes at once of a prompt (`--batch-size`)."""


@lru_cache(maxsize=256)
def _network(model: str, weight_dtype: str | None) -> Network:
    network = read_model(model, offline=True)
    return in_weight_format(network, weight_dtype) if weight_dtype else network


def network_of(run: GgufRun) -> Network:
    """Return the model of a run in its formats."""
    return _network(run.model, run.weight_dtype)


def is_early(run: GgufRun) -> bool:
    """Return whether a run is of a build before 2025."""
    return profile(ENGINE, run.build).version == LLAMACPP[0].version


@lru_cache(maxsize=256)
def _replica(flags: ServingFlags, model: str, hardware: str, ubatch_tokens: int) -> Replica:
    spec = asked_replica(model, hardware, flags).spec
    return replica_of(replace(spec, profile=replace(spec.profile, ubatch_tokens=float(ubatch_tokens))))


def replica_of_run(run: GgufRun) -> Replica:
    """Return the replica that a run was measured on, as `estimate` has it."""
    longest = run.depth_tokens + run.prompt_tokens + run.generated_tokens
    flags = ServingFlags(
        engine=ENGINE,
        engine_version=run.build,
        weight_dtype=run.weight_dtype,
        kv_dtype=run.kv_dtype,
        backend=run.backend,
        pipeline_parallel=run.devices,
        tensor_split=run.tensor_split,
        n_gpu_layers=run.device_layers,
        n_cpu_moe=run.cpu_experts,
        host_bandwidth=run.host_bytes_per_s,
        max_num_seqs=run.parallel,
        max_model_len=2 ** max(int(log2(max(longest, 1))) + 1, 12),
        offline=True,
    )
    return _replica(flags, run.model, run.hardware, run.ubatch_tokens)


def generated_tokens_per_s(replica: Replica, sequences: int, context_tokens: float) -> float:
    """Return the tokens per second that some sequences generate together at a context."""
    return sequences / replica.clock.row(sequences).step_s(context_tokens)


def prompt_tokens_per_s(replica: Replica, tokens: int, context_tokens: int) -> float:
    """Return the tokens per second of a prompt after its context, in the pieces that llama.cpp takes at once."""
    most = BATCH_TOKENS * int(replica.spec.batching.pipeline)
    pieces = [(min(tokens - start, most), context_tokens + start) for start in range(0, tokens, most)]
    return tokens / sum(replica.clock.mixed_step_s(0, 0.0, [piece]) for piece in pieces)


def tokens_per_s(run: GgufRun) -> float:
    """Return the predicted rate of a run [tokens/s]."""
    return rate_of(run, replica_of_run(run))


def rate_of(run: GgufRun, replica: Replica) -> float:
    """Return the rate of a run on a replica [tokens/s]: of a prompt after its context, or of all sequences at the middle of what they generate."""
    if run.prompt_tokens:
        return prompt_tokens_per_s(replica, run.prompt_tokens, run.depth_tokens)
    return generated_tokens_per_s(replica, run.parallel, run.depth_tokens + run.generated_tokens / 2.0)


def gguf_row_predictions(
    rows: Sequence[Mapping[str, str]], intervals: Intervals
) -> Iterator[list[Prediction]]:
    """Return the prediction of each published speed, in order; a refusal is one without a value."""
    for number, row in enumerate(rows):
        yield [_prediction(row, row.get("id") or str(number), intervals)]


def _prediction(row: Mapping[str, str], name: str, intervals: Intervals) -> Prediction:
    kind = "offloaded_" if (row.get("backend") or "").endswith("+cpu") else ""
    kind += "prompt" if (row.get("gen_tokens") or "") in {"0", "0.0"} else "generation"
    found = Prediction(name, f"{kind}_tok_s", 0.0, None)
    if wrong := impossible_number(row, "llamacpp"):
        return replace(found, reason=wrong)
    found, run = replace(found, measured=number_in(row, "tok_s") or 0.0), run_of_row(row)
    if isinstance(run, str):
        return replace(found, reason=run)
    try:
        rate, spec = tokens_per_s(run), replica_of_run(run).spec
    except DoesNotFitError as error:
        return replace(found, reason=str(error).partition("\n")[0], does_not_fit=True)
    except CapplanError as error:
        return replace(found, reason=str(error).partition("\n")[0])
    ends: Interval = intervals[f"{run.interval}/{ENGINE}"]
    groups = {
        "device": spec.device.name,
        "family": f"{family_of(spec.device)} ({backend_of(spec.device, run.backend)})",
        "model": run.model,
        "source": row.get("source") or "unknown",
    }
    return replace(
        found, predicted=rate, low=rate / ends.high_ratio, high=rate / ends.low_ratio, groups=groups
    )
