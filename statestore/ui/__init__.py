"""A store in a browser: ``statestore ui`` serves it, or writes it as one file.

HTML templates render the results of the library. ``charts.py`` draws the charts of pages
and reports as SVG. Nothing here changes a store. Computing a result belongs in the library, and the
options of the commands in ``cli``.
"""
