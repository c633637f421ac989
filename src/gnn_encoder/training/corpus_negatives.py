"""Negatives by chance: from the corpus, and from the documents of the query's relevant passages.

Albarede et al. (2022), section 3: a negative is from the corpus with probability 0.6 and from the relevant documents
with 0.4, so that training meets positives and negatives with similar contexts.
"""

import numpy as np

from gnn_encoder.artifacts import Dataset, KnownPositives, pair_keys
from gnn_encoder.errors import UserError

TRIES = 32
"""Draws of a negative from its source, each of which may give a known positive. If 8 of 10 passages are positives, 1 of
1,300 negatives comes from the corpus instead of these; after 8 tries, 1 of 6 would."""


def corpus_negatives(dataset: Dataset, width: int, document_share: float, seed: int) -> np.ndarray:
    """Negatives int32 [e, width] of each of `dataset.trained_labels`, each drawn by itself; -1: none.

    With probability `document_share` the source is the passages in documents of the query's relevant passages,
    otherwise the corpus; a draw is uniform over the source's passages that are no known positive of the query. After
    `TRIES` positives of the documents, the corpus is the source. The corpus has no such replacement: it contains the
    documents' passages. So -1 occurs only if the query's known positives are nearly the whole corpus.

    Raises:
        UserError: the data have no documents, and `document_share` is not 0.
    """
    labels, known = dataset.trained_labels, KnownPositives.of(dataset, "train")
    # A child, because `PairBatches` draws with the seed's own generator.
    (generator,) = np.random.default_rng(seed).spawn(1)
    query = np.repeat(labels.query, width)
    in_documents = generator.random(len(query)) < document_share
    relevant = None
    if document_share:
        if dataset.structure is None:
            raise UserError(
                f"{dataset.path} has no documents, from which train_reranker.document_negatives = {document_share} of "
                "the negatives are drawn: set it to 0, or negatives_from to first_stage"
            )
        document = dataset.structure.document[: len(dataset.passages)]
        relevant = RelevantDocuments(labels.query, labels.passage, document)
    negatives = np.full(len(query), -1, np.int32)
    for attempt in range(2 * TRIES):
        missing = np.flatnonzero(negatives < 0)
        drawn = generator.integers(len(dataset.passages), size=len(missing), dtype=np.int32)
        if relevant and attempt < TRIES:
            inside = np.flatnonzero(in_documents[missing])
            drawn[inside] = relevant.draw(query[missing[inside]], generator)
        negatives[missing] = np.where(known.contains(query[missing], drawn), -1, drawn)
    return negatives.reshape(len(labels.query), width)


class RelevantDocuments:
    """The passages in the documents of each query's relevant passages.

    Args:
        query, passage: int32 [e], relevant passages of queries. document: int32 [m], the number of each passage's.
    """

    def __init__(self, query: np.ndarray, passage: np.ndarray, document: np.ndarray) -> None:
        self._passages = np.argsort(document, kind="stable")  # one document after the other
        self._first = np.concatenate([[0], np.cumsum(np.bincount(document))])  # of a document's passages
        pairs = np.unique(pair_keys(query, document[passage]))
        self._query, self._document = pairs >> 32, pairs & 0xFFFFFFFF
        sizes = np.diff(self._first)[self._document]
        self._before = np.concatenate([[0], np.cumsum(sizes)])  # passages of earlier pairs

    def draw(self, query: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """One passage for each of `query` [r], uniformly over the passages of all its documents."""
        low, high = (self._before[np.searchsorted(self._query, query, side=side)] for side in ("left", "right"))
        position = generator.integers(low, high)
        pair = np.searchsorted(self._before, position, side="right") - 1
        return np.asarray(self._passages[self._first[self._document[pair]] + position - self._before[pair]])
