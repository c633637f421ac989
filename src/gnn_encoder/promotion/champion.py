"""Measures a challenger and the champion in the same way, on the current queries.

The champion's earlier results are not used. The champion searches for the current queries, and the current labels judge
its hits. So queries and labels are the same for both models, whatever has changed since the champion was trained. The
latency of both is measured on one machine, in turn. What a run has ranked with the same bundle is not ranked again.

The comparison is also made for warm and cold queries, and for queries whose relevant passages are all in the
champion's corpus (`old`), or not all (`new`). The champion cannot find a new passage, so a gain on new queries is what
the new data brought; a loss on old queries is what the new model has forgotten.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import Dataset, Run
from gnn_encoder.evaluation.documents import Documents, documents_of
from gnn_encoder.evaluation.measures import labelled_queries, per_query
from gnn_encoder.evaluation.results import PerQuery, means, p_values, shares
from gnn_encoder.evaluation.strata import Strata, old_strata, warm_strata
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.address import AddressEncoder
from gnn_encoder.promotion.gate import ChampionComparison, Costs, Paired
from gnn_encoder.retrieval.latency import measure_latency, served_path
from gnn_encoder.retrieval.reranking import reranked_by_bundle, reranker_of
from gnn_encoder.retrieval.search import NO_VECTORS, Searcher, served_run
from gnn_encoder.settings.measures import ALL, cutoff
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.tracking.progress import Progress

CHALLENGER, CHAMPION = "challenger", "champion"


def compare_with_champion(
    data: Dataset,
    split: str,
    challenger: Searcher,
    champion: Searcher,
    version: str,
    measures: Sequence[str],
    settings: Evaluate,
    progress: Callable[[str, int], Progress],
    rank: Callable[..., Run] | None = None,
) -> ChampionComparison:
    """Compares both models on the labelled queries of a split.

    Args:
        version: the champion's version number.
        settings: settings of the challenger's evaluation; precision, depth, test, permutations and seed are used.
        progress: starts the progress report of a stage, given its name and number of queries.
        rank: called as `served_hits`, may know a bundle's hits already; None: `served_hits`.
    """
    qrels, searchers = data.judged(split), {CHAMPION: champion, CHALLENGER: challenger}
    rows, _ = present_rows(champion.bundle.passages.ids(), data.passages.ids())
    lost = int((rows >= len(data.passages)).sum())
    strata = [warm_strata(qrels, data.seen_labels), old_strata(qrels, earlier_rows(rows, data))]
    values: dict[str, dict[str, np.ndarray]] = {}
    for name, searcher in searchers.items():
        hits = (rank or served_hits)(searcher, data, split, measures, settings, partial(progress, name))
        figures = bundle_figures(searcher, data, split, measures, settings, strata=strata, hits=hits)
        for stratum, of_queries in figures.items():
            values.setdefault(stratum, {})[name] = of_queries
    milliseconds = served_ms(searchers, data, split)
    costs = {
        name: Costs(milliseconds[name], searcher.bundle.searched_bytes / max(len(searcher.bundle.passages), 1))
        for name, searcher in searchers.items()
    }
    compared = {stratum: _paired(of_both, measures, settings) for stratum, of_both in values.items()}
    one_kind = champion.bundle.has_vectors == challenger.bundle.has_vectors
    return ChampionComparison(version, lost, costs[CHALLENGER], costs[CHAMPION], compared, one_kind)


def served_ms(searchers: Mapping[str, Searcher], data: Dataset, split: str) -> dict[str, float]:
    """Returns the median milliseconds of a query of a split by each of some bundles as they are served, in turn."""
    questions = data.query_texts(labelled_queries(data.judged(split)))
    latencies = measure_latency({name: served_path(searcher) for name, searcher in searchers.items()}, questions)
    # Dev and test queries are stored beside an encoder without weights, so the time to encode one is not seen here.
    is_stored = any(isinstance(s.encoder, AddressEncoder) for s in searchers.values() if s.bundle.has_vectors)
    stages = ("search_ms",) if is_stored else ("encode_ms", "search_ms")
    return {name: sum(of[stage] for stage in stages) for name, of in latencies["systems"].items()}


def _paired(values: PerQuery, measures: Sequence[str], settings: Evaluate) -> Paired:
    mean, changed = means(values, measures), shares(values, measures, baseline=CHAMPION)
    p = p_values(values, settings.permutations, settings.seed, measures, baseline=CHAMPION, test=settings.test)
    return Paired(
        len(values[CHAMPION]), mean[CHALLENGER], mean[CHAMPION], p[CHALLENGER],
        changed["better"][CHALLENGER], changed["worse"][CHALLENGER],
    )  # fmt: skip


def bundle_figures(
    searcher: Searcher,
    data: Dataset,
    split: str,
    measures: Sequence[str],
    settings: Evaluate,
    documents: Documents | None = None,
    strata: Iterable[Strata] = (),
    hits: Run | None = None,
) -> dict[str, np.ndarray]:
    """Returns {`ALL` and each stratum: every measure of every labelled query of it, float64 [n, measures]}.

    The bundle ranks as `gnn-encoder search` does by default: by its vectors, with its own index and query encoder, by
    BM25, or by both, and re-ranked if the run recommended that; for `settings.depth` hits, or more if a measure needs
    more. A hit that is not in the dataset keeps its rank, is not relevant, and is a document of its own. A passage that
    is not in the bundle is never a hit, and neither is one that is the query itself (`Dataset.identical`).

    Args:
        documents: the documents of the dataset's passages; None: those of the dataset, if it has any.
        strata: strata of the split.
        hits: what `served_hits` returns, if it is known; None: the bundle ranks now.
    """
    qrels = data.judged(split)
    queries, hits = labelled_queries(qrels), hits or served_hits(searcher, data, split, measures, settings)
    rows, ids = present_rows(searcher.bundle.passages.ids(), data.passages.ids())
    m, missing = len(data.passages), data.judged_ids().slice(len(data.passages))
    # Missing passages that labels name have the rows behind the corpus, and names that no hit has.
    rows[rows >= m] += len(missing)
    unnamed = pa.array([f"\x01{name}" for name in missing.to_pylist()], ids.type)
    ids = pa.chunked_array([*ids.slice(0, m).chunks, unnamed, *ids.slice(m).chunks], ids.type)
    documents = documents or documents_of(data, measures)
    run = Run(hits.query, rows[hits.passage], hits.rank, hits.score)
    values = {ALL: per_query(run, qrels, queries, ids, measures, documents)}
    for division in strata:
        values |= division.measured(values[ALL], run, ids, measures, documents)
    return values


def served_hits(
    searcher: Searcher,
    data: Dataset,
    split: str,
    measures: Sequence[str],
    settings: Evaluate,
    progress: Callable[[int], Progress] | None = None,
) -> Run:
    """Returns the hits of the labelled queries of a split, as rows of a bundle, as the bundle is served.

    progress: starts the progress report, given the number of queries.
    """
    queries = labelled_queries(data.judged(split))
    rows, ids = present_rows(searcher.bundle.passages.ids(), data.passages.ids())
    in_bundle = np.full(len(ids), -1, np.int32)
    in_bundle[rows] = np.arange(len(rows))
    same = data.identical[queries]
    left_out, report = np.where(same >= 0, in_bundle[same], -1), progress(len(queries)) if progress else None
    return measured_run(searcher, queries, data.query_texts(queries), measures, settings, left_out, report)


def measured_run(
    searcher: Searcher,
    queries: np.ndarray,
    questions: Sequence[str],
    measures: Sequence[str],
    settings: Evaluate,
    left_out: np.ndarray | None = None,
    progress: Progress | None = None,
) -> Run:
    """Returns the hits of queries as rows of a bundle, in the order that `bundle_figures` measures.

    Args:
        queries: row numbers [n] for the run. questions: their texts [n].
        left_out: row [n] of the passage that is no hit of a query; -1: none. None: none of any query.
    """
    bundle, vectors = searcher.bundle, NO_VECTORS
    if bundle.has_vectors and searcher.index.reads_vectors:
        vectors = encode_texts(searcher.encoder, questions, progress=progress, **settings.speed)
    depth = min(ranked_depth(measures, settings), max(len(bundle.passages), 1))
    hits = served_run(bundle, searcher.index, queries, questions, vectors, depth, left_out, measured=True)
    return reranked_by_bundle(bundle, reranker_of(bundle), queries, questions, hits) if bundle.serving.reranks else hits


def ranked_depth(measures: Sequence[str], settings: Evaluate) -> int:
    """Returns how many hits of a query are measured: `settings.depth`, or more if a measure needs more."""
    return max(settings.depth, *map(cutoff, measures))


def earlier_rows(rows: np.ndarray, data: Dataset) -> np.ndarray:
    """Returns the rows of passages that are not new to a bundle with the `rows` of `present_rows`.

    Missing passages that labels name are among them: no corpus brings them.
    """
    m = len(data.passages)
    return np.append(rows[rows < m], np.arange(m, len(data.judged_ids())))


def present_rows(ids: pa.ChunkedArray, present: pa.ChunkedArray) -> tuple[np.ndarray, pa.ChunkedArray]:
    """Returns the rows int32 [m'] of a bundle's passages in a dataset's corpus, and the text ids of all rows.

    A passage that is not in the corpus gets a row after the last row of the corpus; no label names such a row.

    Args:
        ids: text ids of the bundle's passages [m'].
        present: text ids of the corpus [m].
    """
    index = pc.index_in(ids, value_set=present.combine_chunks())
    missing = ids.filter(pc.is_null(index))
    rows = index.fill_null(-1).to_numpy().astype(np.int32)
    rows[rows < 0] = len(present) + np.arange(len(missing), dtype=np.int32)
    return rows, pa.chunked_array([*present.chunks, *missing.chunks], type=present.type)
