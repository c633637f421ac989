"""The public interface for applications: a bundle, opened once and asked many times. README shows its use."""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.finished_run import run_folder
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.confidence import threshold_of
from gnn_encoder.inference.encoding import encode_question, encode_texts
from gnn_encoder.promotion.registry import named_bundle
from gnn_encoder.retrieval.filters import Filters
from gnn_encoder.retrieval.reranking import reranked_by_bundle, reranked_depth, reranker_of
from gnn_encoder.retrieval.scorers import Contribution
from gnn_encoder.retrieval.search import NO_VECTORS, Hit, Searcher, bm25_of, fusion_weight, ranking, served_weight

if TYPE_CHECKING:
    from gnn_encoder.explanation.search import ExplainedHit
    from gnn_encoder.retrieval.bm25 import Bm25
    from gnn_encoder.retrieval.scorers import Scorer

Filter: TypeAlias = Mapping[str, Any]
"""Conditions on the passages' fields (`retrieval.filters`)."""
ROOT = "gnn-encoder-runs"
"""The folder of runs whose registry is asked for `models:/` names, as of the command line."""


class SearchOptions(TypedDict, total=False):
    """Arguments of `Retriever.search`."""

    fuse: bool | None
    weight: float | None
    rerank: bool | None
    depth: int | None
    filter: Filter | None
    rights: Filter | None
    min_confidence: float | None


@dataclass(frozen=True)
class Explanation:
    """Why a hit has its score: `graph` for a GNN-encoder's bundle, `parts` in all other cases."""

    hit: Hit
    parts: tuple[Contribution, ...] = ()
    """What the passage itself, labelled training queries, or the parts of a re-ranker add to the score."""
    graph: "ExplainedHit | None" = None
    """The training queries in the passage's vector, and its score and rank without the graph."""


class Retriever:
    """Searches a bundle; several threads may use one retriever. Nothing in the bundle's folder is changed."""

    def __init__(self, bundle: Bundle, run: Path | None = None) -> None:
        """Opens a bundle's index and query encoder; `run`: the folder of the run that explains the bundle."""
        self.bundle = bundle
        self._searcher = Searcher(bundle)
        self.run = run or run_folder(bundle.path)
        # One thread encodes, and one re-ranks or explains. Products of matrices use all cores anyway, and a search of
        # vectors waits for nobody.
        self._reading, self._judging = self._searcher.reading, RLock()
        self.starts_quickly = False
        """Whether lone questions are encoded in NumPy, where that can be, until `load_encoder` has loaded E_Q in torch.
        Their vectors have other last bits, and importing transformers takes 2.5 s."""

    @classmethod
    def load(cls, name: str | Path, root: str | Path = ROOT) -> "Retriever":
        """Opens a bundle by its folder, by its `s3://` address, or by its name in the registry.

        Args:
            name: a folder such as `gnn-encoder-runs/latest/bundle`, an address, `models:/gnn-encoder@champion` or
                `models:/gnn-encoder/3`. For a folder, neither MLflow nor boto3 is imported.
            root: the folder of runs with the registry, for `models:/`, unless MLFLOW_TRACKING_URI names another.

        Raises:
            UserError: there is no such bundle, or it is incomplete or damaged.
        """
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        named = named_bundle(str(name), Path(root))
        # A link such as ROOT/latest/bundle leads to another bundle after the next run; this retriever stays with one.
        return cls(Bundle.read(named.resolve()), run_folder(named))

    @overload  # a text is a sequence of texts, too, but the first that fits is taken
    def search(  # type: ignore[overload-overlap]
        self, questions: str, k: int = ..., **options: Unpack[SearchOptions]
    ) -> list[Hit]: ...

    @overload
    def search(self, questions: Sequence[str], k: int = ..., **options: Unpack[SearchOptions]) -> list[list[Hit]]: ...

    def search(
        self,
        questions: str | Sequence[str],
        k: int = 10,
        *,
        fuse: bool | None = None,
        weight: float | None = None,
        rerank: bool | None = None,
        depth: int | None = None,
        filter: Filter | None = None,
        rights: Filter | None = None,
        min_confidence: float | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Returns the best passages, best first: a list for one question, and a list of lists for several.

        Args:
            k: passages of each question; a smaller corpus gives fewer.
            fuse: whether the vectors' scores are summed with BM25's; by default as the run that chose the bundle
                recommends.
            weight: weight of the vectors in that sum, 0 to 1; by default as tuned on dev, or 0.5.
            rerank: whether the bundle's re-ranker orders the first hits; by default as the run that chose the bundle
                recommends, unless `fuse` or `weight` is given.
            depth: how many hits the re-ranker orders; by default as many as in that run, or 100.
            filter: conditions on the passages' fields, as in `gnn_encoder.retrieval.filters`.
            rights: a filter of what the caller may see at all.
            min_confidence: 0 to 1; a question gets no hit rather than an unsure one, so that of all questions at most
                the share 1 - min_confidence has a wrong first hit (`evaluation.confidence`). It is calibrated without
                filters, and refused with one where the ranking scales scores, as a fusion does.

        Raises:
            UserError: a question that is empty or not Unicode, k or depth below 1, a weight outside 0 to 1, a filter
                that does not fit the fields, a confidence that the bundle is not calibrated for, or the bundle lacks
                the BM25 index or the re-ranker that was asked for.
        """
        only = self.filters.select(filter, rights)
        texts = [questions] if isinstance(questions, str) else list(questions)
        above = -math.inf
        if min_confidence is not None:
            above = threshold_of(self.bundle, min_confidence, (fuse, weight, rerank, depth), only is not None)
        for question in texts:
            self._searcher.check(question, k)
        k = self._searcher.at_most(k)
        if depth is not None and depth < 1:
            raise UserError(f"a depth of {depth} was asked for: ask for at least 1")
        tuned = self._tuned_weight if fuse and weight is None else weight
        wanted, _ = served_weight(self.bundle, fuse, tuned)
        rerank = self.reranks(rerank, fuse, weight)
        searched_depth = self._searcher.at_most(max(k, depth or reranked_depth(self.bundle))) if rerank else k
        rows, bm25 = np.arange(len(texts), dtype=np.int32), None if wanted is None else self._bm25
        reads_vectors = wanted != 0 and self._searcher.index.reads_vectors
        vectors = self.encode_queries(texts) if reads_vectors else NO_VECTORS
        with self._reading if bm25 is not None or self._searcher.index.learned else nullcontext():
            run = ranking(self._searcher.index, bm25, rows, texts, vectors, searched_depth, wanted, only=only)
        if rerank:
            with self._judging:
                run = reranked_by_bundle(self.bundle, self._reranker, rows, texts, run, depth)
        rankings = (run.of(np.array([row], np.int32), k) for row in rows)
        pairs = [(ranked.score, ranked.passage) for ranked in rankings]
        pairs = [
            (score, passage) if max(score[:1], default=-math.inf) > above else (score[:0], passage[:0])
            for score, passage in pairs
        ]
        hits = self._searcher.all_hits(pairs) if texts else []
        return hits[0] if isinstance(questions, str) else hits

    def reranks(self, rerank: bool | None = None, fuse: bool | None = None, weight: float | None = None) -> bool:
        """Returns whether a search with these arguments re-ranks."""
        recommended = self.bundle.serving.reranks and fuse is None and weight is None
        return recommended if rerank is None else rerank

    def encode_queries(self, questions: Sequence[str]) -> np.ndarray:
        """Returns the questions' vectors fp32 [n, d] (E_Q). A passage's score is the inner product with its vector."""
        if len(questions) == 1 and self.starts_quickly:
            return self._searcher.encode(questions[0])
        encoder = self._searcher.encoder
        with self._reading if self._searcher.reads_here else nullcontext():
            if len(questions) == 1:  # without any padding: 12 ms instead of 16
                return encode_question(encoder, questions[0])
            return encode_texts(encoder, list(questions), precision="fp32", filled=False)

    def load_encoder(self) -> None:
        """Loads E_Q in torch if it is not loaded yet; a bundle that ranks by words alone has none."""
        if self.bundle.has_vectors:
            _ = self._searcher.encoder
        self.starts_quickly = False

    def explain(
        self,
        question: str,
        k: int = 5,
        *,
        rerank: bool = False,
        depth: int | None = None,
        filter: Filter | None = None,
        rights: Filter | None = None,
    ) -> list[Explanation]:
        """Returns the best `k` passages, each with what its score is made of.

        They are those of the vectors alone or, with `rerank`, of a search that re-ranks (`depth` hits, as `search`).
        With `rights`, nothing is named or counted of passages that do not fit them, nor of training queries that are
        labelled with such a passage.

        Raises:
            UserError: as `search`; or the bundle has the vectors of a graph, and the artifacts that it was made from
                are not beside it, as they are in ROOT/latest; or it is a plain dual encoder's.
        """
        from gnn_encoder.explanation.search import explain_parts, explain_reranked, explain_search

        only = self.filters.select(filter, rights)
        with self._judging:
            if rerank:
                explained = explain_reranked(self._searcher, self._reranker, question, k, depth, only)
            elif self.bundle.labels_path or not self.bundle.has_vectors:
                explained = explain_parts(self._searcher, question, k, only=only)
            else:
                hits = explain_search(self._searcher, question, k, beside=self.run, only=only)
                return [Explanation(why.hit, graph=why) for why in hits]
            return [Explanation(hit, tuple(parts)) for hit, parts in explained]

    def has_passage(self, passage_id: str, rights: Filter | None = None) -> bool:
        """Returns whether the bundle has a passage with this id that fits `rights`. The first call reads all ids."""
        row, only = pc.index(self._ids, pa.scalar(passage_id, self._ids.type)).as_py(), self.filters.select(rights)
        return row >= 0 and (only is None or bool(only.mask[row]))

    @property
    def filters(self) -> Filters:
        """The passages' fields: selections, and facets."""
        return self._searcher.filters

    @cached_property
    def _ids(self) -> pa.ChunkedArray:
        return self.bundle.passages.ids()

    @cached_property
    def _bm25(self) -> "Bm25":
        return bm25_of(self.bundle)

    @cached_property
    def _tuned_weight(self) -> float:
        """The weight of a fusion that is asked for without one; read once, as `run` may lead elsewhere later."""
        return fusion_weight(self.bundle, run=self.run)[0]

    @cached_property
    def _reranker(self) -> "Scorer":
        return reranker_of(self.bundle)
