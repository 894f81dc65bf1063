"""The main demo: stop a stateful job half-way, rescale it from 4 to 7, and verify its state."""

from statestore.demo.story import run

__all__ = ["run"]
