"""The main demo: stop a stateful job half-way, rescale it from 4 to 7, and verify its state.

The demo uses the public API, as a job does. Code that other packages need does not belong here.
"""

from statestore.demo.story import run

__all__ = ["run"]
