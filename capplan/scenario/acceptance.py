"""Published acceptance of drafts, by method and kin of models: the defaults of a scenario that states none."""

from collections.abc import Sequence
from dataclasses import dataclass

from capplan.assumption import Assumption
from capplan.model.network import Network
from capplan.replica.drafting import Method


@dataclass(frozen=True, slots=True)
class Published:
    """What was published of one method on the models of one kin."""

    method: Method
    kin: frozenset[str]
    """Model types of the targets; empty: any, because the drafts come from no trained weights."""
    acceptance_fractions: tuple[float, ...]
    """One for all positions, or one for each."""
    source: str
    draft_tokens: int | None = None
    verified_tokens: int | None = None

    @property
    def assumption(self) -> Assumption:
        """Return the assumption that a target accepts as many drafts as the one that was measured."""
        shares = ", ".join(f"{fraction:.0%}" for fraction in self.acceptance_fractions)
        by_position = ", by position" if len(self.acceptance_fractions) > 1 else ""
        return Assumption(
            f"a draft is accepted with {shares} probability{by_position}: {self.source}",
            "speculation.acceptance",
        )


def acceptance_by_position(accepted_lengths: Sequence[float]) -> tuple[float, ...]:
    """Return the acceptance at each position from the mean tokens of a round with 1, 2, 3, ... drafts.

        a_k = (E_k - E_(k-1)) / (E_(k-1) - E_(k-2)),   E_0 = 1 and E_(-1) = 0

    The positions end before the first whose gain is above the one before it or is none: noise of the measurement.

    Parameters
    ----------
    accepted_lengths : [tokens]
        E, the token of the target included

    Returns
    -------
    [-]
        a, given that all drafts before were accepted

    Examples
    --------
    >>> acceptance_by_position([1.5, 1.75, 1.75])
    (0.5, 0.5)

    References
    ----------
    Leviathan, Kalman, Matias 2023, arXiv:2211.17192, equation 1 with an acceptance for each position.
    """
    fractions: list[float] = []
    gain, before = 1.0, 1.0
    for length in accepted_lengths:
        more = length - before
        if not 0.0 < more <= gain:
            break
        fractions.append(round(more / gain, 4))
        gain, before = more, length
    return tuple(fractions)


_SPEC_BENCH = "Spec-Bench, mean over its six tasks, greedy, https://github.com/hemingkx/Spec-Bench/blob/main/Leaderboard.md"
_GOLDEN = (
    "80 coding prompts of SPEED-Bench at the model's own sampling, "
    "https://github.com/SemiAnalysisAI/InferenceX/blob/843c6254ff69b567f772f6a5fd97675af3d04431/golden_al_distribution"
)


def _counted(method: Method, kin: str, name: str, file: str, *lengths: float) -> Published:
    """Return what was counted of rounds with 1, 2, 3, ... drafts; of runs with and without thinking the lower count."""
    fractions = acceptance_by_position(lengths)
    words = f"{lengths[len(fractions) - 1]:.2f} tokens a round of {len(fractions)} drafts"
    return Published(method, frozenset({kin}), fractions, f"{words} of {name}, {_GOLDEN}/{file}")


PUBLISHED = (
    Published(
        "ngram", frozenset(), (0.36,), f"1.55 tokens a round of prompt lookup with Vicuna-33B: {_SPEC_BENCH}"
    ),
    Published(
        "draft-model",
        frozenset({"llama"}),
        (0.50,),
        f"2.01 tokens a round of a 68M draft with Vicuna-33B: {_SPEC_BENCH}",
    ),
    Published(
        "medusa",
        frozenset({"llama"}),
        (0.59,),
        f"2.33 tokens a round of four heads and a tree with Vicuna-33B: {_SPEC_BENCH}",
        4,
        64,
    ),
    Published(
        "mtp",
        frozenset({"deepseek_v3", "deepseek_v32"}),
        (0.85,),
        "85 to 90 % of the second tokens of DeepSeek-V3: arXiv:2412.19437, section 5.4.3",
        draft_tokens=1,
    ),
    _counted(
        "mtp", "deepseek_v4", "DeepSeek-V4-Pro", "dsv4_mtp.yaml", 1.79, 2.27, 2.49, 2.54, 2.55, 2.55, 2.54, 2.58
    ),
    _counted(
        "mtp", "glm_moe_dsa", "GLM-5.2", "glm5.2_mtp.yaml", 1.84, 2.50, 2.99, 3.33, 3.61, 3.78, 3.91, 4.06
    ),
    _counted(
        "mtp", "qwen3_5_moe", "Qwen3.5-397B-A17B", "qwen3.5_mtp.yaml", 1.92, 2.70, 3.33, 3.83, 4.20, 4.48, 4.73, 4.71
    ),
    _counted(
        "eagle", "kimi_k25", "Kimi-K2.5 (EAGLE-3)", "kimik2.5_eagle3.yaml", 1.80, 2.33, 2.75, 3.06, 3.25, 3.43, 3.46, 3.51
    ),
    _counted(
        "eagle", "minimax_m3", "MiniMax-M3 (EAGLE-3)", "minimaxm3_eagle3.yaml", 1.78, 2.38, 2.83, 3.11, 3.35, 3.45, 3.53, 3.74
    ),
)  # fmt: skip
"""Acceptance depends on the task: code and quotations do better, free text worse, and a head trained on other text far worse."""


def published_acceptance(method: Method, target: Network) -> Published | None:
    """Return what is published of a method on a model or its kin; None where nothing is, so that nothing is borrowed."""
    return next(
        (row for row in PUBLISHED if row.method == method and (not row.kin or target.model_type in row.kin)),
        None,
    )


def not_published(method: Method, target: Network) -> str:
    """Return why a method has no acceptance on a model, and the key that states it."""
    kin = sorted({name for row in PUBLISHED if row.method == method for name in row.kin})
    known = f"only for models of type {', '.join(kin)}" if kin else "for no model"
    return (
        f"speculation.acceptance: is missing; the acceptance of {method} is published {known}, and {target.name} is of type "
        f"{target.model_type}\n  state what your engine counts: acceptance: 0.7, or metrics: metrics.txt"
    )
