"""Every Blackwell runs nvfp4 weights: vllm recipes for RTX Pro 6000, GB200 and B300."""

import pytest

from capplan.engine.lookup import profile, unsupported_reason
from capplan.engine.versions import BLACKWELL


@pytest.mark.parametrize("architecture", BLACKWELL)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_every_blackwell_runs_nvfp4(engine, architecture):
    assert unsupported_reason(profile(engine), architecture, "nvfp4") is None
