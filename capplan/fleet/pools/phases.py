"""Each phase of a fleet with separate pools as a question of its own."""

from collections.abc import Sequence
from dataclasses import replace

from capplan.fleet.load.demand import Demand, demand_of_classes
from capplan.fleet.question import Question
from capplan.hardware.device import Device
from capplan.workload.length import fixed
from capplan.workload.slo import Slo

WHOLE_PROMPT = 1e9
"""Tokens of a shared prefix that holds every prompt."""


def prefill_question(question: Question, devices: Sequence[Device]) -> Question:
    """Return the question of the prefill pool: every prompt yields one token, under the targets of the first token."""
    classes = tuple(
        replace(request_class, output_tokens=fixed(1.0)) for request_class in question.demand.classes
    )
    return _phase(question, devices, demand_of_classes(classes), ("ttft",))


def decode_question(question: Question, devices: Sequence[Device]) -> Question:
    """Return the question of the decode pool: prompts arrive with their cache, under the targets of the later tokens."""
    classes = tuple(
        replace(request_class, shared_prefix_tokens=WHOLE_PROMPT, prefix_hit_fraction=1.0, reuse=None)
        for request_class in question.demand.classes
    )
    return _phase(question, devices, demand_of_classes(classes), ("tpot", "itl"))


def _phase(
    question: Question, devices: Sequence[Device], demand: Demand, metrics: tuple[str, ...]
) -> Question:
    targets = tuple(target for target in question.slo.targets if target.metric in metrics)
    return replace(question, devices=tuple(devices), demand=demand, slo=Slo(targets, question.slo.confidence))
