"""Draw what a terminal shows, and make photographs of a browser small: `python -m docs.generators.pictures` (`make pictures`)."""

import os
import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

from capplan.cli.main import main as program
from capplan.library import planned

PICTURES = Path("docs/pictures")
COLUMNS = 100
TERMINALS = {
    "fleet.svg": ("fleet support-chat", DEFAULT_TERMINAL_THEME),
    "fleet-dark.svg": ("fleet support-chat", SVG_EXPORT_THEME),
    "levers.svg": ("levers support-chat", SVG_EXPORT_THEME),
}
"""Picture -> the command, and the colours of the terminal."""
MOST_LINES = 30
PHOTOGRAPH, PHOTOGRAPHED = "report.png", "support-chat"
COLOURS = 64
"""Of a photograph of a page, which has few."""


def terminal(command: str, theme: TerminalTheme) -> str:
    """Return what a terminal shows of a command as SVG, its first lines, in fonts that the reader has."""
    os.environ |= {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    with redirect_stdout(StringIO()) as out:
        program([*command.split(), "--offline"])
    lines = [f"$ capplan {command}", *out.getvalue().rstrip().splitlines()]
    shown = lines[:MOST_LINES] + ["…"] * (len(lines) > MOST_LINES)
    console = Console(width=COLUMNS, record=True, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi("\n".join(shown)))
    drawn = console.export_svg(title=f"capplan {command}", unique_id="terminal", theme=theme)
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


def decision() -> str:
    """Return the first sentence of the page that is photographed, which its file holds as its description."""
    answer, _ = planned(PHOTOGRAPHED, [], pictured=False, offline=True)
    return answer.headline


def main() -> int:
    """Draw the terminals, and write the photograph with a palette."""
    for name, (command, theme) in TERMINALS.items():
        (PICTURES / name).write_text(terminal(command, theme) + "\n", encoding="utf-8")
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    photograph, shown = PICTURES / PHOTOGRAPH, PngInfo()
    shown.add_text("Description", decision())
    with Image.open(photograph) as picture:
        small = picture.convert("RGB").quantize(COLOURS)
    small.save(photograph, optimize=True, pnginfo=shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
