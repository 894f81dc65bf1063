"""A bucket in memory that answers the requests of ``S3Storage``.

Each request is a scheduling point. A put may be conditional. An object becomes visible when its
put, or the last request of its upload, is complete. Parts of an unfinished upload remain. Every
effect is visible to all actors immediately, except in listings that are made stale on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, cast

from statestore.storage.s3 import S3Storage
from tests.simulate.scheduler import Event, Scheduler

__all__ = ["Bucket", "SimulatedS3"]

_PART_BYTES = 200  # so that the simulator's data files have several parts


@dataclass(frozen=True)
class Stored:
    """An object."""

    data: bytes
    modified_ms: int
    metadata: dict[str, str]


@dataclass
class Upload:
    """The parts of an object that does not exist yet."""

    key: str
    started_ms: int
    parts: dict[int, bytes] = field(default_factory=dict)


class RefusedError(OSError):
    """An error response of S3, with its own code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}}


class Bucket:
    """All objects, and the supported requests."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Start with an empty bucket."""
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Upload] = {}
        self.changed: Callable[[str], None] = lambda key: None
        self._scheduler = scheduler
        self._count = 0
        self._history: list[tuple[int, str, Stored | None]] = []

    @staticmethod
    def split_path(path: str) -> tuple[str, str, None]:
        """Return bucket, key and version."""
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of an object, or a range of them."""
        key = self.split_path(path)[1]
        event = self._point("read", key)
        if event is not None and event.kind == "fail":
            raise RefusedError("InternalError")
        return self._stored(key).data[start:end]

    def call_s3(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Answer a request."""
        key = arguments.get("Key", arguments.get("Prefix", ""))
        event = self._point(method, key)
        kind = event.kind if event else ""
        if kind == "fail":
            raise RefusedError("InternalError")
        if event is not None and kind == "stale" and method == "list_objects_v2":
            return self._list(self._as_of(event.minutes), **arguments)
        answer = cast(dict[str, Any], getattr(self, f"_{method}")(**arguments))
        if kind == "again":
            answer = cast(dict[str, Any], getattr(self, f"_{method}")(**arguments))
        if kind == "lost":
            raise RefusedError("EndpointConnectionError")
        return answer

    def _put_object(
        self, Key: str, Body: bytes, Metadata: dict[str, str] | None = None, **more: Any
    ) -> dict[str, Any]:
        if more.get("IfNoneMatch") and Key in self.objects:
            raise RefusedError("PreconditionFailed")
        self._set(Key, Stored(bytes(Body), self._scheduler.now_ms, Metadata or {}))
        return {}

    def _head_object(self, Key: str, **more: Any) -> dict[str, Any]:
        stored = self._stored(Key)
        return {"ContentLength": len(stored.data), "Metadata": stored.metadata}

    def _delete_object(self, Key: str, **more: Any) -> dict[str, Any]:
        if Key in self.objects:
            self._set(Key, None)
        return {}

    def _copy_object(self, Key: str, CopySource: Any, **more: Any) -> dict[str, Any]:
        source = CopySource["Key"] if isinstance(CopySource, dict) else CopySource.split("/", 1)[1]
        old = self._stored(source)
        self._set(Key, Stored(old.data, self._scheduler.now_ms, old.metadata))
        return {}

    def _create_multipart_upload(self, Key: str, **more: Any) -> dict[str, Any]:
        self._count += 1
        self.uploads[str(self._count)] = Upload(Key, self._scheduler.now_ms)
        return {"UploadId": str(self._count)}

    def _upload_part(self, UploadId: str, PartNumber: int, Body: bytes, **more: Any) -> Any:
        self._upload(UploadId).parts[PartNumber] = bytes(Body)
        return {"ETag": f"{UploadId}-{PartNumber}"}

    def _complete_multipart_upload(self, UploadId: str, Key: str, **more: Any) -> Any:
        if more.get("IfNoneMatch") and Key in self.objects:
            raise RefusedError("PreconditionFailed")
        upload = self._upload(UploadId)
        del self.uploads[UploadId]
        data = b"".join(part for _, part in sorted(upload.parts.items()))
        self._set(Key, Stored(data, self._scheduler.now_ms, {}))
        return {}

    def _abort_multipart_upload(self, UploadId: str, **more: Any) -> dict[str, Any]:
        self._upload(UploadId)
        del self.uploads[UploadId]
        return {}

    def _list_multipart_uploads(self, Prefix: str = "", **more: Any) -> dict[str, Any]:
        found = [
            {"Key": one.key, "UploadId": upload, "Initiated": _date(one.started_ms)}
            for upload, one in self.uploads.items()
            if one.key.startswith(Prefix)
        ]
        return {"Uploads": found, "IsTruncated": False}

    def _list_objects_v2(self, **arguments: Any) -> dict[str, Any]:
        return self._list(self.objects, **arguments)

    def _list(self, objects: dict[str, Stored], Prefix: str = "", **more: Any) -> dict[str, Any]:
        found = [
            {"Key": key, "Size": len(one.data), "LastModified": _date(one.modified_ms)}
            for key, one in sorted(objects.items())
            if key.startswith(Prefix)
        ]
        return {"Contents": found, "IsTruncated": False}

    def _as_of(self, minutes: int) -> dict[str, Stored]:
        """Return the objects as they were some time ago."""
        objects = dict(self.objects)
        for when_ms, key, before in reversed(self._history):
            if when_ms < self._scheduler.now_ms - minutes * 60_000:
                break
            if before is None:
                objects.pop(key, None)
            else:
                objects[key] = before
        return objects

    def _stored(self, key: str) -> Stored:
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key]

    def _upload(self, number: str) -> Upload:
        if number not in self.uploads:
            raise RefusedError("NoSuchUpload")
        return self.uploads[number]

    def _set(self, key: str, stored: Stored | None) -> None:
        self._history.append((self._scheduler.now_ms, key, self.objects.get(key)))
        if stored is None:
            del self.objects[key]
        else:
            self.objects[key] = stored
        self.changed(key)

    def _point(self, operation: str, key: str) -> Event | None:
        return self._scheduler.point(operation.removesuffix("_object"), key)


class SimulatedS3(S3Storage):
    """A prefix of the bucket."""

    part_bytes: ClassVar[int] = _PART_BYTES

    def __init__(self, prefix: str, bucket: Bucket) -> None:
        """Open no connection."""
        self._prefix, self.url = f"bucket/{prefix}", f"s3://bucket/{prefix}"
        self.streams, self._attempts, self._bucket, self._options = 1, 1, bucket, {}

    @property
    def _fs(self) -> Any:
        return self._bucket


def _date(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)
