"""What `capplan model` and `capplan kv-size` show."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from capplan.model.network import Network
from capplan.model.stored_tensor import StoredModel
from capplan.model.weight_format import in_weight_format, weight_format_assumptions
from capplan.report.answer import Answer, Table, columns, row_of

if TYPE_CHECKING:
    from capplan.memory.kv_sizes import KvSize, KvSizes

_KV_SIZE_SHOWN = columns(
    "context_tokens kv_bytes_per_token kv_bytes_per_sequence state_bytes_per_sequence "
    "engine_reserved_bytes_per_sequence kv_bytes_total kv_bytes_per_gpu "
    "engine_reserved_bytes_per_gpu"
)

_RESERVED = ("engine_reserved_bytes_per_sequence", "engine_reserved_bytes_per_gpu")

_RESTS_ON = {
    "kv_dtype": tuple(name for name in _KV_SIZE_SHOWN if "kv_bytes" in name or "reserved" in name),
    "max_num_batched_tokens": _RESERVED,
    "engine_version": _RESERVED,
}
"""Setting that was assumed -> the columns that rest on it."""


def kv_answer(sizes: "KvSizes") -> Answer:
    """Return the sizes, with a warning for each context longer than the model supports."""
    rows = [asdict(size) for size in sizes.rows]
    first, network, engine = sizes.rows[0], sizes.network, sizes.engine
    limit = network.max_context_tokens
    noun = "sequence" if first.sequences == 1 else "sequences"
    headline = (
        f"{network.name}: KV cache in {first.kv_dtype}, {first.sequences} {noun}, TP {first.tensor_parallel}"
    )
    if network.bidirectional:
        headline = f"{network.name}: no KV cache: an encoder reads a prompt whole and keeps nothing of it"
    columns = {name for a in sizes.assumptions for name in _RESTS_ON.get(a.key, ())}
    return Answer(
        command="kv-size",
        result={
            "model": network.name,
            "engine": engine.engine,
            "engine_version": engine.version,
            "rows": rows,
        },
        tables=(
            Table(
                rows,
                shown=_informative(sizes.rows),
                titles={"kv_bytes_per_token": "growth"},
                assumed=frozenset((i, name) for i in range(len(rows)) for name in columns if rows[i][name]),
            ),
        ),
        headline=headline,
        assumptions=sizes.assumptions,
        warnings=tuple(
            f"a context of {size.context_tokens} tokens exceeds the model's maximum of {limit}"
            for size in sizes.rows
            if limit is not None and size.context_tokens > limit
        ),
    )


def _informative(sizes: "Sequence[KvSize]") -> tuple[str, ...]:
    """Return the columns that say something: totals of one sequence on one device repeat what is there."""
    silent: set[str] = set()
    if not any(size.state_bytes_per_sequence for size in sizes):
        silent.add("state_bytes_per_sequence")
    if sizes[0].sequences == 1:
        silent.add("kv_bytes_total")
    if sizes[0].sequences == 1 and sizes[0].tensor_parallel == 1:
        silent |= {"kv_bytes_per_gpu", "engine_reserved_bytes_per_gpu"}
    return tuple(name for name in _KV_SIZE_SHOWN if name not in silent)


_MODEL_LISTED = columns(
    "model model_type layers parameters active_parameters weight_bytes max_context_tokens"
)


def models_answer(networks: Sequence[Network], refused: Sequence[str]) -> Answer:
    """Return the shipped models as one table."""
    from capplan.model.parameters import summary

    rows = [summary(network) for network in networks]
    return Answer(
        command="model",
        result={"models": rows, "not_modelled": list(refused)},
        tables=(Table(rows, shown=_MODEL_LISTED, spare=("layers", "model_type")),),
        closing=(
            "any Hugging Face id or config.json of these families works too",
            *([f"known but not modelled: {', '.join(refused)}"] if refused else ()),
        ),
    )


def model_answer(network: Network, weight_dtype: str | None, stored: StoredModel | None) -> Answer:
    """Return a model's figures, and its weights by class of tensor.

    Parameters
    ----------
    network : as its config says
    weight_dtype : dtype to count the weights in; None keeps what the config says
    stored : the tensors of a GGUF file, where it was read from one
    """
    from capplan.model.parameters import summary, weight_bytes_by_class, weight_elements_by_class

    held = in_weight_format(network, weight_dtype) if weight_dtype else network
    assumptions = weight_format_assumptions(network, weight_dtype) if weight_dtype else ()
    figures = summary(held)
    elements, sizes = weight_elements_by_class(held), weight_bytes_by_class(held)
    classes = [
        {"tensor_class": name, "parameters": elements[name], "weight_bytes": sizes[name]} for name in elements
    ]
    file = _file(stored) if stored else {}
    return Answer(
        command="model",
        result={
            **figures,
            "tensor_classes": classes,
            "notes": list(network.notes),
            "keys_used": list(network.keys_used),
            **({"gguf": file} if stored else {}),
        },
        tables=(
            Table([figures], upright=True, assumed=frozenset({(0, "weight_bytes")} if assumptions else ())),
            Table(classes, title="Weights by class of tensor"),
            Table(file.get("types", []), title="Tensors of the file by type"),
        ),
        headline=network.name,
        closing=tuple(f"note: {note}" for note in network.notes),
        assumptions=assumptions,
    )


def _file(stored: StoredModel) -> dict[str, Any]:
    """Return what a GGUF file holds: every tensor with its type and exact bytes."""
    from capplan.families.gguf import quantisation

    tensors = [
        {
            "name": tensor.name,
            "weight_dtype": tensor.dtype or None,
            "shape": list(tensor.shape),
            "elements": tensor.elements,
            "weight_bytes": tensor.size_bytes,
        }
        for tensor in stored.tensors
    ]
    return {
        "architecture": stored.metadata.get("general.architecture"),
        **row_of(stored, "parts tensor_bytes"),
        "types": quantisation(stored),
        "tensors": tensors,
    }
