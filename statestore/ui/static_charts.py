"""Draw charts as SVG without a browser, for pages that have no script."""

from __future__ import annotations

from typing import Final

from statestore.extras import needs_extra
from statestore.ui.charts import Chart

with needs_extra("report", "the charts of a report"):
    import vl_convert
    from markupsafe import Markup

__all__ = ["svg"]

_WIDTH: Final = 1000


def svg(chart: Chart) -> Markup:
    """Return a chart as SVG."""
    # Vega escapes all text in the specification.
    return Markup(vl_convert.vegalite_to_svg({**chart.spec, "width": _WIDTH}))
