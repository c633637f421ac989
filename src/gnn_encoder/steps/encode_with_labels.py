"""Writes a bundle of M_de's vectors in which labelled training queries lift their passages. Nothing is trained.

The vectors of passages and queries come from `build_graph`. A weight of 0 is tried, too, so the bundle is the
plain dual encoder's if labels gain nothing.
"""

from functools import partial
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Bundle, Dataset, Draft
from gnn_encoder.artifacts.arrays import check_range, create_vectors, read_rows, read_scored
from gnn_encoder.artifacts.bundle import INDEX, LABELS, QUERY_ENCODER, VECTOR_PASSAGES
from gnn_encoder.artifacts.labelled_queries import LabelledQueries, LabelUse, labelled_pairs
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.embedding import vectors_of_queries
from gnn_encoder.evaluation.label_tuning import candidate_uses, chosen_use
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.machine.scratch import scratch_texts
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.retrieval.index_file import build_index
from gnn_encoder.retrieval.labelled_vectors import label_blocks
from gnn_encoder.retrieval.query_index import build_query_index, said
from gnn_encoder.settings.labels import EncodeWithLabels
from gnn_encoder.settings.systems import label_systems


@step(bundle="bundle")
def encode_with_labels(
    context: Context,
    settings: EncodeWithLabels,
    dataset: Path,
    dual_encoder: Path,
    passage_vectors: Path,
    bundle: Draft,
    bm25_index: Path | None = None,
) -> Metrics:
    """Chooses a use of the labels, on dev or by cross-validation, and writes the bundle with that use."""
    data = Dataset(dataset)
    (plain, of), of_train = read_scored(passage_vectors), read_rows(passage_vectors, "queries")
    tuning = context.progress("tuning", len(candidate_uses(settings)), "uses of labels")
    use, facts = chosen_use(
        data, settings, plain, of_train, partial(vectors_of_queries, passage_vectors, data), tuning.advance, of
    )
    query, passage = labelled_pairs(data)
    labels = LabelledQueries.of(query, passage, len(data.passages), of_train)
    if use.changes_vectors:
        write_vectors(bundle, use, plain, labels, of)
    else:
        Bundle.add_vectors(bundle, passage_vectors)
    rows = data.query_rows("train")[np.unique(query)]
    ids, texts = (scratch_texts(data.query_table.column(name, rows)) for name in ("query_id", "text"))
    labels.write(bundle / LABELS, ids, texts, plain, use, of)
    recalled = None
    if use.method == "softmax" and use.weight:
        recalled = build_query_index(LabelledQueries.read(bundle / LABELS), bundle / LABELS, settings)
    vectors = read_rows(bundle.path, "vectors")
    build_index(vectors, bundle / INDEX, settings)
    DualEncoder.load(dual_encoder).query_encoder.save(bundle / QUERY_ENCODER)
    if settings.bm25:
        Bundle.add_bm25(bundle, bm25_index)
    Bundle.add_labels(bundle, data)
    Bundle.complete(bundle, data, settings.system or label_systems()[settings.kind])
    gained = ""
    if facts:
        before = next(iter(facts["figures"].values()))
        where = "dev, in-sample" if facts["tuned_on"] == "dev" and use.weight else facts["tuned_on"]
        gained = f"; {mean_name(settings.measure)} {before:.3f} → {facts['figure']:.3f} on {where}"
        if facts["by_chance"]:
            gained += f", chance may explain the gain of {facts['by_chance']}"
        if facts["left_out"]:
            gained += f"; {len(facts['left_out'])} higher uses left out, by which warm or cold queries lose"
    return {
        "vectors": len(vectors),
        "labelled_passages": len(labels.passages),
        "labelled_queries": len(labels),
        "weight": use.weight,
        "headline": f"{use}{gained}{said(recalled)}",
        **({} if recalled is None else {"query_recall": recalled}),
        **{name: facts[name] for name in ("figure", "tuned_on", "tuned_by", "tuned_queries") if facts},
    }


def write_vectors(
    draft: Draft, use: LabelUse, plain: np.ndarray, labels: LabelledQueries, of: np.ndarray | None
) -> None:
    """Writes the vectors of all passages, and their passages if one has several, a block of passages at a time.

    Args:
        plain, of: M_de's vectors [m, d], or those of windows [v, d] and the passage of each (`read_scored`).
    """
    every = np.arange(len(labels.by_passage.indptr) - 1, dtype=np.int32)
    written = every
    if use.method in ("max", "clusters") or of is not None:  # the file's size is not known before
        written = np.concatenate([every[:0], *(rows for _, rows in label_blocks(use, plain, labels, every, of))])
        np.save(draft / f"{VECTOR_PASSAGES}.npy", written, allow_pickle=False)
    vectors, start = create_vectors(draft, len(written), plain.shape[1], plain.dtype), 0
    for block, _ in label_blocks(use, plain, labels, every, of):
        vectors[start : start + len(block)] = block
        start += len(block)
    vectors.flush()
    check_range(vectors)
