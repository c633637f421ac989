"""Folders in object stores: a reader finds a complete folder or refuses it.

Each file is an object of its own, `ADDRESS/NAME`, which other programs can read too. The marker `ADDRESS/.objects.json`
has every file's size and SHA-256. It says "not complete" before the first file is sent and "complete" after the last
one. A file of another version has another digest, so a reader never mixes two versions.

boto3's transfer manager moves the bytes. The marker, the digests and the waiting (`s3.patiently`) are our own: S3 has
no folders, older stores refuse its checksums, and boto3 gives up within a second. Large files move at boto3's rate;
2,000 files of a few bytes take 12 s to send and 17 s to fetch (Ceph on loopback, two busy cores).
"""

import errno
import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.folder import sha256
from gnn_encoder.errors import Missing, UserError
from gnn_encoder.storage.s3 import Address, client, error_code, patiently, telling

INDEX = ".objects.json"
FETCHING = ".fetching"
"""Folder inside the target, for files that have not arrived or are not checked yet."""
PART = 16 * 2**20
"""Bytes of a part of a large file."""
AT_ONCE = 10
"""Requests under way together."""
GONE = ("NoSuchKey", "404")
"""Error codes of an object that is not there."""

Advance = Callable[[int], None]
"""Called with the number of bytes sent or fetched since the last call; negative where a part begins anew."""


@dataclass(frozen=True)
class Stored:
    """A file in a store. Without a marker there is no digest, and the store's own tag tells two versions apart."""

    bytes: int
    sha256: str = ""
    tag: str = ""
    pack: str = ""
    """The object that holds this file among others, at `offset`: earlier versions of this program packed files."""
    offset: int = 0


Listing = dict[str, Stored]
"""Name below the folder → file."""


def put_folder(folder: Path, uri: str, advance: Advance | None = None) -> None:
    """Send a folder's files. A reader sees the former folder at the address, nothing, or the new one.

    Files that this program sent there before are removed; a place that holds anything else is refused.

    Raises:
        UserError: there is nothing to send, something else is there, the store refuses, is full or cannot be reached.
    """
    address = Address.parse(uri)
    if not address.prefix:
        raise UserError(f"{uri} is a whole bucket: name a folder in it")
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    files = {path.relative_to(folder).as_posix(): path for path in paths}
    files = {name: path for name, path in files.items() if name != INDEX and not name.startswith(f"{FETCHING}/")}
    if not files:
        raise UserError(f"{folder} holds no files: name a folder that does (links to folders are not followed)")
    with telling(address):
        marker = _read_marker(address)
        before = marker[0] if marker else {}
        if not marker and (others := _listed(address)):
            raise UserError(f"{address} holds {next(iter(others))}, which was not sent from here: name another address")
        # Before anything is sent, the marker names all that may lie there: whoever sends next can remove it.
        _write_marker(address, {**dict.fromkeys(files, Stored(0)), **before}, complete=False)
        sent: Listing = {}
        patiently(lambda: _send(address, files, sent, advance))
        patiently(lambda: _delete(address, {file.pack or name for name, file in before.items()} - files.keys()))
        patiently(lambda: _write_marker(address, sent, complete=True))


def get_folder(uri: str, folder: Path, advance: Advance | None = None, *, indexed: bool = True) -> None:
    """Fetch a folder's files; files that are there already with the right digest are kept.

    Args:
        indexed: refuse a folder without a marker. Without one only sizes can be checked.

    Raises:
        UserError: there is no complete folder, what arrives is not what was sent, or `folder` holds something else.
    """
    _fetch_folder(Address.parse(uri), list_folder(uri, indexed=indexed), folder, advance)


def cached_folder(uri: str, cache: Path, advance: Advance | None = None, *, indexed: bool = True) -> Path:
    """A folder on this machine with the files that are at the address now; each version is fetched once.

    Raises:
        UserError: as `get_folder`.
    """
    listing = list_folder(uri, indexed=indexed)
    facts = {name: asdict(file) for name, file in sorted(listing.items())}
    version = hashlib.sha256(json.dumps([uri, facts]).encode()).hexdigest()[:32]
    target = cache / version
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process fetches; the others wait and find the folder
        if not target.is_dir():
            begun = cache / f".{version}.partial"
            _fetch_folder(Address.parse(uri), listing, begun, advance)
            begun.replace(target)
    return target


def list_folder(uri: str, *, indexed: bool = True) -> Listing:
    """The files of a folder.

    Raises:
        Missing: nothing is there.
        UserError: the folder is not complete, or it has no marker and `indexed` demands one.
    """
    address = Address.parse(uri)
    with telling(address):
        marker = _read_marker(address)
        listing, complete = marker or (_listed(address), not indexed)
    if not listing:
        raise Missing(f"{address} holds nothing: check the address")
    if not complete:
        what = "was being sent and is not complete" if marker else "has no index"
        raise UserError(f"{address} {what}: run what writes it again")
    return listing


def versions(uri: str) -> dict[str, bool]:
    """Names of the folders below an address that were sent from here, in order → whether each is complete.

    Raises:
        UserError: the store cannot be used.
    """
    address = Address.parse(uri)
    with telling(address):
        prefixes = _pages("list_objects_v2", address, "CommonPrefixes", Delimiter="/")
        names = [each["Prefix"].removeprefix(address.key("")).rstrip("/") for each in prefixes]
        markers = {name: _read_marker(Address.parse(f"{uri}/{name}")) for name in sorted(names)}
    return {name: marker[1] for name, marker in markers.items() if marker}


def remove_folder(uri: str) -> None:
    """Remove a folder that was sent from here. Until all is removed, its marker says that it is not complete.

    Raises:
        UserError: it has no marker, or the store cannot be used.
    """
    address = Address.parse(uri)
    with telling(address):
        if (marker := _read_marker(address)) is None:
            raise UserError(f"{uri} was not sent from here: remove it yourself")
        patiently(lambda: _write_marker(address, marker[0], complete=False))
        patiently(lambda: _delete(address, _listed(address)))
        patiently(lambda: _delete(address, [INDEX]))


def _read_marker(address: Address) -> tuple[Listing, bool] | None:
    """The files that the marker names and whether the folder is complete; None without a marker."""
    from botocore.exceptions import ClientError

    try:
        body = client().get_object(Bucket=address.bucket, Key=address.key(INDEX))["Body"].read()
    except ClientError as error:
        if error_code(error) in GONE:
            return None
        raise
    try:
        content = json.loads(body)
        return {name: Stored(**facts) for name, facts in content["files"].items()}, bool(content["complete"])
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{address}/{INDEX} is corrupt: delete it and send the folder again") from None


def _write_marker(address: Address, files: Listing, *, complete: bool) -> None:
    content = {"complete": complete, "files": {name: asdict(file) for name, file in files.items()}}
    body = json.dumps(content, indent=1).encode()
    client().put_object(Bucket=address.bucket, Key=address.key(INDEX), Body=body)


def _listed(address: Address) -> Listing:
    """The objects below an address, without the marker."""
    found = {
        item["Key"].removeprefix(address.key("")): Stored(item["Size"], tag=item["ETag"].strip('"'))
        for item in _pages("list_objects_v2", address, "Contents")
    }
    return {name: file for name, file in found.items() if name not in ("", INDEX) and not name.endswith("/")}


def _pages(operation: str, address: Address, field: str, **options: str) -> Iterator[dict[str, Any]]:
    """The items of all pages of a listing below an address."""
    pages = client().get_paginator(operation).paginate(Bucket=address.bucket, Prefix=address.key(""), **options)
    return (item for page in pages for item in page.get(field, []))


def _abort_uploads(address: Address) -> None:
    """Remove uploads in parts that an earlier attempt left: they cost space, and no listing of objects shows them."""
    for upload in _pages("list_multipart_uploads", address, "Uploads"):
        client().abort_multipart_upload(Bucket=address.bucket, Key=upload["Key"], UploadId=upload["UploadId"])


@contextmanager
def _transfers(advance: Advance | None) -> Iterator[tuple[Any, dict[str, Any]]]:
    """boto3's transfer manager and the options of each transfer; an exception in the block ends all transfers."""
    from boto3.s3.transfer import ProgressCallbackInvoker, TransferConfig, create_transfer_manager

    config = TransferConfig(
        multipart_threshold=PART,
        multipart_chunksize=PART,
        max_concurrency=AT_ONCE,
        preferred_transfer_client="classic",  # the other kind ignores settings of the client
    )
    with create_transfer_manager(client(), config) as manager:
        yield manager, {"subscribers": [ProgressCallbackInvoker(advance)] if advance else []}


def _send(address: Address, files: Mapping[str, Path], sent: Listing, advance: Advance | None) -> None:
    """Send the files that are not in `sent`; each is added to it when the store has it."""
    _abort_uploads(address)
    with _transfers(advance) as (manager, options):
        futures = {
            name: manager.upload(str(path), address.bucket, address.key(name), **options)
            for name, path in files.items()
            if name not in sent
        }
        for name, future in futures.items():
            # Hashed here while the manager's threads send: for a large file either takes about as long.
            file = Stored(files[name].stat().st_size, sha256(files[name]))
            future.result()
            sent[name] = file


def _delete(address: Address, names: Iterable[str]) -> None:
    with _transfers(None) as (manager, _):
        for future in [manager.delete(address.bucket, address.key(name)) for name in names]:
            future.result()


def _fetch_folder(address: Address, listing: Listing, folder: Path, advance: Advance | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in listing:
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{address}: {name!r} lies outside the folder: somebody tampered with its index")
    shutil.rmtree(folder / FETCHING, ignore_errors=True)  # of a killed process
    here = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    if strange := sorted(name for name in here if name not in listing):
        raise UserError(f"{folder} holds {strange[0]}, which is not at {address}: empty it, or name another folder")
    missing = {n: file for n, file in listing.items() if not (file.sha256 and _matches(folder / n, file))}
    with telling(address):
        try:
            patiently(lambda: _fetch(address, missing, folder, advance))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UserError(f"{error.strerror}: {folder}; free space, then run it again") from None
        except UserError:  # a file is not as listed
            _check_unchanged(address, listing)
            raise
        finally:
            shutil.rmtree(folder / FETCHING, ignore_errors=True)
        if not all(file.sha256 for file in listing.values()):
            _check_unchanged(address, listing)


def _check_unchanged(address: Address, listing: Listing) -> None:
    """Refuse what was fetched, if other files are at the address now."""
    if list_folder(str(address), indexed=False) != listing:
        raise UserError(f"{address} was replaced while it was read: read it again")


def _matches(path: Path, file: Stored) -> bool:
    return path.is_file() and path.stat().st_size == file.bytes and file.sha256 in ("", sha256(path))


def _fetch(address: Address, missing: Listing, folder: Path, advance: Advance | None) -> None:
    """Fetch the missing files; each is taken out of `missing` when it is in the folder.

    Raises:
        UserError: an object is not what the listing says.
    """
    from botocore.exceptions import ClientError
    from s3transfer.exceptions import S3DownloadFailedError

    with _transfers(advance) as (manager, options):
        futures = {}
        for name, file in missing.items():
            arriving = folder / FETCHING / name
            arriving.parent.mkdir(parents=True, exist_ok=True)
            if file.pack:
                arriving.write_bytes(_packed(address, file))
            else:
                futures[name] = manager.download(address.bucket, address.key(name), str(arriving), **options)
        for name, file in list(missing.items()):
            try:
                if name in futures:
                    futures[name].result()
            except (ClientError, S3DownloadFailedError) as error:  # the latter: replaced between two of its parts
                if isinstance(error, ClientError) and error_code(error) not in GONE:
                    raise
            arrived, target = folder / FETCHING / name, folder / name
            if not _matches(arrived, file):
                raise UserError(f"{address}/{name} is corrupt: it is not what was sent; write it again")
            target.parent.mkdir(parents=True, exist_ok=True)
            arrived.replace(target)
            del missing[name]


def _packed(address: Address, file: Stored) -> bytes:
    if not file.bytes:
        return b""
    place = f"bytes={file.offset}-{file.offset + file.bytes - 1}"
    content: bytes = client().get_object(Bucket=address.bucket, Key=address.key(file.pack), Range=place)["Body"].read()
    return content
