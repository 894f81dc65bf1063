"""Changes of a keyed state on top of its base: merge them on read, and compact them.

The description of layers in a manifest is in :mod:`statestore.format.layers`.
"""
