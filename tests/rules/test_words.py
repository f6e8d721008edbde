"""Pages, help texts and messages use the words of the vocabulary."""

from pathlib import Path

from docs.generators.words import findings, prose, vocabulary

ROOT = Path(__file__).resolve().parents[2]


def test_pages_help_and_messages_are_clean():
    assert findings(ROOT) == []


def test_a_word_that_is_not_used_is_found_and_code_is_not_looked_at():
    swap = vocabulary(ROOT)
    assert any(pattern.search("built anew each time") for pattern in swap)
    assert not any(pattern.search(prose("`anew`")) for pattern in swap)
    assert all(instead and instead != pattern.pattern for pattern, instead in swap.items())
