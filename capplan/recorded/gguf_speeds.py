"""Published speeds of GGUF models, row by row: which run of llama.cpp a row states, or why none can be predicted from it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capplan.accuracy.cells import is_set, number_in
from capplan.errors import InputError
from capplan.hardware.device import HOST
from capplan.model.weight_format import RECIPES
from capplan.readers.catalogue.hardware import catalogue_name, device
from capplan.readers.catalogue.models import shipped_id
from capplan.readers.catalogue.workstations import machine_parts
from capplan.recorded.results.llamacpp import dialect


@dataclass(frozen=True, slots=True)
class GgufRun:
    """One run of llama.cpp whose speed was published."""

    model: str
    """Id of a shipped model."""
    weight_dtype: str | None
    """None: as the model is published."""
    hardware: str
    """Name of the catalogue."""
    backend: str | None
    """None: the row states none."""
    build: str | None
    """Build of llama.cpp; None: not stated."""
    kv_dtype: str
    prompt_tokens: int
    """Tokens of the prompt whose rate was measured; 0: the rate is that of generation."""
    depth_tokens: int
    """Tokens in the context before."""
    generated_tokens: int
    parallel: int
    """Sequences that generate at once; the rate is that of all."""
    ubatch_tokens: int
    device_layers: int | None = None
    """Layers on the device; None: all."""
    cpu_experts: int | None = None
    """Layers whose routed experts are in the memory of the host; None: none are."""
    host_bytes_per_s: float | None = None
    """Bandwidth of the memory of the host, of what is offloaded to it."""
    devices: int = 1
    """Equal devices, which have layers in turn."""
    tensor_split: str | None = None
    """Parts of the layers for each card of a machine; None: by memory."""

    @property
    def kind(self) -> str:
        """Return generation or prompt."""
        return "prompt" if self.prompt_tokens else "generation"

    @property
    def interval(self) -> str:
        """Return the kind of interval: generation, prompt, those of processors, or offloaded."""
        kind = f"processor_{self.kind}" if self.backend == "cpu" else self.kind
        return kind if self.host_bytes_per_s is None else "offloaded"


STARVED = re.compile(r"raspberry|hifive|jetson|rpc\)|\bx2 hosts", re.IGNORECASE)

_QUANT = re.compile(
    r"(?<![-_. :])[-_. :]+(?:UD-)?(?:I?Q\d\w*(?: - (?:Medium|Small|Large))?|TQ\d_0|MXFP4(?:_MOE)?|B?F16)(?: - .*)?$",
    re.IGNORECASE,
)
_OWNER = re.compile(
    r"^(?:meta-llama|qwen|microsoft|mistralai|google|deepseek-ai|zai-org|bartowski|unsloth|ubergarm|ggml-org|ArtusDev)[_ /](?=\w)",
    re.IGNORECASE,
)
_TUNED = re.compile(r"[-_ ](?:instruct|it|chat|128k|qat|reasoning|thinking)\b.*$", re.IGNORECASE)


def printed_model(text: str) -> str | None:
    """Return the shipped model that a row means: by its name, a file's name, or what llama-bench prints; None where none is shipped.

    Examples
    --------
    >>> [printed_model(text) for text in ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "qwen2 7B Q4_K - Medium", "LLaMA 3 8B", "Foo 3B")]
    ['meta-llama/Meta-Llama-3.1-8B-Instruct', 'Qwen/Qwen2.5-7B', 'meta-llama/Llama-3-8B', None]
    """
    name = re.sub(r"\.gguf$|-GGUF.*$", "", text.strip(), flags=re.IGNORECASE)
    for _ in range(2):
        name = _QUANT.sub("", name)
    bare = _OWNER.sub("", name.rsplit("/", 1)[-1]).strip()
    models = dialect()["models"]
    known = models.get(re.sub(r"[\s_-]+", " ", bare).lower()) or models.get(bare.lower())
    return known or shipped_id(bare) or shipped_id(_TUNED.sub("", bare))


def printed_device(text: str) -> str | None:
    """Return the device of the catalogue that a printed name means; None where none has it, or several.

    Examples
    --------
    >>> [printed_device(text) for text in ("3090 24GB", "NVIDIA GeForce RTX 4090", "NVIDIA L40S", "GeForce 256")]
    ['rtx-3090', 'rtx-4090', 'l40s', None]
    """
    said = re.sub(r"\([^()]*\)", " ", text).strip()
    smaller = re.sub(r"\b\d+ ?GB\b", " ", said, flags=re.IGNORECASE).strip()
    for name in (said, smaller, f"rtx {smaller}"):
        if found := catalogue_name(name):
            return found
    return None


def run_of_row(row: Mapping[str, str]) -> GgufRun | str:
    """Return the run that a row of published speeds states, or why it cannot be predicted."""
    if why := _not_plain(row):
        return why
    try:
        return _stated_run(row)
    except InputError as error:
        return str(error).partition("\n")[0]


def _not_plain(row: Mapping[str, str]) -> str:
    """Return why the rate of a row is no plain one of llama.cpp; empty if it is."""
    tool, notes = (row.get("tool") or "").lower(), row.get("notes") or ""
    for name, why in dialect()["other programs"].items():
        if name in tool or (name == "ollama" and "Ollama" in notes):
            return why
    for pattern, why in dialect()["disturbed"].items():
        if re.search(pattern, f"{notes}; {row.get('kv_type') or ''}", re.IGNORECASE):
            return why
    if STARVED.search(row.get("device") or ""):
        return "the host starves the device, or it is none of the catalogue"
    if (row.get("backend") or "").startswith("sycl (ipex"):
        return "ipex-llm is another program than llama.cpp"
    spread, rate = number_in(row, "tok_s_stddev"), number_in(row, "tok_s")
    return "the repeats differ by more than a tenth" if spread and rate and spread > 0.1 * rate else ""


def _stated_run(row: Mapping[str, str]) -> GgufRun:
    model = printed_model(row.get("model") or "")
    if model is None:
        raise InputError(f"model {row.get('model')!r} is not shipped")
    devices, cards = int(number_in(row, "device_count") or 1.0), _cards_of(row)
    if len(set(cards)) > 1:
        devices, card = 1, "+".join(cards)
        offload: dict[str, Any] = {"tensor_split": _parts_in(row.get("notes") or "")}
    else:
        card, offload = (cards[0], {}) if cards else _offload_of(row)
    hardware = printed_device(card)
    if hardware and hardware.startswith("apple") and row.get("backend") == "vulkan":
        raise InputError("Vulkan on an Apple chip runs over Metal, and scoreboards mix its chips")
    if hardware is None:
        raise InputError(f"device {card!r} is not in the catalogue")
    depth, generated = int(number_in(row, "depth_tokens") or 0), number_in(row, "gen_tokens")
    if generated is None and row.get("test") and not row["test"].startswith("tg") and row["test"] != "server":
        raise InputError("neither a prompt nor a generation")
    prompt, ubatch = 0 if generated != 0.0 else _prompt_tokens(row), _ubatch(row.get("batch") or "")
    threads = number_in(row, "threads")
    if (
        prompt
        and threads
        and row.get("backend") == "cpu"
        and threads < (device(hardware).multiprocessors or 0)
    ):
        raise InputError("fewer threads than cores")
    if prompt and ubatch < LEAST_UBATCH:
        raise InputError(f"prompts in pieces of fewer than {LEAST_UBATCH} tokens are not modelled")
    if is_set(row.get("flash_attention")) is False and row.get("flash_attention") and depth > SHALLOW_TOKENS:
        raise InputError("attention without --flash-attn at depth is not modelled")
    return GgufRun(
        model=model,
        weight_dtype=printed_quant(row.get("quant") or "", model),
        hardware=hardware,
        backend=(row.get("backend") or "").strip().lower().removesuffix("+cpu") or None,
        **offload,
        devices=devices,
        build=_build(row),
        kv_dtype=_cache_dtype(row.get("kv_type") or ""),
        prompt_tokens=prompt,
        depth_tokens=depth,
        generated_tokens=int(generated or USUAL_GENERATED) if not prompt else 0,
        parallel=int(number_in(row, "parallel") or 1),
        ubatch_tokens=ubatch,
    )


def _cards_of(row: Mapping[str, str]) -> list[str]:
    """Return the cards of a row that prints several; none for others, InputError where a host is among several or a card is not known."""
    text, count = (row.get("device") or "").removeprefix("1x "), int(number_in(row, "device_count") or 1.0)
    parts = machine_parts(text)
    if (len(parts) == 1 and parts[0][1] == 1) or (len(parts) > 1 and count == 1):
        return []
    cards = [printed_device(name) or "" for name, each in parts for _ in range(each)]
    if not all(cards) or len(cards) != count or any(device(card).architecture == HOST for card in cards):
        raise InputError("how layers are split over unequal devices, or next to a host, is not stated")
    return cards


def _parts_in(notes: str) -> str | None:
    """Return the parts of the cards that the notes of a row state; None where memory decides."""
    stated = re.search(r"-ts (\d[\d.,/]*)", notes)
    return stated[1] if stated else None


def _offload_of(row: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the device of a row, and what it keeps in the memory of its host; InputError where the row does not say how much or which host."""
    card, plus, host = (row.get("device") or "").removeprefix("1x ").partition(" + ")
    if row.get("backend") == "cpu":
        return card.replace("(CPU)", "CPU"), {}
    layers, experts = (
        (row.get(key) or "").strip().removesuffix(".0") for key in ("n_gpu_layers", "n_cpu_moe")
    )
    everything = not layers.isdecimal() or int(layers) >= LAYERS_OF_NONE
    if not plus and not (row.get("backend") or "").endswith("+cpu") and experts in {"", "0"} and everything:
        return card, {}
    if experts and not experts.isdecimal() and not experts.startswith("all"):
        raise InputError("which layers are in the memory of the host is not stated")
    bandwidth = number_in(row, "host_bandwidth_gb_s")
    known = next(filter(None, map(catalogue_name, (host, _HOST_NAME.sub("", host)))), None) if host else None
    if bandwidth is None and (said := _CHANNELS.search(host)):
        bandwidth = int(said[1]) * int(said[2]) * CHANNEL_BYTES / 1e3
    if bandwidth is None and known is not None:
        bandwidth = device(known).memory_bytes_per_s / 1e9
    if bandwidth is None:
        raise InputError("weights in the memory of a host whose bandwidth is not known")
    moved = int(experts) if experts.isdecimal() else LAYERS_OF_NONE if experts else None
    kept = None if everything else int(layers)
    if moved in {None, 0} and kept is None:
        raise InputError("which layers are in the memory of the host is not stated")
    return card, {"device_layers": kept, "cpu_experts": moved, "host_bytes_per_s": 1e9 * bandwidth}


_CHANNELS = re.compile(r"\b(\d{1,2}) ?ch(?:annels?)? DDR\d-(\d{4,5})\b")
"""Channels of memory and their million transfers a second."""
CHANNEL_BYTES = 8
_HOST_NAME = re.compile(r"(?:,| \(| (?:dual|quad|octa)-channel\b| \d+ ?GB\b).*")
"""What follows the name of a host."""
LAYERS_OF_NONE = 99
"""Layers from which a row means all of them (`-ngl 99`)."""
SHALLOW_TOKENS = 2048
"""Contexts in which attention is a small part of a step, with or without flash attention."""
LEAST_UBATCH = 256
"""Pieces of a prompt below which kernels reach a smaller part of the peak."""
USUAL_GENERATED = 128
"""Tokens of llama-bench where a row states none."""


MOST_PROMPT_TOKENS = 2_000_000


def _prompt_tokens(row: Mapping[str, str]) -> int:
    """Return the length of the prompt that a row timed; rows that time generation may have any word here."""
    stated = (row.get("prompt_tokens") or "").strip()
    if not stated.removesuffix(".0").isdecimal() or not 1.0 <= float(stated) <= MOST_PROMPT_TOKENS:
        raise InputError("the length of the prompt is not stated")
    return int(float(stated))


def _build(row: Mapping[str, str]) -> str | None:
    """Return the build of a row: as stated, or an early one where its day is before 2025."""
    stated = re.search(r"\bb(\d{3,6})\b", row.get("build") or "")
    if stated:
        return stated[0]
    day = row.get("date") or ""
    return EARLY_BUILD if day and day < "2025" else None


EARLY_BUILD = "b2000"


def _ubatch(text: str) -> int:
    found = re.search(r"ub(\d{1,6})\b", text) or re.fullmatch(r"(\d{1,6})", text.strip())
    return int(found[1]) if found else 512


def _cache_dtype(text: str) -> str:
    name = text.strip().lower()
    halves = name.split("/")
    if name in {"", "default", "f16", "f16/f16"}:
        return "fp16"
    if name in {"bf16", "f32"}:
        return {"f32": "fp32"}.get(name, name)
    if len(set(halves)) == 1 and re.fullmatch(r"q\d_\d|iq4_nl", halves[0]):
        return halves[0]
    if name == "kv-q8":
        return "q8_0"
    raise InputError(f"a cache in {text!r} is not modelled")


DYNAMIC = {
    "ud-q2_k_xl": "q2_k",
    "ud-q3_k_xl": "q3_k_m",
    "ud-q4_k_m": "q4_k_m",
    "ud-q4_k_xl": "q4_k_m",
    "ud-q5_k_xl": "q5_k_m",
    "ud-q6_k_xl": "q6_k",
    "q5_k_xl": "q5_k_m",
}
"""Dynamic mixtures of Unsloth -> the mixture of llama-quantize of the same name, whose size may differ by some percent."""


def printed_quant(text: str, model: str) -> str | None:
    """Return the weight dtype that a row means; None where the model is published in it."""
    name = text.strip().lower()
    name = re.sub(r" - (small|medium|large).*$", lambda size: f"_{size[1][0]}", name).removesuffix("_moe")
    name = DYNAMIC.get(name, name)
    name = {"f16": "fp16", "f32": "fp32", "q4_k": "q4_k_m"}.get(name, name)
    if name == "mxfp4" and "gpt-oss" in model:
        return None
    if name in RECIPES or name in {"fp16", "bf16", "fp32"}:
        return name
    if not name:
        raise InputError("the quantisation is not stated")
    raise InputError(f"quantisation {text!r} is no mixture of llama-quantize")
