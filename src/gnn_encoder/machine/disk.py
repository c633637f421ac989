"""Space that folders take on the disk, counted by inode: a file with several hard links takes its space once."""

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

BLOCK = 512
"""Bytes of a block in `st_blocks`, whatever the file system's own blocks are."""
Inode = tuple[int, int]
"""Device and number."""


def entries(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields a path and everything below it with its facts; links are not followed."""
    yield path, path.lstat()
    for folder, folders, files in os.walk(path) if not path.is_symlink() else ():
        for name in (*folders, *files):
            yield (entry := Path(folder) / name), entry.lstat()


def inode(facts: os.stat_result) -> Inode:
    """Returns what identifies a file, whatever its name is."""
    return facts.st_dev, facts.st_ino


def freed(paths: Sequence[Path]) -> list[int]:
    """Returns the bytes that each path's deletion frees, if all of them are deleted.

    A file that also has a name outside of the paths frees nothing. A file with names in several of them counts in the
    first.
    """
    trees = [[facts for _, facts in entries(path)] for path in paths]
    # The number of links of a folder counts its subfolders, and on some file systems nothing.
    links = Counter(inode(facts) for tree in trees for facts in tree if not _is_folder(facts))
    counted: set[Inode] = set()
    sizes = []
    for tree in trees:
        size = 0
        for facts in tree:
            if inode(facts) not in counted and (_is_folder(facts) or links[inode(facts)] == facts.st_nlink):
                counted.add(inode(facts))
                size += facts.st_blocks * BLOCK
        sizes.append(size)
    return sizes


def _is_folder(facts: os.stat_result) -> bool:
    return stat.S_ISDIR(facts.st_mode)
