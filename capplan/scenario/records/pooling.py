"""A scenario for vectors or scores of prompts (runner: pooling) -> traffic without outputs, and the keys that have no meaning for it."""

from functools import partial

from capplan.readers.yaml_file import KeyPath
from capplan.scenario.reading import Reading
from capplan.scenario.records.lengths import LengthFields
from capplan.scenario.scenario_file import ScenarioFile, Traffic

_OF_OUTPUTS = ("output_tokens", "reasoning_tokens", "samples", "retries", "turns", "trace")
ANSWERED = "a vector or a score comes with the prefill of its prompt: no decode, no cache kept after it"
UNMEASURED = "no run of embeddings or rerankers was measured: intervals are those of the prompts of models that generate"


def pooled_traffic(reading: Reading, file: ScenarioFile) -> list[Traffic]:
    """Return the lines of traffic, of a pooled model with the one step that answers a prompt in place of an output.

    Parameters
    ----------
    reading : notes the keys that need an output
    file : the scenario as it is written
    """
    if file.runner != "pooling":
        return file.traffic
    for path, why in _meaningless(file):
        reading.attempt(partial(_refuse, reading, path, why), None, path)
    reading.assume(ANSWERED, "runner")
    reading.assume(UNMEASURED, "slo.confidence")
    answered = dict.fromkeys(_OF_OUTPUTS) | {"output_tokens": LengthFields(fixed=1)}
    return [item.model_copy(update=answered) for item in file.traffic]


def _refuse(reading: Reading, path: KeyPath, why: str) -> None:
    raise reading.refuse(path, f"{why}, and runner: pooling generates no tokens; leave it out")


def _meaningless(file: ScenarioFile) -> list[tuple[KeyPath, str]]:
    """Return the keys of a scenario that pooling gives no meaning, with what they are about."""
    found: list[tuple[KeyPath, str]] = [
        (("traffic", index, key), "is about outputs")
        for index, item in enumerate(file.traffic)
        for key in _OF_OUTPUTS
        if getattr(item, key) is not None
    ]
    found += [
        (("slo", key), "limits the time between tokens")
        for key in sorted(file.slo.model_fields_set)
        if key.startswith(("tpot", "itl"))
    ]
    if file.speculation is not None:
        found.append((("speculation",), "drafts tokens of outputs"))
    if file.fleet.disaggregation not in (None, "off"):
        found.append((("fleet", "disaggregation"), "hands prompts over to a decode pool"))
    return found
