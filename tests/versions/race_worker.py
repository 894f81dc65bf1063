"""A process that takes part in races with a release: ``tests/races/run.py`` starts it.

    python -P -m tests.versions.race_worker FILE_DESCRIPTOR…

Each file descriptor is the connection of a lane. ``tests/races/worker.py`` therefore runs with the
package of every release in ``releases.toml``, and may only use names that all of them have.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from tests.races.worker import run_worker

if __name__ == "__main__":
    run_worker([Connection(int(descriptor)) for descriptor in sys.argv[1:]])
