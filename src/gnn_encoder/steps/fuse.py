"""Fuses a dense run with BM25's run, by two methods."""

from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft, Run
from gnn_encoder.artifacts.tables import CONVEX, RECIPROCAL, System
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.evaluation.measures import labelled_queries, measured_by
from gnn_encoder.evaluation.tuning import first_best, held_out_places
from gnn_encoder.retrieval import fusion
from gnn_encoder.settings.measures import depth_of
from gnn_encoder.settings.outcome import Fuse

TUNING_QUERIES = 1000
"""Largest number of dev queries for tuning the weight, taken evenly from all dev queries."""


@step(convex_run="run", reciprocal_run="run")
def fuse(
    context: Context,
    settings: Fuse,
    dataset: Path,
    lexical_run: Path,
    dense_run: Path,
    convex_run: Draft,
    reciprocal_run: Draft,
) -> Metrics:
    """Fuses two runs by a convex combination of scores, and by reciprocal ranks (`retrieval.fusion`).

    The weight is tuned on labelled dev queries, but not on written ones that quote their passages (`Dataset.quoting`).
    Each of them is ranked by the weight that the others choose, because its figure would be too high with one that it
    has helped to choose. If the measure uses only k passages, the tuning uses only k hits, too.
    """
    data = Dataset(dataset)
    queries, depth = evaluated_queries(data), min(settings.depth, len(data.passages))
    lexical, dense = (Run.read(path).of(queries, depth) for path in (lexical_run, dense_run))
    first, second = System.of(lexical_run).name, System.of(dense_run).name
    qrels, weight = data.judged("dev"), fusion.UNTUNED
    tuned: dict[str, Any] = {"tuned_on": None}
    changed: dict[float, np.ndarray] = {}
    dev = labelled_queries(qrels)
    if len(dev) and not data.quoting:
        tried = dev[np.linspace(0, len(dev) - 1, min(len(dev), TUNING_QUERIES)).astype(int)]
        of_run = measured_by(settings.measure, data, qrels)
        tuning = context.progress("tuning", len(fusion.GRID), "weights")

        def measured(run: Run) -> np.ndarray:
            tuning.advance()
            return of_run(run, tried)

        looked_at = depth_of(settings.measure, settings.depth)
        values = fusion.values_by_weight(lexical.of(tried), dense.of(tried), measured, looked_at)
        weight, figures = fusion.GRID[first_best(values)], dict(zip(fusion.GRID, values.mean(1).tolist(), strict=True))
        tuned = {"tuned_on": "dev", "tuned_by": settings.measure, "tuned_queries": len(tried), "figures": figures}
        of_others = np.take(fusion.GRID, held_out_places(values, data.groups[tried]))
        changed = {w: tried[of_others == w] for w in np.unique(of_others).tolist() if w != weight}
    parts = {"lexical": first, "dense": second}
    convex, reciprocal = fusion.fuse(lexical, dense, weight, settings.depth)
    if changed:
        kept = convex.where(~np.isin(convex.query, np.concatenate([*changed.values()])))
        fresh = [fusion.convex(lexical.of(of), dense.of(of), w, settings.depth) for w, of in changed.items()]
        convex = Run.concatenate([kept, *fresh])
    convex.write(convex_run, f"{first} + {second}", method=CONVEX, **parts, weight=weight, **tuned)
    reciprocal.write(reciprocal_run, f"{first} + {second} (RRF)", method=RECIPROCAL, **parts, k=fusion.RRF_K)
    return {"weight": weight, "headline": f"weight {weight:.2f} on {second}"}
