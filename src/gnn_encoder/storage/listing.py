"""What a folder in an object store consists of: its index, `.objects.json`, or what lies there without one."""

import json
from dataclasses import asdict, dataclass

from gnn_encoder.errors import Missing, UserError
from gnn_encoder.storage.s3 import Address, client, error_code, telling

INDEX = ".objects.json"


@dataclass(frozen=True)
class Stored:
    """A file in a store. Without a digest, which only an index has, it is told by the store's own tag."""

    bytes: int
    sha256: str = ""
    tag: str = ""
    pack: str = ""
    """The object that it is in with others, and where; empty: it is an object of its own."""
    offset: int = 0


Listing = dict[str, Stored]
"""Name below the folder → file."""


@dataclass(frozen=True)
class Index:
    """What a folder in a store consists of, and whether all of it is there."""

    files: Listing
    complete: bool


def list_folder(uri: str, *, indexed: bool = True) -> Listing:
    """The files of a folder.

    Raises:
        Missing: there is nothing.
        UserError: it is not complete, or `indexed` and it has no index.
    """
    address = Address.parse(uri)
    with telling(address):
        index = read_index(address)
        listing = index.files if index else listed(address)
    if not listing:
        raise Missing(f"{address} holds nothing: check the address")
    if (index and not index.complete) or (indexed and not index):
        what = "was being sent and is not complete" if index else "has no index"
        raise UserError(f"{address} {what}: run what writes it again")
    return listing


def read_index(address: Address) -> Index | None:
    """The index at an address, None where there is none."""
    from botocore.exceptions import ClientError

    try:
        body = client().get_object(Bucket=address.bucket, Key=address.key(INDEX))["Body"].read()
    except ClientError as error:
        if error_code(error) in ("NoSuchKey", "404"):
            return None
        raise
    try:
        told = json.loads(body)
        return Index({name: Stored(**facts) for name, facts in told["files"].items()}, told["complete"])
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{address}/{INDEX} is corrupt: delete it and send the folder again") from None


def write_index(address: Address, files: Listing, *, complete: bool = True) -> None:
    """Write the index of these files."""
    told = {"complete": complete, "files": {name: asdict(file) for name, file in files.items()}}
    body = json.dumps(told, indent=1).encode()
    client().put_object(Bucket=address.bucket, Key=address.key(INDEX), Body=body)


def sent_before(address: Address) -> Listing:
    """What this program sent to that address before, finished or not.

    Raises:
        UserError: something else lies there.
    """
    if index := read_index(address):
        return index.files
    if others := listed(address):
        raise UserError(f"{address} holds {next(iter(others))}, which was not sent from here: name another address")
    return {}


def listed(address: Address) -> Listing:
    """What lies below an address, index or not."""
    pages = client().get_paginator("list_objects_v2").paginate(Bucket=address.bucket, Prefix=address.key(""))
    found = {
        item["Key"].removeprefix(address.key("")): Stored(item["Size"], tag=item["ETag"].strip('"'))
        for page in pages
        for item in page.get("Contents", [])
    }
    return {name: file for name, file in found.items() if name not in ("", INDEX) and not name.endswith("/")}
