"""Export checkpoint metrics with the Prometheus client; a listener for a store::

    from prometheus_client import start_http_server
    from statestore.prometheus import PrometheusListener

    start_http_server(9090)
    store = StateStore.open(url, listeners=[PrometheusListener()])

:func:`serve` uses its own registry and port until its block ends.

Importing this module needs prometheus_client; MissingDependencyError explains how to install it.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Thread
from typing import Final
from wsgiref.simple_server import WSGIServer

from statestore.extras import needs_extra
from statestore.format.metrics import Amount
from statestore.listeners import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointListener,
    CheckpointRestored,
    CompactionFailed,
    CompactionListener,
)

with needs_extra("metrics", "metrics for Prometheus"):
    from prometheus_client import (
        REGISTRY,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        start_http_server,
    )

SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
"""The bounds of the histograms of durations: from a point lookup's to a large state's."""


class PrometheusListener(CheckpointListener, CompactionListener):
    """Keeps metrics of the stores that it listens to; each has the label ``store``, its URL.

    All names begin with ``statestore_``:

    * ``checkpoints_total`` by ``outcome`` (committed, failed).
    * ``checkpoint_seconds`` by ``phase`` (as in a manifest, and ``all``), of committed checkpoints.
    * ``written_rows_total``, ``written_bytes_total`` and ``written_files_total``, ``by`` states or
      compaction.
    * ``changed_share``, ``last_checkpoint_id``, ``last_checkpoint_timestamp_seconds``,
      ``named_bytes`` and ``named_files``, of the newest checkpoint that this listener has received.
    * ``restore_seconds`` (of planning), ``restore_bytes_total`` and ``restore_files_total``, of
      restores.
    * ``failed_compactions_total``, of background compactions.

    The changed share is NaN if it is unknown.
    """

    def __init__(
        self, registry: CollectorRegistry = REGISTRY, buckets: tuple[float, ...] = SECONDS
    ) -> None:
        """Add the metrics to a registry once; one listener serves all stores of a process.

        Raises prometheus_client's ValueError if the registry already has them.
        """

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"statestore_{name}", text, ("store", *labels), registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"statestore_{name}", text, ("store",), registry=registry)

        def seconds(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(
                f"statestore_{name}", text, ("store", *labels), registry=registry, buckets=buckets
            )

        self._checkpoints = counter(
            "checkpoints", "Checkpoints that were committed or failed.", "outcome"
        )
        self._seconds = seconds("checkpoint_seconds", "Duration of a checkpoint.", "phase")
        self._rows = counter("written_rows", "Rows written for checkpoints.", "by")
        self._bytes = counter("written_bytes", "Bytes of data files written.", "by")
        self._files = counter("written_files", "Data files written.", "by")
        self._share = gauge(
            "changed_share", "Rows written for a checkpoint, divided by the rows of its base files."
        )
        self._last = gauge("last_checkpoint_id", "Id of the last committed checkpoint.")
        self._time = gauge(
            "last_checkpoint_timestamp_seconds",
            "Time at which the last committed checkpoint was taken.",
        )
        self._named_bytes = gauge(
            "named_bytes", "Bytes of all data files that the last committed checkpoint references."
        )
        self._named_files = gauge(
            "named_files", "Data files that the last committed checkpoint references."
        )
        self._restore = seconds("restore_seconds", "Time spent on planning a restore.")
        self._restore_bytes = counter("restore_bytes", "Bytes of the restored states.")
        self._restore_files = counter("restore_files", "Files of the restored states.")
        self._failed_compactions = counter(
            "failed_compactions", "Background compactions that failed."
        )

    def on_committed(self, event: CheckpointCommitted) -> None:
        """Count a checkpoint, and record it as the last one."""
        store, metrics, manifest = event.store, event.metrics, event.manifest
        self._checkpoints.labels(store, "committed").inc()
        total = metrics.duration_ms + (metrics.phases.put_ms or 0)
        for phase, spent in (*metrics.phases.items(), ("all", total)):
            self._seconds.labels(store, phase).observe(spent / 1000)
        self._count_written(store, "states", metrics.written)
        self._count_written(store, "compaction", metrics.compaction)
        share = metrics.changed_share
        self._share.labels(store).set(float("nan") if share is None else share)
        self._last.labels(store).set(event.checkpoint_id)
        self._time.labels(store).set(manifest.created_at_ms / 1000)
        self._named_bytes.labels(store).set(manifest.size_bytes)
        self._named_files.labels(store).set(manifest.files)

    def on_failed(self, event: CheckpointFailed) -> None:
        """Count a checkpoint that was not committed."""
        self._checkpoints.labels(event.store, "failed").inc()

    def on_restored(self, event: CheckpointRestored) -> None:
        """Count a restore."""
        self._restore.labels(event.store).observe(event.seconds)
        self._restore_bytes.labels(event.store).inc(event.size_bytes)
        self._restore_files.labels(event.store).inc(event.files)

    def on_compaction_failed(self, event: CompactionFailed) -> None:
        """Count a background compaction that failed."""
        self._failed_compactions.labels(event.store).inc()

    def _count_written(self, store: str, by: str, written: Amount) -> None:
        self._rows.labels(store, by).inc(written.rows)
        self._bytes.labels(store, by).inc(written.size_bytes)
        self._files.labels(store, by).inc(written.files)


@dataclass(frozen=True)
class Serving:
    """A listener, and the port that serves its metrics at ``/metrics`` until the block ends."""

    listener: PrometheusListener
    server: WSGIServer
    thread: Thread

    @property
    def port(self) -> int:
        """Return the port, even if it was chosen automatically."""
        return self.server.server_port

    def __enter__(self) -> Serving:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the port."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def serve(port: int) -> Serving:
    """Return a new listener whose metrics a port serves, on all addresses of the host.

    Port 0 selects any free port. Raises OSError if the port is not available.
    """
    registry = CollectorRegistry()  # one process may serve several in succession
    listener = PrometheusListener(registry)
    server, thread = start_http_server(port, registry=registry)
    return Serving(listener, server, thread)
