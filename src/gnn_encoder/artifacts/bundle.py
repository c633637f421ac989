"""The bundle: one folder with everything that a search needs. The folder can be copied anywhere.

A bundle that ranks by words alone has the files of the corpus and of BM25 only.

vectors.npy     the passage vectors [v, d], fp16 or fp32, memory-mapped
vector_passages.npy  the passage row int32 [v], ascending, of each vector; missing if row i is passage row i, v = m
index.faiss     inner-product index over the vectors; missing if the vectors themselves are searched. In parts over
                consecutive rows: index-00001-of-00004.faiss and so on (`artifacts.parts`)
labels/         labelled training queries, and their use, if they change scores (`artifacts.labelled_queries`)
fusion/         a learned fusion, and those of its parts that are not elsewhere here (`artifacts.parts_folder`)
corpus.parquet  the passages, as in the dataset
fields.arrow    their further fields, if they have any, as in the dataset
query_encoder/  E_Q and its tokenizer
bm25/           BM25 index of the same passages, if the run wants one (`gnn_encoder.retrieval.bm25`)
reranker/       scorer that orders the first hits, if one was trained on them (`gnn_encoder.retrieval.scorers`)
neighbourhoods_digests.npy, models.json  what a vector depends on, for an update (`artifacts.arrays.Contents`)
added/          labels added after the run, and the vectors that they change (`artifacts.added_labels`)
serving.json    how a search ranks, if a run chose this bundle: by the vectors, by BM25, or by a weighted sum of both;
                and whether the re-ranker orders the first hits
calibration.parquet  first hits for dev queries, if a run chose this bundle (`artifacts.calibration`)
bundle.json     describes these files for other programs, and names the system whose vectors they are
README.md       describes the bundle for people, if a run chose it (`promotion.model_card`)

A passage with several vectors scores as its best one (`gnn_encoder.retrieval.passage_index`).
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts.added_labels import ADDED_LABELS, CHANGED, PAIRS, ROWS, AddedLabels, Changes
from gnn_encoder.artifacts.arrays import VECTORS, WINDOW_PASSAGES, WINDOWS, read_rows
from gnn_encoder.artifacts.calibration import CALIBRATION, Calibration
from gnn_encoder.artifacts.dataset import Dataset
from gnn_encoder.artifacts.fields import FIELDS, read_fields
from gnn_encoder.artifacts.folder import HISTORY, MANIFEST, README, Artifact, Draft, FileFacts, read_manifest
from gnn_encoder.artifacts.labelled_queries import QUERIES, QUERY_INDEX, BundleLabels, LabelledQueries, LabelUse
from gnn_encoder.artifacts.parts import stored_parts
from gnn_encoder.artifacts.passages import CORPUS, PassageTable
from gnn_encoder.errors import UserError
from gnn_encoder.settings.systems import GNN_ENCODER

INDEX, QUERY_ENCODER, BM25, RERANKER, CARD = "index.faiss", "query_encoder", "bm25", "reranker", "bundle.json"
VECTOR_PASSAGES, LABELS = "vector_passages", "labels"
ADDED, SERVING, FUSION = "added", "serving.json", "fusion"


@dataclass(frozen=True)
class Reranking:
    """How a re-ranker orders the first hits of a search (`gnn_encoder.retrieval.reranking.weighed`)."""

    first_stage: str
    """Name of the first stage in the tables of the run that chose the bundle."""
    weight: float
    """Weight of the re-ranker's scores in the sum with the first stage's; 1: the re-ranker alone."""
    depth: int
    """First hits that are re-ranked."""
    precision: str = "auto"
    tokens_per_batch: int = 4096
    """As in the run: with other numbers the last bits of scores differ, and close hits may change places."""
    is_default: bool = True
    """Whether a search re-ranks unasked: the run recommends it, and not the first stage alone."""


@dataclass(frozen=True)
class Serving:
    """How a search of a bundle ranks by default."""

    system: str
    """Name in the tables of the run that chose the bundle, such as `BM25 + Dual encoder`."""
    weight: float | None
    """Weight of the vectors' scores in the sum with BM25's; 0: BM25 alone; None: the vectors alone."""
    tuned_on: str | None = None
    """The split on which the weight was tuned; None: it was not."""
    reranking: Reranking | None = None
    """How the bundle's re-ranker orders the first hits; None: on request, by its scores alone."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """Reads what `facts` returned."""
        reranking = facts.get("reranking")
        return cls(**{**facts, "reranking": Reranking(**reranking) if reranking else None})

    def facts(self) -> dict[str, Any]:
        """Returns the content of `serving.json`."""
        return {name: value for name, value in asdict(self).items() if name != "reranking" or value}

    @property
    def reranks(self) -> bool:
        """Whether a search re-ranks by default."""
        return self.reranking is not None and self.reranking.is_default

    @property
    def first_stage(self) -> "Serving":
        """The same without a re-ranker."""
        return replace(self, system=self.reranking.first_stage, reranking=None) if self.reranking else self


class Bm25Index(Artifact):
    """A BM25 index of all passages, which `index_bm25` wrote."""

    schema = "bm25"


class Bundle(Artifact):
    """A complete bundle artifact; large parts are read at their first use."""

    schema = "bundle"

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Open a bundle; raises UserError if the numbers of vectors and passages do not fit."""
        bundle = super().read(path)
        if bundle.has_vectors and (
            counts := _misfits(bundle.stored_vectors, bundle.stored_vector_passages, len(bundle.passages))
        ):
            raise UserError(f"{path} is inconsistent ({counts}): run {bundle.manifest.step or 'encode_corpus'} again")
        return bundle

    @staticmethod
    def add_bm25(draft: Draft, index: Path | None) -> None:
        """Add the files of a BM25 index to a draft; they take no space of their own. Raises UserError without index."""
        if index is None:
            raise UserError(
                "a bundle with bm25 needs the input bm25_index, the output of index_bm25; or set bm25 to false"
            )
        artifact = Bm25Index.read(index)
        for name in artifact.manifest.files:
            draft.share(artifact, name, f"{BM25}/{name}")

    @staticmethod
    def add_labels(draft: Draft, dataset: Dataset) -> None:
        """Add the labels that the dataset has from an earlier run's bundle, if there are some."""
        if dataset.added:
            AddedLabels(dataset.added).write(draft / ADDED)

    @staticmethod
    def add_vectors(draft: Draft, passage_vectors: Path) -> None:
        """Add the vectors of an embedding to a draft, those of all windows if it has them; they take no space."""
        embedding = Artifact(passage_vectors, read_manifest(passage_vectors, "vectors"))
        if f"{WINDOWS}.npy" in embedding.manifest.files:
            draft.share(embedding, f"{WINDOWS}.npy", VECTORS)
            draft.share(embedding, f"{WINDOW_PASSAGES}.npy", f"{VECTOR_PASSAGES}.npy")
        else:
            draft.share(embedding, VECTORS)

    @staticmethod
    def complete(draft: Draft, dataset: Dataset, system: str = GNN_ENCODER) -> None:
        """Add the passages and the description to a draft that has all other files; `system` is the system's name.

        A draft without vectors becomes a bundle that ranks by words alone.

        Raises ValueError if the numbers of vectors and passages do not fit.
        """
        passages = len(dataset.passages)
        for name in {CORPUS, FIELDS} & dataset.manifest.files.keys():
            draft.share(dataset, name)
        card: dict[str, Any] = {"system": system, "bm25": BM25, "corpus": CORPUS, "passages": passages}
        if (draft / VECTORS).is_file():
            vectors, of = read_rows(draft.path, Path(VECTORS).stem), _vector_passages(draft.path)
            if misfits := _misfits(vectors, of, passages):
                raise ValueError(misfits)
            index = [file.name for file in stored_parts(draft / INDEX)] or [VECTORS]
            card = {
                "system": system,
                "index": index if len(index) > 1 else index[0],
                "vectors": VECTORS,
                "vector_passages": None if of is None else f"{VECTOR_PASSAGES}.npy",
                "corpus": CORPUS,
                "query_encoder": QUERY_ENCODER,
                "similarity": "inner product",
                "passages": passages,
                "width": vectors.shape[1],
            }
            draft.rows(vectors=len(vectors))
        card["dataset_digest"] = dataset.manifest.digest
        (draft / CARD).write_text(json.dumps(card, indent=1), encoding="utf-8")
        draft.rows(passages=passages)

    @property
    def has_vectors(self) -> bool:
        """Whether the bundle has vectors and a query encoder; if not, it ranks by words alone."""
        return (self.path / VECTORS).is_file()

    @property
    def index_files(self) -> list[Path]:
        """The file of the FAISS index, or the files of its parts in order; empty if a search reads the vectors."""
        return stored_parts(self.path / INDEX)

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
    def fusion_path(self) -> Path | None:
        """The folder of the learned fusion; None if the bundle has none."""
        return folder if (folder := self.path / FUSION).is_dir() else None

    @property
    def labels_path(self) -> Path | None:
        """The folder of the labelled training queries; None if the bundle has none."""
        return folder if (folder := self.path / LABELS).is_dir() else None

    @property
    def searched_bytes(self) -> int:
        """Size of the files that a search by vectors reads: the index, a memory's queries, and a fusion's parts.

        Without vectors, it is the size of BM25's index.
        """
        if not self.has_vectors:
            names = (name for name in self.manifest.files if name.startswith(f"{BM25}/"))
            return sum((self.path / name).stat().st_size for name in names)
        files = self.index_files or [self.path / VECTORS]
        if self.label_use and self.label_use.method in ("softmax", "fusion"):
            files += stored_parts(self.path / LABELS / QUERY_INDEX) or [self.path / LABELS / QUERIES]
        if self.fusion_path:
            parts = (f"{FUSION}/", f"{BM25}/")
            files += [self.path / name for name in self.manifest.files if name.startswith(parts)]
        return sum(file.stat().st_size for file in files)

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
        sources = {name: self.path / name for name in self.searched}
        sources |= {f"{RERANKER}/{name}": reranker / name for name in read_manifest(reranker, "model").files}
        for name, source in sources.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, draft / name)
        if self.serving.reranking:  # by the earlier re-ranker
            (draft / SERVING).write_text(json.dumps(self.serving.first_stage.facts(), indent=1), encoding="utf-8")
        if (self.path / README).is_file():
            shutil.copyfile(self.path / README, draft / README)
        self._pass_on(draft)

    def serve(self, draft: Draft, serving: Serving, reranker: Path | None = None) -> None:
        """Fill a draft with the bundle's files, the folder of a re-ranker in place of any earlier one, and `serving`.

        `reranker`: an artifact, or the folder in another bundle.

        Files that can be shared with the bundle take no space of their own. The draft has the bundle's origin, as in
        `copy_to`.
        """
        for name in self.searched if reranker else self.manifest.files:
            if name not in (SERVING, CALIBRATION):
                draft.share(self, name)
        if reranker:
            apart = shutil.ignore_patterns(MANIFEST, HISTORY)
            shutil.copytree(reranker, draft / RERANKER, ignore=apart)
        (draft / SERVING).write_text(json.dumps(serving.facts(), indent=1), encoding="utf-8")
        self._pass_on(draft)

    def with_added(self, draft: Draft, added: AddedLabels) -> None:
        """Fill a draft with links to the bundle's files, and with other added labels.

        No array of the corpus is copied or hashed. The draft has the bundle's origin, as in `copy_to`.
        """
        for name in self.manifest.files:
            if name != CARD and not name.startswith(f"{ADDED}/"):
                draft.link(self, name)
        draft.link_apart(self)
        card = json.loads((self.path / CARD).read_text(encoding="utf-8"))
        card.pop("changed", None)
        if added.changes:
            card["changed"] = {"rows": f"{ADDED}/{ROWS}", "vectors": f"{ADDED}/{CHANGED}"}
            card["changed"] |= {"labels": f"{ADDED}/{PAIRS}"} if added.changes.pairs else {}
        (draft / CARD).write_text(json.dumps(card, indent=1), encoding="utf-8")
        added.write(draft / ADDED)
        self._pass_on(draft)

    def _pass_on(self, draft: Draft) -> None:
        """Give a draft this bundle's row counts and origin."""
        draft.rows(**self.manifest.rows)
        draft.take_origin(self.manifest)

    @cached_property
    def system(self) -> str:
        """The name of the system whose vectors the bundle has."""
        return str(json.loads((self.path / CARD).read_text(encoding="utf-8"))["system"])

    @cached_property
    def serving(self) -> Serving:
        """How a search ranks by default: by the vectors alone if there are any, unless a run chose otherwise."""
        file = self.path / SERVING
        if file.is_file():
            return Serving.of(json.loads(file.read_text(encoding="utf-8")))
        return Serving(self.system, None if self.has_vectors else 0.0)

    @property
    def scales_scores(self) -> bool:
        """Whether the default ranking scales scores by those of the other hits, so that a filter changes them."""
        how = self.serving.reranking if self.serving.reranks else None
        return bool(how.weight < 1 if how else self.serving.weight or self.fusion_path)

    @cached_property
    def calibration(self) -> Calibration | None:
        """First hits for dev queries by the default ranking; None: no run measured it."""
        file = self.path / CALIBRATION
        calibration = Calibration.read(file) if file.is_file() else None
        return calibration if calibration and calibration.system == self.serving.system else None

    @cached_property
    def added(self) -> AddedLabels | None:
        """The labels added after the run; None if none ever was."""
        folder = self.path / ADDED
        return AddedLabels.read(folder) if (folder / ADDED_LABELS).is_file() else None

    @property
    def changes(self) -> Changes | None:
        """What the added labels change; None: nothing."""
        return self.added.changes if self.added else None

    @property
    def vectors(self) -> np.ndarray:
        """The passages' vectors [v, d], fp16 or fp32, memory-mapped; v = m unless passages have several.

        The vectors that added labels change are in place, in the same type. Writing to the array changes no file. If
        passages have several vectors and some are changed, the array is a copy in memory, which a search does not read.
        """
        return self._rows[0]

    @property
    def vector_passages(self) -> np.ndarray | None:
        """The passage row int32 [v], ascending, of each vector; None: vector i is of passage i."""
        return self._rows[1]

    @cached_property
    def _rows(self) -> tuple[np.ndarray, np.ndarray | None]:
        of, changes = self.stored_vector_passages, self.changes
        if not changes:
            return self.stored_vectors, of
        if of is not None:
            return changes.applied(self.stored_vectors, of)
        vectors: np.ndarray = np.load(self.path / VECTORS, mmap_mode="c")
        vectors[changes.rows] = changes.vectors
        return vectors, None

    @cached_property
    def stored_vectors(self) -> np.ndarray:
        """The vectors as the run computed them, without added labels, memory-mapped read-only.

        Without vectors it has no columns.
        """
        if not self.has_vectors:
            return np.empty((len(self.passages), 0), np.float16)
        return read_rows(self.path, Path(VECTORS).stem)

    @cached_property
    def stored_vector_passages(self) -> np.ndarray | None:
        """As `vector_passages`, of `stored_vectors`."""
        return _vector_passages(self.path)

    @cached_property
    def labelled(self) -> BundleLabels | None:
        """The labelled queries and their use, as the run wrote them and as added labels change them; None without."""
        pairs = self.changes.pairs if self.changes else None
        return BundleLabels(self.labels_path, pairs) if self.labels_path else None

    @property
    def labels(self) -> LabelledQueries | None:
        """The labelled queries, with added ones; None if the bundle has none."""
        return self.labelled.queries if self.labelled else None

    @property
    def label_use(self) -> LabelUse | None:
        """How the labelled queries change scores; None if the bundle has none."""
        return self.labelled.use if self.labelled else None

    @cached_property
    def passages(self) -> PassageTable:
        """The corpus, m rows."""
        return PassageTable(self.path / CORPUS)

    @cached_property
    def fields(self) -> pa.RecordBatch | None:
        """The passages' further fields (`artifacts.fields`), m rows; None without any."""
        return read_fields(self.path, len(self.passages))


def _vector_passages(folder: Path) -> np.ndarray | None:
    return read_rows(folder, VECTOR_PASSAGES) if (folder / f"{VECTOR_PASSAGES}.npy").is_file() else None


def _misfits(vectors: np.ndarray, of: np.ndarray | None, passages: int) -> str:
    """Returns what does not fit, or an empty text. Each passage needs a vector, and the vectors are in their order."""
    if of is None:
        return f"{len(vectors)} vectors for {passages} passages" if len(vectors) != passages else ""
    if len(of) != len(vectors):
        return f"{len(vectors)} vectors of which {len(of)} have a passage"
    steps = np.diff(of, prepend=-1, append=passages)
    fits = steps[0] == steps[-1] == 1 and 0 <= steps.min() <= steps.max() == 1
    return "" if fits else f"vectors that are not in the order of {passages} passages"
