"""Any chart as a self-contained SVG element."""

from capplan.report.charts.records import Bars, Chart, Tornado
from capplan.report.charts.svg_bars import bars_svg, tornado_svg
from capplan.report.charts.svg_lines import lines_svg


def svg_of(chart: Chart, *, index: int = 0) -> str:
    """Return a chart as an SVG element, its text in the colour of the page.

    Parameters
    ----------
    chart : as data
    index : number of the chart on its page

    Returns
    -------
    an `<svg>` element
    """
    if isinstance(chart, Bars):
        return bars_svg(chart, index)
    return tornado_svg(chart, index) if isinstance(chart, Tornado) else lines_svg(chart, index)


def svg_file(chart: Chart) -> str:
    """Return a chart as an SVG file: dark on white, wherever it is shown."""
    drawing = svg_of(chart).replace('class="chart"', 'color="#1a1a1a"', 1)
    title, end, rest = drawing.partition("</title>\n")
    return f'{title}{end}<rect width="100%" height="100%" fill="#ffffff"/>\n{rest}\n'
