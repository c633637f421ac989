"""Writes a bundle that ranks by one part with labels, or by a learned fusion of all parts. No encoder is trained."""

from pathlib import Path

import numpy as np
import torch

from gnn_encoder.artifacts import Bundle, Dataset, Draft
from gnn_encoder.artifacts.arrays import VECTORS, read_rows
from gnn_encoder.artifacts.bundle import FUSION, INDEX, LABELS, QUERY_ENCODER
from gnn_encoder.artifacts.digests import text_digests
from gnn_encoder.artifacts.folder import Artifact, read_manifest
from gnn_encoder.artifacts.parts_folder import DEV_EXAMPLES, EXAMPLES
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.fusion_examples import Examples
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.machine.threads import chunk_by_core
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.retrieval.held_out import HeldOut
from gnn_encoder.retrieval.index_file import build_index
from gnn_encoder.retrieval.learned_fusion import Alone, Fusion, Linear, Trees
from gnn_encoder.retrieval.parts import FEATURES, FROM_LABELS
from gnn_encoder.settings.fusion import FuseParts
from gnn_encoder.settings.systems import fusion_systems

WHOLE = -1
"""In place of a fold: none is left out."""
ALONE = {"field": "labelled", "adapter": "adapted"}
"""Kind → the feature that it ranks by; a fusion without anything to learn from ranks by the first."""


@step(bundle="bundle")
def fuse_parts(
    context: Context,
    settings: FuseParts,
    dataset: Path,
    dual_encoder: Path,
    passage_vectors: Path,
    bm25_index: Path,
    parts: Path,
    bundle: Draft,
) -> Metrics:
    """Learns the fusion of the settings' kind from examples, measures it on left-out ones, and writes the bundle."""
    data, shared = Dataset(dataset), Artifact(parts, read_manifest(parts, "parts"))
    from_dev = settings.kind == "linear" and (parts / DEV_EXAMPLES).is_dir()
    examples = Examples.read(parts / (DEV_EXAMPLES if from_dev else EXAMPLES))
    # A fold of the training queries is enough to measure, but each dev query needs a fusion that has not seen it.
    folds = np.unique(examples.fold)[: None if from_dev else 1].tolist()
    fusions = dict[int, Fusion]()

    def learn(fold: int) -> int:
        fusions[fold] = learnt(settings, examples.of(examples.fold != fold))
        return 1

    progress = context.progress("learning", 1 + len(folds), "fusions")
    chunk_by_core(learn, (WHOLE, *folds), torch.device("cpu"), progress)
    held = examples.of(np.isin(examples.fold, folds))
    scores, of_row = np.zeros(len(held.relevant), np.float32), np.repeat(held.fold, held.sizes)
    for fold in folds:
        scores[of_row == fold] = fusions[fold].scores(held.features[of_row == fold])
    ranks = held.reciprocal_ranks(scores)
    for name in shared.manifest.files:
        if name.startswith(f"{LABELS}/"):
            bundle.share(shared, name)
        elif not name.startswith((f"{EXAMPLES}/", f"{DEV_EXAMPLES}/")):
            bundle.share(shared, name, f"{FUSION}/{name}")
    fusions[WHOLE].write(bundle / FUSION, FEATURES)
    if from_dev:
        by_fold = {fold: fusions[fold] for fold in folds}
        questions = data.query_texts(labelled_queries(data.split_qrels("dev")))
        HeldOut(by_fold, text_digests(questions), examples.fold).write(bundle / FUSION)
    Bundle.add_vectors(bundle, passage_vectors)
    build_index(read_rows(bundle.path, Path(VECTORS).stem), bundle / INDEX, settings)
    DualEncoder.load(dual_encoder).query_encoder.save(bundle / QUERY_ENCODER)
    Bundle.add_bm25(bundle, bm25_index)
    Bundle.add_labels(bundle, data)
    Bundle.complete(bundle, data, settings.system or fusion_systems()[settings.kind])
    warm = {"warm": held.warm, "cold": ~held.warm}
    strata = {name: float(ranks[inside].mean()) for name, inside in warm.items() if inside.any()}
    return {
        "examples": len(examples.sizes),
        "figure": float(ranks.mean()),
        **strata,
        "headline": f"MRR@10 {ranks.mean():.3f} on {len(ranks):,} left-out {'dev' if from_dev else 'training'} queries "
        f"({', '.join(f'{name} {figure:.3f}' for name, figure in strata.items())})",
    }


def learnt(settings: FuseParts, examples: Examples) -> Fusion:
    """Returns the fusion of the settings' kind that some examples teach."""
    feature = ALONE.get(settings.kind, ALONE["field"])
    if settings.kind in ALONE or not examples.relevant.any() or examples.relevant.all():
        return Alone(feature, FEATURES.index(feature))
    if settings.kind == "trees":
        trees = Trees.fit(
            examples.features, examples.relevant, examples.sizes, FROM_LABELS, trees=settings.trees,
            leaves=settings.leaves, rate=settings.learning_rate, smallest_leaf=settings.smallest_leaf,
            seed=settings.seed,
        )  # fmt: skip
        if np.ptp(trees.scores(examples.features)):  # of few candidates no leaf can be split
            return trees
    return Linear.fit(examples.features, examples.relevant, FROM_LABELS, settings.penalty)
