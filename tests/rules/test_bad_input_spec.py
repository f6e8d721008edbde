"""What `capplan spec` refuses: one clear line each, exit 2, never a number."""

import pytest

STATED = ("--draft-step-time", "2 ms", "--target-step-time", "35 ms")
TARGET = ("llama-3.1-70b-instruct", "--hardware", "h100", "-tp", "4", "--weight-dtype", "fp8")

REFUSED = {
    "an acceptance over one": (("--acceptance", "1.2", *STATED), "--acceptance: '1.2'"),
    "an acceptance below zero": (("--acceptance=-0.1", *STATED), "0 to 1"),
    "no acceptance": (STATED, "--acceptance"),
    "an acceptance that is no number": (("--acceptance", "nan", *STATED), "--acceptance: 'nan'"),
    "no draft tokens": (("--acceptance", "0.8", "--draft-tokens", "0", *STATED), "1 to 1024 tokens"),
    "half a draft token": (("--acceptance", "0.8", "--draft-tokens", "2.5", *STATED), "not a whole number"),
    "a batch of nothing": (("--acceptance", "0.8", "--batch", "0", *STATED), "--batch: '0'"),
    "no draft at all": (("--acceptance", "0.8", *TARGET), "--draft-step-time"),
    "two drafts": (
        ("--acceptance", "0.8", *TARGET, "--draft", "llama-3.2-1b", "--draft-step-time", "2 ms"),
        "give exactly one of",
    ),
    "no target at all": (("--acceptance", "0.8", "--draft-step-time", "2 ms"), "MODEL is missing"),
    "a target on nothing": (
        ("--acceptance", "0.8", "llama-3.1-8b", "--draft-step-time", "2 ms"),
        "--hardware is missing",
    ),
    "a stated target with a draft model": (
        ("--acceptance", "0.8", "--draft", "llama-3.2-1b", "--target-step-time", "35 ms"),
        "--target-step-time: belongs to --draft-step-time",
    ),
    "a time without its unit": (
        ("--acceptance", "0.8", "--draft-step-time", "2", "--target-step-time", "35 ms"),
        "the unit is missing",
    ),
    "a time of zero": (
        ("--acceptance", "0.8", "--draft-step-time", "0 ms", "--target-step-time", "35 ms"),
        "not above zero",
    ),
    "a draft with other tokens": (
        ("--acceptance", "0.8", *TARGET, "--draft", "qwen2.5-0.5b"),
        "151,936 tokens",
    ),
    "a misspelt draft": (
        ("--acceptance", "0.8", *TARGET, "--offline", "--draft", "llama-3.2-1bb"),
        "llama-3.2-1b",
    ),
    "a draft on more devices than there are": (
        ("--acceptance", "0.8", *TARGET, "--draft", "llama-3.2-1b", "--draft-tensor-parallel", "8"),
        "--draft-tensor-parallel 8",
    ),
    "a draft that cannot be cut so": (
        ("--acceptance", "0.8", "llama-3.1-70b", "--hardware", "h100", "-tp", "8", "--draft", "llama-3.2-1b",
         "--draft-tensor-parallel", "3"),
        "--draft-tensor-parallel 3",
    ),
    "a draft beside a pipeline": (
        ("--acceptance", "0.8", *TARGET, "-pp", "2", "--draft", "llama-3.2-1b"),
        "--pipeline-parallel 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_answered_is_refused_in_a_line(capplan, case):
    words, said = REFUSED[case]
    assert said in capplan.refused("spec", *words)


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
