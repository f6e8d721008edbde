"""Acceptance from the metrics of an engine: what the dice of known chances counted gives those chances back, or is refused in a line."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import InputError
from capplan.phases.step import acceptance_of_round, expected_tokens_per_round
from capplan.recorded.traces.prometheus import accepted_drafts
from capplan.scenario.scenario import read_scenario
from tests.asked import asked_of
from tests.files import written_to
from tests.sweeps import examples

VLLM = "vllm:spec_decode_num_"
ROUNDS = 20_000


def thrown(acceptances, seed, rounds=ROUNDS):
    """Return how many rounds accepted a draft at each position."""
    dice = np.random.default_rng(seed).random((rounds, len(acceptances))) < np.array(acceptances)
    return np.cumprod(dice, axis=1).sum(axis=0)


def vllm_text(rounds, drafts, accepted, by_position=True):
    """Return the counters of two engines that shared the rounds, as vLLM writes them."""
    lines = ["# TYPE vllm:spec_decode_num_drafts counter"]
    for engine, part in ((0, 0.25), (1, 0.75)):
        label = f'engine="{engine}",model_name="m"'
        lines += [
            f"{VLLM}drafts_total{{{label}}} {part * rounds}",
            f"{VLLM}draft_tokens_total{{{label}}} {part * rounds * drafts}",
            f"{VLLM}accepted_tokens_total{{{label}}} {part * sum(accepted)}",
        ]
        lines += [
            f'{VLLM}accepted_tokens_per_pos_total{{{label},position="{position}"}} {part * count}'
            for position, count in enumerate(accepted)
            if by_position
        ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def scraped(tmp_path):
    def write(text, name="scrape.txt"):
        return written_to(tmp_path / name, text)

    return write


@settings(max_examples=examples(25, 200), deadline=None)
@given(acceptances=st.lists(st.floats(0.3, 1.0), min_size=1, max_size=6), seed=st.integers(0, 10**6))
def test_counters_by_position_give_the_conditional_chances_back(tmp_path_factory, acceptances, seed):
    """Within five standard errors of a share of the rounds that reached the position."""
    counts = thrown(acceptances, seed)
    path = tmp_path_factory.mktemp("positions") / "scrape.txt"
    path.write_text(vllm_text(ROUNDS, len(acceptances), counts), encoding="utf-8")
    fractions, counted = accepted_drafts([path])
    reached = np.array([ROUNDS, *counts[:-1]])
    assert len(fractions) == np.count_nonzero(reached)
    for fraction, chance, rounds in zip(fractions, acceptances, reached, strict=False):
        assert fraction == pytest.approx(chance, abs=5.0 * np.sqrt(0.25 / rounds) + 1e-9)
    assert counted == f"{ROUNDS:,} rounds with {ROUNDS * len(acceptances):,} drafts"


@settings(max_examples=examples(60, 600), deadline=None)
@given(acceptance=st.floats(0.0, 1.0), drafts=st.floats(1.0, 64.0))
def test_the_acceptance_of_a_round_is_the_inverse_of_its_tokens(acceptance, drafts):
    tokens = float(expected_tokens_per_round(acceptance, drafts))
    again = float(expected_tokens_per_round(acceptance_of_round(tokens, drafts), drafts))
    assert again == pytest.approx(tokens, rel=1e-9)


@pytest.mark.parametrize("chance", [0.0, 0.35, 0.8, 1.0])
def test_totals_alone_and_gauges_give_one_chance_for_all_positions(scraped, chance):
    """The accepted share of all drafts is lower than the chance of one: those behind a rejected draft count too."""
    counts = thrown([chance] * 4, 3)
    alone, _ = accepted_drafts([scraped(vllm_text(ROUNDS, 4, counts, by_position=False))])
    assert alone == (pytest.approx(chance, abs=0.01),)
    if 0.0 < chance < 1.0:
        share, length = counts.sum() / (4.0 * ROUNDS), 1.0 + counts.sum() / ROUNDS
        assert share < chance - 0.05
        gauges = f"sglang:spec_accept_length {length}\nsglang:spec_accept_rate {share}\n"
        assert accepted_drafts([scraped(gauges)])[0] == (pytest.approx(chance, abs=0.01),)
        length_alone = scraped(f"sglang:spec_accept_length {length}\n")
        assert accepted_drafts([length_alone], 4)[0] == (pytest.approx(chance, abs=0.01),)
        share_alone = scraped(f"vllm:spec_decode_draft_acceptance_rate {share}\n")
        assert accepted_drafts([share_alone], 4)[0] == (pytest.approx(chance, abs=0.01),)


def test_two_scrapes_count_what_lies_between_them(scraped):
    before, between = thrown([0.2, 0.2], 1), thrown([0.9, 0.6], 2)
    first = scraped(vllm_text(ROUNDS, 2, before), "before.txt")
    second = scraped(vllm_text(2 * ROUNDS, 2, before + between), "after.txt")
    fractions, _ = accepted_drafts([first, second])
    assert fractions == (pytest.approx(0.9, abs=0.01), pytest.approx(0.6, abs=0.02))
    with pytest.raises(InputError, match="the server was restarted"):
        accepted_drafts([second, first])


REFUSED = {
    "no counters": ("vllm:num_requests_running 3\n", "counts no drafts: the server did not speculate"),
    "no rounds yet": (vllm_text(0, 3, [0, 0, 0]), "counts no drafts"),
    "more accepted than drafted": (vllm_text(10, 2, [30], by_position=False), "30 of 20 cannot be accepted"),
    "more at a position than reached it": (vllm_text(10, 2, [4, 8]), "at position 1, the drafts before it: 8 of 4"),
    "a position is missing": (
        f'{VLLM}drafts_total 9\n{VLLM}draft_tokens_total 18\n{VLLM}accepted_tokens_per_pos_total{{position="1"}} 2\n',
        "1 positions up to 1; all from 0 on",
    ),
    "a negative counter": (f"{VLLM}drafts_total -9\n", "a counter is never negative"),
    "a length without its drafts": ("sglang:spec_accept_length 2.5\n", "give speculation.draft_tokens"),
    "a length over all drafts": ("sglang:spec_accept_length 2.5\nsglang:spec_accept_rate 1.5\n", "cannot be accepted"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_engine_can_have_counted_is_refused(scraped, case):
    text, words = REFUSED[case]
    with pytest.raises(InputError, match=re.escape(words)) as error:
        accepted_drafts([scraped(text)])
    assert "scrape.txt" in str(error.value)


SCENARIO = """name: measured
model: llama-3.1-8b
traffic: [{name: chat, request_rate: 5 req/s, input_tokens: 600, output_tokens: 250}]
slo: {ttft_p95: 600 ms}
fleet: {hardware: [h100-sxm]}
"""


def test_a_scenario_takes_the_acceptance_that_its_engine_counted(scraped):
    scraped(vllm_text(ROUNDS, 3, [16_000, 8_000, 2_000]), "metrics.txt")
    path = scraped(SCENARIO, "measured.yaml")
    key = "speculation={method: eagle, metrics: metrics.txt}"
    asked = asked_of(path, key)
    assert asked.question.drafting.acceptance_fractions == (0.8, 0.5, 0.25)
    assert any(
        "metrics.txt counted 20,000 rounds with 60,000 drafts" in item.what for item in asked.assumptions
    )
    both = "speculation={method: eagle, acceptance: 0.7, metrics: metrics.txt}"
    with pytest.raises(InputError, match=r"speculation\.metrics: acceptance is stated already"):
        read_scenario(path, [both])
    with pytest.raises(InputError, match=r"nowhere\.txt"):
        read_scenario(path, ["speculation={method: eagle, metrics: nowhere.txt}"])
