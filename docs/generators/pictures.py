"""Draw what a terminal shows, the charts of answers, and a photograph of the review page: `python -m docs.generators.pictures` (`make pictures`)."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

from capplan.cli.main import main as program
from capplan.fleet.fit import fit
from capplan.library import Result, estimate, plan_fleet, planned
from capplan.report.answers.replica import waterfall
from capplan.report.charts.of_answers import Chart, memory_chart
from capplan.report.charts.svg import svg_file
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica

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
BROWSERS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
"""Programs that can take the photograph; the first that is installed does, as in the tests of the site."""
REPORT = ("report", PHOTOGRAPHED, "--offline", "--author", "Platform team", "--date", "2026-11-22", "-o")


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


def _charted(result: Result) -> Chart:
    assert result.charted is not None
    return result.charted()


def _memory() -> Chart:
    asked = asked_replica("llama-3.1-8b", "l40s", ServingFlags(max_model_len=8192, offline=True))
    return memory_chart("l40s", waterfall(fit(asked.spec, [asked.spec.device])))


def _day() -> Chart:
    _, charts = planned(PHOTOGRAPHED, ["traffic[0].daily_curve=office"], pictured=True, offline=True)
    return charts[-1]


CHARTS: dict[str, Callable[[], Chart]] = {
    "waterfall.svg": lambda: _charted(plan_fleet(PHOTOGRAPHED, offline=True)),
    "roofline.svg": lambda: _charted(estimate("llama-3.1-8b", "h100-sxm", concurrency=16, offline=True)),
    "memory.svg": _memory,
    "day.svg": _day,
}
"""Picture -> what draws it: why a plan has its GPUs, operators below the roof, the memory of a GPU, a day of load with its GPUs."""


def decision() -> str:
    """Return the first sentence of the page that is photographed, which its file holds as its description."""
    answer, _ = planned(PHOTOGRAPHED, [], pictured=False, offline=True)
    return answer.headline


def photograph(browser: str) -> None:
    """Write the picture of the review page as a browser shows it, with a palette and the decision as its description."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    file, shown = PICTURES / PHOTOGRAPH, PngInfo()
    shown.add_text("Description", decision())
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "plan.html"
        program([*REPORT, str(page)])
        flags = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1280,1040",
        )
        subprocess.run([browser, *flags, f"--screenshot={file.resolve()}", page.as_uri()], check=True)  # noqa: S603 - fixed words
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(COLOURS)
    small.save(file, optimize=True, pnginfo=shown)


def main() -> int:
    """Draw all pictures."""
    browser = next(filter(None, map(shutil.which, (os.environ.get("CHROMIUM", ""), *BROWSERS))), None)
    if browser is None:
        sys.stderr.write(
            f"no browser takes the photograph: install one of {', '.join(BROWSERS)}, or name it in CHROMIUM\n"
        )
        return 2
    for name, (command, theme) in TERMINALS.items():
        (PICTURES / name).write_text(terminal(command, theme) + "\n", encoding="utf-8")
    for name, chart in CHARTS.items():
        (PICTURES / name).write_text(svg_file(chart()), encoding="utf-8")
    photograph(browser)
    return 0


if __name__ == "__main__":
    sys.exit(main())
