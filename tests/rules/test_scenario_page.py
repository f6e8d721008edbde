"""docs/scenario.md and the pages of its sections say of every key what it means, how it is written, what stands in for it, and an example that is read."""

import re
from pathlib import Path

import pytest

from capplan.readers.record import Mistakes, checked
from capplan.readers.yaml_file import parse_yaml
from capplan.scenario.scenario_file import ScenarioFile
from docs.generators.scenario_keys import DEFAULTS, EXAMPLES, example, keys_of, pages

ROOT = Path(__file__).resolve().parents[2]
LIKE_PROMPTS = tuple(
    f"traffic.{name}." for name in ("output_tokens", "turns", "added_tokens", "reasoning_tokens")
)
KEYS = {key: field for key, field in keys_of() if not key.startswith(LIKE_PROMPTS)}
"""Of lengths those of prompts, which the others share."""
TRAFFIC = "{request_rate: 20 req/s, input_tokens: 1800, output_tokens: 350}"
NEEDED = {
    "kv_offload": "name: host, capacity: 9 GB",
    "speculation": "acceptance: 0.5, draft_tokens: 2",
    "lora": "adapters: 99",
    "cascade": "model: a/b, escalated: 5 %",
    "sharing": "by: device, models: [{name: a, model: a/b}]",
    "sharing.models": "name: a, model: a/b",
    "traffic.images": "width: 9, height: 9",
    "traffic.outside": "tool_calls: 2, tool_time: 1 s",
    "regions": "name: a",
    "traffic.users": "employees: 200",
    "slo": "ttft_p95: 1 s",
    "traffic.shared_prefix": "tokens: 9, hit_fraction: 0.5",
    "traffic.retries": "invalid: 8 %, attempts: 3",
    "commitments.owned": "capex: 30k$, electricity: 0.1 $/kWh",
    "currency": "name: EUR, usd: 1.1",
    "budget": "usd_per_month: 50000",
    "hosted.provisioned": "price: 9 $/h, tokens_per_minute: 9000",
}


@pytest.fixture(scope="module")
def current():
    """Return the pages as they are written today."""
    return pages()


def test_the_pages_are_current(current):
    docs = ROOT / "docs"
    written = [docs / "scenario.md", *(docs / "scenario").glob("*.md")]
    shown = {path.relative_to(docs).as_posix(): path.read_text(encoding="utf-8") for path in written}
    assert shown == current, "run: make docs"


def test_every_key_has_an_item_that_says_all_of_it(current):
    items = [line for text in current.values() for line in text.splitlines() if line.startswith("- **")]
    told = [(re.findall(r"\*\*\[?`(\w+)`", item), item.partition("**: ")[2]) for item in items]
    assert [name for names, _ in told for name in names] == [
        key.rpartition(".")[2] for key in sorted(KEYS, key=order)
    ]
    for names, said in told:
        meaning, _, written = said.rpartition(". ")
        assert len(meaning) > 4, names
        assert "`" in written, names


def order(key):
    """Return where a key stands on the page: its section, then the order of the record."""
    sections = [
        "",
        "traffic",
        "traffic.input_tokens",
        "traffic.users",
        "traffic.retries",
        "traffic.images",
        "traffic.outside",
        "traffic.shared_prefix",
        "regions",
        "slo",
        "fleet",
        "kv_offload",
        "speculation",
        "lora",
        "cascade",
        "sharing",
        "sharing.models",
        "prices",
        "prices.other",
        "commitments",
        "commitments.reserved_1y",
        "commitments.reserved_3y",
        "commitments.spot",
        "commitments.owned",
        "currency",
        "budget",
        "growth",
        "energy",
        "energy.measured",
        "hosted",
        "hosted.provisioned",
    ]
    return sections.index(key.rpartition(".")[0]), list(KEYS).index(key)


def test_what_stands_in_is_said_of_the_keys_that_may_be_left_out_and_of_no_other():
    assert DEFAULTS.keys() - KEYS.keys() == set()
    assert EXAMPLES.keys() - KEYS.keys() == set()
    for key, field in KEYS.items():
        if field.is_required():
            assert key not in DEFAULTS
        elif field.default is None:
            assert key in DEFAULTS, (
                f"{key}: what holds where it is left out? see docs/generators/scenario_keys.py"
            )


@pytest.mark.parametrize("key", KEYS)
def test_an_example_is_read(key):
    *parents, last = key.split(".")
    inner = f"{last}: {example(key, KEYS[key])}"
    for depth in range(len(parents), 0, -1):
        needed = NEEDED.get(".".join(parents[:depth]), "")
        with_needed = ", ".join(
            [
                inner,
                *(
                    item
                    for item in re.findall(r"\w+: [^,]+", needed)
                    if not inner.startswith(item.split(":")[0])
                ),
            ]
        )
        listed = parents[depth - 1] in ("traffic", "regions", "kv_offload", "models")
        inner = f"{parents[depth - 1]}: " + (f"[{{{with_needed}}}]" if listed else f"{{{with_needed}}}")
    lines = {"name": "name: a", "model": "model: b", "traffic": f"traffic: [{TRAFFIC}]"}
    lines[key.split(".")[0]] = inner
    found = checked(ScenarioFile, parse_yaml("\n".join(lines.values()), "example.yaml"))
    assert not isinstance(found, Mistakes), [str(error) for error in found.errors]


def test_defaults_are_those_of_the_program():
    assert (DEFAULTS["fleet.headroom"], DEFAULTS["slo.confidence"], DEFAULTS["fleet.burst"]) == (
        "20%",
        "80%",
        "1; for the spares 1.5",
    )
    assert DEFAULTS["fleet.tensor_parallel"] == "1, 2, 4, 8"


def test_every_length_has_the_examples_of_prompts():
    lengths = {key: field for key, field in keys_of() if key.startswith(LIKE_PROMPTS)}
    assert len(lengths) > 30
    for key, field in lengths.items():
        assert example(key, field) == EXAMPLES[f"traffic.input_tokens.{key.rpartition('.')[2]}"]
