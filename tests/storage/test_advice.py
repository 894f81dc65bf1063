"""What an error of an object store advises, by the code that its server reports."""

from __future__ import annotations

from types import ModuleType

import pytest

from statestore.storage import azure, google, hdfs, s3
from statestore.storage.requests import advice_of

OPTIONS = "check the storage options"
BUSY = "the server is overloaded; try again later"
FAILED = "the server failed; check its log, or try again later"


@pytest.mark.parametrize(
    ("storage", "code", "advice"),
    [
        (s3, "ConditionalRequestConflict", "another put of the same object is in progress"),
        (s3, "NoSuchBucket", "the bucket does not exist; create it"),
        (s3, "ExpiredToken", "the credentials have expired"),
        (s3, "RequestTimeTooSkewed", "the clock of this machine is wrong"),
        (s3, "NotImplemented", "the server lacks an S3 feature"),
        (s3, "SlowDown", BUSY),
        (s3, "502", FAILED),
        (s3, "ParamValidationError", OPTIONS),
        (azure, "ContainerNotFound", "the container does not exist; create it"),
        (azure, "BlobImmutableDueToPolicy", "an immutability policy or a lease"),
        (azure, "PathConflict", "a folder with this name exists"),
        (azure, "InvalidUri", OPTIONS),
        (hdfs, "SafeModeException", "the namenode is in safe mode"),
        (hdfs, "StandbyException", "this namenode is not the active one"),
        (hdfs, "RetriableException", BUSY),
        (hdfs, "IllegalArgumentException", OPTIONS),
        (google, "ValueError", OPTIONS),
    ],
)
def test_a_code_has_its_advice(storage: ModuleType, code: str, advice: str) -> None:
    assert str(advice_of(code, storage._ADVICE)).startswith(advice)


@pytest.mark.parametrize("storage", [s3, azure, hdfs, google])
def test_an_unknown_code_has_none(storage: ModuleType) -> None:
    assert advice_of("Unknown", storage._ADVICE) is None
