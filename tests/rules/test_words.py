"""Pages, help texts and messages use the words of the vocabulary."""

from pathlib import Path

import pytest

from docs.generators.words import findings, prose, vocabulary

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long  # make lint asks it too
def test_pages_help_and_messages_are_clean():
    assert findings(ROOT) == []


def test_a_word_that_is_not_used_is_found_and_code_is_not_looked_at():
    swap = vocabulary(ROOT)
    for text in (
        "built anew each time",
        "a file that is refused",
        "read alone",
        "beside it",
        "the own fleet",
    ):
        assert any(pattern.search(text) for pattern in swap), text
    assert not any(pattern.search(prose("`anew`")) for pattern in swap)
    assert all(instead and instead != pattern.pattern for pattern, instead in swap.items())


def test_a_phrase_that_goes_on_in_the_next_line_is_found(tmp_path):
    (tmp_path / "docs" / "words").mkdir(parents=True)
    (tmp_path / "docs" / "words" / "capplan.yml").write_text(
        (ROOT / "docs/words/capplan.yml").read_text(encoding="utf-8")
    )
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        (tmp_path / name).write_text("Fine.\n")
    (tmp_path / "docs" / "page.md").write_text("Fine.\n\nA row with mistakes is\nrefused.\n")
    assert findings(tmp_path) == ["docs/page.md:3: write 'capplan rejects' instead of 'is refused'"]
