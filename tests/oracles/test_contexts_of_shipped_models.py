"""Contexts of the shipped models: what engines were started with, and what folders of the same owner and model type state."""

import csv
import json
import re
from pathlib import Path

import pytest

from capplan.readers.catalogue.models import read_model

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "model_configs").glob("*/config.json"))
STARTS = ROOT / "tests" / "data" / "starts.csv"
README = ROOT / "model_configs" / "README.md"
LLAMA_2 = ("7b", "13b", "70b")


def contexts():
    """The context, owner and model type of every folder; None where a model has no longest prompt."""
    found = {}
    for folder in FOLDERS:
        name = folder.name.replace("--", "/", 1)
        config = json.loads((folder / "config.json").read_text())
        context = read_model(name, offline=True).max_context_tokens
        if context is not None:
            found[name] = context, (name.partition("/")[0], config.get("model_type"))
    return found


def logged():
    """The longest context of every model with which an engine started."""
    longest = {}
    for row in csv.DictReader(STARTS.open()):
        if row["max_model_len"] and row["status"] == "ok":
            name = row["model_hf_id"].lower()
            longest[name] = max(longest.get(name, 0.0), float(row["max_model_len"]))
    return longest


def test_no_engine_started_with_more_than_the_context():
    shipped = {name.lower(): context for name, (context, _) in contexts().items()}
    seen = {name: longest for name, longest in logged().items() if name in shipped}
    assert len(seen) > 3
    for name, longest in seen.items():
        assert longest <= shipped[name], name


@pytest.mark.parametrize("size", LLAMA_2)
def test_llama_2_has_the_context_of_its_chat_variants(size):
    """Dumps of transformers 4.31 to 4.39 and the chat variants say 4,096; an older revision said 2,048."""
    names = (f"meta-llama/Llama-2-{size}-hf", f"meta-llama/Llama-2-{size}-chat-hf")
    assert {read_model(name, offline=True).max_context_tokens for name in names} == {4096}


def test_the_readme_lists_the_contexts_that_nothing_else_confirms():
    """Neither a start at the whole context nor another folder of the owner and model type states the same."""
    found, starts = contexts(), logged()
    kinds = [(context, kind) for context, kind in found.values()]
    alone = [
        name
        for name, (context, kind) in found.items()
        if kinds.count((context, kind)) == 1 and starts.get(name.lower()) != context
    ]
    text = README.read_text().partition("## Contexts that only the config states")[2].partition("\n## ")[0]
    assert re.findall(r"`([^`]+/[^`]+)`", text) == alone, ", ".join(f"`{name}`" for name in alone)
