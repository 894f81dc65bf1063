"""A store in a browser: ``statestore ui`` serves it, ``statestore report`` writes it as one file.

HTML templates render the results of the library. Charts are Vega-Lite specifications, which are
rendered on the server, so that a browser gets SVG and needs no chart library. Nothing here changes
a store. Computing a result belongs in the library, and the options of the commands in ``cli``.
"""
