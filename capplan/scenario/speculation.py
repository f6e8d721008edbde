"""Speculation of a scenario or of flags: the method, its acceptance (published or stated), the target and the draft."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.model.network import Network
from capplan.model.sharding import Sharding, refuse_heads
from capplan.readers.catalogue.models import read_model
from capplan.readers.yaml_file import KeyPath
from capplan.replica.spec import ReplicaSpec
from capplan.replica.speculation import DraftModel, DraftPlan, Method, draft_of
from capplan.scenario.command_flags import DraftFlags
from capplan.scenario.flags import ServingFlags
from capplan.scenario.reading import Reading
from capplan.scenario.replica import CompletedReplica, asked_replica
from capplan.scenario.scenario_file import Speculation


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
        "dspark", "deepseek_v4", "DeepSeek-V4-Pro-0813", "dsv4-pro-0813-dspark.yaml", 1.84, 2.51, 3.01, 3.36, 3.61, 3.77, 3.73, 3.47
    ),
    _counted("dspark", "kimi_k3", "Kimi-K3", "kimik3_dspark.yaml", 1.84, 2.45, 2.87, 3.22, 3.44, 3.54, 3.78, 3.88),
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


OF_ITSELF: tuple[Method, ...] = ("eagle", "mtp", "dspark", "medusa", "ngram")
"""Methods that need neither a draft model nor the time of a draft."""


def resolved_speculation(reading: Reading, section: Speculation, draft: str | None) -> Speculation:
    """Return the speculation of a scenario with what its metrics count; without an acceptance where it states none.

    Parameters
    ----------
    reading : of the file
    section : of the scenario
    draft : its draft model, as a path or a name

    Raises
    ------
    InputError
        half a method, or two
    """
    fractions = _acceptance(reading, section)
    tokens = section.draft_tokens
    if len(fractions) > 1 and (tokens or 0) > len(fractions):
        at: KeyPath = ("speculation", "draft_tokens")
        raise reading.refuse(
            at, f"{tokens} drafts need as many acceptances, one for each position; there are {len(fractions)}"
        )
    return section.model_copy(update={"acceptance": fractions, "draft": draft})


def _acceptance(reading: Reading, section: Speculation) -> list[float]:
    """Return the acceptance that a scenario states, or that an engine counted; none where the published one is used."""
    if section.metrics is None:
        return section.acceptance
    from capplan.recorded.traces.prometheus import accepted_drafts

    paths = [Path(reading.resolved(name)) for name in section.metrics]
    fractions, counted = accepted_drafts(paths, section.draft_tokens)
    shares = ", ".join(f"{fraction:.1%}" for fraction in fractions)
    reading.assume(
        f"drafts are accepted with {shares} probability, given those before them: {paths[-1].name} counted {counted}",
        "speculation.acceptance",
    )
    return list(fractions)


def with_acceptance(plan: Speculation, target: Network) -> tuple[Speculation, tuple[Assumption, ...]]:
    """Return a speculation with the published acceptance of its method on a target, where it states none, and what was assumed.

    Raises
    ------
    InputError
        No acceptance of the method is published for the target or its kin, or for fewer drafts than are wanted.
    """
    stated: list[Assumption] = []
    if not plan.acceptance:
        known = published_acceptance(plan.method, target)
        if known is None:
            raise InputError(not_published(plan.method, target))
        tokens = plan.draft_tokens or known.draft_tokens
        positions = len(known.acceptance_fractions)
        if 1 < positions < (tokens or 0):
            raise InputError(
                f"speculation.draft_tokens: {tokens} is above {positions}, for as many drafts is an acceptance published: {known.source}\n"
                "  state your own: acceptance: 0.7"
            )
        plan = plan.model_copy(
            update={
                "acceptance": list(known.acceptance_fractions),
                "draft_tokens": tokens,
                "verified_tokens": plan.verified_tokens or known.verified_tokens,
            }
        )
        stated.append(known.assumption)
    if plan.draft_tokens is None:
        stated.append(_AS_MANY)
    return plan, tuple(stated)


def drafting_of(
    plan: Speculation, target: Network, *, offline: bool
) -> tuple[DraftPlan, tuple[Assumption, ...]]:
    """Return how replicas of a target draft, and what was assumed.

    Raises
    ------
    InputError
        a draft with another vocabulary; a head that the target does not have; no acceptance
    """
    network = None
    if plan.draft is not None:
        network = read_model(plan.draft, offline=offline)
        check_vocabulary(network, target, "speculation.draft", "draft_step_time: 2 ms")
    if plan.method == "mtp" and not target.mtp_parameters:
        raise InputError(
            f"speculation.method: mtp: {target.name} has no layers for multi-token prediction\n  try eagle or ngram"
        )
    plan, accepted = with_acceptance(plan, target)
    drafting = DraftPlan(
        plan.method,
        tuple(plan.acceptance),
        plan.draft_tokens,
        plan.verified_tokens,
        network,
        plan.draft_step_time,
    )
    return drafting, (*accepted, _COST_OF[plan.method] if plan.draft_step_time is None else _AS_GIVEN)


def check_vocabulary(draft: Network, target: Network, place: str, instead: str) -> None:
    """Refuse a draft whose tokens the target does not have; `instead` is how the time of a draft is given."""
    if draft.vocabulary_size != target.vocabulary_size:
        raise InputError(
            f"{place}: {draft.name} has {draft.vocabulary_size:,} tokens, {target.name} has {target.vocabulary_size:,}; a target can only "
            f"verify drafts in its own vocabulary\n  take a draft of the same family, or give the step time of a head: {instead}"
        )


_AS_MANY = Assumption(
    "as many drafts in a round as are best at half of the largest rate", "speculation.draft_tokens"
)
_AS_GIVEN = Assumption("a draft takes as long as given, and no memory", "speculation.draft_step_time")
_HEAD = Assumption(
    "a draft head is one more layer of the target, with its embedding and its LM head",
    "speculation.draft_step_time",
)
_COST_OF: dict[Method, Assumption] = {
    "eagle": _HEAD,
    "mtp": _HEAD,
    "dspark": Assumption(
        "a draft of DSpark takes one more layer of the target, with its LM head; its layers run once for all drafts of a round",
        "speculation.draft_step_time",
    ),
    "medusa": Assumption(
        "a Medusa head is one more LM head of the target, in 16 bits", "speculation.draft_step_time"
    ),
    "ngram": Assumption("drafts from the prompt take no time on the device", "speculation.draft_step_time"),
    "draft-model": Assumption(
        "the draft runs on all devices of its target; its prefill of the prompts is not counted",
        "speculation.draft_step_time",
    ),
}


@dataclass(frozen=True, slots=True)
class AskedSpeculation:
    """Target and draft, with the assumptions that complete them."""

    target: ReplicaSpec | float
    draft: DraftModel | float
    acceptance_fractions: tuple[float, ...]
    """One for all positions, or one for each."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...] = ()


def _drafted_by_itself(
    asked: CompletedReplica, named: str, fractions: tuple[float, ...], *, offline: bool
) -> AskedSpeculation:
    """Return a target that drafts by a method of its own, with the published acceptance where none is stated."""
    method: Method = next(known for known in OF_ITSELF if known == named)
    plan = Speculation(method=method).model_copy(update={"acceptance": list(fractions)})
    drafting, assumed = drafting_of(plan, asked.spec.network, offline=offline)
    return AskedSpeculation(
        asked.spec,
        draft_of(drafting, asked.spec),
        drafting.acceptance_fractions,
        (*asked.assumptions, *(one for one in assumed if one is not _AS_MANY)),
        asked.warnings,
    )


def asked_speculation(
    model: str | None,
    hardware: str | None,
    flags: DraftFlags,
    serving: ServingFlags,
    acceptance_fraction: float | None,
) -> AskedSpeculation:
    """Return target and draft of a command line.

    Parameters
    ----------
    model, hardware : the target; not needed where both step times are given
    flags : the draft as a model, a method or a time, one of them, and perhaps the time of the target [s]
    serving : how the target is served
    acceptance_fraction : [-]
        None: the published one of the method

    Raises
    ------
    InputError
        A time or a model is missing or given twice, or the two models have different tokens.
    """
    _check_times(model, hardware, flags)
    if acceptance_fraction is None and flags.method is None:
        raise InputError(
            "--acceptance: is missing; it is the probability that a draft token is accepted, such as 0.7\n"
            f"  or name a method whose acceptance is published: --method {' or '.join(OF_ITSELF)}"
        )
    fractions = () if acceptance_fraction is None else (acceptance_fraction,)
    draft_step_s, target_step_s = flags.draft_step_s, flags.target_step_s
    if draft_step_s is not None and target_step_s is not None:
        unused = ("MODEL and --hardware are not used: both step times are given",) if model else ()
        return AskedSpeculation(
            target_step_s, draft_step_s, fractions, (*_of_times(draft_step_s, target_step_s), _FLAT), unused
        )
    assert model is not None
    assert hardware is not None
    asked = asked_replica(model, hardware, serving, drafts=True)
    if draft_step_s is not None:
        return AskedSpeculation(
            asked.spec,
            draft_step_s,
            fractions,
            (*asked.assumptions, *_of_times(draft_step_s, None), _DRAFT_MEMORY),
            asked.warnings,
        )
    if flags.method is not None:
        return _drafted_by_itself(asked, flags.method, fractions, offline=serving.offline)
    assert flags.draft is not None
    beside, stated = draft_beside(
        flags.draft,
        asked.spec,
        ranks=flags.draft_tensor_parallel,
        offline=serving.offline,
    )
    return AskedSpeculation(asked.spec, beside, fractions, (*asked.assumptions, *stated), asked.warnings)


def draft_beside(
    draft: str,
    target: ReplicaSpec,
    *,
    ranks: int | None = None,
    offline: bool,
) -> tuple[DraftModel, tuple[Assumption, ...]]:
    """Return a draft model on the devices of its target, and what was assumed."""
    network = read_model(draft, offline=offline)
    check_vocabulary(network, target.network, "--draft", "--draft-step-time '2 ms'")
    doubts = [replace(doubt, what=f"draft: {doubt.what}") for doubt in network.doubts]
    ranks = ranks or int(target.sharding.tensor)
    if ranks > int(target.sharding.tensor):
        raise InputError(
            f"--draft-tensor-parallel {ranks}: exceeds the target's --tensor-parallel {int(target.sharding.tensor)}; "
            "a draft runs on the devices of its target"
        )
    if target.batching.pipeline > 1:
        raise InputError(
            f"--pipeline-parallel {int(target.sharding.pipeline)}: a draft model with a pipelined target is not modelled\n"
            "  give the time of a draft step instead: --draft-step-time '2 ms'"
        )
    refuse_heads(network, ranks, "--draft-tensor-parallel")
    spec = replace(target, network=network, sharding=Sharding(float(ranks), 1.0, 1.0, target.sharding.data))
    note = Assumption(
        f"the draft runs on {ranks} of the target's {target.devices} devices, its cache in {spec.kv_format}",
        "--draft-tensor-parallel, --kv-dtype",
    )
    return DraftModel(spec), (*doubts, note, _FIRST_DRAFT)


_FLAT = Assumption(
    "step times do not depend on the batch size, and a verification takes as long as a step of the target",
    "MODEL and --hardware instead of --target-step-time",
)
_DRAFT_MEMORY = Assumption("a draft given by its step time takes no memory", "--draft MODEL")
_FIRST_DRAFT = Assumption(
    "each draft step computes one token per sequence; working memory of the draft is shared with the target",
    "--draft-step-time",
)


def _of_times(draft_step_s: float | None, target_step_s: float | None) -> tuple[Assumption, ...]:
    given = (("draft", draft_step_s), ("target", target_step_s))
    return tuple(
        Assumption(f"one step of the {who} takes {step * 1e3:g} ms, as given", f"--{who}-step-time")
        for who, step in given
        if step is not None
    )


def _check_times(model: str | None, hardware: str | None, flags: DraftFlags) -> None:
    given = [value for value in (flags.draft, flags.method, flags.draft_step_s) if value is not None]
    if len(given) != 1:
        raise InputError(
            "give exactly one of --draft MODEL, --method METHOD and --draft-step-time\n"
            "  heads that draft inside the target are --method eagle, mtp, dspark or medusa, or a time: --draft-step-time '2 ms'"
        )
    if flags.target_step_s is not None and flags.draft_step_s is None:
        raise InputError(
            "--target-step-time: belongs to --draft-step-time; with --draft or --method the target is a MODEL on a --hardware\n"
            "  leave out --target-step-time, or give --draft-step-time instead of --draft or --method"
        )
    if flags.target_step_s is None and (model is None or hardware is None):
        missing = "MODEL" if model is None else "--hardware"
        raise InputError(
            f"{missing} is missing: the target is a MODEL on a --hardware, or a --target-step-time together with --draft-step-time\n"
            "  e.g. capplan spec llama-3.1-70b --hardware h100 -tp 4 --draft llama-3.2-1b --acceptance 0.7"
        )
