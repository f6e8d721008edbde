"""The drafts of a measured run, as its row names them: method, drafts of a round, and how many were accepted."""

import re
from dataclasses import dataclass
from math import ceil
from typing import Literal, TypeAlias

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.phases.step import acceptance_of_round

DraftMethod: TypeAlias = Literal["mtp", "eagle", "dspark", "ngram", "medusa"]

_METHODS: tuple[tuple[str, DraftMethod], ...] = (
    (r"eagle(?:-?3\b(?!-\d))?", "eagle"),
    (r"mtp|next-?n", "mtp"),
    (r"d-?spark", "dspark"),
    (r"n-?gram|prompt lookup", "ngram"),
    (r"medusa", "medusa"),
)
"""Spelling in `spec_decode` -> method, the first that begins the cell; `EAGLE/MTP` is SGLang's name of an MTP head that it runs as EAGLE."""

_TREE = re.compile(r"(\d+)-(\d+)-(\d+)")
_DEPTH = re.compile(r"(?:mtp|next-?n|d-?spark|n-?gram|medusa)[ =x:-]*(?:n=)?(\d+)\b")
_ACCEPTED = re.compile(r"accept(?:s|ed|ance)?[a-z ]*?[ =:]*(\d+(?:\.\d+)?)(?!\d| ?%)")
_SHARE = re.compile(r"(\d+(?:\.\d+)?) ?% accept")

MOST_DRAFTS = 16
USUAL_DRAFTS = 3
"""Drafts of a round where a row states only how many tokens were accepted: SGLang's setting for MTP heads, `--speculative-num-steps 3
--speculative-eagle-topk 1 --speculative-num-draft-tokens 4` (sgl-project/sglang, docs/advanced_features/speculative_decoding)."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts of a run."""

    method: DraftMethod
    draft_tokens: int | None = None
    """Drafts of one round; None: the row does not state them."""
    verified_tokens: int | None = None
    """Tokens verified in one round, where drafts form a tree."""
    acceptance_fraction: float | None = None
    """Probability that a draft is accepted if all before it were; None: the row does not state it."""
    assumptions: tuple[Assumption, ...] = ()


def drafts_of(text: str) -> Drafts:
    """Return the drafts that a cell names.

    Parameters
    ----------
    text : such as `MTP`, `MTP3`, `EAGLE 3-1-4` (steps, branches and verified tokens), `EAGLE/MTP accept 2.46`, `DSPARK`

    Returns
    -------
    the drafts; InputError says how to name them

    Examples
    --------
    >>> drafts_of("MTP3").draft_tokens, drafts_of("EAGLE 3-1-4").draft_tokens, drafts_of("MTP2 accept 3.0").acceptance_fraction
    (3, 3, 1.0)
    """
    named = text.strip().lower()
    method = next((method for word, method in _METHODS if re.match(word, named)), None)
    if method is None:
        raise InputError(
            f"spec_decode: {text!r} does not say how drafts are made\n"
            "  write the method, its drafts a round and the mean tokens of a round: MTP3 accept 2.9, or EAGLE 3-1-4"
        )
    tree, depth = _TREE.search(named), _DEPTH.search(named)
    drafts = int(tree[1]) if tree else int(depth[1]) if depth else None
    if drafts is not None and not 1 <= drafts <= MOST_DRAFTS:
        raise InputError(f"spec_decode: {text!r} has {drafts} drafts a round; write 1 to {MOST_DRAFTS}")
    verified = int(tree[3]) if tree and int(tree[2]) > 1 else None
    assumptions: list[Assumption] = []
    share, accepted = _SHARE.search(named), _ACCEPTED.search(named)
    acceptance = None
    if share:
        drafts = drafts or 1
        acceptance = min(float(share[1]) / 100.0, 1.0)
    elif accepted:
        mean = float(accepted[1])
        if drafts is None:
            drafts = max(USUAL_DRAFTS, ceil(mean) - 1)
            assumptions.append(Assumption(f"{drafts} drafts a round, SGLang's usual setting", "spec_decode"))
        if not 1.0 <= mean <= drafts + 1:
            raise InputError(
                f"spec_decode: {text!r}: a round of {drafts} drafts adds 1 to {drafts + 1} tokens"
            )
        acceptance = acceptance_of_round(mean, drafts)
    return Drafts(method, drafts, verified, acceptance, tuple(assumptions))
