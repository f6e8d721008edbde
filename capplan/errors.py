"""The errors that people see: what is wrong, where, what is allowed, and the way out."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

LONGEST_SHOWN = 80
"""Letters of a name that an error repeats."""
LONGEST_ALLOWED = 100
"""Letters of what is allowed in an error of one line."""


LONGEST_WORD = 300
"""Letters of a word, such as a path, that an error repeats whole."""
LONGEST_LINE = 4000
_LISTED = re.compile(rf"[\[{{][^\[\]{{}}]{{{LONGEST_WORD},}}")
"""A list or mapping out of a file that is too long to repeat whole."""


class Refusal(StrEnum):
    """Why something that was asked for or tried cannot be; what code counts and decides by."""

    WEIGHT_DTYPE = "weight_dtype"
    KV_DTYPE = "kv_dtype"
    HEADS = "heads"
    EXPERTS = "experts"
    ADAPTERS = "adapters"
    LAYERS = "layers"
    LINK_DOMAIN = "link_domain"
    REPLICA_SIZE = "replica_size"
    FLEET_SIZE = "fleet_size"
    MEMORY = "memory"
    SPEED = "speed"
    """No speed of it is known."""
    SPECULATION = "speculation"
    """Drafts cannot be made or verified on it."""
    OVERLOAD = "overload"
    """Not even one request at a time is served."""
    TARGET = "target"
    """A target is missed at every load."""
    LOAD = "load"
    """A target is missed at this load."""
    SIMULATION = "simulation"
    """A target is missed once the requests are simulated."""
    MACHINES = "machines"
    """No machine that may be ordered holds it, or too few of them may be ordered."""
    BUDGET = "budget"
    COST = "cost"
    """Something else costs less."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One refusal, with the words that people read."""

    code: Refusal
    words: str


class CapplanError(Exception):
    """A mistake in what we were given, or a question without an answer; never a bug of ours.

    The first line says what is wrong, with the value; the further lines say where, what is
    allowed, and one thing to do.
    """

    exit_code = 2

    def __init__(self, message: str = "") -> None:
        """Keep the message, and of what it repeats no more than tells it from others."""
        super().__init__("\n".join(map(_readable, message.split("\n"))))


class InputError(CapplanError):
    """What was asked or read cannot be used (exit 2)."""

    line: int | None = None
    """Line of the file, where it is known."""
    belongs_to: str = ""
    """File, line and key that this error of another file or table belongs to; only shown among several mistakes."""


class DoesNotFitError(CapplanError):
    """The model does not fit on the devices (exit 3)."""

    exit_code = 3


class TargetError(CapplanError):
    """A target is missed or cannot be reached (exit 4)."""

    exit_code = 4


def _readable(line: str) -> str:
    """Return a line of an error without the rest of a word or of a line that nobody would read.

    Examples
    --------
    >>> _readable("unknown model " + "x" * 5000) == "unknown model " + "x" * 80 + "..."
    True
    """
    if len(line) <= LONGEST_WORD:
        return line
    line = re.sub(rf"\S{{{LONGEST_WORD},}}", lambda word: word[0][:LONGEST_SHOWN] + "...", line)
    line = _LISTED.sub(lambda listed: listed[0][:LONGEST_SHOWN] + "...", line)
    return line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "..."


_ELSEWHERE = {
    **dict.fromkeys(("gpu", "gpus", "device", "devices", "accelerator", "accelerators"), "hardware"),
    **dict.fromkeys(("prompt", "prompts", "prefill"), "input"),
    **dict.fromkeys(("completion", "completions", "answer", "response", "generated"), "output"),
    **dict.fromkeys(("avg", "average"), "mean"),
    **dict.fromkeys(("rps", "qps", "rate"), "request rate"),
    **dict.fromkeys(("concurrency", "concurrent", "clients"), "users"),
    **dict.fromkeys(("workload", "load"), "traffic"),
    **dict.fromkeys(("quant", "quantization", "quantisation"), "weight dtype"),
    **dict.fromkeys(("chance", "probability"), "slo met probability"),
    "cost": "usd per month",
    "isl": "input tokens",
    "osl": "output tokens",
    "tp": "tensor parallel",
    "pp": "pipeline parallel",
    "ep": "expert parallel",
    "dp": "data parallel",
    **dict.fromkeys(("kubernetes", "manifest"), "k8s"),
    "median": "p50",
    "slos": "slo",
    "tensorrt": "trtllm",
}
"""Word of other tools -> words of capplan for it."""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return the names that are probably meant, best first: the same words in another order, words of other tools, else alike letters.

    Examples
    --------
    >>> nearest("p95_ttft", ["e2e_p95", "ttft_mean", "ttft_p95"]), nearest("h20", ["h100", "h200", "l4"])
    (['ttft_p95'], ['h200'])
    >>> nearest("prompt_tokens", ["input_tokens", "output_tokens"]), nearest("gpus", ["hardware", "name"])
    (['input_tokens'], ['hardware'])
    >>> nearest("--user", ["--set", "--users"]), nearest("--users", ["--set"])
    (['--users'], [])
    """
    name, lower = name.lstrip("-"), {candidate.lower().lstrip("-"): candidate for candidate in sorted(known)}
    by_words = {_in_order(candidate): candidate for candidate in lower}
    translated = " ".join(_ELSEWHERE.get(word, word) for word in re.split(r"[\W_]+", name.lower()))
    for words in (name.lower(), translated):
        if (meant := by_words.get(_in_order(words))) is not None:
            return [lower[meant]]
    near = get_close_matches(name.lower(), lower, n=3, cutoff=0.55)
    near = near or [
        by_words[w] for w in get_close_matches(_in_order(name.lower()), by_words, n=3, cutoff=0.75)
    ]
    return [lower[n] for n in near if n.startswith(name.lower())] or [lower[n] for n in near]


def _in_order(name: str) -> str:
    """Return the words of a name in the order of the alphabet, however they were joined."""
    return " ".join(sorted(re.split(r"[\W_]+", name)))


def unknown(kind: str, name: str, known: Iterable[str], *, place: str = "", hint: str = "") -> InputError:
    """Return the error for a name that is not in a list, with its nearest matches.

    Examples
    --------
    >>> print(unknown("hardware", "h20", ["h100", "h200", "l4"]))
    unknown hardware 'h20': did you mean 'h200'?
      known: h100, h200, l4
    """
    names = sorted(known)
    name = name if len(name) <= LONGEST_SHOWN else name[:LONGEST_SHOWN] + "..."
    near = nearest(name, names)
    question = f": did you mean {' or '.join(repr(n) for n in near[:2])}?" if near else ""
    shown_name = name if len(name) <= LONGEST_ALLOWED else f"{name[:LONGEST_ALLOWED]}..."
    lines = [f"{place + ': ' if place else ''}unknown {kind} {shown_name!r}{question}"]
    shown = names if len(names) <= 24 else [*near, *(n for n in names if n not in near)][:24]
    lines.append(f"  known: {', '.join(shown)}{', ...' if len(names) > len(shown) else ''}")
    if hint:
        lines.append(f"  {hint}")
    return InputError("\n".join(lines))


def together(errors: Sequence[InputError]) -> InputError:
    """Return the one error of several mistakes in a file: one line for each, in the order of the file.

    Examples
    --------
    >>> print(together([unknown("hardware", "h20", ["h100", "h200"]), InputError("a.yaml: slo: is empty")]))
    unknown hardware 'h20': did you mean 'h200'? (known: h100, h200)
    a.yaml: slo: is empty
    """
    if len(errors) == 1:
        return errors[0]
    ordered = sorted(errors, key=lambda error: math.inf if error.line is None else error.line)
    return InputError("\n".join(dict.fromkeys(map(_in_one_line, ordered))))


def _in_one_line(error: InputError) -> str:
    """Return an error with what is allowed behind it, shortened, and without the further advice; mistakes of another file stay."""
    first, *more = f"{f'{error.belongs_to}: ' if error.belongs_to else ''}{error}".splitlines()
    further = "".join(f"\n{line}" for line in more if not line.startswith("  "))
    allowed = next((line.strip() for line in more if line.startswith("  known: ")), "")
    if len(allowed) > LONGEST_ALLOWED:
        allowed = allowed[:LONGEST_ALLOWED].rpartition(",")[0] + ", ..."
    return (f"{first} ({allowed})" if allowed else first) + further
