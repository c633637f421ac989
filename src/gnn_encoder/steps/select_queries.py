"""Selects written queries and makes them the labels of a dataset: each filter is counted and shown with examples.

A query is kept if BM25 finds its passage again, if it is not nearly equal to another one, if it does not quote its
passage's beginning, and if a re-ranker agrees (`agreeing_reranker`). Whole documents belong to a split, by a hash of
their names: the passages of test queries are unseen, mostly also in a later run with more documents (`splits_of`).
Queries that came with the data stay in their splits; where these have dev or test queries, no written ones are added
there.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft, WrittenQueries
from gnn_encoder.artifacts.bundle import Bm25Index
from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.artifacts.extended_dataset import extend_queries
from gnn_encoder.artifacts.texts import written_id
from gnn_encoder.data.twins import recurring
from gnn_encoder.data.validation import FEWEST_TRAINING
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.settings.written import SelectQueries
from gnn_encoder.written.selection import Selection, assign, hits_of, select


@step(dataset="dataset")
def select_queries(
    context: Context,
    settings: SelectQueries,
    passages: Path,
    written_queries: Path,
    bm25_index: Path,
    dataset: Draft,
) -> Metrics:
    """Filters the written queries, assigns splits, and adds them to the data.

    Raises:
        UserError: too few are left to learn from or to measure with.
    """
    data, written = Dataset(passages), WrittenQueries.read(written_queries)
    index = Bm25.load(Bm25Index.read(bm25_index).path)
    searching = context.progress("searching", len(set(written.query)), "queries")
    reranker = None
    if settings.agreeing_reranker:
        from gnn_encoder.retrieval.scorers import open_scorer  # imports torch

        reranker = open_scorer(settings.agreeing_reranker)
    selection = select(
        written, data, lambda texts, k: index.search(texts, k, searching)[1], settings, reranker,
        lambda count: context.progress("re-ranking", count, "queries"),
    )  # fmt: skip
    labelled = {split: len(labelled_queries(data.judged(split))) for split in SPLITS}
    split = assign(selection, data, labelled, settings)
    counts = {name: int((split == code).sum()) for code, name in enumerate(SPLITS)}
    all_counts = {name: count + labelled[name] for name, count in counts.items()}
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in selection.counts.items() if count)
    if all_counts["train"] < FEWEST_TRAINING or not all_counts["dev"] + all_counts["test"]:
        raise UserError(
            f"{counts['train']}/{counts['dev']}/{counts['test']} written queries for train, dev and test are too few; "
            f"left out: {left_out}: add documents, or change select_queries with --set"
        )
    before, ids = data.query_texts(np.arange(len(data.queries))), set(data.queries["query_id"].to_pylist())
    new = [number for number, text in enumerate(selection.texts) if written_id(text) not in ids]
    texts = [*before, *(selection.texts[number] for number in new)]
    splits = np.append([SPLITS.index(name) for name in data.queries["split"].to_pylist()], split[new]).astype(np.int64)
    similarity = Ingest.model_validate(data.manifest.settings).recurrence_similarity
    repeats = np.flatnonzero(recurring(texts, splits, len(SPLITS), similarity)[:, 0])
    found_first = first_found(selection, split == SPLITS.index("dev"), lambda texts, k: index.search(texts, k)[1])
    quoting = bool(counts["dev"]) and found_first >= settings.quoting
    extend_queries(
        dataset, data, selection.texts, [SPLITS[code] for code in split], selection.passages, selection.quoted, repeats,
        quoting,
    )  # fmt: skip
    examples = selection.examples(lambda row: str(data.passages.take(np.array([row])).ids[0]))
    context.log.text(examples, "select_queries/examples.md")
    print(f"select_queries: {len(split):,} queries are kept; left out: {left_out}\n{examples}", file=sys.stderr)
    if quoting:
        print(
            f"select_queries: words alone find {found_first:.0%} of the written dev queries first: they quote their "
            "passages, so they tune no weight of a sum with BM25",
            file=sys.stderr,
        )
    return {
        **{f"written_{name}": counts[name] for name in SPLITS},
        **{f"left_out_{reason}": count for reason, count in selection.counts.items()},
        "dev_found_first": found_first,
        "headline": f"{'/'.join(f'{count:,}' for count in counts.values())} written queries",
    }


def first_found(selection: Selection, dev: np.ndarray, search: Callable[[list[str], int], np.ndarray]) -> float:
    """Returns the share of some queries, bool [n], of which the first hit is relevant; 0 without queries."""
    if not dev.any():
        return 0.0
    rows = np.flatnonzero(dev).tolist()
    hits = hits_of([selection.texts[row] for row in rows], [selection.quoted[row] for row in rows], search, 1)
    return float(
        np.mean([np.isin(selection.passages[row], first).any() for row, first in zip(rows, hits, strict=True)])
    )
