"""A store in a browser: ``statestore ui`` serves it, or writes it as one file.

HTML templates render the results of the library. The charts of the pages are Vega-Lite
specifications, which the browser draws. A report has no script: its charts are SVG from
``svg_charts.py``. Nothing here changes a store. Computing a result belongs in the library, and the
options of the commands in ``cli``.
"""
