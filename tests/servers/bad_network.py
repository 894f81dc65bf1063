"""Put a bad network between clients and an S3 server, for tests.

::

    with bad_network(server) as network:
        store = StateStore.open(url, storage_options=network.server.options)

No client runs out of attempts, so each call has a known outcome:

* Faults are drawn for the first and the second attempt of a request. S3's clients number their
  attempts in a header.
* The answer of each GET breaks off three times at most. A client that requests a body again starts
  to count from one.
* delta-rs does not number its attempts. It makes up to ten, but does not request a body again, so
  its answers do not break off.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tests.servers.flaky_proxy import Fault, FlakyProxy, Headers, Weather, flaky_proxy
from tests.servers.s3_access import S3Access

__all__ = ["BadNetwork", "bad_network"]

# The share of requests with each fault. A lost answer is the most frequent fault of a put.
PUT_FAULTS: Mapping[Fault, float] = {
    Fault.LOST: 0.15,
    Fault.LATE: 0.05,
    Fault.RESET: 0.03,
    Fault.BUSY: 0.03,
    Fault.SLOW_BODY: 0.1,
    Fault.STALE: 0.05,
}
OTHER_FAULTS: Mapping[Fault, float] = {
    Fault.LOST: 0.03,
    Fault.RESET: 0.03,
    Fault.CUT: 0.03,
    Fault.BUSY: 0.03,
    Fault.STALE: 0.05,
}
WEATHER = Weather(latency_seconds=(0.0, 0.05), bytes_per_second=5e6, pause_seconds=0.02)
LAST_BAD_ATTEMPT = 2
BROKEN_OFF = (Fault.RESET, Fault.CUT)
MOST_BROKEN_OFF = 3

_ATTEMPT = re.compile(r"attempt=(\d+)")


@dataclass(frozen=True)
class BadNetwork:
    """A server behind a bad network, and the proxy that counts the faults."""

    server: S3Access
    proxy: FlakyProxy

    def was_bad(self) -> bool:
        """Return whether each fault of a put occurred."""
        return {fault.name for fault in PUT_FAULTS} <= set(self.proxy.counts)


@contextmanager
def bad_network(server: S3Access, seed: int = 1) -> Iterator[BadNetwork]:
    """Yield the same server behind a proxy that disturbs a part of the requests."""
    dice = random.Random(seed)
    broken_off: Counter[str] = Counter()

    def choose(method: str, path: str, headers: Headers) -> Fault | None:
        attempt = _attempt_of(headers)
        if attempt is not None and attempt > LAST_BAD_ATTEMPT:
            return None
        faults = PUT_FAULTS if method == "PUT" else OTHER_FAULTS
        (drawn,) = dice.choices((*faults, None), (*faults.values(), 1 - sum(faults.values())))
        if drawn not in BROKEN_OFF:
            return drawn
        broken_off[path] += method == "GET"
        return drawn if attempt is not None and broken_off[path] <= MOST_BROKEN_OFF else None

    with flaky_proxy(server.endpoint) as proxy:
        proxy.weather, proxy.choose = WEATHER, choose
        yield BadNetwork(replace(server, endpoint=proxy.endpoint), proxy)


def _attempt_of(headers: Headers) -> int | None:
    """Return the number of the attempt, from 1; None if the client does not number its attempts."""
    values = (value for name, value in headers if name.lower() == "amz-sdk-request")
    found = _ATTEMPT.search(next(values, ""))
    return int(found[1]) if found else None
