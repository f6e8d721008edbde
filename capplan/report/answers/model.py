"""What `capplan model` shows."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from capplan.families.gguf import quantisation
from capplan.model.network import Network
from capplan.model.parameters import summary, weight_bytes_by_class, weight_elements_by_class
from capplan.model.stored_tensor import StoredModel
from capplan.model.weight_format import in_weight_format, weight_format_assumptions
from capplan.report.answer import Answer, Table

_LISTED = (
    "model",
    "model_type",
    "layers",
    "parameters",
    "active_parameters",
    "weight_bytes",
    "max_context_tokens",
)


def models_answer(networks: Sequence[Network], refused: Sequence[str]) -> Answer:
    """Return the shipped models as one table."""
    rows = [asdict(summary(network)) for network in networks]
    return Answer(
        command="model",
        result={"models": rows, "not_modelled": list(refused)},
        tables=(Table(rows, shown=_LISTED),),
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
    held = in_weight_format(network, weight_dtype) if weight_dtype else network
    assumptions = weight_format_assumptions(network, weight_dtype) if weight_dtype else ()
    figures = asdict(summary(held))
    elements, sizes = weight_elements_by_class(held), weight_bytes_by_class(held)
    classes = [
        {"tensor_class": name, "parameters": elements[name], "weight_bytes": sizes[name]} for name in elements
    ]
    return Answer(
        command="model",
        result={
            **figures,
            "tensor_classes": classes,
            "notes": list(network.notes),
            "keys_used": list(network.keys_used),
            **({"gguf": _file(stored)} if stored else {}),
        },
        tables=(
            Table([figures], upright=True, assumed=frozenset({(0, "weight_bytes")} if assumptions else ())),
            Table(classes, title="Weights by class of tensor"),
            *([Table(quantisation(stored), title="Tensors of the file by type")] if stored else []),
        ),
        headline=network.name,
        closing=tuple(f"note: {note}" for note in network.notes),
        assumptions=assumptions,
    )


def _file(stored: StoredModel) -> dict[str, Any]:
    """Return what a GGUF file holds: every tensor with its type and exact bytes."""
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
        "parts": stored.parts,
        "tensor_bytes": stored.tensor_bytes,
        "types": quantisation(stored),
        "tensors": tensors,
    }
