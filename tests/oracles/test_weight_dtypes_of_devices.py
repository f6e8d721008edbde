"""Every Blackwell runs nvfp4 weights: vllm recipes for RTX Pro 6000, GB200 and B300."""

from itertools import product

import pytest

from capplan.engine.lookup import ANY_OF, ENGINES, profile, unsupported_reason
from capplan.engine.versions import BLACKWELL
from capplan.families.quantization.network_formats import quantised
from capplan.fleet.search.candidates import Layout, layout_reason
from capplan.model.sharding import Sharding
from capplan.model.weight_format import in_weight_format
from capplan.readers.catalogue.hardware import device, device_names
from capplan.readers.catalogue.models import read_model


@pytest.mark.parametrize("architecture", BLACKWELL)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_every_blackwell_runs_nvfp4(engine, architecture):
    assert unsupported_reason(profile(engine), architecture, "nvfp4") is None


SECTIONS = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "int8": {"quant_method": "gptq", "bits": 8, "group_size": 128},
    "int4": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "mxfp4": {"quant_method": "mxfp4"},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}
"""Weight dtype -> what a config.json says of a checkpoint in it, as published."""


@pytest.mark.parametrize("dtype", SECTIONS)
@pytest.mark.parametrize(
    "engine",
    [item for name in ANY_OF for item in {id(each.weight_dtypes): each for each in ENGINES[name]}.values()],
    ids=lambda item: f"{item.engine}-{item.version}",
)
def test_a_dtype_runs_by_flag_where_it_runs_by_config(engine, dtype):
    """On every shipped device; and the cache in fp8, which a flag or the section of modelopt asks for."""
    network = read_model("qwen/qwen3-30b-a3b", offline=True)
    alone = Sharding(1.0, 1.0, 1.0, 1.0)
    forms = {
        dtype: in_weight_format(network, dtype),
        "auto": quantised(network, {"quantization_config": SECTIONS[dtype]}),
    }
    runs = 0
    for name, kv in product(device_names(), ("bf16", "fp8")):
        reasons = [
            layout_reason(form, Layout(device(name), alone, how, kv), engine) for how, form in forms.items()
        ]
        assert (reasons[0] is None) == (reasons[1] is None), (name, kv, reasons)
        runs += reasons[0] is None
    assert runs, f"{dtype} runs on no device, so nothing but refusals was compared"
