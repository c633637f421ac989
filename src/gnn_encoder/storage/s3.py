"""Object stores: where one is, who we are there, and what its errors mean.

An address is `s3://BUCKET/PREFIX`. Credentials, region and endpoint are found where every AWS program looks: the
environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL …), the shared configuration, the role of a machine or a pod.
"""

import functools
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from gnn_encoder.errors import UserError, one_line

Result = TypeVar("Result")

SCHEME = "s3://"
ADDRESSING = "GNN_ENCODER_S3_ADDRESSING"
"""Environment variable: `path` for http://store/bucket/key, `virtual` for http://bucket.store/key, or `auto`."""
AUTHORITIES = "AWS_CA_BUNDLE"
"""Environment variable, every AWS program's: a PEM file of the authorities that may sign the store's certificate."""
CONNECTIONS = 32
ATTEMPTS = 4
"""Of a request, with growing and jittered pauses."""
PATIENCE_SECONDS, LONGEST_PAUSE = 180.0, 10.0
"""How long a transfer that has begun waits for a store that went away, and between two tries."""

CREDENTIALS = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role"
ADVICE = {
    "SignatureDoesNotMatch": f"the store refuses the credentials: {CREDENTIALS}",
    "InvalidAccessKeyId": f"the store does not know the access key: {CREDENTIALS}",
    "AccessDenied": "the store denies access: ask for the right to read and write there",
    "403": f"the store denies access: {CREDENTIALS}",
    "ExpiredToken": "the credentials have expired: renew them",
    "NoSuchBucket": "there is no such bucket: create it, or name another",
    "404": "there is no such bucket or object: check the address",
    "RequestTimeTooSkewed": "this machine's clock differs too much from the store's: set it",
    "QuotaExceeded": "the bucket is full: free space or raise its quota",
    "InsufficientStorage": "the store is full: free space there",
    "507": "the store is full: free space there",
}
"""An error's code → what it means and what to do."""


@dataclass(frozen=True)
class Address:
    """A place in a bucket; `prefix` has no slash at either end, and is empty for the whole bucket."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, uri: str) -> "Address":
        """Of a URI.

        Raises:
            UserError: it names no bucket.
        """
        bucket, _, prefix = uri.removeprefix(SCHEME).partition("/")
        if not uri.startswith(SCHEME) or not bucket:
            raise UserError(f"{uri} is no address in an object store: write {SCHEME}BUCKET/PREFIX")
        return cls(bucket, prefix.strip("/"))

    def key(self, name: str) -> str:
        """The key of a name below it."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}"


def is_remote(path: str) -> bool:
    """Whether that is an address in an object store."""
    return path.startswith(SCHEME)


@functools.cache
def client() -> Any:
    """The process's client; it is safe to share between threads.

    Raises:
        UserError: the environment describes no usable store.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    try:
        config = Config(
            retries={"mode": "standard", "max_attempts": ATTEMPTS},
            s3={"addressing_style": os.environ.get(ADDRESSING) or "auto"},
            max_pool_connections=CONNECTIONS,
            connect_timeout=10,
            # Checksums that newer clients add are refused by older stores; files are verified by SHA-256 here.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return boto3.session.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise UserError(
            f"no object store can be used: {one_line(error)}; check AWS_ENDPOINT_URL, AWS_PROFILE and {ADDRESSING}"
        ) from None


@contextmanager
def telling(address: Address) -> Iterator[None]:
    """A block that talks to a store; what it fails of is told in one line, without secrets.

    Raises:
        UserError: naming the address, what is wrong and what to do.
    """
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except ClientError as error:
        raise UserError(f"{address}: {_meaning(error)}") from None
    except NoCredentialsError:
        raise UserError(f"{address}: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") from None
    except Boto3Error as error:
        cause = error.__cause__ or error.__context__
        words = _meaning(cause) if isinstance(cause, ClientError) else _unreachable(cause or error)
        raise UserError(f"{address}: {words}") from None
    except BotoCoreError as error:
        raise UserError(f"{address}: {_unreachable(error)}") from None


def patiently(call: Callable[[], Result]) -> Result:
    """What the call returns; while the store is away or overloaded it is made again, with growing and jittered pauses.

    For what follows a first answer: a store that was never there is not waited for.
    """
    until, pause = time.monotonic() + PATIENCE_SECONDS, 1.0
    while True:
        try:
            return call()
        except Exception as error:
            if not _passing(error) or time.monotonic() > until:
                raise
        time.sleep(pause * random.random())
        pause = min(2 * pause, LONGEST_PAUSE)


def _passing(error: Exception) -> bool:
    """Whether it may be over in a while: no connection, one that broke off, or the store's own trouble."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError, IncompleteReadError

    cause = error.__cause__ or error.__context__ if isinstance(error, Boto3Error) else error
    if isinstance(cause, ClientError):
        return int(cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) in (500, 502, 503, 504)
    return isinstance(cause, ConnectionError | HTTPClientError | IncompleteReadError)


def error_code(error: Any) -> str:
    """A client error's code; of an answer without a body the HTTP status."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _meaning(error: Any) -> str:
    code = error_code(error)
    status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
    return (
        ADVICE.get(code) or ADVICE.get(status) or f"the store answers {code or status}: try again, or ask who runs it"
    )


def _unreachable(error: BaseException) -> str:
    from botocore.exceptions import ConnectionError, HTTPClientError, SSLError

    if not isinstance(error, ConnectionError | HTTPClientError):
        return f"{one_line(error)}; check the address and the credentials"
    endpoint = one_line(client().meta.endpoint_url)
    if isinstance(error, SSLError):
        return (
            f"no trusted connection to the store at {endpoint} ({one_line(error)}): set {AUTHORITIES} to a PEM file "
            "with the certificate of the authority that signed the store's"
        )
    return f"the store at {endpoint} cannot be reached ({type(error).__name__}): check AWS_ENDPOINT_URL and the network"
