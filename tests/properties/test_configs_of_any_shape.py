"""Whatever stands under a key of a config.json: a network with finite figures, or one clear refusal. Never a crash."""

import copy
import json
import math
from dataclasses import asdict
from functools import cache
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.families.quantization.network_formats import quantised
from capplan.memory.kv_sizes import kv_sizes
from capplan.model.parameters import summary
from tests.sweeps import examples

ROOT = Path(__file__).resolve().parents[2]
ODD = [None, 0, -1, 3.5, 1e30, 10**30, math.inf, math.nan, True, "", "x", [], {}, [1], [[]], ["x"], {"a": 1}]


@cache
def one_config_per_family():
    """Return a config of each model_type with the paths of its keys."""
    found = {}
    for path in sorted((ROOT / "model_configs").glob("*/config.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault(config.get("model_type"), (config, list(key_paths(config))))
    return list(found.values())


def key_paths(section, path=()):
    for key, value in section.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from key_paths(value, (*path, key))
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield from key_paths(value[0], (*path, key, 0))


@st.composite
def spoilt_configs(draw):
    config, paths = draw(st.sampled_from(one_config_per_family()))
    spoilt = copy.deepcopy(config)
    for _ in range(draw(st.integers(1, 2))):
        *outer, last = draw(st.sampled_from(paths))
        section = spoilt
        for key in outer:
            if (
                not isinstance(section, dict | list)
                or (isinstance(section, dict) and key not in section)
                or not section
            ):
                break
            section = section[key]
        else:
            if isinstance(section, dict):
                section[last] = draw(st.sampled_from(ODD))
    return spoilt


@settings(max_examples=examples(300, 1000), deadline=None)
@given(spoilt_configs())
def test_a_config_gives_finite_figures_or_one_clear_refusal(config):
    try:
        network = quantised(read_network(config, "spoilt", "config.json"), config, "config.json")
        figures = summary(network)
        sizes = kv_sizes(network, [1000], kv_dtype="bf16").rows
    except InputError as error:
        first = str(error).splitlines()[0]
        assert len(first) > 10
        assert "Error" not in first
        return
    numbers = [v for v in (*figures.values(), *asdict(sizes[0]).values()) if isinstance(v, float | int)]
    assert all(math.isfinite(v) and v >= 0 for v in numbers)
