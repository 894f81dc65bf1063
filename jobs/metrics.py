"""Metrics of a job for Prometheus, over HTTP for as long as the job runs.

The port serves all attempts, and is there before the first one: what is wrong with it is said
before anything is read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from statestore.errors import SettingsError
from statestore.listeners import CheckpointListener

__all__ = ["Listeners", "served"]

Listeners = tuple[CheckpointListener, ...]
"""What a job gives each store that it opens."""


@contextmanager
def served(port: int | None, say: Callable[[str], None]) -> Iterator[Listeners]:
    """Yield the listeners whose metrics a port serves until the block ends; none without a port.

    ``say`` hears where, since 0 is any port that is free. Raises MissingDependencyError without
    prometheus_client, SettingsError for a port that cannot be had.
    """
    if port is None:
        yield ()
        return
    from statestore.prometheus import serve  # who asks for no port need not have the client

    try:
        serving = serve(port)
    except OSError as error:
        raise SettingsError(
            f"metrics_port {port} cannot be had: {error.strerror}; name another one, or 0 for any "
            "that is free"
        ) from error
    with serving:
        say(f"metrics: http://localhost:{serving.port}/metrics")
        yield (serving.listener,)
