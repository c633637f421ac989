"""Folders in object stores: sent whole, and read only when they are whole.

A folder's index, `.objects.json`, has every file's size and SHA-256. It says that the folder is not complete before
anything is sent, and that it is when all is there, so a reader finds a complete folder or none. Files are sent and
fetched side by side, large ones in parts and many small ones in packs; what is fetched is hashed as it arrives, and
goes on after an interruption where it was.
"""

import errno
import fcntl
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from gnn_encoder.artifacts.folder import sha256
from gnn_encoder.errors import UserError
from gnn_encoder.storage.listing import INDEX, Listing, Stored, list_folder, sent_before, write_index
from gnn_encoder.storage.packs import by_pack, pack, plan_packs, unpack
from gnn_encoder.storage.s3 import Address, client, error_code, patiently, telling

PARTIAL = ".partial"
PART = 16 * 2**20
"""Bytes of a part of a large file."""
AT_ONCE = 10
"""Files, or parts of one, under way together."""

Advance = Callable[[int], None]
"""Told how many more bytes have been sent or fetched."""


def put_folder(folder: Path, uri: str, advance: Advance | None = None) -> None:
    """Send a folder's files; a reader sees the former folder at that address, nothing, or this one.

    What this program sent there before goes, finished or not; a place with anything else in it is left alone.

    Raises:
        UserError: there is nothing to send, something else is there, the store refuses, is full or cannot be reached.
    """
    address = Address.parse(uri)
    if not address.prefix:
        raise UserError(f"{uri} is a whole bucket: name a folder in it")
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files.pop(INDEX, None)
    if not files:
        raise UserError(f"{folder} holds no files: name a folder that does (links to folders are not followed)")
    packs = plan_packs({name: path.stat().st_size for name, path in files.items()})
    packed = {name: Stored(0, pack=each) for each, names in packs.items() for name in names}
    with telling(address), _threads(AT_ONCE) as senders, _threads(2) as hashers:
        before = sent_before(address)
        write_index(address, {**before, **dict.fromkeys(files, Stored(0)), **packed}, complete=False)
        _abort_uploads(address)
        sent = [
            *(
                senders.submit(_send, address, n, path, hashers, advance)
                for n, path in files.items()
                if n not in packed
            ),
            *(
                senders.submit(_send_pack, address, n, {m: files[m] for m in names}, advance)
                for n, names in packs.items()
            ),
        ]
        listing: Listing = {}
        for future in sent:
            listing |= future.result()
        for name in _objects(before) - _objects(listing):
            patiently(partial(client().delete_object, Bucket=address.bucket, Key=address.key(name)))
        patiently(lambda: write_index(address, listing))


def get_folder(uri: str, folder: Path, advance: Advance | None = None, *, indexed: bool = True) -> None:
    """Fetch a folder's files; those that are there already are kept, one that was cut off goes on.

    Args:
        indexed: refuse a folder without an index. Of one that somebody else put there only sizes can be checked.

    Raises:
        UserError: there is no complete folder, what arrives is not what was sent, or `folder` holds something else.
    """
    _fetch_files(Address.parse(uri), list_folder(uri, indexed=indexed), folder, advance)


def cached_folder(uri: str, cache: Path, advance: Advance | None = None, *, indexed: bool = True) -> Path:
    """A folder on this machine with the files that are at the address now; fetched once for each content.

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
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes one fetches, and the others find it done
        if not target.is_dir():
            begun = cache / f".{version}{PARTIAL}"
            _fetch_files(Address.parse(uri), listing, begun, advance)
            begun.replace(target)
    return target


def _fetch_files(address: Address, listing: Listing, folder: Path, advance: Advance | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    here = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    if strange := sorted(name for name in here if name not in listing and not name.endswith(PARTIAL)):
        raise UserError(f"{folder} holds {strange[0]}, which is not at {address}: empty it, or name another folder")
    with telling(address), _telling_of_disk(folder), _threads(AT_ONCE) as fetchers:
        missing = [name for name, file in listing.items() if not _is_there(folder / name, file)]
        packs = by_pack(listing, missing)
        small = [name for name in missing if listing[name].bytes <= PART and not listing[name].pack]
        futures = [fetchers.submit(_fetch, address, name, listing[name], folder, None, advance) for name in small]
        futures += [fetchers.submit(_fetch_pack, address, *each, folder, advance) for each in packs.items()]
        for name in (name for name in missing if listing[name].bytes > PART):
            _fetch(address, name, listing[name], folder, fetchers, advance)
        for future in futures:
            future.result()
    for leftover in folder.rglob(f".*{PARTIAL}"):  # of another content that was fetched in part
        leftover.unlink()


@contextmanager
def _telling_of_disk(folder: Path) -> Iterator[None]:
    """A block whose writing ends, where the disk is full, in a line that names the folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(f"{error.strerror}: {folder}; free space, then it goes on where it was") from None


def _objects(listing: Listing) -> set[str]:
    """Names of the objects that files are in."""
    return {file.pack or name for name, file in listing.items()}


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool that, when something fails, does not begin what waits in it."""
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _send(address: Address, name: str, path: Path, hashers: ThreadPoolExecutor, advance: Advance | None) -> Listing:
    from boto3.s3.transfer import TransferConfig

    size = path.stat().st_size
    # Beside the sending, not before it: hashing a large file takes about as long.
    digest = hashers.submit(sha256, path)
    if size <= PART:
        body = path.read_bytes()
        patiently(lambda: client().put_object(Bucket=address.bucket, Key=address.key(name), Body=body))
        if advance:
            advance(size)
    else:
        parts = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART, max_concurrency=AT_ONCE)
        patiently(
            lambda: client().upload_file(str(path), address.bucket, address.key(name), Config=parts, Callback=advance)
        )
    return {name: Stored(size, digest.result())}


def _send_pack(address: Address, name: str, files: Mapping[str, Path], advance: Advance | None) -> Listing:
    content, listing = pack(name, files)
    patiently(lambda: client().put_object(Bucket=address.bucket, Key=address.key(name), Body=content))
    if advance:
        advance(len(content))
    return listing


def _fetch_pack(address: Address, name: str, files: Listing, folder: Path, advance: Advance | None) -> None:
    for inside in files:
        _check_inside(address, inside, folder)
    end = max(file.offset + file.bytes for file in files.values())
    content = b"".join(_parts(address, name, 0, end, None))
    unpack(content, files, folder)
    if advance:
        advance(sum(file.bytes for file in files.values()))


def _is_there(path: Path, file: Stored) -> bool:
    return bool(file.sha256) and path.is_file() and path.stat().st_size == file.bytes and file.sha256 == sha256(path)


def _check_inside(address: Address, name: str, folder: Path) -> None:
    if not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{address}: {name!r} lies outside the folder: somebody tampered with its index")


def _fetch(
    address: Address,
    name: str,
    file: Stored,
    folder: Path,
    fetchers: ThreadPoolExecutor | None,
    advance: Advance | None,
) -> None:
    _check_inside(address, name, folder)
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_name(f".{target.name}.{(file.sha256 or file.tag)[:20]}{PARTIAL}")
    begun = half.stat().st_size if half.is_file() else 0
    digest = hashlib.sha256()
    with half.open("r+b" if begun else "wb") as out:
        while block := out.read(PART) if begun else b"":
            digest.update(block)
        for block in _parts(address, name, begun, file.bytes, fetchers):
            out.write(block)
            digest.update(block)
            if advance:
                advance(len(block))
    if half.stat().st_size != file.bytes or (file.sha256 and digest.hexdigest() != file.sha256):
        half.unlink()
        raise UserError(f"{address}/{name} is corrupt: it is not what was sent; write it again")
    half.replace(target)


def _parts(address: Address, name: str, begin: int, end: int, fetchers: ThreadPoolExecutor | None) -> Iterator[bytes]:
    """The bytes from `begin` to `end`, in order, a few parts ahead of the reader."""
    ranges = [(start, min(start + PART, end)) for start in range(begin, end, PART)]
    if fetchers is None:
        yield from (_part(address, name, *each) for each in ranges)
        return
    waiting: deque[Future[bytes]] = deque()
    for each in ranges:
        waiting.append(fetchers.submit(_part, address, name, *each))
        if len(waiting) >= AT_ONCE:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _part(address: Address, name: str, begin: int, end: int) -> bytes:
    def read() -> bytes:
        asked = f"bytes={begin}-{end - 1}"
        found = client().get_object(Bucket=address.bucket, Key=address.key(name), Range=asked)
        body: bytes = found["Body"].read()
        return body

    from botocore.exceptions import ClientError

    try:
        found = patiently(read)
    except ClientError as error:
        if error_code(error) != "InvalidRange":
            raise
        found = b""
    if len(found) < end - begin:
        raise UserError(f"{address}/{name} is corrupt: it is shorter than its index says; write it again")
    return found


def _abort_uploads(address: Address) -> None:
    """Uploads in parts that a killed sender never finished: they cost space and nobody sees them."""
    pages = client().get_paginator("list_multipart_uploads").paginate(Bucket=address.bucket, Prefix=address.key(""))
    for upload in (upload for page in pages for upload in page.get("Uploads", [])):
        client().abort_multipart_upload(Bucket=address.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
