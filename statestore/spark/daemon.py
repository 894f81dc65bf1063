"""Run PySpark's daemon, whose workers end in silence when Spark closes their sockets.

A local session that :func:`statestore.spark.session.spark_session` starts uses this module as its
``spark.python.daemon.module``. It then covers every task of the session: tasks of this package, the
user's own functions, and Spark's reads of Python data sources. In other sessions,
:func:`statestore.spark.workers.warm_up_worker` does the same for the tasks of this package.
"""

from __future__ import annotations

from pyspark import daemon

from statestore.spark.workers import until_closed

if __name__ == "__main__":
    daemon.worker = until_closed(daemon.worker)  # type: ignore[assignment]
    daemon.manager()
