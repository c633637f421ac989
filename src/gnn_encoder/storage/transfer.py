"""Folders in object stores: a reader gets a complete folder or an error.

Each file is one object, `ADDRESS/NAME`, which other programs can read too. The marker `ADDRESS/.objects.json` has the
size and SHA-256 of every file. The marker says "not complete" before the first file is sent and "complete" after the
last file. A reader compares the digests, so files of two versions are never mixed.

boto3 transfers the files. This module adds the marker, digests and retries (`s3.retried`), because S3 has no folders,
older stores reject boto3's checksums, and boto3 stops retrying after a second. Large files move at boto3's rate; 2,000
files of a few bytes take 12 s to send and 17 s to fetch (Ceph on loopback, two busy cores).

Each public function raises a UserError of one line if the store refuses, is full or cannot be reached.
"""

import errno
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.folder import sha256
from gnn_encoder.errors import Missing, UserError, printable
from gnn_encoder.storage.s3 import Address, client, error_code, retried, store_errors

INDEX = ".objects.json"
FETCHING = ".fetching"
"""Folder inside the target, for files that are still being fetched or not checked yet."""
PART = 16 * 2**20
"""Bytes of a part of a large file."""
AT_ONCE = 10
"""Parallel requests."""
GONE = ("NoSuchKey", "404")
"""Error codes of an object that does not exist."""

Advance = Callable[[int], None]
"""Called with the number of bytes sent or fetched since the last call; negative if a part is retried."""


@dataclass(frozen=True)
class Stored:
    """A stored file. Without a marker `sha256` is empty, and the store's `tag` identifies the version."""

    bytes: int
    sha256: str = ""
    tag: str = ""

    def matches(self, path: Path) -> bool:
        """Whether the file at the path has this size and, if `sha256` is not empty, this digest."""
        return path.is_file() and path.stat().st_size == self.bytes and self.sha256 in ("", sha256(path))


Listing = dict[str, Stored]
"""Name relative to the folder → file."""


def put_folder(folder: Path, uri: str, advance: Advance | None = None) -> None:
    """Sends the files of a folder. A reader gets the old folder, the new folder or an error.

    Deletes files of an earlier `put_folder` to the address. Raises UserError if the address holds other files.
    """
    address = Address.parse(uri)
    if not address.prefix:
        raise UserError(f"{uri} is a whole bucket: name a folder in it")
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {name: path for name, path in paths.items() if name != INDEX and not name.startswith(f"{FETCHING}/")}
    if not files:
        raise UserError(f"{folder} holds no files: name a folder that does (links to folders are not followed)")
    with store_errors(address):
        marker = _read_marker(address)
        if not marker and (others := _listed(address)):
            other = printable(next(iter(others)))
            raise UserError(f"{address} holds {other}, which was not sent from here: name another address")
        before = marker[0] if marker else {}
        # The marker is written first. It names every file of this folder and of the former folder, so that a later
        # `put_folder` can delete leftovers.
        _write_marker(address, {**dict.fromkeys(files, Stored(0)), **before}, complete=False)
        sent: Listing = {}
        retried(lambda: _send(address, files, sent, advance))
        retried(lambda: _delete(address, before.keys() - files.keys()))
        retried(lambda: _write_marker(address, sent, complete=True))


def list_folder(uri: str, *, indexed: bool = True) -> Listing:
    """Returns the files of a complete folder; raises `Missing` if the folder is empty.

    Args:
        indexed: refuse a folder without a marker, because without a marker only sizes can be checked.
    """
    address = Address.parse(uri)
    with store_errors(address):
        marker = _read_marker(address)
        listing, complete = marker or (_listed(address), not indexed)
    if not listing:
        raise Missing(f"{address} holds nothing: check the address")
    if not complete:
        state = "was being sent and is not complete" if marker else "has no index"
        raise UserError(f"{address} {state}: run what writes it again")
    return listing


def get_folder(uri: str, folder: Path, advance: Advance | None = None, *, indexed: bool = True) -> None:
    """Fetches the files at an address into `folder`; see `list_folder` and `fetch_files`."""
    fetch_files(uri, list_folder(uri, indexed=indexed), folder, advance)


def fetch_files(uri: str, listing: Listing, folder: Path, advance: Advance | None = None) -> None:
    """Fetches the listed files into `folder`. Files with the right digest are not fetched again.

    Raises UserError if the folder holds unlisted files or a fetched file differs from the listing.
    """
    address = Address.parse(uri)
    folder.mkdir(parents=True, exist_ok=True)
    for name in listing:
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{address}: {name!r} is outside the folder: somebody tampered with its index")
    shutil.rmtree(folder / FETCHING, ignore_errors=True)  # left by a killed process
    present = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    if strange := sorted(name for name in present if name not in listing):
        raise UserError(f"{folder} holds {strange[0]}, which is not at {address}: empty it, or name another folder")
    missing = {name: file for name, file in listing.items() if not (file.sha256 and file.matches(folder / name))}
    with store_errors(address):
        try:
            retried(lambda: _fetch(address, missing, folder, advance))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UserError(f"{error.strerror}: {folder}; free space, then run it again") from None
        except UserError:  # a file differs from the listing
            _check_unchanged(uri, listing)
            raise
        finally:
            shutil.rmtree(folder / FETCHING, ignore_errors=True)
        if not all(file.sha256 for file in listing.values()):
            _check_unchanged(uri, listing)


def file_at(uri: str) -> Stored:
    """Returns the size and the tag of one file; raises `Missing` if it does not exist. No marker is read."""
    from botocore.exceptions import ClientError

    address = Address.parse(uri)
    with store_errors(address):
        try:
            response = client().head_object(Bucket=address.bucket, Key=address.prefix)
        except ClientError as error:
            if error_code(error) not in GONE:
                raise
            raise Missing(f"{address} does not exist: check the address") from None
    return Stored(response["ContentLength"], tag=response["ETag"].strip('"'))


def get_file(uri: str, listing: Listing, folder: Path, advance: Advance | None = None) -> None:
    """Fetches the one listed file, whose address is `uri`, into `folder`.

    Raises UserError if the file at the address is another one before or after.
    """
    parent = Address.parse(uri.rpartition("/")[0])
    with store_errors(parent):
        retried(lambda: _fetch(parent, dict(listing), folder, advance))
    if [file_at(uri)] != list(listing.values()):
        raise UserError(f"{uri} was replaced while it was read: read it again")


def put_files(files: Mapping[str, Path], uri: str) -> None:
    """Sends files (name → path) to an address without a marker. Each file becomes visible only when complete."""
    address, sent = Address.parse(uri), Listing()
    with store_errors(address):
        retried(lambda: _send(address, files, sent, None, hashed=False))


def remove_files(names: Iterable[str], uri: str) -> None:
    """Deletes files, by name, at an address without a marker."""
    address = Address.parse(uri)
    with store_errors(address):
        retried(lambda: _delete(address, names))


def remove_folder(uri: str) -> None:
    """Deletes the files that `put_folder` sent to an address, and the marker last."""
    address = Address.parse(uri)
    with store_errors(address):
        names = (_read_marker(address) or ({}, True))[0]
        retried(lambda: _delete(address, names))
        retried(lambda: _delete(address, (INDEX,)))


def has_former_versions(uri: str) -> bool:
    """Whether the bucket keeps replaced or deleted objects below an address; raises UserError if it does not say."""
    address = Address.parse(uri)
    with store_errors(address):
        return any(not version["IsLatest"] for version in _pages("list_object_versions", address, "Versions"))


def folders_below(uri: str) -> list[str]:
    """Returns the names of the folders directly below an address."""
    address = Address.parse(uri)
    with store_errors(address):
        prefixes = [item["Prefix"] for item in _pages("list_objects_v2", address, "CommonPrefixes", Delimiter="/")]
    return [prefix.removeprefix(address.key("")).rstrip("/") for prefix in prefixes]


def _read_marker(address: Address) -> tuple[Listing, bool] | None:
    """Returns the marker's files and whether the folder is complete; None without a marker."""
    from botocore.exceptions import ClientError

    try:
        body = client().get_object(Bucket=address.bucket, Key=address.key(INDEX))["Body"].read()
    except ClientError as error:
        if error_code(error) in GONE:
            return None
        raise
    try:
        content = json.loads(body)
        return {name: Stored(**file) for name, file in content["files"].items()}, bool(content["complete"])
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{address}/{INDEX} is corrupt: delete it and send the folder again") from None


def _write_marker(address: Address, files: Listing, *, complete: bool) -> None:
    content = {"complete": complete, "files": {name: asdict(file) for name, file in files.items()}}
    body = json.dumps(content, indent=1).encode()
    client().put_object(Bucket=address.bucket, Key=address.key(INDEX), Body=body)


def _listed(address: Address) -> Listing:
    """The objects below an address, without the marker."""
    objects = {
        item["Key"].removeprefix(address.key("")): Stored(item["Size"], tag=item["ETag"].strip('"'))
        for item in _pages("list_objects_v2", address, "Contents")
    }
    return {name: file for name, file in objects.items() if name not in ("", INDEX) and not name.endswith("/")}


def _pages(operation: str, address: Address, field: str, **options: str) -> Iterator[dict[str, Any]]:
    """The items of all pages of a listing below an address."""
    pages = client().get_paginator(operation).paginate(Bucket=address.bucket, Prefix=address.key(""), **options)
    return (item for page in pages for item in page.get(field, []))


@contextmanager
def _transfers(advance: Advance | None) -> Iterator[tuple[Any, dict[str, Any]]]:
    """boto3's transfer manager and the options of each transfer; an exception in the block ends all transfers."""
    from boto3.s3.transfer import ProgressCallbackInvoker, TransferConfig, create_transfer_manager

    config = TransferConfig(
        multipart_threshold=PART,
        multipart_chunksize=PART,
        max_concurrency=AT_ONCE,
        preferred_transfer_client="classic",  # the CRT client ignores settings of the client
    )
    with create_transfer_manager(client(), config) as manager:
        yield manager, {"subscribers": [ProgressCallbackInvoker(advance)] if advance else []}


def _send(
    address: Address, files: Mapping[str, Path], sent: Listing, advance: Advance | None, *, hashed: bool = True
) -> None:
    """Sends the files that are not in `sent`; adds each file to `sent` when the store has it.

    Args:
        hashed: with its digest, which takes 0.6 s of processor time a GB.
    """
    # Unfinished multipart uploads of earlier attempts are aborted: they take space and are not listed.
    for upload in _pages("list_multipart_uploads", address, "Uploads"):
        client().abort_multipart_upload(Bucket=address.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    with _transfers(advance) as (manager, options):
        futures = {
            name: manager.upload(str(path), address.bucket, address.key(name), **options)
            for name, path in files.items()
            if name not in sent
        }
        for name, future in futures.items():
            # Hashing overlaps with sending in the manager's threads: both take about equal time.
            file = Stored(files[name].stat().st_size, sha256(files[name]) if hashed else "")
            future.result()
            sent[name] = file


def _delete(address: Address, names: Iterable[str]) -> None:
    with _transfers(None) as (manager, _):
        for future in [manager.delete(address.bucket, address.key(name)) for name in names]:
            future.result()


def _check_unchanged(uri: str, listing: Listing) -> None:
    now = list_folder(uri, indexed=False)
    if any(now.get(name) != file for name, file in listing.items()):
        raise UserError(f"{Address.parse(uri)} was replaced while it was read: read it again")


def _fetch(address: Address, missing: Listing, folder: Path, advance: Advance | None) -> None:
    """Fetches the missing files; removes each file from `missing` when it is checked and in the folder."""
    from botocore.exceptions import ClientError
    from s3transfer.exceptions import S3DownloadFailedError

    with _transfers(advance) as (manager, options):
        futures = {}
        for name in missing:
            arriving = folder / FETCHING / name
            arriving.parent.mkdir(parents=True, exist_ok=True)
            futures[name] = manager.download(address.bucket, address.key(name), str(arriving), **options)
        for name, future in futures.items():
            try:
                future.result()
            except (ClientError, S3DownloadFailedError) as error:  # S3DownloadFailedError: replaced between two parts
                if isinstance(error, ClientError) and error_code(error) not in GONE:
                    raise
            arrived, target = folder / FETCHING / name, folder / name
            if not missing[name].matches(arrived):
                raise UserError(f"{address}/{printable(name)} is corrupt: it is not what was sent; write it again")
            target.parent.mkdir(parents=True, exist_ok=True)
            arrived.replace(target)
            del missing[name]
