"""Metrics of a job for Prometheus, over HTTP for as long as the job runs.

One port serves all attempts. It is opened before the first attempt, so an unusable port is reported
before anything is read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from statestore.errors import SettingsError
from statestore.listeners import CheckpointListener

__all__ = ["Listeners", "serve_metrics"]

Listeners = tuple[CheckpointListener, ...]
"""The listeners that a job passes to each store that it opens."""


@contextmanager
def serve_metrics(port: int | None, say: Callable[[str], None]) -> Iterator[Listeners]:
    """Yield the listeners whose metrics a port serves until the block ends; none without a port.

    ``say`` is called with the address, because port 0 stands for any free port. Raises
    MissingDependencyError without prometheus_client, and SettingsError if the port is not
    available.
    """
    if port is None:
        yield ()
        return
    from statestore.prometheus import serve  # the client is only needed with a port

    try:
        serving = serve(port)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on metrics_port {port}: {error.strerror}; choose another port, or "
            "0 for any free port"
        ) from error
    with serving:
        say(f"metrics: http://localhost:{serving.port}/metrics")
        yield (serving.listener,)
