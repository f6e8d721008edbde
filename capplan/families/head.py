"""The head of a network: `architectures` names the class, and not every class ends in an LM head."""

from dataclasses import replace

from capplan.families.config import Config
from capplan.model.network import Network

_SCORING = ("ForSequenceClassification", "ForTokenClassification")
"""Ends of class names with a score for each label instead of the LM head."""
_DRAFTS = ("eagle", "medusa", "mtp", "draft", "dflash", "speculator")
"""Parts of class names of heads that propose tokens for another model."""
_OTHER_TASKS = (
    "RewardModel", "ForQuestionAnswering", "ForMaskedLM", "ForMultipleChoice", "DoubleHeadsModel", "ForImageClassification"
)  # fmt: skip


def with_stated_head(network: Network, config: Config) -> Network:
    """Return the network with the head of its class: the LM head, a score for each label, or none.

    A head that proposes tokens for another model is no model by itself, and is refused.
    """
    listed = config.items("architectures") or ()
    name = next((one for one in listed if isinstance(one, str)), "")
    if any(part in name.lower() for part in _DRAFTS):
        raise config.error(
            "architectures",
            f"{name!r} proposes tokens for another model and is not modelled by itself",
            "give the model that it belongs to, and describe the draft with the options of speculation",
        )
    if name.endswith(_OTHER_TASKS):
        raise config.error(
            "architectures", f"the head of {name!r} is not modelled", "known: LM heads, scores, none"
        )
    if name.endswith(_SCORING):
        return _scoring(network, config, name)
    bare = name.endswith("Model") and not name.endswith("LMHeadModel")
    # classes outside transformers call themselves a Model with and without an LM head
    return _without_head(network, name) if bare and config.stated_class is not None else network


def pooled(network: Network) -> Network:
    """Return the network as it is served for vectors or scores: without its LM head, if it has one."""
    if not network.generates:
        return replace(network, pooled=True)
    head = replace(network.lm_head, outputs=0, bias=0)
    return replace(network, lm_head=head, tied_embeddings=False, generates=False, pooled=True)


def _scoring(network: Network, config: Config, name: str) -> Network:
    names = config.section("id2label")
    labels = config.optional("num_labels") or (len(names.values) if names else None) or 2
    scored = name.endswith("ForTokenClassification")
    head = replace(network.lm_head, outputs=labels, bias=labels if scored else 0)
    note = f"{name}: {labels} score(s) for a text instead of the LM head; it generates no tokens"
    return replace(
        network, lm_head=head, tied_embeddings=False, generates=False, notes=(*network.notes, note)
    )


def _without_head(network: Network, name: str) -> Network:
    note = f"{name} has no LM head; it generates no tokens"
    return replace(pooled(network), pooled=False, notes=(*network.notes, note))
