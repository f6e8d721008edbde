"""Measured engine starts, predicted: the settings of a logged row, run through the same budget as `fit`."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from capplan.accuracy.cells import is_set
from capplan.accuracy.score import Prediction
from capplan.engine.lookup import default_memory_fraction, profile, scheduling, with_most_graphs
from capplan.engine.profile import EngineProfile
from capplan.errors import CapplanError
from capplan.hardware.device import Device, engine_memory_bytes, has_fast_links, padded_inputs_multiple
from capplan.memory.kv_sizes import cache_dtype
from capplan.memory.launch import Launch, prefill_graphs
from capplan.memory.plan import CONTEXT_TOO_LONG, TOO_MANY_SEQUENCES, first_stage_plan, memory_plan
from capplan.model.network import Attention, Network
from capplan.model.parameters import draft_layer
from capplan.model.weight_format import FORMATS, in_weight_format, kv_bytes_per_element, stored_formats
from capplan.numbers import GIB

SET_BLOCK_TOKENS = {16.0, 32.0, 64.0, 128.0, 256.0}
"""Block sizes that a user sets; sizes that hybrid models grow to are predicted."""
METRICS = ("weights_gib", "available_kv_gib", "kv_cache_tokens", "max_concurrency")
"""Columns that are predicted, in the file's own units; GB of vLLM V0 and SGLang logs are GiB too."""

NOT_A_QUESTION_OF_MEMORY = frozenset({"failed-before-KV"})
"""Starts that ended before memory was allocated: they do not show whether the plan fits."""

_KV = {"auto": None, "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bfloat16": "bf16", "float16": "fp16"}


def row_profile(row: Mapping[str, str]) -> EngineProfile:
    """Return the profile of the engine and release that a row names.

    Parameters
    ----------
    row : columns `engine` and `engine_release`

    Examples
    --------
    >>> row_profile({"engine": "vllm", "engine_release": "0.11.0"}).version
    '0.10.0'
    """
    return profile(row["engine"] or "vllm", row.get("engine_release") or None)


def row_network(row: Mapping[str, str], network: Network) -> Network:
    """Return the network in the weight format that a row was started with.

    Parameters
    ----------
    row : column `weights_dtype`; empty leaves the network as its config says
    network : the model as its config says

    Returns
    -------
    the same network, formats replaced where the row names another dtype

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> network = Network("n", "t", 8, 10, (Layer((), (Projection("up", "ffn", 8, 16, "columns"),)),), head, True, 80)
    >>> row_network({"weights_dtype": "int8"}, network).layers[0].projections[0].weight_format
    'int8'
    """
    named = row.get("weights_dtype") or "auto"
    if named == "auto":
        return network
    stored = stored_formats(network)
    if named == "bf16":
        return (
            in_weight_format(network, named) if any(FORMATS[name].quantised for name in stored) else network
        )
    if any(FORMATS[name].dtype == FORMATS[named].dtype for name in stored if name in FORMATS):
        return network
    return in_weight_format(network, named)


def predict_memory_row(
    row: Mapping[str, str], network: Network, device: Device, engine: EngineProfile | None = None
) -> dict[str, float]:
    """Return the predicted log output of one start.

    Parameters
    ----------
    row : the launch, by the column names of the measured file; empty settings take the engine's defaults
    network : the model as its config says
    device : as the catalogue has it; the row's own total replaces its memory
    engine : its profile; None takes the one that the row names

    Returns
    -------
    predicted value of each metric, in the unit of its column, and `starts` as 1 or 0; weights and available memory are those of
    the first pipeline stage, which logs first

    Raises
    ------
    CapplanError
        The row asks for something that is not modelled.
    """
    engine = engine or row_profile(row)
    served = row_network(row, network)
    if is_set(row.get("draft_layer")):
        served = with_draft_layer(served)
    launch = row_launch(row, served, device, engine)
    if is_set(row.get("enforce_eager")):
        engine = with_most_graphs(engine, 0)
    plan = memory_plan(served, launch, engine)
    first = first_stage_plan(served, launch, engine)
    values = {
        "weights_gib": float(np.asarray(first.weight_bytes)) / GIB,
        "available_kv_gib": max(float(np.asarray(first.kv_bytes_available)), 0.0) / GIB,
        "kv_cache_tokens": float(plan.kv_cache_tokens),
        "max_concurrency": float(plan.max_concurrency),
    }
    code = int(plan.limit_codes)
    unstated = {CONTEXT_TOO_LONG: "max_model_len", TOO_MANY_SEQUENCES: "max_num_seqs"}.get(code)
    if unstated and not _number(row, unstated):
        # The launch set a limit that the row does not state: only memory can be judged.
        code = 0
    return {**values, "starts": float(code == 0)}


def with_draft_layer(network: Network) -> Network:
    """Return the network with one multi-token-prediction layer: the last caching layer again, with its input matrix.

    Returns
    -------
    the network that an engine holds for speculative decoding with the model's own draft layer

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> network = Network("n", "t", 8, 10, (Layer((Attention(2, 2, 4, 4),), ()),) * 2, head, True, 80)
    >>> len(with_draft_layer(network).layers)
    3
    """
    predicting = draft_layer(network)
    if predicting is None:
        return network
    alone = replace(network, layers=(predicting,))
    draft = in_weight_format(alone, network.activation_format).layers[0]
    return replace(network, layers=(*network.layers, draft))


def row_launch(row: Mapping[str, str], network: Network, device: Device, engine: EngineProfile) -> Launch:
    """Return the settings of a row, with the engine's defaults where it has none.

    Parameters
    ----------
    row : the launch
    network : the model in the format of the row
    device : as the catalogue has it
    engine : its profile
    """
    memory = (
        _number(row, "gpu_memory_gib") * GIB
        if _number(row, "gpu_memory_gib")
        else engine_memory_bytes(device)
    )
    tensor, pipeline = _number(row, "tp") or 1.0, _number(row, "pp") or 1.0
    context = _number(row, "max_model_len") or float(network.max_context_tokens or 0)
    if not context:
        raise CapplanError("neither the row nor the model's config states max_model_len")
    steps = scheduling(
        engine, memory, device.architecture, max_model_len=int(context), device_name=device.name
    )
    fraction, block = _number(row, "gpu_memory_utilization"), _number(row, "block_size")
    captured = prefill_graphs(
        network, engine, pipelined=pipeline > 1, grouped=False, cuda=device.vendor.lower() == "nvidia"
    )
    return Launch(
        tensor=tensor,
        expert=_number(row, "ep") or 1.0,
        data=1.0,
        pipeline=pipeline,
        device_memory_bytes=memory,
        kv_bytes_per_element=_kv_bytes(row.get("kv_cache_dtype", ""), network),
        max_model_len=context,
        max_num_seqs=_number(row, "max_num_seqs") or float(steps.max_num_seqs),
        max_num_batched_tokens=_number(row, "max_num_batched_tokens") or float(steps.max_num_batched_tokens),
        memory_fraction=fraction
        or default_memory_fraction(
            engine, memory, tensor, device.architecture, pipeline_ranks=pipeline, prefill_graphs=captured
        ),
        block_tokens=block if block in SET_BLOCK_TOKENS else float(steps.block_tokens),
        fast_links=float(has_fast_links(device)),
        padded_inputs=padded_inputs_multiple(device),
        context=_number(row, "dcp") or 1.0,
    )


def _number(row: Mapping[str, str], key: str) -> float:
    text = (row.get(key) or "").strip()
    return float(text) if text else 0.0


def _kv_bytes(text: str, network: Network) -> float:
    if text.startswith("int8_per_token_head"):
        heads = [m.head_dim for layer in network.layers for m in layer.mixers if isinstance(m, Attention)]
        return 1.0 + 4.0 / max(heads, default=128)
    dtype = _KV.get(text, text or None)
    return kv_bytes_per_element(cache_dtype(network, dtype)[0])


def started(row: Mapping[str, str]) -> bool | None:
    """Return whether a logged start succeeded; None where it failed for another reason than memory.

    Parameters
    ----------
    row : column `status`

    Examples
    --------
    >>> [started({"status": status}) for status in ("ok", "OOM-after-KV-alloc", "failed-before-KV")]
    [True, False, None]
    """
    status = row.get("status", "").strip()
    if status in NOT_A_QUESTION_OF_MEMORY:
        return None
    return status == "ok"


def memory_predictions(
    row: Mapping[str, str], name: str, predicted: Mapping[str, float] | None, reason: str = ""
) -> list[Prediction]:
    """Return one record per measured value of a row, refused or not, and one for whether it starts.

    Parameters
    ----------
    row : the measured row
    name : what to call it
    predicted : None if capplan rejects the row
    reason : why capplan rejects it

    Returns
    -------
    records, in the unit of their column; `starts` is 1 or 0

    Examples
    --------
    >>> row = {"weights_gib": "2.0", "status": "ok", "gpu": "L4", "engine": "vllm"}
    >>> [(r.metric, r.measured, r.predicted) for r in memory_predictions(row, "a", None, "no such model")]
    [('weights_gib', 2.0, None), ('starts', 1.0, None)]
    """
    groups = {
        key: row.get(key, "")
        for key in ("gpu", "engine", "engine_version", "arch_class", "confidence", "model_hf_id")
    }
    records = []
    for metric in METRICS:
        if (row.get(metric) or "").strip():
            value = predicted[metric] if predicted else None
            records.append(
                Prediction(name, metric, _number(row, metric), value, reason=reason, groups=groups)
            )
    outcome = started(row)
    if outcome is not None:
        value = None if predicted is None else predicted["starts"]
        records.append(Prediction(name, "starts", float(outcome), value, reason=reason, groups=groups))
    return records


def disagreeing_starts(predictions: Iterable[Prediction]) -> tuple[int, tuple[str, ...]]:
    """Return the number of starts that were judged, and the rows judged wrongly.

    Parameters
    ----------
    predictions : records of `memory_predictions`, of any metric

    Returns
    -------
    judged [-], names of rows

    Examples
    --------
    >>> disagreeing_starts([Prediction("a", "starts", 0.0, 1.0), Prediction("b", "starts", 1.0, 1.0)])
    (2, ('a',))
    """
    judged = [p for p in predictions if p.metric == "starts" and p.predicted is not None]
    return len(judged), tuple(p.row for p in judged if p.predicted != p.measured)
