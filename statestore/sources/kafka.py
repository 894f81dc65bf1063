"""A Kafka cluster: read the offsets of its topics, and set the offsets of a consumer group.

::

    cluster = KafkaCluster("localhost:9092")
    found = reconcile(stored, cluster.topics({"orders"}), Policies(gap="earliest"))
    cluster.commit("orders-reader", found.offsets)

The client is confluent-kafka, which is imported when a cluster is created (the extra ``kafka``).
Every wait has a time limit: an unreachable broker causes a StorageError that names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from types import MappingProxyType
from typing import Any, TypeVar

from statestore.errors import (
    CommitConflictError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.extras import needs_extra
from statestore.sources.discovery import LiveRange, LiveTopic
from statestore.sources.mirror_translation import KafkaRecord
from statestore.sources.offsets import source_offsets

__all__ = ["DEFAULT_SECONDS", "KafkaCluster"]

R = TypeVar("R")
Partition = tuple[str, int]

DEFAULT_SECONDS = 15.0
_PAUSE = 0.05
# Errors while a broker starts, a leader moves, or a topic is being created or deleted.
_PASSING = (
    "_TIMED_OUT",
    "_TRANSPORT",
    "_UNKNOWN_PARTITION",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "LEADER_NOT_AVAILABLE",
    "NETWORK_EXCEPTION",
    "NOT_COORDINATOR",
    "NOT_LEADER_FOR_PARTITION",
    "OFFSET_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "REQUEST_TIMED_OUT",
    "UNKNOWN_LEADER_EPOCH",
    "UNKNOWN_TOPIC_OR_PART",
)
_END_OF_PARTITION = "_PARTITION_EOF"
_NO_TOPIC = "UNKNOWN_TOPIC_OR_PART"
_NO_NAME = "TOPIC_EXCEPTION"  # an invalid topic name
_NO_GROUP = "GROUP_ID_NOT_FOUND"
_LIVE_GROUP = ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "STALE_MEMBER_EPOCH")
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
# Kafka's own tools write ids in the URL-safe alphabet.
_LETTERS = str.maketrans("+/", "-_")
# A client without subscriptions still needs a group id; no group of this name comes to exist.
_READER = {
    "group.id": "statestore-reader",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    # Often only a few records are wanted, and the end of a partition is waited for.
    "queued.min.messages": 1000,
    "queued.max.messages.kbytes": 16_384,
    "fetch.wait.max.ms": 100,
}
_UNCOMMITTED = {"isolation.level": "read_uncommitted"}


class KafkaCluster:
    """The topics and consumer groups of a cluster; ``bootstrap`` is host:port of brokers.

    ``options`` are librdkafka's (``{"security.protocol": "SASL_SSL"}``). They never appear in
    messages. Each call takes at most ``seconds``; to read records takes at most that long
    between two of them.
    """

    def __init__(
        self,
        bootstrap: str,
        options: Mapping[str, Any] | None = None,
        *,
        seconds: float = DEFAULT_SECONDS,
    ) -> None:
        """Create a client without connecting.

        Raises MissingDependencyError if confluent-kafka is not installed, and InvalidArgumentError
        for options that librdkafka rejects.
        """
        with needs_extra("kafka", "Kafka"):
            import confluent_kafka
            import confluent_kafka.admin
        if not bootstrap:
            raise InvalidArgumentError("bootstrap is empty; pass host:port of a broker")
        self.bootstrap, self._seconds = bootstrap, seconds
        self._kafka: Any = confluent_kafka
        self._admin: Any = confluent_kafka.admin
        self._last_error = ""
        self._settings = {
            "log_level": 0,  # our messages include its errors
            "error_cb": self._note,
            **(options or {}),
            "bootstrap.servers": bootstrap,
        }
        try:
            self._client = self._admin.AdminClient(self._settings)
        except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"invalid Kafka options: {_error_text(error)}") from error

    def __repr__(self) -> str:
        return f"KafkaCluster({self.bootstrap!r})"

    def topics(self, names: Iterable[str]) -> dict[str, LiveTopic]:
        """Return the existing topics among ``names``, each with its id and its partitions' offsets.

        ``high`` is the high watermark, the offset of the next record. Raises StorageError if no
        broker answers in time, or none knows a partition's leader.
        """
        wanted = sorted(set(names))
        if not wanted:
            return {}
        return self._retry(
            "list the offsets of the topics", lambda left: self._topics(wanted, left)
        )

    def topic_names(self) -> tuple[str, ...]:
        """Return the names of all topics that the client may see, sorted.

        Raises StorageError as :meth:`topics` does.
        """
        return self._retry(
            "list the topics",
            lambda left: tuple(sorted(self._client.list_topics(timeout=left).topics)),
        )

    def records(
        self, topic: str, partition: int = 0, *, start: int = 0, uncommitted: bool = False
    ) -> Iterator[KafkaRecord]:
        """Yield the records that a partition has now, in order, from an offset on.

        Records of open and aborted transactions are left out, unless ``uncommitted`` is True.
        Raises NotFoundError if the partition does not exist, and StorageError as :meth:`topics`
        does.
        """
        live = self.topics([topic])
        if topic not in live or partition not in live[topic].partitions:
            raise NotFoundError(
                f"Kafka at {self.bootstrap} has no partition {partition} of topic {topic!r}; "
                "check the topic's name"
            )
        found = live[topic].partitions[partition]
        first = max(start, found.low)
        if first >= found.high:
            return
        action = f"read partition {partition} of topic {topic!r}"
        settings = _UNCOMMITTED if uncommitted else {}
        for message in self._read({(topic, partition): first}, action, settings):
            if message.error() is not None:  # the end of the partition
                return
            yield self._record(message)
            if message.offset() + 1 >= found.high:
                return

    def _record(self, message: Any) -> KafkaRecord:
        kind, timestamp_ms = message.timestamp()
        return KafkaRecord(
            offset=message.offset(),
            timestamp_ms=timestamp_ms,
            key=message.key(),
            value=message.value(),
            headers=tuple(message.headers() or ()),
            is_append_time=kind == self._kafka.TIMESTAMP_LOG_APPEND_TIME,
        )

    def times(
        self, places: Mapping[Partition, int], *, uncommitted: bool = False
    ) -> dict[Partition, int]:
        """Return the timestamp in milliseconds of the first record at or after each offset.

        ``places`` has offsets in the live ranges of their partitions. A partition without a record
        there is missing in the result. Records of open and aborted transactions are left out,
        unless ``uncommitted`` is True. Raises StorageError as :meth:`topics` does.
        """
        left, found = set(places), {}
        settings = _UNCOMMITTED if uncommitted else {}
        for message in self._read(places, "read the records at the stored offsets", settings):
            place = (message.topic(), message.partition())
            if place in left and message.error() is None:
                found[place] = message.timestamp()[1]
            left.discard(place)
            if not left:
                break
        return found

    def offsets_at(self, times: Mapping[Partition, int]) -> dict[Partition, tuple[int, int]]:
        """Return offset and timestamp of the first record that is not older than each time.

        Times are in milliseconds since 1970. A partition whose records are all older is missing in
        the result. Raises StorageError as :meth:`topics` does.
        """
        if not times:
            return {}
        request = {
            self._kafka.TopicPartition(*place): self._admin.OffsetSpec.for_timestamp(time_ms)
            for place, time_ms in times.items()
        }

        def ask(left: float) -> dict[Partition, tuple[int, int]]:
            answers = self._client.list_offsets(request, request_timeout=left).items()
            found = {(place.topic, place.partition): answer.result() for place, answer in answers}
            return {
                place: (each.offset, each.timestamp)
                for place, each in found.items()
                if each.offset >= 0
            }

        return self._retry("find offsets by timestamp", ask)

    def committed(self, group: str) -> dict[Partition, int]:
        """Return the committed offsets of a consumer group; empty for an unknown group.

        Raises StorageError as :meth:`topics` does.
        """
        request = [self._kafka.ConsumerGroupTopicPartitions(group)]

        def ask(left: float) -> dict[Partition, int]:
            answers = self._client.list_consumer_group_offsets(request, request_timeout=left)
            partitions = answers[group].result().topic_partitions
            for each in partitions:
                if each.error is not None:
                    raise self._kafka.KafkaException(each.error)
            return {
                (each.topic, each.partition): each.offset for each in partitions if each.offset >= 0
            }

        return self._retry(f"list the offsets of group {group!r}", ask)

    def members(self, group: str) -> tuple[str, ...]:
        """Return the live members of a consumer group as client@host; empty for an unknown group.

        Raises StorageError as :meth:`topics` does.
        """

        def ask(left: float) -> tuple[str, ...]:
            try:
                answers = self._client.describe_consumer_groups([group], request_timeout=left)
                description = answers[group].result()
            except self._kafka.KafkaException as error:
                if _code(error) == _NO_GROUP:
                    return ()
                raise
            return tuple(
                f"{member.client_id}@{member.host.lstrip('/')}" for member in description.members
            )

        return self._retry(f"list the members of group {group!r}", ask)

    def refuse_live(self, group: str) -> None:
        """Raise CommitConflictError with the names of the live members if the group has any."""
        members = self.members(group)
        if members:
            plural = "" if len(members) == 1 else "s"
            raise _live_members_error(
                group, f"{len(members)} live member{plural} ({', '.join(members[:5])})"
            )

    def commit(self, group: str, offsets: Iterable[object]) -> dict[Partition, int]:
        """Commit offsets for a consumer group without members; return its previous offsets.

        The commit is atomic as far as Kafka allows. The offsets are sent in one request, which the
        broker refuses as a whole if the group has members. If it refuses single partitions, the
        others get their previous offsets back. A partition without a previous offset keeps the new
        one, and the message names it. Finally the offsets are read back. The call is idempotent.

        Raises CommitConflictError if the group has members or somebody else commits for it,
        StorageError if Kafka rejects an offset, or as :meth:`topics` does.
        """
        wanted = {
            (source_offset.topic, source_offset.partition): source_offset.offset
            for source_offset in source_offsets(offsets)
        }
        self.refuse_live(group)
        before = self.committed(group)
        if not wanted:
            return before
        failed = self._alter(group, wanted)
        if failed:
            raise self._roll_back(group, wanted, before, failed)
        stored = self.committed(group)
        other = sorted(key for key, offset in wanted.items() if stored.get(key) != offset)
        if other:
            raise CommitConflictError(
                f"another client commits offsets for group {group!r}: {_listed(other)} have other "
                "offsets than those just committed; stop the group's consumers, and commit again"
            )
        return before

    def _topics(self, names: list[str], left: float) -> dict[str, LiveTopic]:
        end = time.monotonic() + left
        described: dict[str, tuple[str | None, list[int]]] = {}
        request = self._kafka.TopicCollection(names)
        for name, answer in self._client.describe_topics(request, request_timeout=left).items():
            try:
                description = answer.result()
            except self._kafka.KafkaException as error:
                if _code(error) not in (_NO_TOPIC, _NO_NAME):
                    raise
                continue
            described[name] = (
                _topic_id(description.topic_id),
                [partition.id for partition in description.partitions],
            )
        places = [(name, number) for name, (_, numbers) in described.items() for number in numbers]
        low = self._ends(places, self._admin.OffsetSpec.earliest(), _remaining_s(end))
        high = self._ends(places, self._admin.OffsetSpec.latest(), _remaining_s(end))
        return {
            # Retention may move the low offset between the two requests.
            name: LiveTopic(name, known, {n: _range(low[name, n], high[name, n]) for n in numbers})
            for name, (known, numbers) in described.items()
        }

    def _read(
        self,
        places: Mapping[Partition, int],
        action: str,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[Any]:
        """Yield the messages of partitions from offsets on, and an error at the end of each."""
        if not places:
            return
        with closing(self._kafka.Consumer({**self._settings, **_READER, **settings})) as consumer:
            consumer.assign(
                [self._kafka.TopicPartition(*place, offset) for place, offset in places.items()]
            )
            end = time.monotonic() + self._seconds
            while True:
                message = consumer.poll(_remaining_s(end))
                problem = self._timed_out() if message is None else message.error()
                if problem is None or problem.name() == _END_OF_PARTITION:
                    yield message
                    end = time.monotonic() + self._seconds
                elif problem.name() not in _PASSING or time.monotonic() >= end:
                    error = self._kafka.KafkaException(problem)
                    raise self._unreachable_error(action, error) from error

    def _timed_out(self) -> Any:
        return self._kafka.KafkaError(self._kafka.KafkaError._TIMED_OUT)

    def _ends(self, places: list[Partition], spec: Any, left: float) -> dict[Partition, int]:
        request = {self._kafka.TopicPartition(*place): spec for place in places}
        if not request:
            return {}
        answers = self._client.list_offsets(request, request_timeout=left)
        return {
            (place.topic, place.partition): answer.result().offset
            for place, answer in answers.items()
        }

    def _alter(self, group: str, wanted: Mapping[Partition, int]) -> dict[Partition, str]:
        """Commit offsets; return the error of each partition that Kafka rejects."""
        places = [self._kafka.TopicPartition(*place, offset) for place, offset in wanted.items()]
        request = [self._kafka.ConsumerGroupTopicPartitions(group, places)]

        def ask(left: float) -> dict[Partition, str]:
            answers = self._client.alter_consumer_group_offsets(request, request_timeout=left)
            refused = [
                topic_partition
                for topic_partition in answers[group].result().topic_partitions
                if topic_partition.error
            ]
            codes = {each.error.name() for each in refused}
            for code in _LIVE_GROUP:
                if code in codes:
                    raise _live_members_error(group, "live members")
            for each in refused:
                # An unknown topic is usually transient, but the caller has just seen that it
                # exists.
                if each.error.name() in _PASSING and each.error.name() != _NO_TOPIC:
                    raise self._kafka.KafkaException(each.error)
            return {(each.topic, each.partition): each.error.str() for each in refused}

        action = f"confirm the offsets of group {group!r}, which it may have stored"
        return self._retry(action, ask)

    def _roll_back(
        self,
        group: str,
        wanted: Mapping[Partition, int],
        before: Mapping[Partition, int],
        failed: Mapping[Partition, str],
    ) -> StorageError:
        committed = sorted(wanted.keys() - failed.keys())
        back = {place: before[place] for place in committed if place in before}
        stay = [place for place in committed if place not in before]
        still = sorted(self._alter(group, back)) if back else []
        why = ", ".join(sorted(set(failed.values())))
        message = (
            f"Kafka at {self.bootstrap} rejected the offsets of {_listed(sorted(failed))} for "
            f"group {group!r} ({why}); the others were reset to their previous offsets"
        )
        if stay or still:
            message += f", except {_listed(sorted([*stay, *still]))}, which keep the new offset"
        return StorageError(message)

    def _retry(self, action: str, ask: Callable[[float], R]) -> R:
        """Call ``ask`` until it succeeds; retry transient errors until the time limit.

        ``ask`` gets the remaining seconds.
        """
        end = time.monotonic() + self._seconds
        while True:
            try:
                return ask(_remaining_s(end))
            except self._kafka.KafkaException as error:
                if _code(error) not in _PASSING or time.monotonic() + _PAUSE >= end:
                    raise self._unreachable_error(action, error) from error
            time.sleep(_PAUSE)

    def _unreachable_error(self, action: str, error: BaseException) -> StorageError:
        self._client.poll(0)  # delivers pending connection errors to _note
        why = f" ({self._last_error})" if self._last_error else ""
        return StorageError(
            f"Kafka at {self.bootstrap} did not {action}: {_error_text(error)}{why}; "
            "check that it is running and can be reached from here"
        )

    def _note(self, error: Any) -> None:
        self._last_error = error.str()


def _live_members_error(group: str, members: str) -> CommitConflictError:
    return CommitConflictError(
        f"group {group!r} has {members}, which would overwrite or ignore the committed "
        "offsets; stop its consumers, and commit again"
    )


def _remaining_s(end: float) -> float:
    """Return the remaining seconds, at least 0.1: librdkafka requires a positive timeout."""
    return max(end - time.monotonic(), 0.1)


def _range(low: int, high: int) -> LiveRange:
    return LiveRange(low, max(low, high))


def _topic_id(topic_id: Any) -> str | None:
    text = str(topic_id).translate(_LETTERS)
    return None if topic_id is None or text == _NO_ID else text


def _code(error: BaseException) -> str:
    name = getattr(error.args[0], "name", None) if error.args else None
    return str(name()) if callable(name) else ""


def _error_text(error: BaseException) -> str:
    text = getattr(error.args[0], "str", None) if error.args else None
    return str(text()) if callable(text) else str(error)


def _listed(places: list[Partition]) -> str:
    named = ", ".join(f"{topic}-{number}" for topic, number in places[:10])
    return named if len(places) <= 10 else f"{named} and {len(places) - 10} more"
