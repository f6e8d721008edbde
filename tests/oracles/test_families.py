"""Do we count what every family holds: parameters, down to norms and biases, cached elements, recurrent states?

The rows are those of tests/rows/families.yaml, each section with its source. Two conventions of the caches that were
measured there are not the engine's truth:

- A sliding layer keeps window - 1 tokens (31 of 32): the token of the step itself is added after. A position
  sees 32 tokens, itself included, and an engine stores its key too, so the architecture's need is min(n, window).
- Falcon's newer decoder copies each KV head to all its query heads before it caches (4 heads for 2); engines do not.

That reference also keeps as many convolution columns as the kernel is long; engines keep one less, and some hold the
recurrent state in 16 bit, which `mamba_ssm_cache_dtype` and the like say.
"""

from dataclasses import replace

import numpy as np
import pytest

from capplan.engine.lookup import profile
from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.memory.layer_groups import cache_kinds
from capplan.model.kv_cache import kv_bytes_per_sequence, state_bytes, state_bytes_per_sequence
from capplan.model.network import LinearAttention, ShortConvolution, StateSpace
from capplan.model.parameters import parameters, weight_elements_by_class
from tests.families import (
    CACHED,
    COUNTED,
    REFUSED,
    STATEFUL,
    cached_layers,
    changed,
    config_of,
    network_of,
    unread,
)

TOKENS = np.array([24.0, 48.0, 96.0, 192.0])
RECURRENT = LinearAttention | StateSpace | ShortConvolution
SHARED_OUT = (
    "channels",
    "key_heads",
    "value_heads",
    "conv_channels",
    "state_elements",
    "inner_size",
    "heads",
    "groups",
)


@pytest.mark.parametrize("name", COUNTED)
def test_a_model_has_the_parameters_that_others_count(name):
    row, network = COUNTED[name], network_of(name)
    assert parameters(network) == row["parameters"]
    assert sum(weight_elements_by_class(network).values()) == row["parameters"]
    remarks = {"none": network.notes, "read": unread(network)}
    remarks["counted"] = [note for note in network.notes if "not counted" in note]
    assert not remarks.get(row.get("notes"))
    assert network.vision_parameters > 0 or "tower" not in row
    if "cache_elements" in row:
        assert float(kv_bytes_per_sequence(network, 512.0, 1.0)) == row["cache_elements"]


@pytest.mark.parametrize(("config", "changes", "words"), REFUSED)
def test_a_config_that_is_not_modelled_is_refused_with_its_key(config, changes, words):
    config = config_of(config) if isinstance(config, str) else config
    with pytest.raises(InputError) as error:
        read_network(changed(config, changes), "refused")
    assert words in str(error.value)


def cached_by_engines(row):
    """Return (layers, elements per token) of a row without the heads that only the reference copies."""
    full, slides = row["cache"]
    return [full and [full[0], full[1] / row.get("copied_heads", 1)], slides]


@pytest.mark.parametrize("name", CACHED)
def test_every_layer_holds_the_measured_elements_per_token(name):
    assert cached_layers(network_of(name)) == cached_by_engines(CACHED[name])


@pytest.mark.parametrize("name", CACHED)
def test_the_cache_of_a_sequence_is_the_measured_one_at_every_length(name):
    full, slides = cached_by_engines(CACHED[name])
    ours = kv_bytes_per_sequence(network_of(name), TOKENS, kv_bytes_per_element=1.0)
    whole = full[0] * full[1] * TOKENS if full else 0.0 * TOKENS
    measured = whole + (slides[0] * slides[1] * np.minimum(TOKENS, 31) if slides else 0.0)
    stored_too = slides[0] * slides[1] * (TOKENS >= 32) if slides else 0.0
    assert ours.tolist() == (measured + stored_too).tolist()


def test_the_rows_of_caches_are_what_was_measured(measured):
    """A slope of the elements over tokens is cached; what is there at no token is a state."""
    seen = {}
    for line in measured.table("cache_elements"):
        if line["family"] not in CACHED or line["layer_class"] == "DummyLayer":
            continue
        slides, count = "Sliding" in line["layer_class"], int(line["layers"])
        elements = np.array([float(line[f"elements_{int(n)}"]) for n in TOKENS])
        kept = np.minimum(TOKENS, 31) if slides else TOKENS
        per_token = (elements[1] - elements[0]) / (kept[1] - kept[0])
        state = elements[0] - per_token * kept[0]
        assert elements.tolist() == (state + per_token * kept).tolist(), line["family"]
        cache, states = seen.setdefault(line["family"], ([[0, 0.0], [0, 0.0]], [0, 0.0, 0.0]))
        if per_token:
            cache[slides] = [cache[slides][0] + count, per_token]
        if state:
            states[:] = [states[0] + count, state, float(line["bytes_192"]) - 2 * per_token * kept[3]]
    found = {
        name: ([pair if pair[0] else None for pair in cache], states if states[0] else None)
        for name, (cache, states) in seen.items()
    }
    rows = {name: (row["cache"], row.get("states")) for name, row in CACHED.items()}
    assert found == {name: row for name, row in rows.items() if measured.whole or name in found}
    assert len([name for name in found if name in STATEFUL]) >= 6
    assert len([name for name in found if name not in STATEFUL]) >= 15


def recurrent_mixers(network):
    return [m for layer in network.layers for m in layer.mixers if isinstance(m, RECURRENT)]


def state_elements(mixer):
    """Return the elements that the state tensors of a mixer have, counted from its record."""
    if isinstance(mixer, ShortConvolution):
        return mixer.channels * mixer.kernel
    if isinstance(mixer, LinearAttention):
        return mixer.conv_channels * mixer.conv_kernel + mixer.state_elements
    return mixer.conv_channels * mixer.conv_kernel + mixer.inner_size * mixer.state_size


@pytest.mark.parametrize("name", CACHED)
def test_every_layer_holds_the_measured_state(name):
    network, (layers, elements, size) = network_of(name), CACHED[name].get("states", (0, 0, 0))
    mixers = recurrent_mixers(network)
    assert [(state_elements(m), float(state_bytes(m))) for m in mixers] == [(elements, size)] * layers
    assert float(state_bytes_per_sequence(network)) == layers * size


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", STATEFUL)
def test_a_rank_holds_the_measured_state_of_a_mixer_with_its_share_of_heads(name, ranks):
    """Tensor parallelism deals out heads, groups and channels: so many times as many on so many ranks are the measured ones."""
    for mixer in recurrent_mixers(network_of(name)):
        keys = [key for key in SHARED_OUT if hasattr(mixer, key)]
        wider = replace(mixer, **{key: ranks * getattr(mixer, key) for key in keys})
        assert float(state_bytes(wider, float(ranks))) == CACHED[name]["states"][2]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", STATEFUL)
def test_every_state_model_holds_the_bytes_that_vllm_allocates(name, ranks):
    """Vllm-project/vllm@02d7108, vllm/model_executor/layers/mamba/mamba_utils.py, without drafts; a checkpoint in bf16."""
    network = network_of(name, dtype="bfloat16")
    kinds = cache_kinds(network, float(ranks), 2.0, 2.0, profile("vllm").memory.recurrent_format)
    sizes = {float(kind.state_bytes) for kind in kinds if kind.kind == "state"}
    assert sizes == {CACHED[name]["state_bytes"][ranks]}
