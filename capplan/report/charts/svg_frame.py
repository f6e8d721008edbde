"""What all SVG charts share: the frame with its title, texts, and marks that say what they show."""

from collections.abc import Sequence

from capplan.report.safe_text import html_words

WIDTH = 760
LETTER = 7.4
"""Width of a letter at the size that the charts use."""


def frame(title: str, height: float, parts: Sequence[str], index: int) -> str:
    """Return a chart as an SVG element, its text in the colour of the page.

    Parameters
    ----------
    title : of the chart
    height : of the drawing, which is WIDTH wide
    parts : elements
    index : number of the chart on its page

    Returns
    -------
    an `<svg>` element; arrow keys walk over its marks where the script of a page is at work
    """
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="picture-{index}" class="chart" '
            'font-family="system-ui, sans-serif" font-size="12" fill="currentColor" xmlns="http://www.w3.org/2000/svg">',
            f'<title id="picture-{index}">{html_words(title)}</title>',
            *parts,
            "</svg>",
        ]
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", turn: bool = False) -> str:
    """Return a line of text whose middle is at a height."""
    turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
    side = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" dy="0.35em"{side}{turned}>{html_words(words)}</text>'


def mark(said: str, shape: str) -> str:
    """Return a shape that says what it shows: to a pointer as it stands, to a keyboard by the script of the page."""
    return f'<g class="mark"><title>{html_words(said)}</title>{shape}</g>'


def label_width(labels: Sequence[str]) -> float:
    """Return the room that the longest of some labels takes, no more than half of the chart."""
    return min(max(90.0, 12.0 + LETTER * max(map(len, labels), default=0)), WIDTH / 2.0)
