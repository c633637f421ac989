"""Scores of the re-rankers that read a passage's context in its documents, from stored context vectors."""

from typing import Unpack

import numpy as np
import torch

from gnn_encoder.artifacts import Texts
from gnn_encoder.inference.encoding import ReadOptions
from gnn_encoder.inference.late_interaction import TokenVectors, encode_passages, encode_queries, max_similarities
from gnn_encoder.models.document_reranker import DocumentReranker
from gnn_encoder.tracking.progress import Progress


def document_scores(
    model: DocumentReranker,
    data: Texts,
    contexts: TokenVectors,
    query: np.ndarray,
    passage: np.ndarray,
    context: np.ndarray,
    *,
    token_vectors: str = "fp16",
    **options: Unpack[ReadOptions],
) -> np.ndarray:
    """Scores fp32 [r] of the pairs of dataset rows `query` [r] and `passage` [r] (Albarede et al. 2022, eq. 2 and 3).

    Args:
        contexts: vectors of passages in their context. context: int [r], the row of each pair's passage in `contexts`.
        token_vectors: storage type of the passages' own vectors; `mim` does not read them.
    """
    query_rows, first = np.unique(query, return_inverse=True)
    passage_rows, second = np.unique(passage, return_inverse=True)
    progress = options.pop("progress", None)
    queries = encode_queries(model.text, data.query_texts(query_rows), options.get("precision", "auto"))
    in_context = max_similarities(queries, contexts, first, context, progress)
    if not model.context.uses_content:
        return in_context
    if progress:
        options["progress"] = Progress(progress.step, "encoding", len(passage_rows), "passages")
    passages = encode_passages(model.text, data.passages, passage_rows, token_vectors=token_vectors, **options)
    alone = max_similarities(queries, passages, first, second)
    with torch.inference_mode():
        similarities = (torch.from_numpy(similarity) for similarity in (alone, in_context))
        scores: np.ndarray = model.context.relevance(*similarities).numpy()
    return scores
