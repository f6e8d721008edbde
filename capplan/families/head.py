"""The head of a network: `architectures` names the class, and not every class ends in an LM head."""

from dataclasses import replace

from capplan.errors import InputError
from capplan.families.config import Config
from capplan.model.network import Attention, Network

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
    both = config.model_type == "gemma3_text" and config.flag("use_bidirectional_attention", default=False)
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
