"""Encodes a share of the passages with M_de, and searches it for the nearest passages of the training queries.

The tasks take this work off `build_graph`, which joins what they have written. A share has whole blocks of the search,
so that on a CPU all scores have the bits of one task.
"""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Contents, Dataset, Draft, read_manifest
from gnn_encoder.artifacts.arrays import NEIGHBOUR_SCORES, NEIGHBOURS
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.task_figures import encoding_figures
from gnn_encoder.inference.encoding import encode_texts, inference_dtype
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.retrieval.exact import CHUNK
from gnn_encoder.retrieval.neighbours import nearest
from gnn_encoder.settings.graph import FindNeighbours
from gnn_encoder.update.passage_vectors import write_vectors


@step(neighbours="vectors")
def find_neighbours(
    context: Context, settings: FindNeighbours, dataset: Path, dual_encoder: Path, neighbours: Draft
) -> Metrics:
    """Writes the vectors of a share of the passages, and the training queries' nearest passages in it."""
    data, encoders = Dataset(dataset), DualEncoder.load(dual_encoder)
    share, k = settings.share(len(data.passages), CHUNK), min(settings.depth, len(data.passages))
    written = write_vectors(neighbours, encoders.passage_encoder, data, settings, context.progress, share=share)
    queries = encode_texts(encoders.query_encoder, data.query_texts(data.trained), **settings.speed)
    searching = context.progress("searching", len(written.vectors), "passages")
    hits = nearest(data, written.vectors, queries, k, first=share.start, progress=searching)
    for name, array in zip((NEIGHBOUR_SCORES, NEIGHBOURS), hits, strict=True):
        np.save(neighbours / f"{name}.npy", array, allow_pickle=False)
    dtype = str(inference_dtype(settings.precision))
    models = {"dual_encoder": read_manifest(dual_encoder).digest, "dtype": dtype}
    Contents.write(neighbours, models, **written.digests)
    return encoding_figures(len(written.vectors), written.encoded, written.rate)
