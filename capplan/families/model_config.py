"""A config.json, or the header of a GGUF file, to a Network, read by the family of its `model_type` and the head of its `architectures`."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from math import sqrt
from typing import Any

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.families.config import MOST_KEYS_NAMED, Config, model_class
from capplan.families.inert import is_inert
from capplan.families.registry import REFUSED, families, family
from capplan.model.network import Attention, Network
from capplan.model.stored_tensor import StoredModel

_SCORING = ("ForSequenceClassification", "ForTokenClassification")
"""Ends of class names with a score for each label instead of the LM head."""
_DRAFTS = ("eagle", "medusa", "mtp", "draft", "dflash", "speculator")
"""Parts of class names of heads that propose tokens for another model."""
_OTHER_TASKS = (
    "RewardModel", "ForQuestionAnswering", "ForMaskedLM", "ForMultipleChoice", "DoubleHeadsModel", "ForImageClassification"
)  # fmt: skip


def with_stated_head(network: Network, config: Config) -> Network:
    """Return the network with the head of its class: the LM head, a score for each label, or none.

    A head that proposes tokens for another model is no model by itself, and capplan rejects it.
    """
    name = stated_class(config)
    if any(part in name.lower() for part in _DRAFTS):
        raise config.error(
            "architectures",
            f"{name!r} proposes tokens for another model and is not modelled by itself",
            "give the model that it belongs to, and describe the draft with the options of speculation",
        )
    if network.bidirectional:
        return network  # encoders differ in what stands before their scores: their family reads it
    if name.endswith(_OTHER_TASKS):
        raise unknown_head(config, name)
    if name.endswith(_SCORING):
        return _scoring(network, config, name)
    bare = name.endswith("Model") and not name.endswith("LMHeadModel")
    # classes outside transformers call themselves a Model with and without an LM head
    return _without_head(network, config, name) if bare and config.stated_class is not None else network


def stated_class(config: Config) -> str:
    """Return the first class that `architectures` names; empty where it names none."""
    return next((one for one in config.items("architectures") or () if isinstance(one, str)), "")


def unknown_head(config: Config, name: str) -> InputError:
    """Return the error for a class whose head is not modelled."""
    return config.error(
        "architectures",
        f"the head of {name!r} is not modelled",
        "known: LM heads, scores, none; for the model without its head, state its plain class (architectures: [DebertaV2Model], [BertModel])",
    )


def labels_of(config: Config) -> int:
    """Return the scores of a text: those that a file counts or names, else two."""
    names = config.first_present("id2label")[1]
    return config.optional("num_labels") or (len(names) if isinstance(names, dict) else 0) or 2


def pooled(network: Network) -> Network:
    """Return the network as it is served for vectors or scores: without an LM head, and with a pooler only before scores."""
    scores = network.lm_head.outputs
    if not network.generates and 0 < scores != network.vocabulary_size:
        return replace(network, pooled=True)
    return replace(
        network,
        lm_head=replace(network.lm_head, outputs=0, bias=0),
        pooler=None,
        tied_embeddings=False,
        generates=False,
        pooled=True,
    )


def _scoring(network: Network, config: Config, name: str) -> Network:
    labels = labels_of(config)
    # the aligner of Qwen 3 ASR scores tokens without a bias
    scored = name.endswith("ForTokenClassification") and config.model_type != "qwen3_asr"
    head = replace(network.lm_head, outputs=labels, bias=labels if scored else 0)
    note = f"{name}: {labels} score(s) for a text instead of the LM head; it generates no tokens"
    return replace(
        network, lm_head=head, tied_embeddings=False, generates=False, notes=(*network.notes, note)
    )


def _without_head(network: Network, config: Config, name: str) -> Network:
    note = f"{name} has no LM head; it generates no tokens"
    bare = replace(pooled(network), pooled=False, notes=(*network.notes, note))
    both = config.model_type == "gemma3_text" and config.flag("use_bidirectional_attention")
    return _both_sides(bare) if both else bare


def _both_sides(network: Network) -> Network:
    """Return a decoder that is trained to read both sides (EmbeddingGemma); its windows state what they see on one side."""
    layers = tuple(
        replace(
            layer,
            mixers=tuple(
                replace(
                    mixer, causal=False, window_tokens=mixer.window_tokens and 2 * mixer.window_tokens - 1
                )
                for mixer in layer.mixers
                if isinstance(mixer, Attention)
            ),
        )
        for layer in network.layers
    )
    return replace(network, layers=layers)


def read_network(config: Any, name: str, place: str = "config.json") -> Network:
    """Return the network that a config.json describes, in the precision it was trained in.

    Parameters
    ----------
    config : the parsed file; only an object can be a config
    name : of the model
    place : the file, as errors name it

    Returns
    -------
    the network, unquantised; `quantization_config` is applied by the reader of that section

    Examples
    --------
    >>> tiny = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
    ...         "num_attention_heads": 2, "vocab_size": 32}
    >>> len(read_network(tiny, "tiny").layers)
    2
    """
    if not isinstance(config, Mapping):
        kind = {list: "a list", str: "a string", type(None): "null"}.get(type(config), "a number")
        raise InputError(
            f"{place}: the file holds {kind}, not an object\n"
            "  allowed: the config.json of a Hugging Face model, which starts with '{' and has a model_type"
        )
    reader = Config(config, place)
    model_type = _model_type(reader)
    read = family(model_type)
    if read is None:
        raise _unknown(reader, model_type)
    network = with_scaled_context(with_stated_head(read(reader, name), reader), reader)
    for section in reader.sections:
        _refuse_more_kinds_than_layers(section)
    unread = _not_read(reader)
    return replace(
        network,
        notes=(*network.notes, *(one.what for one in unread)),
        doubts=(*reader.doubts, *unread),
        activation_format=_activation_format(reader),
    )


def _refuse_more_kinds_than_layers(section: Config) -> None:
    """Raise the error for a list of the kinds of layers that is longer than the model: its class does not load such a file."""
    kinds, layers = section.values.get("layer_types"), section.values.get("num_hidden_layers")
    if section.stated_class is None or not isinstance(kinds, list) or not isinstance(layers, int):
        return
    drafting = section.values.get("num_nextn_predict_layers")
    if len(kinds) > layers + (drafting if isinstance(drafting, int) else 0):
        raise section.error(
            "layer_types", f"has {len(kinds)} entries for {layers} layers", "allowed: one entry per layer"
        )


def _not_read(config: Config) -> list[Assumption]:
    """Return the remark about keys that may matter and that the family does not read."""
    seen: dict[str, None] = {}
    for section in config.sections:
        seen.update(dict.fromkeys(section.unread_keys()))
    keys = list(seen)
    if not keys:
        return []
    more = len(keys) - MOST_KEYS_NAMED
    named = ", ".join(keys[:MOST_KEYS_NAMED]) + (f" and {more} more" if more > 0 else "")
    what = f"not read: {named}; if one of them changes parameters or cache, the figures here do not show it"
    return [Assumption(what, "a config.json without them")]


def _model_type(config: Config) -> str:
    if not config.has("model_type"):
        classes = config.values.get("architectures")
        hint = (
            f"; architectures says {classes[0]!r}: add its model_type"
            if isinstance(classes, list) and classes
            else ""
        )
        raise config.error(
            "model_type",
            f"missing{hint}",
            "every config.json of a language model has one; tokenizer, generation and adapter files do not",
        )
    return config.text("model_type")


def _unknown(config: Config, model_type: str) -> InputError:
    reason = REFUSED.get(model_type.lower())
    if reason:
        return config.error("model_type", f"{model_type!r} is {reason}", _WAY_OUT)
    for kin, why in _kin(config, model_type):
        try:
            read_network({**config.values, "model_type": kin}, kin, config.place)
        except InputError:
            continue
        return config.error(
            "model_type",
            f"{model_type!r} is not modelled; if it is built like {kin!r} ({why}), set model_type: {kin}",
            f"otherwise {_WAY_OUT}",
        )
    return config.error("model_type", f"{model_type!r} is not modelled", _WAY_OUT)


_WAY_OUT = "see docs/models.md for the types that are modelled, and CONTRIBUTING.md ('Add a model family') to add one"
_LEAST_IN_COMMON = 0.5
"""Share of the keys of a file and of a kin together that they have in common at least, rare keys counting more."""
_SAME_WORD = 0.85
"""Likeness of two names, of 1, from which one is a misspelling of the other."""
_PLAINEST = "llama"
"""The decoder that most others are built from: first where its class has all keys of a file."""
_FEWEST_KEYS = 5
"""Keys that may matter, of a file that is compared with classes by its keys."""


def _kin(config: Config, model_type: str) -> Iterator[tuple[str, str]]:
    """Yield the modelled types that a file of an unknown one may be built like, best first, each with the reason.

    First those of nearly the same name, then those whose class shares most of the keys that may matter with the file, each weighing
    the less the more classes have it.
    """
    for kind in get_close_matches(model_type.lower(), families(), n=2, cutoff=_SAME_WORD):
        yield kind, "its name is near"
    keys = {key for key in config.values if isinstance(key, str) and not is_inert(key)}
    classes = {kind: known for kind in families() if (known := model_class(kind)) and not known.sections}
    having = Counter(key for known in classes.values() for key in known.defaults)

    def weight(some: set[str]) -> float:
        return sum(1.0 / sqrt(max(1, having[key])) for key in some)

    alike = []
    for kind, known in classes.items():
        stated = {known.same(key)[0] for key in keys}
        usual = {key for key, value in known.defaults.items() if value is not None}
        common = stated & known.defaults.keys()
        if (
            len(keys) >= _FEWEST_KEYS
            and (share := weight(common) / weight(stated | usual)) >= _LEAST_IN_COMMON
        ):
            plainest = kind == _PLAINEST and len(common) == len(stated)
            alike.append((plainest, share, len(common), kind))
    for _, _, count, kind in sorted(alike, key=lambda one: (not one[0], -one[1], len(one[3])))[:3]:
        yield kind, f"{count} of its {len(keys)} keys are in that class"


_TORCH_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16", "float": "fp32"}


def _activation_format(config: Config) -> str:
    """Return the dtype of activations, norms and biases; fp32 checkpoints are served in 16 bits."""
    sections = (config, config.section("text_config"))
    for section in sections:
        if section is None:
            continue
        name = section.text("dtype", "torch_dtype").removeprefix("torch.")
        if name:
            return "fp16" if _TORCH_NAMES.get(name, "bf16") == "fp16" else "bf16"
    return "bf16"


def read_gguf_network(stored: StoredModel, name: str, place: str) -> Network:
    """Return the network that a GGUF file holds.

    Parameters
    ----------
    stored : its header
    name : of the model
    place : the file, as errors name it

    Returns
    -------
    the network, every matrix in the format of its tensors

    Raises
    ------
    InputError
        The architecture is not modelled, or the tensors are not those that the metadata describe.
    """
    from capplan.families.gguf import config_of, tables, with_stored_formats

    config, keys = config_of(stored, place)
    network = with_stored_formats(read_network(config, name, place), stored, place)
    parts = f", over {stored.parts} files" if stored.parts > 1 else ""
    held = [f"GGUF: {len(stored.tensors):,} tensors of {stored.tensor_bytes:,} bytes{parts}"]
    beside = tables(stored)
    if beside:
        size = sum(table.size_bytes for table in beside)
        held.append(
            f"{len(beside)} tables ({beside[0].name}, ...) of {size:,} bytes are not parameters and not counted"
        )
    return replace(network, notes=(*network.notes, *held), keys_used=keys)


_SCALED = ("yarn", "linear", "dynamic")
"""Kinds of scaling that engines multiply the context by; su, longrope and llama3 are in max_position_embeddings already."""
_LARGEST_FACTOR = 1024.0


def with_scaled_context(network: Network, config: Config) -> Network:
    """Return the network with the context that engines derive from scaled rotary positions.

        vLLM:   original x factor (yarn), max x factor (linear, dynamic)
        SGLang: max where the original is stated, max x factor otherwise

    Parameters
    ----------
    network : the model, with max_position_embeddings as its context
    config : the file

    Returns
    -------
    the network; Gemma 3 keeps its context, into which its factor has gone already, and has a second rotary table

    References
    ----------
    vLLM, `_get_and_verify_max_len` in vllm/config/model.py; SGLang, `get_context_length` in
    python/sglang/srt/utils/hf_transformers_utils.py.
    """
    stated = network.max_context_tokens
    found = next(_scalings(config), None)
    if found is None or stated is None or network.bidirectional:
        return network
    kind, factor, original_tokens = found
    if "gemma3" in config.model_type or "gemma3" in network.model_type:
        rows = round(stated * factor) if kind == "linear" else 0
        return replace(network, scaled_rotary_tokens=rows)
    start = original_tokens if kind == "yarn" and original_tokens else stated
    scaled = int(start * factor)
    kept = stated if original_tokens else int(stated * factor)
    return replace(network, max_context_tokens=scaled, stated_context_tokens=None if kept == scaled else kept)


def _scalings(config: Config) -> Iterator[tuple[str, float, int | None]]:
    """Yield the scalings of the file and of the sections of its text model that were read."""
    for section in config.sections:
        if any(name in section.section_path for name in ("vision", "audio", "visual", "quant")):
            continue
        for key in ("rope_scaling", "rope_parameters"):
            values = section.values.get(key)
            if isinstance(values, Mapping):
                yield from _of_section(values)


def _of_section(values: Mapping[str, Any]) -> Iterator[tuple[str, float, int | None]]:
    """Yield kind, factor and stated positions before scaling of a section, or of each kind of layer that it has."""
    layers = [inner for inner in values.values() if isinstance(inner, Mapping)]
    for one in layers or [values]:
        kind, factor = one.get("rope_type", one.get("type")), one.get("factor")
        original = one.get("original_max_position_embeddings")
        if (
            not isinstance(factor, int | float)
            or isinstance(factor, bool)
            or not 1 < factor <= _LARGEST_FACTOR
        ):
            continue
        if kind in _SCALED:
            whole = isinstance(original, int) and not isinstance(original, bool) and 0 < original < 2**31
            yield str(kind), float(factor), original if whole else None
