"""Files that are replaced at once: a reader, and a process after a crash, has the old content or the new."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def partial_of(path: Path) -> Path:
    """The name of a file while it is written, for a file that one process writes at a time."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a file to write, which takes the place of `path` after the block, with the rights of an earlier file."""
    partial = partial_of(path)
    yield partial
    if path.exists():
        shutil.copymode(path, partial)
    partial.replace(path)


def replace_content(path: Path, content: bytes) -> None:
    """Writes a file, as `replacing` does."""
    with replacing(path) as partial:
        partial.write_bytes(content)
