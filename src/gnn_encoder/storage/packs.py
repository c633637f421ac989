"""Many small files as a few objects: a request costs client and store some milliseconds, whatever it carries.

A folder with few small files keeps each as an object of its own, which other programs can read.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from gnn_encoder.errors import UserError
from gnn_encoder.storage.listing import Listing, Stored

SMALL = 256 * 2**10
"""Bytes of a file that is worth packing."""
MANY = 100
"""Small files from which on they are packed."""
FULL = 16 * 2**20
"""Bytes of a pack."""
PACK = ".pack-"


def plan_packs(sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """Pack → the files in it, in order; none where there are not many small ones.

    Args:
        sizes: name → bytes.
    """
    small = [name for name, size in sizes.items() if size <= SMALL]
    packs: dict[str, list[str]] = {}
    filled = FULL + 1  # of a pack that is not there yet
    for name in small if len(small) >= MANY else ():
        if filled + sizes[name] > FULL:
            packs[f"{PACK}{len(packs)}"], filled = [], 0
        packs[f"{PACK}{len(packs) - 1}"].append(name)
        filled += sizes[name]
    return packs


def pack(name: str, files: Mapping[str, Path]) -> tuple[bytes, Listing]:
    """The content of a pack of that name, and where in it each file is."""
    content, listing = bytearray(), Listing()
    for file, path in files.items():
        body = path.read_bytes()
        listing[file] = Stored(len(body), hashlib.sha256(body).hexdigest(), pack=name, offset=len(content))
        content += body
    return bytes(content), listing


def unpack(content: bytes, listing: Mapping[str, Stored], folder: Path) -> None:
    """Write a pack's files into a folder, each whole or not at all.

    Raises:
        UserError: it does not hold what was packed.
    """
    for name, file in listing.items():
        body = content[file.offset : file.offset + file.bytes]
        if hashlib.sha256(body).hexdigest() != file.sha256:
            raise UserError(f"{file.pack} is corrupt: {name} in it is not what was sent; write it again")
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        half = target.with_name(f".{target.name}.partial")
        half.write_bytes(body)
        half.replace(target)


def by_pack(listing: Mapping[str, Stored], names: Iterable[str]) -> dict[str, Listing]:
    """Pack → those of the named files that are in it."""
    found: dict[str, Listing] = {}
    for name in names:
        if listing[name].pack:
            found.setdefault(listing[name].pack, {})[name] = listing[name]
    return found
