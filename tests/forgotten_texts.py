"""Where texts are left that were to be forgotten."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq

PASSAGE, QUERY = "the hidden river is in the hidden letter", "what is the north copper number 3"


def contents(folder: Path) -> Iterable[tuple[Path, bytes]]:
    """Each file below a folder, and what is compressed in it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path, path.read_bytes()
            if path.suffix == ".gz":
                yield path, gzip.decompress(path.read_bytes())
            if path.suffix == ".parquet":
                yield path, json.dumps(pq.read_table(path).to_pylist(), ensure_ascii=False, default=str).encode()


def with_text(folder: Path, *texts: str) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path, content in contents(folder)
        if any(text.encode() in content for text in texts)
    }
