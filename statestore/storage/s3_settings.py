"""s3fs's options for a bucket, converted to options of Hadoop's ``s3a`` for Spark's own access.

The settings contain secrets. They go into the Hadoop configuration of a running Spark, for this
bucket only. They never go into Spark's own configuration, which is displayed, logged and listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

__all__ = ["delta_settings", "named_endpoint", "s3a_settings"]


_HADOOP = "org.apache.hadoop.fs.s3a"


def s3a_settings(bucket: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of ``s3a`` for a bucket that the options specify."""
    client = options.get("client_kwargs") or {}
    settings = _credentials(options)
    endpoint = named_endpoint(options)
    if endpoint:
        settings["endpoint"] = endpoint
        settings["connection.ssl.enabled"] = str(urlsplit(endpoint).scheme != "http").lower()
        # Most servers other than Amazon's support buckets only in the path.
        settings["path.style.access"] = "true"
    region = client.get("region_name")
    if region or endpoint:
        settings["endpoint.region"] = str(region or "us-east-1")
    return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}


def named_endpoint(options: Mapping[str, Any]) -> str | None:
    """Return the server that the options name; None for Amazon's."""
    client = options.get("client_kwargs") or {}
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    return str(endpoint) if endpoint else None


def _credentials(options: Mapping[str, Any]) -> dict[str, str]:
    """Return credentials and their provider, so that keys of the environment are not used."""
    if options.get("anon"):
        return {"aws.credentials.provider": f"{_HADOOP}.AnonymousAWSCredentialsProvider"}
    key = options.get("key") or options.get("username")
    secret = options.get("secret") or options.get("password")
    if not (key and secret):
        provider = f"{_HADOOP}.auth.ProfileAWSCredentialsProvider"
        name = options.get("profile")
        return {"aws.credentials.provider": provider, "auth.profile.name": name} if name else {}
    settings = {"access.key": str(key), "secret.key": str(secret)}
    if options.get("token"):
        settings["session.token"] = str(options["token"])
        settings["aws.credentials.provider"] = f"{_HADOOP}.TemporaryAWSCredentialsProvider"
    else:
        settings["aws.credentials.provider"] = f"{_HADOOP}.SimpleAWSCredentialsProvider"
    return settings


_GIVEN = (("key", "username"), ("secret", "password"), ("token", "token"))


def delta_settings(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of delta-rs's object store, which also commits by a conditional put.

    Credentials come from the same places as in s3fs: the options, a profile, the environment, a
    role.
    """
    import botocore.session  # a dependency of s3fs

    client = options.get("client_kwargs") or {}
    session = botocore.session.Session(profile=options.get("profile"))
    endpoint = named_endpoint(options)
    region = client.get("region_name") or session.get_config_variable("region") or "us-east-1"
    settings = {"aws_conditional_put": "etag", "aws_region": str(region)}
    if endpoint:
        settings["aws_endpoint_url"] = endpoint
        settings["aws_allow_http"] = str(urlsplit(endpoint).scheme == "http").lower()
    if options.get("anon"):
        return settings | {"aws_skip_signature": "true"}
    keys = [options.get(name) or options.get(other) for name, other in _GIVEN]
    if not (keys[0] and keys[1]) and (credentials := session.get_credentials()) is not None:
        keys = [*credentials.get_frozen_credentials()]
    named = zip(("access_key_id", "secret_access_key", "session_token"), keys, strict=False)
    return settings | {f"aws_{name}": str(value) for name, value in named if value}
