"""The bundle: one folder with everything that a search needs. The folder can be copied anywhere.

vectors.npy     the passage vectors h'_p fp32 [m, d], memory-mapped: row i is passage row i
index.faiss     inner-product index over the vectors; missing if the vectors themselves are searched
corpus.parquet  the passages, as in the dataset
query_encoder/  E_Q and its tokenizer
bm25/           BM25 index of the same passages, if one was built (`gnn_encoder.retrieval.bm25`)
reranker/       scorer that orders the first hits, if one was trained on them (`gnn_encoder.retrieval.scorers`)
bundle.json     describes these files for other programs
"""

import json
import shutil
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from gnn_encoder.artifacts.arrays import VECTORS, read_rows
from gnn_encoder.artifacts.dataset import CORPUS, Dataset, PassageTable
from gnn_encoder.artifacts.folder import Artifact, Draft, FileFacts, read_manifest
from gnn_encoder.errors import UserError

INDEX, QUERY_ENCODER, BM25, RERANKER, CARD = "index.faiss", "query_encoder", "bm25", "reranker", "bundle.json"


class Bundle(Artifact):
    """A complete bundle artifact; large parts are read at their first use."""

    schema = "bundle"

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Open a bundle; raises UserError if the numbers of vectors and passages differ."""
        bundle = super().read(path)
        counts = {"vectors": len(bundle.vectors), "passages": len(bundle.passages)}
        if counts["vectors"] != counts["passages"]:
            raise UserError(f"{path} is inconsistent ({counts}): run encode_corpus again")
        return bundle

    @staticmethod
    def complete(draft: Draft, dataset: Dataset) -> None:
        """Add the passages and the description to a draft that has all other files.

        Raises ValueError if the numbers of vectors and passages differ.
        """
        passages, width = read_rows(draft.path, Path(VECTORS).stem).shape
        if passages != len(dataset.passages):
            raise ValueError(f"{passages} vectors for {len(dataset.passages)} passages")
        shutil.copyfile(dataset.path / CORPUS, draft / CORPUS)
        card = {
            "index": INDEX if (draft / INDEX).is_file() else VECTORS,
            "vectors": VECTORS,
            "corpus": CORPUS,
            "query_encoder": QUERY_ENCODER,
            "similarity": "inner product",
            "passages": passages,
            "width": width,
            "dataset_digest": dataset.manifest.digest,
        }
        (draft / CARD).write_text(json.dumps(card, indent=1), encoding="utf-8")
        draft.rows(vectors=passages, passages=passages)

    @property
    def index_path(self) -> Path:
        """The file that a search reads: the FAISS index if there is one, otherwise the vectors."""
        index = self.path / INDEX
        return index if index.is_file() else self.path / VECTORS

    @property
    def query_encoder_path(self) -> Path:
        """The folder of E_Q."""
        return self.path / QUERY_ENCODER

    @property
    def bm25_path(self) -> Path | None:
        """The folder of the BM25 index; None without a BM25 index."""
        return folder if (folder := self.path / BM25).is_dir() else None

    @property
    def reranker_path(self) -> Path | None:
        """The folder of the re-ranker; None without a re-ranker."""
        return folder if (folder := self.path / RERANKER).is_dir() else None

    @property
    def searched(self) -> dict[str, FileFacts]:
        """The files of the bundle without those of the re-ranker."""
        files = self.manifest.files.items()
        return {name: facts for name, facts in files if not name.startswith(f"{RERANKER}/")}

    def copy_to(self, draft: Draft, reranker: Path) -> None:
        """Copy the bundle into a draft, with the artifact `reranker` in place of any earlier re-ranker.

        The copy has the bundle's origin: the artifacts beside the bundle explain the copy, an update reads its
        settings, and the measurement of latency its metrics.
        """
        origin = self.manifest
        sources = {name: self.path / name for name in self.searched}
        sources |= {f"{RERANKER}/{name}": reranker / name for name in read_manifest(reranker, "model").files}
        for name, source in sources.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, draft / name)
        draft.rows(**origin.rows)
        for part in ("step", "settings", "inputs", "metrics"):
            setattr(draft.manifest, part, getattr(origin, part))

    @cached_property
    def vectors(self) -> np.ndarray:
        """h'_p fp32 [m, d], memory-mapped read-only."""
        return read_rows(self.path, Path(VECTORS).stem)

    @cached_property
    def passages(self) -> PassageTable:
        """The corpus, m rows."""
        return PassageTable(self.path / CORPUS)
