"""Run PySpark's daemon, whose workers start quickly and end without a traceback.

A local session that :func:`statestore.spark.session.spark_session` starts uses this module as its
``spark.python.daemon.module``. It then covers every task of the session: tasks of this package, the
user's own functions, and Spark's reads of Python data sources. In other sessions,
:func:`statestore.spark.workers.warm_up_worker` does the same for the tasks of this package.
"""

from __future__ import annotations

import sys

from pyspark import daemon

from statestore.spark.workers import load_before_forks, until_closed

if __name__ == "__main__":
    if sys.platform == "linux" and sys.argv[1:] == ["pyspark.worker"]:
        load_before_forks()
    daemon.worker = until_closed(daemon.worker)  # type: ignore[assignment]
    daemon.manager()
