"""Fills the draft of a bundle with given vectors, damages bundles, and searches them in a process of its own."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Bundle, Dataset, Draft, create_vectors
from gnn_encoder.artifacts.bundle import BM25, INDEX, QUERY_ENCODER
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.index_file import FLAT, build_index
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.outcome import IndexKind
from gnn_encoder.steps.index_bm25 import index_bm25


def fill_bundle(
    draft: Draft,
    vectors: np.ndarray,
    dataset: Dataset,
    save_query_encoder: Callable[[Path], None],
    *,
    kind: IndexKind = FLAT,
    bm25: Bm25 | None = None,
) -> None:
    """Write all files of a bundle, as `encode_corpus` does."""
    stored = create_vectors(draft, *vectors.shape)
    stored[:] = vectors
    build_index(stored, draft / INDEX, kind)
    save_query_encoder(draft / QUERY_ENCODER)
    if bm25:
        (draft / BM25).mkdir()
        bm25.save(draft / BM25)
    Bundle.complete(draft, dataset)


def write_bm25(dataset: Path, folder: Path, **settings: Any) -> Path:
    """Index a dataset for BM25, by the step; returns the folder of the index."""
    index_bm25(IndexBm25(**settings), dataset=dataset, bm25_index=folder)
    return folder


def damaged(path: Path, folder: Path) -> Path:
    """Copies a bundle to `folder`, and spoils its last vector."""
    shutil.copytree(path, folder)
    with (folder / "vectors.npy").open("r+b") as file:
        file.seek(-8, 2)
        file.write(b"\xff" * 8)
    return folder


HEAVY = ("boto3", "bm25s", "ir_measures", "kfp", "matplotlib", "mlflow", "pandas", "pyarrow.dataset", "scipy",
         "sklearn", "torch", "torch_geometric", "transformers")  # fmt: skip
"""Each takes 0.1 to 5 s of processor time to import."""
LOADED = f"""
import sys
from gnn_encoder.cli.app import main
try:
    main()
finally:
    print("loaded", *(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)
"""


def modules_of_search(bundle: Path, *options: str) -> set[str]:
    """The heavy modules that a search from the shell imports."""
    command = [sys.executable, "-c", LOADED, "search", "the old river", "--bundle", str(bundle), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "[p" in ended.stdout
    return set(ended.stderr.split()[1:])
