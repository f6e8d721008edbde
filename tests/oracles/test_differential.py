"""Do we read a config.json as the class of its model_type does? A seeded sample of `make oracle`, references stored.

The references were worked out with Hugging Face transformers 5.23: parameters of the model on torch's meta device, and
the elements that a prefill leaves in the cache. `make oracle` works all of them out anew and writes the sample.
"""

import collections

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
