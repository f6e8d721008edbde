"""Samples, retries, reasoning and padding of a line of traffic -> the class of all sequences that the GPUs work on."""

from dataclasses import replace
from functools import partial

from capplan.readers.yaml_file import KeyPath
from capplan.scenario.reading import Reading
from capplan.scenario.records.lengths import lengths
from capplan.scenario.scenario_file import Traffic
from capplan.workload.multiples import batch_arrival_cv, longest_of, mean_attempts, padding_fraction, sum_of
from capplan.workload.request_class import RequestClass

MULTIPLES = ("documents", "samples", "retries", "reasoning_tokens", "padded_batch")
_OPEN_LOOP = "is for request_rate, or requests with within"


def refuse_wrong_multiples(reading: Reading, item: Traffic, at: KeyPath) -> None:
    """Refuse multiples of traffic that has sessions, users or a trace, and padding of traffic without an end."""
    given = [key for key in MULTIPLES if getattr(item, key) is not None]
    for other in ("turns", "users", "trace"):
        if given and getattr(item, other) is not None:
            raise reading.refuse(
                (*at, given[0]), f"{_OPEN_LOOP}, and {other} is given; leave one of them out"
            )
    if item.padded_batch is not None and item.requests is None:
        raise reading.refuse(
            (*at, "padded_batch"),
            "is for a batch job: requests: 1M with within: 8 h; engines that serve do not pad",
        )


def with_multiples(reading: Reading, item: Traffic, index: int, described: RequestClass) -> RequestClass:
    """Return the class of all sequences of a line of traffic, from that of its requests.

    Parameters
    ----------
    reading : of the file
    item : line of traffic
    index : [-]
        of the line
    described : requests, each of a single sequence
    """
    at = f"traffic[{index}]"
    if item.reasoning_tokens is not None:
        refuse = partial(reading.refuse, ("traffic", index, "reasoning_tokens"))
        thought = lengths(item.reasoning_tokens, refuse)
        described = replace(described, output_tokens=sum_of(thought, described.output_tokens))
        words = "reasoning is independent of the answer after it; TTFT is that of the first reasoning token"
        reading.assume(f"{item.name}: {words}", f"{at}.reasoning_tokens")
    if item.padded_batch is not None:
        described = _padded(reading, item.padded_batch, at, described)
    samples, documents = item.samples or 1, item.documents or 1
    retries = item.retries
    attempts = float(mean_attempts(retries.invalid, retries.attempts)) if retries else 1.0
    of_prompt = samples * attempts
    sequences = documents * of_prompt
    if sequences == 1.0:
        return described
    if of_prompt > 1.0:
        reading.assume(
            f"{item.name}: a {'document' if documents > 1 else 'request'} is {of_prompt:.4g} sequences ({samples} samples x {attempts:.4g} attempts); samples arrive together, all but the "
            "first find its prompt in the cache; latencies and rates are those of a sequence",
            f"{at}.samples, {at}.retries",
        )
    if documents > 1:
        reading.assume(
            f"{item.name}: the {documents} documents of a request arrive together, each a prompt of its own; latencies and rates are those of one",
            f"{at}.documents",
        )
    rate, jobs = described.request_rate_per_s, described.job_requests
    return replace(
        described,
        request_rate_per_s=None if rate is None else rate * sequences,
        job_requests=None if jobs is None else jobs * sequences,
        arrival_cv=float(batch_arrival_cv(described.arrival_cv, samples * documents)),
        sequences_per_request=sequences,
        repeated_fraction=1.0 - 1.0 / of_prompt,
    )


def _padded(reading: Reading, batch: int, at: str, described: RequestClass) -> RequestClass:
    inputs, outputs = longest_of(described.input_tokens, batch), longest_of(described.output_tokens, batch)
    shares = [
        float(padding_fraction(item.mean_tokens, padded.mean_tokens))
        for item, padded in ((described.input_tokens, inputs), (described.output_tokens, outputs))
    ]
    reading.assume(
        f"{described.name}: prompts and outputs are padded to the longest of {batch}: {shares[0]:.1%} and {shares[1]:.1%} of their tokens",
        f"{at}.padded_batch",
    )
    return replace(described, input_tokens=inputs, output_tokens=outputs)
