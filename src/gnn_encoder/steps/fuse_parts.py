"""Writes a bundle that ranks by one part with labels, or by a learned fusion of all parts. No encoder is trained."""

from pathlib import Path

import numpy as np
import torch

from gnn_encoder.artifacts import Bundle, Dataset, Draft
from gnn_encoder.artifacts.added_labels import AddedLabels
from gnn_encoder.artifacts.arrays import VECTORS, VectorsFolder, read_rows
from gnn_encoder.artifacts.bundle import ADDED, FUSION, INDEX, LABELS, QUERY_ENCODER
from gnn_encoder.artifacts.parts_folder import EXAMPLES, PartsFolder
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.fusion_examples import Examples
from gnn_encoder.machine.threads import chunk_by_core
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.retrieval.index_file import build_index
from gnn_encoder.retrieval.learned_fusion import Alone, Fusion, Linear, Trees
from gnn_encoder.retrieval.parts import FEATURES
from gnn_encoder.settings.fusion import FuseParts
from gnn_encoder.settings.systems import fusion_systems

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
    """Learns the fusion of the settings' kind from the examples, and writes the bundle.

    A second fusion, learnt without a fold of the examples meanwhile, is measured on it.
    """
    data, shared = Dataset(dataset), PartsFolder.read(parts)
    examples = Examples.read(parts / EXAMPLES)
    held = examples.fold == examples.fold[:1]
    fusions = dict[bool, Fusion]()

    def learn(whole: bool) -> int:
        fusions[whole] = learnt(settings, examples if whole else examples.of(~held))
        return 1

    chunk_by_core(learn, (True, False), torch.device("cpu"), context.progress("learning", 2, "fusions"))
    of_held = examples.of(held)
    ranks = of_held.reciprocal_ranks(fusions[False].scores(of_held.features))
    for name in shared.manifest.files:
        if name.startswith(f"{LABELS}/"):
            bundle.share(shared, name)
        elif not name.startswith(f"{EXAMPLES}/"):
            bundle.share(shared, name, f"{FUSION}/{name}")
    fusions[True].write(bundle / FUSION, FEATURES)
    bundle.share(VectorsFolder.read(passage_vectors), VECTORS)
    build_index(read_rows(bundle.path, Path(VECTORS).stem), bundle / INDEX, settings)
    DualEncoder.load(dual_encoder).query_encoder.save(bundle / QUERY_ENCODER)
    Bundle.add_bm25(bundle, bm25_index)
    if data.added:
        AddedLabels(data.added).write(bundle / ADDED)
    Bundle.complete(bundle, data, settings.system or fusion_systems()[settings.kind])
    warm = {"warm": of_held.warm, "cold": ~of_held.warm}
    strata = {name: float(ranks[inside].mean()) for name, inside in warm.items() if inside.any()}
    return {
        "examples": len(examples.sizes),
        "figure": float(ranks.mean()),
        **strata,
        "headline": f"MRR@10 {ranks.mean():.3f} on {len(ranks):,} training queries that were left out "
        f"({', '.join(f'{name} {figure:.3f}' for name, figure in strata.items())})",
    }


def learnt(settings: FuseParts, examples: Examples) -> Fusion:
    """Returns the fusion of the settings' kind that some examples teach."""
    feature = ALONE.get(settings.kind, ALONE["field"])
    if settings.kind in ALONE or not examples.relevant.any() or examples.relevant.all():
        return Alone(feature, FEATURES.index(feature))
    if settings.kind == "linear":
        return Linear.fit(examples.features, examples.relevant, settings.penalty)
    trees = Trees.fit(
        examples.features, examples.relevant, examples.sizes, trees=settings.trees, leaves=settings.leaves,
        rate=settings.learning_rate, smallest_leaf=settings.smallest_leaf, seed=settings.seed,
    )  # fmt: skip
    if np.ptp(trees.scores(examples.features)):
        return trees
    return Linear.fit(examples.features, examples.relevant, settings.penalty)  # few candidates: no leaf can be split
