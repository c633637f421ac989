"""Writes queries for passages: data without queries of their own, or with few, get labels by which retrievers learn.

`generator` says what writes them. Each query is for one passage; `select_queries` decides which ones are of use.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft, WrittenQueries
from gnn_encoder.artifacts.folder import digest_of
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.inference.language_model import open_language_model
from gnn_encoder.settings.shared import is_address
from gnn_encoder.settings.written import TITLES, WriteQueries
from gnn_encoder.written.asking import drawn_passages, of_language_model
from gnn_encoder.written.titles import queries_of_headings, queries_of_sentences


@step(written_queries="written_queries")
def write_queries(context: Context, settings: WriteQueries, dataset: Path, written_queries: Draft) -> Metrics:
    """Writes at most `per_passage` queries for each of the drawn passages."""
    data = Dataset(dataset)
    name, figures = settings.generator, Metrics()
    if name == TITLES:
        drawn = drawn_passages(data, settings.passages_of(len(data.passages))[0], settings.seed)
        written = of_titles(data, drawn, settings)
    else:
        # Beside the checkpoints, for all calls: other settings of the step pay for no answer twice.
        folder = context.folder_of_all_calls(f"answers-{digest_of({'model': name})[:20]}")
        if folder is None and is_address(name):
            context.warn(
                "checkpoints are in an object store, where no answer is kept: after a failure all are paid again"
            )
        try:
            model = open_language_model(name, settings, folder, context.sources.get("generator", ""))
        except UserError as error:
            raise UserError(f"write_queries.generator = {name}: {error}; {TITLES!r} needs no model") from None
        name = model.name
        written, figures = of_language_model(model, data, settings, context)
    written.write(written_queries)
    kinds = dict(zip(written.query, written.kind, strict=True))
    kinds.pop("", None)
    return {
        "queries": len(kinds),
        "passages": len(set(written.passage)),
        **{f"queries_{kind}": count for kind, count in Counter(kinds.values()).items()},
        **figures,
        "headline": f"{len(kinds):,} queries for {len(set(written.passage)):,} passages by {name}",
    }


def of_titles(data: Dataset, rows: np.ndarray, settings: WriteQueries) -> WrittenQueries:
    """Returns the queries that the generator `titles` writes."""
    drawn, documents = set(rows.tolist()), data.structure.document if data.structure else None
    sentences = queries_of_sentences(data.passages.stream(), settings.per_passage, documents)
    written = [of for of in sentences if of.quoted in drawn]
    if not written:  # no section has two passages
        written = [of for of in queries_of_headings(data.passages.stream()) if of.passage in drawn]
    passage, kind, query, quoted = (list(column) for column in zip(*written, strict=True)) if written else ([],) * 4
    none = [""] * len(written)
    return WrittenQueries(passage, kind, query, none, none, quoted)
