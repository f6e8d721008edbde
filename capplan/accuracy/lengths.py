"""Lengths of the requests of a measured run: what its row states, what its own figures imply, and draws of every request.

The token-weighted context of a decode batch is the prompt and half of the answer: answers are at all lengths at once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from capplan.accuracy.cells import needed_number, number_in
from capplan.accuracy.shared_prompts import Conversation
from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.numbers import Array

SEED = 20260101

CHAT_LENGTHS = (1.1, 8.0, 0.9, 2.5)
"""Spread, and maximum over mean, of inputs and outputs: chat data without further detail (an assumption)."""

DATASETS = {
    "sharegpt_standard_v1": (1.17, 2100.0, 0.9, 512.0),
    "sharegpt_edge_v1": (1.19, 600.0, 0.9, 512.0),
    "sharegpt_longctx_v1": (0.02, 29932.0, 0.0, 256.0),
    "mlperf-deepseek-r1": (0.6, 3300.0, 1.08, 20000.0),
}
"""Log standard deviation and longest of inputs and of outputs; AccelMark's, in tokens: quartiles and 99th percentile of inputs and the limit of outputs in suites/suite_*/suite.json
and suites/README.md, https://github.com/FreedomIntelligence/AccelMark. MLPerf's reasoning set: mean over median of the response times in a submission
(mean 251 s, median 140 s), the limit of 20,000 tokens of its rules; the spread of its inputs is assumed."""

UNCOUNTED_ANSWERS = "output_len_unreliable"
"""Flag of a row whose answers ended by themselves; without `osl` nobody counted them."""

ONE_TOKEN = frozenset({"first_token", "prefill_only", "step_time"})
"""Kinds whose requests yield one token."""

AGENTIC = re.compile(r"\bagentic\b.*\btrace\b")
"""Lengths of a trace of agents, whose prompts repeat what was said before."""

AGENTIC_HITS = 0.94
"""Share of the prompt tokens of an agentic trace that hit in the cache, where a row states none: published traces have 0.90 to 0.98
(llm-d's wide-EP guide of GLM-5.2: up to about 0.94, https://github.com/llm-d/llm-d)."""

LEAST_TIME_SHARE = 0.02
"""Smallest share of a client's time before its first token from which the length of its answers is derived: below, it is a difference of two
almost equal numbers."""

_UNIFORM = re.compile(r"uniform\[([\d.]+),\s*([\d.]+)\]|uniform ([\d.]+)-([\d.]+) of nominal")
_BELOW_NOMINAL = re.compile(r"uniform (?:1\.\.|below )nominal")
_SGLANG_RANDOM = re.compile(r"^random uniform .*\(range_ratio 0\) nominal (\d+)/(\d+)")
"""Lengths of `sglang.bench_serving --dataset-name random` without a range ratio: see `sglang_lengths`."""
SGLANG_SEED = 1
"""`--seed` of that tool by default."""
_MEAN_CONTEXT = re.compile(r"mean KV length ([\d,]+)")
_MEAN_OUTPUT = re.compile(r"mean output ([\d,]+)-([\d,]+)")


@dataclass(frozen=True, slots=True)
class MeanLengths:
    """Mean tokens of the requests of a row."""

    input_tokens: float
    output_tokens: float
    assumptions: tuple[Assumption, ...] = ()
    output_implied: bool = False
    """The output was derived from the throughput of the row, which a prediction then repeats."""


def lengths_named(row: Mapping[str, str]) -> str:
    """Return how the lengths of the requests are spread."""
    if nominal := row.get("nominal_lengths"):
        return f"random uniform 1..nominal (range_ratio 0) nominal {nominal}"
    return (row.get("length_distribution") or "fixed").strip()


def uniform_shares(text: str) -> tuple[float, float] | None:
    """Return between which shares of the nominal length requests are spread evenly; None where they are not.

    Examples
    --------
    >>> uniform_shares("uniform[0.8,1.0]x1024/1024"), uniform_shares("random uniform 1..nominal (range_ratio 0)"), uniform_shares("fixed")
    ((0.8, 1.0), (0.0, 1.0), None)
    """
    found = _UNIFORM.search(text)
    if found:
        low, high = (float(end) for end in found.groups() if end)
        return low, high
    return (0.0, 1.0) if _BELOW_NOMINAL.search(text) else None


def answers_uncounted(row: Mapping[str, str]) -> bool:
    """Return whether answers ended by themselves and nobody counted their tokens."""
    return (
        (row.get("kind") or "").strip() == "online_rate"
        and not (row.get("osl") or "").strip()
        and UNCOUNTED_ANSWERS in (row.get("flags") or "")
    )


def implied_output_tokens(
    clients: float, tokens_per_s: float, ttft_s: float, tpot_s: float, input_tokens: float = 0.0
) -> float:
    """Return the mean answer of a closed loop that its own figures imply.

        O = (X (F - T) - C P) / (C - X T)

    Each client is always in one request: C (P + O) = X (F + (O - 1) T).

    Parameters
    ----------
    clients : [-]
        C
    tokens_per_s : [tokens/s]
        X, of answers, or of prompts and answers
    ttft_s : [s]
        F, mean time to first token
    tpot_s : [s]
        T, mean time per output token
    input_tokens : [tokens]
        P, 0 where X counts answers only

    Returns
    -------
    [tokens]
        O; not positive or not finite where the figures contradict each other

    Examples
    --------
    Two clients whose answers of 100 tokens take 1 s and then 99 times 10 ms:

    >>> round(implied_output_tokens(2.0, 200.0 / 1.99, 1.0, 0.01), 6)
    100.0

    References
    ----------
    Little 1961, "A proof for the queuing formula L = lambda W", doi:10.1287/opre.9.3.383.
    """
    beside = clients - tokens_per_s * tpot_s
    return (tokens_per_s * (ttft_s - tpot_s) - clients * input_tokens) / beside if beside else float("nan")


def _latency_s(row: Mapping[str, str], name: str) -> float | None:
    """Return the mean of a latency, else its median."""
    value = number_in(row, f"{name}_ms_mean") or number_in(row, f"{name}_ms_p50")
    return value / 1e3 if value else None


def _loop(row: Mapping[str, str], rate: str) -> tuple[float, float, float, float] | None:
    """Return clients, tokens per second, TTFT and TPOT of a closed loop; None where the row lacks one of them."""
    figures = (
        number_in(row, "concurrency"), number_in(row, rate), _latency_s(row, "ttft"), _latency_s(row, "tpot"),
    )  # fmt: skip
    clients, rate_s, ttft_s, tpot_s = figures
    if not clients or not rate_s or not ttft_s or not tpot_s:
        return None
    return clients, rate_s, ttft_s, tpot_s


def _implied_output(row: Mapping[str, str]) -> float | None:
    """Return the mean output of a closed loop by its throughput and latencies; None where they do not tell it."""
    loop = _loop(row, "output_tok_s")
    if loop is None:
        return None
    clients, rate_s, _, tpot_s = loop
    output = implied_output_tokens(*loop)
    return output if 1.0 - rate_s * tpot_s / clients > LEAST_TIME_SHARE and output >= 1.0 else None


def _implied_input(row: Mapping[str, str], output_tokens: float) -> float | None:
    """Return the mean input of a closed loop by its total throughput and latencies; None where they do not tell it."""
    loop = _loop(row, "total_tok_s")
    if loop is None:
        return None
    clients, rate_s, ttft_s, tpot_s = loop
    tokens = rate_s * (ttft_s + (output_tokens - 1.0) * tpot_s) / clients
    return tokens - output_tokens if tokens > output_tokens else None


def mean_lengths(row: Mapping[str, str], kind: str, conversation: Conversation | None) -> MeanLengths:
    """Return the mean input and output tokens of a row.

    Parameters
    ----------
    row : text by column name
    kind : of the run; a prefill engine makes one token, and a decode engine needs only the mean context
    conversation : of the clients

    Returns
    -------
    the lengths; InputError where the row does not tell the input
    """
    if conversation is not None:
        return MeanLengths(conversation.mean_input_tokens, conversation.output_tokens)
    lengths = lengths_named(row)
    output = number_in(row, "osl")
    if kind in ONE_TOKEN or answers_uncounted(row):
        output = 1.0
    elif kind == "decode_only":
        output = output or 0.0
    context = _MEAN_CONTEXT.search(lengths)
    if not row.get("isl") and context and kind in {"decode_only", "prefill_only"}:
        tokens = float(context[1].replace(",", ""))
        note = Assumption(f"prompts of {tokens:,.0f} tokens, the mean context that the row states", "isl")
        return MeanLengths(tokens, output or 0.0, (note,) if kind == "prefill_only" else ())
    if not row.get("isl") and (drawn := nominal_lengths(lengths)):
        prompts, answers = sglang_lengths(*drawn, int(needed_number(row, "requests")))
        return MeanLengths(float(prompts.mean()), float(answers.mean()))
    if not row.get("isl"):
        return _back_solved(row, lengths)
    prompt = number_in(row, "isl")
    if prompt is None or prompt <= 0:
        raise InputError(f"isl: missing or not positive ({row.get('isl') or ''!r})")
    nominal = re.search(r"uniform ([\d.]+)-([\d.]+) of nominal", lengths)
    if nominal:
        share = (float(nominal[1]) + float(nominal[2])) / 2.0
        prompt, output = share * prompt, output and share * output
    if output is None and kind == "online_conc":
        return _with_implied_output(row, prompt)
    if not output and kind != "decode_only":
        output = needed_number(row, "osl")
    return MeanLengths(prompt, output or 0.0)


def _back_solved(row: Mapping[str, str], lengths: str) -> MeanLengths:
    """Return the lengths of a row that states only the range of its mean outputs: prompts follow from the total throughput."""
    stated = _MEAN_OUTPUT.search(lengths)
    if stated:
        output = sum(float(end.replace(",", "")) for end in stated.groups()) / 2.0
        prompt = _implied_input(row, output)
        if prompt is not None:
            note = Assumption(
                f"outputs of {output:,.0f} tokens, the middle of the range that the row states, and prompts as long as its "
                "total throughput and its latencies imply",
                "isl, osl",
            )
            return MeanLengths(round(prompt), output, (note,), output_implied=True)
    shown = "" if lengths == "fixed" else f"; {lengths[:40]!r} states no prompt length"
    raise InputError(
        f"isl: missing{shown}\n  write the mean input and output tokens, or replay a recorded trace: capplan simulate --trace"
    )


def _with_implied_output(row: Mapping[str, str], prompt: float) -> MeanLengths:
    output = _implied_output(row)
    if output is None:
        raise InputError(
            "osl: not stated, and throughput, clients and latencies of the row do not imply it\n  write the mean output tokens"
        )
    note = Assumption(
        "outputs as long as the row's throughput, clients and latencies imply (Little's law)", "osl"
    )
    return MeanLengths(prompt, float(round(output)), (note,), output_implied=True)


def drawn_lengths(lengths: str, means: tuple[float, float], requests: int) -> tuple[Array, Array]:
    """Return input and output lengths of the requests, in tokens.

    fixed : every request has the mean
    uniform[a,b], uniform 1..nominal : uniform between two shares of the nominal length, whose mean is given
    sharegpt : lognormal with the mean and the spread of chat data (an assumption)
    """
    random = np.random.default_rng(SEED)
    if nominal := nominal_lengths(lengths):
        return sglang_lengths(*nominal, requests)
    shares = uniform_shares(lengths)
    if shares:
        low, high = shares
        draws = [random.uniform(low, high, requests) * (2.0 * mean / (low + high)) for mean in means]
    elif "sharegpt" in lengths or lengths in DATASETS:
        prompt, longest_prompt, output, longest_output = CHAT_LENGTHS
        usual = prompt, longest_prompt * means[0], output, longest_output * means[1]
        prompt, longest_prompt, output, longest_output = DATASETS.get(lengths.partition(" ")[0], usual)
        draws = [
            _chat_lengths(random, requests, means[0], prompt, longest_prompt),
            _chat_lengths(random, requests, means[1], output, longest_output),
        ]
    else:
        draws = [np.full(requests, mean) for mean in means]
    prompts, outputs = (np.maximum(1.0, np.round(draw)) for draw in draws)
    return prompts, outputs


def nominal_lengths(lengths: str) -> tuple[int, int] | None:
    """Return the nominal prompt and answer of a run of SGLang's own load generator; None for any other.

    Examples
    --------
    >>> nominal_lengths("random uniform 1..nominal (range_ratio 0) nominal 8000/1000"), nominal_lengths("fixed")
    ((8000, 1000), None)
    """
    found = _SGLANG_RANDOM.search(lengths)
    return (int(found[1]), int(found[2])) if found else None


def sglang_lengths(prompt_tokens: int, output_tokens: int, requests: int) -> tuple[Array, Array]:
    """Return the lengths that SGLang's load generator draws: its seed is always the same, so these are the requests that were sent.

        n_i uniform in 1, ..., N, first of all prompts and then of all answers

    Parameters
    ----------
    prompt_tokens, output_tokens : [tokens]
        N
    requests : [-]

    Returns
    -------
    [tokens]
        of prompts and answers

    Examples
    --------
    The cookbook's ten requests of nominally 8,000 and 1,000 tokens have 4,194 and 422 on average:

    >>> [round(float(lengths.mean()), 1) for lengths in sglang_lengths(8000, 1000, 10)]
    [4194.1, 422.0]

    References
    ----------
    `sample_random_requests`, python/sglang/bench_serving.py (`--seed 1`, `--random-range-ratio 0.0`): https://github.com/sgl-project/sglang.
    """
    random = np.random.RandomState(SGLANG_SEED)
    prompts = random.randint(1, prompt_tokens + 1, requests)
    return prompts.astype(np.float64), random.randint(1, output_tokens + 1, requests).astype(np.float64)


def _chat_lengths(
    random: "np.random.Generator", requests: int, mean: float, spread: float, longest: float
) -> Array:
    """Return lognormal lengths of a given mean, cut at a maximum."""
    if mean <= 1.0:
        return np.full(requests, mean)
    draw = random.lognormal(np.log(mean) - spread**2 / 2.0, spread, requests)
    for _ in range(3):
        draw = np.minimum(draw, longest)
        draw = draw * (mean / draw.mean())
    capped: Array = np.minimum(draw, longest)
    return capped
