"""The flags of `capplan spec` -> a target and a draft, each a model or a step time."""

from dataclasses import dataclass, replace

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.model.heads import refuse_heads
from capplan.model.network import Network
from capplan.model.sharding import Sharding
from capplan.model.weight_format import in_weight_format, weight_format_assumptions
from capplan.readers.catalogue.model import read_model
from capplan.replica.spec import ReplicaSpec
from capplan.replica.speculation import DraftModel
from capplan.scenario.drafting import check_vocabulary
from capplan.scenario.flags import DraftFlags, ServingFlags
from capplan.scenario.replica import asked_replica


@dataclass(frozen=True, slots=True)
class AskedSpeculation:
    """Target and draft, with the assumptions that complete them."""

    target: ReplicaSpec | float
    draft: DraftModel | float
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...] = ()


def asked_speculation(
    model: str | None, hardware: str | None, flags: DraftFlags, serving: ServingFlags
) -> AskedSpeculation:
    """Return target and draft of a command line.

    Parameters
    ----------
    model, hardware : the target; not needed where both step times are given
    flags : the draft as a model or a time, one of them, and perhaps the time of the target [s]
    serving : how the target is served

    Returns
    -------
    target, draft, assumptions, warnings

    Raises
    ------
    InputError
        A time or a model is missing or given twice, or the two models have different tokens.
    """
    _check_times(model, hardware, flags)
    draft_step_s, target_step_s = flags.draft_step_s, flags.target_step_s
    if draft_step_s is not None and target_step_s is not None:
        unused = ("MODEL and --hardware are not used: both step times are given",) if model else ()
        return AskedSpeculation(
            target_step_s, draft_step_s, (*_of_times(draft_step_s, target_step_s), _FLAT), unused
        )
    assert model is not None
    assert hardware is not None
    asked = asked_replica(model, hardware, serving)
    if draft_step_s is not None:
        return AskedSpeculation(
            asked.spec,
            draft_step_s,
            (*asked.assumptions, *_of_times(draft_step_s, None), _DRAFT_MEMORY),
            asked.warnings,
        )
    assert flags.draft is not None
    beside, stated = draft_beside(
        flags.draft,
        asked.spec,
        weight_dtype=flags.draft_weight_dtype,
        ranks=flags.draft_tensor_parallel,
        offline=serving.offline,
    )
    return AskedSpeculation(asked.spec, beside, (*asked.assumptions, *stated), asked.warnings)


def draft_beside(
    draft: str,
    target: ReplicaSpec,
    *,
    weight_dtype: str | None = None,
    ranks: int | None = None,
    offline: bool,
) -> tuple[DraftModel, tuple[Assumption, ...]]:
    """Return a draft model on the devices of its target, and what was assumed."""
    network, stated = _draft_network(draft, target, weight_dtype, offline=offline)
    ranks = ranks or int(target.sharding.tensor)
    if ranks > int(target.sharding.tensor):
        raise InputError(
            f"--draft-tensor-parallel {ranks}: exceeds the target's --tensor-parallel {int(target.sharding.tensor)}; "
            "a draft runs on the devices of its target"
        )
    if target.sharding.pipeline > 1:
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
    return DraftModel(spec), (*stated, note, _FIRST_DRAFT)


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
    if (flags.draft is None) == (flags.draft_step_s is None):
        raise InputError(
            "give exactly one of --draft MODEL and --draft-step-time\n"
            "  for heads that draft inside the target (EAGLE, Medusa, MTP) give --draft-step-time '2 ms'"
        )
    if flags.target_step_s is not None and flags.draft is not None:
        raise InputError(
            "--target-step-time: belongs to --draft-step-time; with --draft the target is a MODEL on a --hardware\n"
            "  leave out --target-step-time, or give --draft-step-time instead of --draft"
        )
    if flags.target_step_s is None and (model is None or hardware is None):
        missing = "MODEL" if model is None else "--hardware"
        raise InputError(
            f"{missing} is missing: the target is a MODEL on a --hardware, or a --target-step-time beside --draft-step-time\n"
            "  e.g. capplan spec llama-3.1-70b --hardware h100 -tp 4 --draft llama-3.2-1b --acceptance 0.7"
        )


def _draft_network(
    draft: str, target: ReplicaSpec, weight_dtype: str | None, *, offline: bool
) -> tuple[Network, tuple[Assumption, ...]]:
    network = read_model(draft, offline=offline)
    check_vocabulary(network, target.network, "--draft", "--draft-step-time '2 ms'")
    doubts = tuple(replace(doubt, what=f"draft: {doubt.what}") for doubt in network.doubts)
    if weight_dtype is None:
        return network, doubts
    formats = weight_format_assumptions(network, weight_dtype)
    return in_weight_format(network, weight_dtype), (*doubts, *formats)
