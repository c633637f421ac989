"""Ranks passages for the dev and test queries with one dense system."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Bundle, Dataset, Draft, Run
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.evaluation.embedding import vectors_of_queries
from gnn_encoder.inference.encoding import encode_passages, encode_texts
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.models.dual_encoder import DualEncoder, TextEncoder
from gnn_encoder.retrieval import best_vectors
from gnn_encoder.retrieval.held_out import HeldOut
from gnn_encoder.retrieval.identical import run_by
from gnn_encoder.retrieval.passage_index import PassageIndex
from gnn_encoder.retrieval.search import ranking
from gnn_encoder.settings.outcome import Rank
from gnn_encoder.settings.shared import VectorsOfTexts
from gnn_encoder.update.windows import encode_windows


@step(run="run")
def rank(
    context: Context,
    settings: Rank,
    dataset: Path,
    run: Draft,
    bundle: Path | None = None,
    passage_vectors: Path | None = None,
) -> Metrics:
    """Ranks with the vectors of a bundle, or with the backbone in the settings; a UserError if there is neither.

    With `passage_vectors`, of the encoder that the bundle has, no query is encoded again.
    """
    if not bundle and not settings.backbone:
        raise UserError(f"nothing ranks for {settings.system}: give a bundle, or set rank.backbone")
    data = Dataset(dataset)
    rows = evaluated_queries(data)
    texts, depth, left_out = data.query_texts(rows), min(settings.depth, len(data.passages)), data.identical[rows]
    facts: dict[str, Any] = {}

    def encoded(encoder: TextEncoder) -> np.ndarray:
        progress = context.progress("encoding", len(texts), "queries")
        return encode_texts(encoder, texts, progress=progress, **settings.speed)

    if bundle:
        parts = Bundle.read(bundle)
        if parts.label_use:  # what the table's reader should know of the system
            chosen = parts.manifest.metrics
            facts = {"labels": str(parts.label_use), **{name: chosen.get(name) for name in ("tuned_on", "tuned_by")}}
            facts["in_sample"] = facts["tuned_on"] == "dev" and parts.label_use.weight > 0
        if passage_vectors:
            queries = vectors_of_queries(passage_vectors, data, rows)
        else:
            queries = encoded(TextEncoder.load(parts.query_encoder_path))
        index = PassageIndex.read(parts)
        held = HeldOut.read(parts.fusion_path) if index.learned and parts.fusion_path else None
        if held and index.learned:
            runs, is_dev = [], np.isin(rows, data.query_rows("dev"))
            for run_of, inside in ((partial(held.run, index.learned), is_dev), (index.learned.run, ~is_dev)):
                of_split = [texts[i] for i in np.flatnonzero(inside).tolist()]
                runs.append(run_of(rows[inside], of_split, queries[inside], depth, left_out[inside]))
            ranked = Run.concatenate(runs)
            ranked = ranked.where(np.argsort(ranked.query, kind="stable"))
        else:
            ranked = ranking(index, None, rows, texts, queries, depth, None, left_out)
    else:
        read = settings.model_dump(include={*VectorsOfTexts.model_fields, "query_length", "passage_length"})
        encoders = DualEncoder.from_backbone(settings.backbone, share_encoders=True, **read)
        create, encoder, of = partial(scratch, folder=run.path), encoders.passage_encoder, None
        vectors = create(len(data.passages), encoder.width)
        progress = context.progress("encoding", len(vectors), "passages")
        encode_passages(encoder, data.passages, vectors, progress=progress, **settings.speed)
        if settings.in_windows:
            vectors, of, _ = encode_windows(
                encoder, data, vectors, settings, create, context.progress, **settings.speed
            )
        queries = encoded(encoders.query_encoder)
        ranked = run_by(partial(best_vectors.search, vectors, of, queries), rows, left_out, depth)
    ranked.write(run, settings.system, **facts)
    return {"hits": len(ranked.query), "headline": f"{len(rows):,} queries"}
