"""Names of projections in a checkpoint, and whether a list of names or patterns includes them.

Quantisers name modules of the checkpoint (`model.layers.3.mlp.experts.0.w1`, `*.self_attn*`,
`re:.*lm_head`); a Network has fused matrices by class and layer. This file maps one to the other.
"""

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache

from capplan.errors import InputError
from capplan.model.network import Layer, LinearAttention, Network, Projection

_ATTENTION = {"llama4": "self_attn", "nemotron_h": "mixer", "deepseek_v4": "attn"}
_FEED_FORWARD = {
    "llama4": "feed_forward", "jamba": "feed_forward", "lfm2": "feed_forward", "lfm2_moe": "feed_forward",
    "falcon_h1": "feed_forward", "bamba": "feed_forward", "nemotron_h": "mixer", "deepseek_v4": "ffn",
    "granitemoehybrid": "shared_mlp",
}  # fmt: skip
_EXPERTS = {
    "mixtral": "block_sparse_moe.experts", "minimax": "block_sparse_moe.experts",
    "minimax_m2": "block_sparse_moe.experts", "minimax_m3": "block_sparse_moe.experts",
    "minimax_m3_vl": "block_sparse_moe.experts", "phimoe": "block_sparse_moe.experts",
    "granitemoe": "block_sparse_moe.experts", "granitemoehybrid": "block_sparse_moe.experts",
    "kimi_linear": "block_sparse_moe.experts", "kimi_k3": "block_sparse_moe.experts",
    "gemma4": "experts", "gemma4_text": "experts", "nemotron_h": "mixer.experts",
    "deepseek_v4": "ffn.experts", "dbrx": "ffn.experts", "llama4": "feed_forward.experts",
    "jamba": "feed_forward.experts", "lfm2_moe": "feed_forward.experts", "step3p7": "moe.experts",
}  # fmt: skip
_SHARED = {"shared_experts": "shared_experts", "shared_expert": "shared_expert"}
_STATE = {"nemotron_h": "mixer", "mamba": "mixer", "mamba2": "mixer", "falcon_mamba": "mixer"}
_LINEAR_KINDS = {"gated_delta", "lightning", "kda"}
"""Mixers whose module is called linear attention; other recurrent mixers are called mamba."""
_LINEAR = {"minimax": "self_attn", "kimi_linear": "self_attn", "kimi_k3": "self_attn"}

_SPELLINGS = {
    "o": ("o_proj", "out_proj", "wo_b"),
    "o_a": ("o_a_proj", "wo_a"),
    "q": ("q_proj",),
    "q_a": ("q_a_proj", "wq_a"),
    "q_b": ("q_b_proj", "wq_b"),
    "kv_a": ("kv_a_proj_with_mqa", "wkv"),
    "kv_b": ("kv_b_proj",),
    "index_q": ("indexer.wq_b", "index_q_proj"),
    "index_k": ("indexer.wk", "index_k_proj"),
    "index_weights": ("indexer.weights_proj",),
    "up": ("up_proj", "fc1"),
    "down": ("down_proj", "w2", "fc2"),
    "latent_down": ("fc1_latent_proj",),
    "latent_up": ("fc2_latent_proj",),
}
_FUSED: dict[str, tuple[tuple[str, ...], ...]] = {
    "qkv": (("q_proj", "qkv_proj"), ("k_proj", "qkv_proj"), ("v_proj", "qkv_proj")),
    "gate_up": (("gate_proj", "gate_up_proj", "w1"), ("up_proj", "gate_up_proj", "w3")),
    "in_proj_qkvz": (("in_proj_qkvz", "in_proj_qkv"), ("in_proj_qkvz", "in_proj_z")),
    "in_proj_ba": (("in_proj_ba", "in_proj_b"), ("in_proj_ba", "in_proj_a")),
}
"""Matrices that an engine fuses -> the spellings of each of those that a checkpoint has."""
_STORED_FUSED = {"phi3", "phi3_v", "phi4mm", "phi4_multimodal"}
"""Model types whose checkpoints have the fused matrices too."""
_STEMS = {"qkv_proj": "qkv", "gate_up_proj": "gate_up", "in_proj_qkvz": "qkvz", "in_proj_ba": "in_proj_ba"}
"""Name of a fused matrix -> what a pattern has in it that means it: `.*v_proj` means v, not the `qkv_proj` of which v is a part."""
_EXPERT_MATRICES = (
    ("0.gate_proj", "0.w1", "gate_up_proj"),
    ("0.up_proj", "0.w3", "gate_up_proj"),
    ("0.down_proj", "0.w2", "down_proj"),
)
_PREFIXES = ("model", "language_model.model", "model.language_model")
"""What stands before `layers` in the names of text models, and of text models within others."""
MOST_PATTERNS = 2_000
"""Most patterns of one config; each is held against the name of every matrix."""
MOST_NAMES = 100_000
"""Most names of modules outside of layers."""
_OTHER_TOWERS = ("vision", "visual", "audio", "mtp", "multi_modal", "mm_projector")
_LAYER = re.compile(r"(?:^|.*\.)layers\.(\d{1,6})(?:\.(.+))?")
_EXPERT_NUMBER = re.compile(r"\bexperts\.(\d+)\b")


def projection_names(
    network: Network, layer: Layer, projection: Projection
) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return the matrices of the checkpoint that a projection is made of: the outputs of each and its names below the layer.

    Parameters
    ----------
    network : the model; its model_type decides the spelling
    layer : the layer that the projection is in
    projection : the matrix

    Returns
    -------
    outputs [-] and names such as self_attn.q_proj; one pair where the checkpoint has the same matrix

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> down = Projection("down", "ffn", 8, 8, "rows")
    >>> layer = Layer((), (down,))
    >>> projection_names(Network("n", "llama", 8, 10, (layer,), head, True, 80), layer, down)
    ((8, ('mlp.down_proj', 'mlp.w2', 'mlp.fc2')),)
    """
    name = projection.name.removeprefix("shared_")
    bases = _bases(network.model_type, layer, projection)

    def below(spellings: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{base}.{spelling}" for base in bases for spelling in spellings)

    fused = _FUSED.get(name)
    if fused is not None and network.model_type in _STORED_FUSED:
        return ((projection.outputs, below(tuple(dict.fromkeys(names[1] for names in fused)))),)
    if fused is None:
        return ((projection.outputs, below(_SPELLINGS.get(name, (name,)))),)
    sizes = _sizes(layer, projection, len(fused))
    return tuple((size, below(names)) for size, names in zip(sizes, fused, strict=True))


def _sizes(layer: Layer, projection: Projection, parts: int) -> tuple[int, ...]:
    """Return the outputs of each matrix of a fused one."""
    outputs = projection.outputs
    if parts == 3:
        of_keys = (projection.kv_outputs or outputs * 2 // 3) // 2
        return (outputs - 2 * of_keys, of_keys, of_keys)
    linear = next((mixer for mixer in layer.mixers if isinstance(mixer, LinearAttention)), None)
    if projection.name == "in_proj_qkvz" and linear is not None:
        return (linear.conv_channels, outputs - linear.conv_channels)
    return (outputs - outputs // 2, outputs // 2)


def _bases(model_type: str, layer: Layer, projection: Projection) -> tuple[str, ...]:
    family = model_type.removesuffix("_text")
    if projection.tensor_class == "attention":
        if projection.name.startswith(("in_proj", "out_proj")) or _only_states(layer):
            linear = any(mixer.description.name in _LINEAR_KINDS for mixer in layer.mixers)
            return (_LINEAR.get(family, "linear_attn") if linear else _STATE.get(family, "mamba"),)
        if not layer.mixers:  # of mllama: it reads the image
            return ("cross_attn",)
        return (_ATTENTION.get(family, "self_attn"),)
    if projection.tensor_class == "shared_expert" and family == "step3p7":
        return ("share_expert",)
    if projection.tensor_class == "shared_expert":
        parent = _EXPERTS.get(family, "mlp.experts").rpartition(".")[0]
        return tuple(f"{parent}.{shared}" if parent else shared for shared in _SHARED.values())
    return (_FEED_FORWARD.get(family, "mlp"),)


def _only_states(layer: Layer) -> bool:
    return bool(layer.mixers) and not any(mixer.description.softmax for mixer in layer.mixers)


def expert_names(network: Network) -> tuple[tuple[str, ...], ...]:
    """Return the names, below their layer, of the gate, up and down matrices of the routed experts in the checkpoint.

    Parameters
    ----------
    network : the model; its model_type decides the spelling

    Returns
    -------
    names of the first expert, for each of the three matrices; all experts of a layer are alike

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> expert_names(Network("n", "mixtral", 8, 10, (), head, True, 80))[0][1]
    'block_sparse_moe.experts.0.w1'
    """
    base = _EXPERTS.get(network.model_type.removesuffix("_text"), "mlp.experts")
    return tuple(tuple(f"{base}.{name}" for name in names) for names in _EXPERT_MATRICES)


@dataclass(slots=True)
class NameList:
    """Module names and patterns, indexed so that long lists (20,000 names) stay fast."""

    by_layer: dict[int, dict[str, str]] = field(default_factory=dict)
    """Layer number -> name below the layer -> value."""
    patterns: list[tuple[str, str]] = field(default_factory=list)
    """Patterns that are not for a single layer, with their values, in order."""
    anywhere: dict[str, str] = field(default_factory=dict)
    """Names without a layer, such as lm_head."""
    mtp: str | None = None
    """Value of the multi-token-prediction layers, where they are named."""

    def add(self, name: str, value: str) -> None:
        """Add a name or pattern; towers other than the text decoder are left out."""
        if name.startswith("re:"):
            self.patterns.append((name, value))
            return
        expert = _EXPERT_NUMBER.search(name)
        if expert and expert[1] != "0":
            return
        match = _LAYER.fullmatch(name)
        prefix = name.partition("layers.")[0]
        if prefix.startswith("mtp"):
            self.mtp = value
        if any(tower in prefix for tower in _OTHER_TOWERS):
            return
        if match:
            self.by_layer.setdefault(int(match[1]), {})[match[2] or "*"] = value
        elif any(mark in name for mark in "*?["):
            self.patterns.append((name, value))
        else:
            self.anywhere[name] = value

    def value(self, index: int, names: Iterable[str]) -> str | None:
        """Return the value of the first name of a layer's module that is listed, or None."""
        listed, names = self.by_layer.get(index, {}), tuple(names)
        parts = any(name.rpartition(".")[2] not in _STEMS for name in names)
        for name in names:
            for entry, value in listed.items():
                if _is_or_is_inside(name, entry):
                    return value
            full = f"model.layers.{index}.{name}"
            stem = _STEMS.get(name.rpartition(".")[2], "") if parts else ""
            for pattern, value in self.patterns:
                if stem in pattern and _matches(pattern, f"layers.{index}.{name}"):
                    return value
            for entry, value in self.anywhere.items():
                if f".{entry}." in f".{full}.":
                    return value
        return None

    def value_of_head(self) -> str | None:
        """Return the value of the LM head, where it is listed."""
        if "lm_head" in self.anywhere:
            return self.anywhere["lm_head"]
        for pattern, value in self.patterns:
            if pattern.startswith("re:"):
                found = any(_regular(pattern[3:]).match(name) for name in ("lm_head", "model.lm_head"))
            else:
                found = _glob(pattern).match("lm_head") is not None
            if found:
                return value
        return None


def name_list(entries: Iterable[tuple[str, str]], place: str) -> NameList:
    """Return the index of names and patterns with a value each.

    Parameters
    ----------
    entries : name or pattern, value
    place : the section of the config, as errors name it

    Raises
    ------
    InputError
        a pattern is no regular expression or one that could take for ever, or there are too many

    Examples
    --------
    >>> listed = name_list([("model.layers.3.mlp*", "left out")], "config.json")
    >>> listed.value(3, ["mlp.down_proj"]), listed.value(4, ["mlp.down_proj"])
    ('left out', None)
    """
    names = NameList()
    patterns = 0
    for name, value in entries:
        if name.startswith("re:"):
            check_regular(name[3:], place)
        patterns += name.startswith("re:") or any(mark in name for mark in "*?[")
        if patterns > MOST_PATTERNS or len(names.anywhere) > MOST_NAMES:
            raise InputError(
                f"{place}: has more than {MOST_PATTERNS:,} patterns or {MOST_NAMES:,} names of modules outside of layers"
            )
        names.add(name, value)
    return names


def _is_or_is_inside(name: str, entry: str) -> bool:
    if name == entry or name.startswith(entry + "."):
        return True
    return any(mark in entry for mark in "*?[") and _glob(entry).match(name) is not None


def _matches(pattern: str, tail: str) -> bool:
    """Return whether a pattern includes the name of a module, given from `layers` on."""
    if pattern.startswith("re:"):
        regular = _regular(pattern[3:])
        return any(regular.match(f"{prefix}.{tail}") is not None for prefix in _PREFIXES)
    start = pattern.find("layers.")
    if start >= 0:
        wanted = pattern[start:]
        return _glob(wanted).match(tail) is not None or _glob(wanted + ".*").match(tail) is not None
    return any(_glob(pattern).match(f"{prefix}.{tail}") is not None for prefix in _PREFIXES)


@lru_cache(maxsize=4096)
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


@lru_cache(maxsize=4096)
def _regular(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


LONGEST = 300
"""Letters of a pattern; published ones have about 50."""
MOST_REPEATS = 4
"""Most repeats of any number each; the time to match a name grows with that power of its length."""
MOST_OPTIONAL = 6
"""Optional parts, each of which doubles the time."""
_MARK = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?[a-zA-Z-]*:|\{[0-9]*,?[0-9]*\}|.", re.DOTALL)


def check_regular(pattern: str, place: str) -> None:
    r"""Raise the error for a pattern that does not compile, or that could take for ever to match.

    Parameters
    ----------
    pattern : without the `re:` before it
    place : file and key, for the error

    Examples
    --------
    >>> check_regular(r".*mlp\.(gate|up)_proj.*", "config.json")
    >>> check_regular(r"(.*)*x", "config.json")
    Traceback (most recent call last):
        ...
    capplan.errors.InputError: config.json: 're:(.*)*x' could take for ever to match: a repeat within a repeat
    """
    why = _trouble(pattern)
    if why:
        raise InputError(f"{place}: {f're:{pattern}'[:80]!r} could take for ever to match: {why}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise InputError(
            f"{place}: {f're:{pattern}'[:80]!r} is not a regular expression ({str(error)[:80]})"
        ) from None


def _trouble(pattern: str) -> str:
    """Return why a pattern could take for ever; empty where it cannot."""
    if len(pattern) > LONGEST:
        return f"it has {len(pattern):,} letters, more than {LONGEST}"
    repeats = optional = 0
    branching = [False]  # for each group that is open: whether there is more than one way through it
    inside = False  # whether that holds for the part that was read last
    for mark in _MARK.findall(pattern):
        if mark in ("*", "+") or (mark[0] == "{" and len(mark) > 1):
            if inside:
                return "a repeat within a repeat"
            repeats += 1
            branching[-1] = True
        elif mark == "?":
            optional += 1
            branching[-1] = True
        elif mark == "|":
            branching[-1] = True
        elif mark[0] == "(":
            branching.append(False)
        elif mark == ")" and len(branching) > 1:
            inside = branching.pop()
            branching[-1] |= inside
            continue
        inside = False
    if repeats > MOST_REPEATS or optional > MOST_OPTIONAL:
        return f"it has more than {MOST_REPEATS} repeats or {MOST_OPTIONAL} optional parts"
    return ""
