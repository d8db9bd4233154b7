"""Line charts by matplotlib, as SVG on paper of their own, so that they suit any page."""

import io

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text

OMITTED_METADATA = dict.fromkeys(["Date", "Creator", "Format", "Type"])  # so that the same chart gives the same bytes


def chart_as_svg(figure: Figure) -> str:
    """The content of an SVG file that shows the chart; its text is text."""
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "minitrans", "text.usetex": False}):
        for text in figure.findobj(Text):  # the user's matplotlibrc may ask for LaTeX
            text.set_usetex(False)
        figure.savefig(file, format="svg", metadata=OMITTED_METADATA)
    return file.getvalue()
