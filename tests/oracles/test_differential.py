"""Do we read a config.json as the class of its model_type does? A seeded sample of `make oracle`, references stored.

The references were worked out with Hugging Face transformers 5.23: parameters of the model on torch's meta device, and
the elements that a prefill leaves in the cache. `make oracle` works all of them out anew and writes the sample.
"""

import collections

import pytest

from capplan.families.registry import families
from tests.differential.stored import stored
from tests.differential.verdict import compared


def test_a_stored_sample_of_every_family_has_the_figures_of_its_class():
    wrong, counts, kinds = [], collections.Counter(), set()
    for file, reference in stored():
        one = compared(file, lambda _, reference=reference: reference)
        counts[one.verdict] += 1
        kinds.add(file.kind)
        if one.verdict == "wrong":
            wrong.append(f"{file.kind} ({file.form}) {file.change}: {one.why}")
    assert wrong == []
    assert counts["exact"] > 0.75 * counts.total() > 300
    assert len(kinds) > 90


def test_files_of_two_versions_of_transformers_agree_to_the_last_byte():
    pytest.importorskip("transformers", reason="make test installs it")
    from capplan.families.model_config import read_network
    from tests.differential.files import saved_by_4
    from tests.differential.small import small_file

    for kind in ("qwen3_moe", "deepseek_v3", "gemma3_text", "mixtral"):
        small = small_file(kind)
        new, old = (read_network(file, kind) for file in (small, saved_by_4(small)))
        assert new.layers == old.layers, kind
        assert kind in families()
