"""Line charts by matplotlib, as SVG with a background of their own, so that they suit any page."""

import io
from collections.abc import Callable

from matplotlib import style
from matplotlib.figure import Figure

OMITTED_METADATA = dict.fromkeys(["Date", "Creator", "Format", "Type"])  # so that the same chart gives the same bytes


def chart_as_svg(plot: Callable[[], Figure]) -> str:
    """The content of an SVG file that shows what is plotted, whatever the user's matplotlibrc; its text stays text."""
    file = io.StringIO()
    with style.context(["default", {"svg.fonttype": "none", "svg.hashsalt": "minitrans"}]):
        plot().savefig(file, format="svg", metadata=OMITTED_METADATA)
    return file.getvalue()
