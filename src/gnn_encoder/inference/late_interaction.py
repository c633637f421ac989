"""Token vectors of texts for late interaction, kept ragged, and scores of pairs (Khattab and Zaharia 2020)."""

from typing import NamedTuple, Unpack

import numpy as np
import torch

from gnn_encoder.artifacts import Dataset, PassageTable
from gnn_encoder.artifacts.arrays import ranges
from gnn_encoder.inference.encoding import ReadOptions, inference_copy, read_rows
from gnn_encoder.inference.tokens import Tokens, tokens_at
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.models.late_interaction import LateInteraction

QUERIES_PER_BATCH = 128


class TokenVectors(NamedTuple):
    """Vectors of the tokens of n texts, one text after the other."""

    values: np.ndarray
    """fp16 [t, d], unit length, memory-mapped."""
    offsets: np.ndarray
    """int64 [n + 1]: text i has the vectors `offsets[i]` to `offsets[i + 1]`."""


def late_tokens(model: LateInteraction, texts: list[str], side: int) -> Tokens:
    """Tokens of queries (side 0) or passages (side 1) with the side's marker after the first token."""
    length = (model.layout.query_length, model.layout.passage_length)[side]
    return _marked(Tokens.of(model.tokenizer, texts, length - 1), model.markers[side])


def _marked(tokens: Tokens, marker: int) -> Tokens:
    offsets = tokens.offsets + np.arange(len(tokens) + 1)
    return Tokens(np.insert(tokens.ids, tokens.offsets[:-1] + 1, marker), offsets)


def query_arrays(model: LateInteraction, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids and mask int64 [b, l] for the model, and bool [b, l]: the tokens that are summed over.

    Queries are filled up with `[MASK]`, if the layout says so.
    """
    ids, mask = tokens.padded(rows, model.tokenizer.pad_token_id or 0)
    if not model.layout.expand_queries:
        return ids, mask, mask > 0
    missing = ((0, 0), (0, model.layout.query_length - ids.shape[1]))
    ids, mask = np.pad(ids, missing), np.pad(mask, missing)
    ids[mask == 0] = model.tokenizer.mask_token_id
    everything = np.ones_like(mask)
    return ids, everything if model.layout.attend_to_masks else mask, everything > 0


def passage_arrays(
    model: LateInteraction, tokens: Tokens, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids and mask int64 [b, l] for the model, and bool [b, l]: the tokens that are compared, without punctuation."""
    ids, mask = tokens.padded(rows, model.tokenizer.pad_token_id or 0)
    return ids, mask, (mask > 0) & ~np.isin(ids, list(model.punctuation))


def encode_queries(model: LateInteraction, texts: list[str], precision: str) -> tuple[np.ndarray, np.ndarray]:
    """Vectors fp32 [n, l, d] of queries, and bool [n, l]: the tokens that are summed over."""
    tokens = late_tokens(model, texts, 0)
    ids, mask, asks = query_arrays(model, tokens, np.arange(len(texts)))
    vectors = np.empty((*ids.shape, model.width), np.float32)
    with inference_copy(model, precision) as ready:
        for start in range(0, len(texts), QUERIES_PER_BATCH):
            part = slice(start, start + QUERIES_PER_BATCH)
            given = (torch.from_numpy(array[part]).to(device()) for array in (ids, mask))
            vectors[part] = ready(*given).cpu().numpy()
    return vectors, asks


def encode_passages(
    model: LateInteraction, passages: PassageTable, rows: np.ndarray, **options: Unpack[ReadOptions]
) -> TokenVectors:
    """Token vectors of the passages at `rows` [n], title and text, without punctuation; in a temporary file."""
    tokens, places = tokens_at(model.tokenizer, passages, rows, model.layout.passage_length - 1)
    tokens = _marked(tokens.take(places), model.markers[1])
    kept = ~np.isin(tokens.ids, list(model.punctuation))
    offsets = np.concatenate([[0], np.cumsum(kept)])[tokens.offsets]
    values = scratch(int(offsets[-1]), model.width, dtype=np.float16)

    def store(batch: np.ndarray, vectors: np.ndarray) -> None:
        if vectors.ndim == 3:  # padded
            vectors = vectors[np.arange(vectors.shape[1]) < tokens.lengths[batch][:, None]]
        compared = kept[ranges(tokens.offsets[batch], tokens.offsets[batch + 1])]
        values[ranges(offsets[batch], offsets[batch + 1])] = vectors[: len(compared)][compared]

    pad = model.tokenizer.pad_token_id or 0
    read_rows(model, tokens.lengths, lambda batch: tokens.padded(batch, pad), store, **options)
    return TokenVectors(values, offsets)


def max_similarities(query: np.ndarray, passages: TokenVectors, rows: np.ndarray) -> np.ndarray:
    """Scores fp32 [k] of one query with the passages at `rows` [k].

    The score is the sum over query tokens of the largest inner product with a passage token. No passage is padded.

    Args:
        query: vectors fp32 [l, d] of the tokens that are summed over.
    """
    starts, ends = passages.offsets[rows], passages.offsets[rows + 1]
    products = query @ passages.values[ranges(starts, ends)].astype(np.float32).T  # [l, tokens]
    begins = np.concatenate([[0], np.cumsum(ends - starts)[:-1]])
    scores: np.ndarray = np.maximum.reduceat(products, begins, axis=1).sum(axis=0)
    return scores


def late_scores(
    model: LateInteraction, data: Dataset, query: np.ndarray, passage: np.ndarray, **options: Unpack[ReadOptions]
) -> np.ndarray:
    """Scores fp32 [r] of the pairs of dataset rows `query` [r] and `passage` [r]. Each text is encoded once."""
    asked, first = np.unique(query, return_inverse=True)
    answering, second = np.unique(passage, return_inverse=True)
    vectors, asks = encode_queries(model, data.query_texts(asked), options.get("precision", "auto"))
    passages = encode_passages(model, data.passages, answering, **options)
    scores = np.empty(len(query), np.float32)
    order = np.argsort(first, kind="stable")
    bounds = np.searchsorted(first[order], np.arange(len(asked) + 1))
    for number in range(len(asked)):
        rows = order[bounds[number] : bounds[number + 1]]
        scores[rows] = max_similarities(vectors[number][asks[number]], passages, second[rows])
    return scores
