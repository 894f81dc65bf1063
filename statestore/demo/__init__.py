"""The main demo: a stateful job is stopped half-way, rescaled from 4 to 7, and proved unharmed."""

from statestore.demo.story import run

__all__ = ["run"]
