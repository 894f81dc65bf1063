"""A store in a browser: ``statestore ui`` serves it, ``statestore report`` writes it as one file.

Every page is made of what the library returns, by HTML templates; pictures are Vega-Lite
specifications, drawn here, so that a browser gets SVG and runs no chart library. Nothing here
changes a store.
"""
