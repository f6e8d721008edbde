"""Can every shipped model run at all on a device: has each of its weight formats a kernel and rates?"""

import json
from dataclasses import fields

import numpy as np
import pytest

from capplan.engine.lookup import profile
from capplan.errors import InputError
from capplan.hardware.weight_kernel import matmul_kernel, no_kernel_reason
from capplan.model.stored_tensor import BLOCK_DTYPES
from capplan.model.weight_format import FORMATS, kv_bytes_per_element, stored_formats
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import FOLDER, read_model
from capplan.readers.text_file import data_folder
from capplan.replica.plans import step_rates

RUN = [name for name in FORMATS if not no_kernel_reason(name)]
MODELS = json.loads((data_folder(FOLDER) / "index.json").read_text(encoding="utf-8"))["models"]


def networks():
    """Return one network for each set of formats that shipped models hold."""
    found = {}
    for model, entry in MODELS.items():
        key = (
            entry["folder"],
            entry.get("quantization"),
            str(entry.get("overrides", {}).get("expert_dtype", "")),
        )
        if key not in found:
            found[key] = read_model(model, offline=True)
    formats = {}
    for network in found.values():
        experts = {layer.experts.weight_format for layer in network.layers if layer.experts}
        formats.setdefault((*sorted(stored_formats(network)), "|", *sorted(experts)), network)
    return list(formats.values())


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("name", ["h100", "a100", "b200"])
def test_every_format_of_a_shipped_model_has_rates(name, engine):
    of = device(name)
    fitted = efficiency_for(of)
    checked = 0
    for network in networks():
        rates = step_rates(network, of, fitted, profile=profile(engine), kv_format="bf16").rates
        records = [
            rates.attention,
            rates.latent_attention,
            rates.linear_attention,
            rates.elementwise,
            rates.link,
        ]
        for record in (*records, *rates.matmul.values(), *rates.experts.values()):
            values = [np.asarray(getattr(record, field.name), dtype=float) for field in fields(record)]
            assert all(np.all(np.isfinite(value)) and np.all(value >= 0) for value in values), network.name
        assert set(rates.matmul) >= {p.weight_format for layer in network.layers for p in layer.projections}
        checked += 1
    assert checked > 10


@pytest.mark.parametrize("name", ["h100", "a100", "b200", "l40s", "v100"])
@pytest.mark.parametrize("weight_format", [*RUN, "w8a16", "w8a8", "w4a16-g128", "w4a16-g64-zp", "w4a8"])
def test_every_stored_format_names_a_kernel(name, weight_format):
    of = device(name)
    kernel = matmul_kernel(of, weight_format)
    assert kernel.compute_dtype in of.peak_flop_per_s
    stored = FORMATS[weight_format]
    if stored.compute_format == "bf16":
        # Weights alone are narrow: the kernel widens them and reads 16-bit activations.
        assert kernel.compute_dtype in {"bf16", "fp16"}
        assert kernel.activation_bytes == kv_bytes_per_element("bf16")


def test_formats_without_a_kernel_are_those_of_gguf_files_and_of_two_bits():
    known = {name for name in FORMATS if no_kernel_reason(name) and "*" not in name and "-" not in name}
    assert known == {*BLOCK_DTYPES, "int2"}
    for name in known:
        with pytest.raises(InputError, match="its speed is not modelled"):
            matmul_kernel(device("h100"), name)
