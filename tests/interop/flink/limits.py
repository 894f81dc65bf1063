"""A time limit for a block that reads untrusted bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from signal import ITIMER_PROF, ITIMER_REAL, SIGALRM, SIGPROF, setitimer, signal

__all__ = ["in_time"]

CPU_SECONDS = 60
SECONDS = 1_200  # wall-clock limit, long enough for a loaded machine


@contextmanager
def in_time() -> Iterator[None]:
    """Raise TimeoutError in a block that uses more than a minute of this process's CPU time."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it takes more than {CPU_SECONDS} s of CPU time, or waits")

    before = {number: signal(number, late) for number in (SIGPROF, SIGALRM)}
    setitimer(ITIMER_PROF, CPU_SECONDS)
    setitimer(ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        setitimer(ITIMER_PROF, 0)
        setitimer(ITIMER_REAL, 0)
        for number, handler in before.items():
            signal(number, handler)
