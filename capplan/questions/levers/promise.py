"""Levers that somebody has to agree to: looser targets, shorter requests, refused ones; and machines switched off at night."""

from collections.abc import Iterator

from capplan.questions.levers.lever import Base, Lever, idle
from capplan.scenario.records.lengths import LengthFields

LOOSER = 1.25
"""Times each target."""
HALF = 0.5
SHORTER = 0.9
"""Times each length."""
SERVED = 0.95
"""Share of the peak that is served where admission is controlled."""


def looser_targets(base: Base) -> list[Lever]:
    """Return each target loosened by a quarter."""
    targets = base.asked.scenario.slo.targets
    if not targets:
        return [idle("target", "a looser target", "the scenario has no targets")]
    return [
        Lever(
            "target", f"{target.key} {target.stated_s:g} s -> {LOOSER * target.stated_s:g} s",
            (f"slo.{target.key}={LOOSER * target.stated_s!r} s",),
            "users wait longer: whoever promised the target has to agree",
            keeps=False, broken=f"{target.key} only at its looser value",
        )
        for target in targets
    ]  # fmt: skip


def quicker_outside(base: Base) -> list[Lever]:
    """Return half the time outside, where the targets include it."""
    name, change = "outside", "what is outside takes half the time"
    if not any(target.outside_s for target in base.asked.scenario.slo.targets):
        return [
            idle(
                name,
                change,
                "no target includes time outside: traffic[].outside.time, or slo.outside: included",
            )
        ]
    settings = [
        f"traffic[{index}].outside.{key}={HALF * value!r} s"
        for index, item in enumerate(base.file.traffic)
        if item.outside is not None
        for key in ("time", "tool_time")
        if (value := getattr(item.outside, key))
    ]
    risk = "retrieval and tools have to be made quicker; users wait no less than before"
    return [Lever(name, change, tuple(settings), risk)]


def shorter_prompts(base: Base) -> list[Lever]:
    """Return prompts shorter by a tenth."""
    return _shorter(base, "prompts", "input_tokens", "prompts have to be rewritten, or less retrieved")


def shorter_answers(base: Base) -> list[Lever]:
    """Return answers shorter by a tenth."""
    return _shorter(base, "answers", "output_tokens", "users get less text: instructions have to ask for it")


def _shorter(base: Base, name: str, key: str, risk: str) -> list[Lever]:
    change = f"{name} shorter by {1.0 - SHORTER:.0%}"
    settings = []
    for index, item in enumerate(base.file.traffic):
        record = getattr(item, key)
        if record is None:
            return [
                idle(
                    name,
                    change,
                    f"the lengths of {item.name!r} come from a trace: state {key} to change them",
                )
            ]
        settings.append(f"traffic[{index}].{key}={{{', '.join(_scaled(record))}}}")
    return [Lever(name, change, tuple(settings), risk)]


def _scaled(record: LengthFields) -> Iterator[str]:
    for part, value in record.model_dump(exclude_none=True).items():
        shorter = [SHORTER * one for one in value] if isinstance(value, list) else SHORTER * value
        yield f"{part}: {shorter!r}"


def admission_control(base: Base) -> list[Lever]:
    """Return a fleet for most of the peak; the rest is refused, also from a mean that is above what is served."""
    name, change = "admission-control", f"the busiest {1.0 - SERVED:.0%} of the peak is refused"
    settings = []
    for index, item in enumerate(base.file.traffic):
        for key in ("request_rate", "users"):
            value = getattr(item, key)
            if value is not None:
                settings.append(
                    f"traffic[{index}].{key}={SERVED * value!r}" + (" req/s" if key == "request_rate" else "")
                )
        if item.request_rate and item.mean_rate and item.mean_rate > SERVED * item.request_rate:
            settings.append(f"traffic[{index}].mean_rate={SERVED * item.request_rate!r} req/s")
    if any(item.request_rate is None and item.users is None for item in base.file.traffic):
        why = "a rate or users are needed, of which a part can be refused; not a trace or a batch job"
        return [idle(name, change, why)]
    broken = f"{1.0 - SERVED:.0%} of the requests are refused at the peak"
    return [
        Lever(
            name,
            change,
            tuple(settings),
            "refused requests have to be told so, or retried",
            keeps=False,
            broken=broken,
        )
    ]
