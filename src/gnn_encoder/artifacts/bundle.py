"""The bundle: one folder with everything that a search needs. The folder can be copied anywhere.

vectors.npy     the passage vectors h'_p fp32 [m, d], memory-mapped: row i is passage row i
index.faiss     inner-product index over the vectors; missing if the vectors themselves are searched
corpus.parquet  the passages, as in the dataset
query_encoder/  E_Q and its tokenizer
bm25/           BM25 index of the same passages, if one was built (`gnn_encoder.retrieval.bm25`)
bundle.json     describes these files for other programs
"""

import json
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from gnn_encoder.artifacts.arrays import VECTORS, read_rows
from gnn_encoder.artifacts.dataset import CORPUS, Dataset, PassageTable
from gnn_encoder.artifacts.folder import Artifact, Draft
from gnn_encoder.errors import UserError

INDEX, QUERY_ENCODER, BM25, CARD = "index.faiss", "query_encoder", "bm25", "bundle.json"


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
    def write(
        draft: Draft,
        vectors: np.ndarray,
        dataset: Dataset,
        *,
        save_index: Callable[[np.ndarray, Path], None],
        save_query_encoder: Callable[[Path], None],
        save_bm25: Callable[[Path], None] | None = None,
    ) -> None:
        """Fill a bundle draft.

        Args:
            draft: the artifact to write.
            vectors: h'_p [m, d]; not copied if `vectors` is the draft's own array (`create_vectors(draft, m, d)`).
            dataset: the dataset of the passages.
            save_index: writes an index over vectors to a file, or writes nothing (`index_file.build_index`).
            save_query_encoder: writes E_Q into a folder (`TextEncoder.save`).
            save_bm25: writes a BM25 index into a folder (`Bm25.save`).
        """
        own = (draft / VECTORS).is_file()
        if own and isinstance(vectors, np.memmap) and (draft / VECTORS).samefile(str(vectors.filename)):
            vectors.flush()
        else:
            np.save(draft / VECTORS, np.asarray(vectors, dtype=np.float32), allow_pickle=False)
        stored: np.ndarray = np.load(draft / VECTORS, mmap_mode="r")
        if len(stored) != len(dataset.passages):
            raise ValueError(f"{len(stored)} vectors for {len(dataset.passages)} passages")
        save_index(stored, draft / INDEX)
        shutil.copyfile(dataset.path / CORPUS, draft / CORPUS)
        (draft / QUERY_ENCODER).mkdir()
        save_query_encoder(draft / QUERY_ENCODER)
        if save_bm25:
            (draft / BM25).mkdir()
            save_bm25(draft / BM25)
        card = {
            "index": INDEX if (draft / INDEX).is_file() else VECTORS,
            "vectors": VECTORS,
            "corpus": CORPUS,
            "query_encoder": QUERY_ENCODER,
            "similarity": "inner product",
            "passages": stored.shape[0],
            "width": stored.shape[1],
            "dataset_digest": dataset.manifest.digest,
        }
        (draft / CARD).write_text(json.dumps(card, indent=1), encoding="utf-8")
        draft.rows(vectors=stored.shape[0], passages=len(dataset.passages))

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

    @cached_property
    def vectors(self) -> np.ndarray:
        """h'_p fp32 [m, d], memory-mapped read-only."""
        return read_rows(self.path, Path(VECTORS).stem)

    @cached_property
    def passages(self) -> PassageTable:
        """The corpus, m rows."""
        return PassageTable(self.path / CORPUS)
