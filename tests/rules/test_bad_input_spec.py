"""What `capplan spec` refuses: one clear line each, exit 2, never a number."""

STATED = ("--draft-step-time", "2 ms", "--target-step-time", "35 ms")


def test_two_models_that_leave_no_cache_do_not_fit(capplan):
    ran = capplan(
        "spec llama-3.1-70b --hardware h100 -tp 2 --weight-dtype fp8 --kv-dtype fp8 --max-model-len 8192 --draft llama-3.1-70b --acceptance 0.8",
    )  # fmt: skip
    assert ran.code == 3
    assert "the draft needs" in ran.err
    assert ran.out == ""


def test_a_model_beside_two_stated_times_is_said_to_be_unused(capplan):
    ran = capplan("spec", "llama-3.1-8b", "--hardware", "h100", "--acceptance", "0.8", *STATED)
    assert ran.code == 0
    assert "not used" in ran.err
