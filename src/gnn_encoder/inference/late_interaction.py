"""Token vectors of texts for late interaction, kept ragged, and scores of pairs (Khattab and Zaharia 2020)."""

from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts import PassageTable, Texts
from gnn_encoder.artifacts.arrays import eight_bits, ranges
from gnn_encoder.inference.encoding import ReadOptions, budget_batches, inference_copy, read_rows
from gnn_encoder.inference.tokens import SHARD, Tokens, passage_tokens, tokens_at
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.machine.threads import chunk_by_core
from gnn_encoder.models.document_gat import TokenMatrices
from gnn_encoder.models.dual_encoder import device, on_device
from gnn_encoder.models.late_interaction import LateInteraction, max_similarity
from gnn_encoder.tracking.progress import Progress

QUERIES_PER_BATCH = 128
PASSAGES_PER_CHUNK, QUERIES_PER_PRODUCT = 64, 64
"""Of `max_similarities`. With 32 tokens a query, and 84 a passage, a product has 0.7 MB."""
TOKENS_BY_BLOCK = {"cpu": 0, "cuda": 2**19}
"""Passage tokens, padding included, that `max_similarities` compares at a time on a GPU, for which a product for each
passage would be many small calls: 256 MB with vectors of 128 numbers. 0: passage by passage."""


class TokenVectors(NamedTuple):
    """Vectors of the tokens of n texts, one text after the other."""

    values: np.ndarray
    """fp16 [t, d], or int8 with scales; memory-mapped."""
    offsets: np.ndarray
    """int64 [n + 1]: text i has the vectors `offsets[i]` to `offsets[i + 1]`."""
    scales: np.ndarray | None = None
    """fp32 [t]: a vector is values[i] · scales[i]."""

    def of(self, row: int, where: torch.device) -> Tensor:
        """Vectors fp32 [k, d] of a text on a device."""
        part = slice(self.offsets[row], self.offsets[row + 1])
        vectors = torch.from_numpy(self.values[part]).to(where, torch.float32)
        if self.scales is not None:
            vectors *= torch.from_numpy(self.scales[part]).to(where)[:, None]
        return vectors

    def take(self, rows: np.ndarray, where: torch.device) -> TokenMatrices:
        """Vectors fp32 of some texts on a device."""
        starts, stops = self.offsets[rows], self.offsets[rows + 1]
        positions = ranges(starts, stops)
        vectors = on_device(self.values[positions], where).float()
        if self.scales is not None:
            vectors *= on_device(self.scales[positions], where)[:, None]
        return TokenMatrices(vectors, stops - starts)


def query_tokens(model: LateInteraction, texts: list[str]) -> Tokens:
    """Tokens of queries, with space for the marker."""
    return Tokens.of(model.tokenizer, texts, model.layout.query_length - 1)


def all_passage_tokens(model: LateInteraction, passages: PassageTable) -> Tokens:
    """Tokens of all passages as the layout says, with space for the marker; cached as `passage_tokens`."""
    return passage_tokens(model.tokenizer, passages, model.layout.passage_length - 1, model.layout.titles)


def query_arrays(model: LateInteraction, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`LateInteraction.query_arrays` of the queries at `rows`."""
    return model.query_arrays(*tokens.padded(rows, model.tokenizer.pad_token_id or 0))


def passage_arrays(
    model: LateInteraction, tokens: Tokens, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`LateInteraction.passage_arrays` of the passages at `rows`."""
    return model.passage_arrays(*tokens.padded(rows, model.tokenizer.pad_token_id or 0))


def encode_queries(model: LateInteraction, texts: list[str], precision: str) -> np.ndarray:
    """Vectors fp32 [n, l, d] of queries; 0 at tokens that are not summed over."""
    tokens = query_tokens(model, texts)
    ids, mask, asks = query_arrays(model, tokens, np.arange(len(texts)))
    vectors = np.empty((*ids.shape, model.width), np.float32)
    with inference_copy(model, precision) as ready:
        for start in range(0, len(texts), QUERIES_PER_BATCH):
            part = slice(start, start + QUERIES_PER_BATCH)
            batch = (torch.from_numpy(array[part]).to(device()) for array in (ids, mask))
            vectors[part] = ready(*batch).cpu().numpy()
    vectors[~asks] = 0
    return vectors


def encode_passages(
    model: LateInteraction,
    passages: PassageTable,
    rows: np.ndarray,
    *,
    further: Tokens | None = None,
    token_vectors: str = "fp16",
    **options: Unpack[ReadOptions],
) -> TokenVectors:
    """Token vectors of the passages at `rows` [n], without punctuation; in temporary files.

    The layout says whether their titles are read.

    Args:
        further: texts that are read as passages are, after the passages; cut to `passage_length` - 1 tokens.
        token_vectors: `fp16`, or `int8`, which takes half of the space.
    """
    layout = model.layout
    tokens, index = tokens_at(model.tokenizer, passages, rows, layout.passage_length - 1, layout.titles)
    if further is not None:
        tokens = Tokens.join([tokens.take(index), further])
        index = np.arange(len(tokens))
    starts = range(0, len(index), SHARD)
    kept = (_kept(model, tokens.take(index[start : start + SHARD])) for start in starts)
    counts = [np.diff(np.concatenate([[0], np.cumsum(compared)])[ends]) for compared, ends in kept]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.zeros(0, np.int64), *counts]))])
    total, small = int(offsets[-1]), token_vectors == "int8"
    values = scratch(total, model.width, dtype=np.int8 if small else np.float16)
    vectors = TokenVectors(values, offsets, scratch(total) if small else None)
    for start in starts:
        _encode(model, tokens.take(index[start : start + SHARD]), vectors._replace(offsets=offsets[start:]), options)
    return vectors


def _kept(model: LateInteraction, tokens: Tokens) -> tuple[np.ndarray, np.ndarray]:
    """Bool: the tokens that are compared, with the marker as each passage's second token; and the passages' offsets."""
    kept = np.insert(~np.isin(tokens.ids, list(model.punctuation)), tokens.offsets[:-1] + 1, True)
    return kept, tokens.offsets + np.arange(len(tokens) + 1)


def _encode(model: LateInteraction, tokens: Tokens, out: TokenVectors, options: Any) -> None:
    kept, positions = _kept(model, tokens)
    lengths = np.diff(positions)

    def store(batch: np.ndarray, vectors: np.ndarray) -> None:
        if vectors.ndim == 3:  # padded
            vectors = vectors[np.arange(vectors.shape[1]) < lengths[batch][:, None]]
        compared = kept[ranges(positions[batch], positions[batch + 1])]
        vectors, targets = vectors[: len(compared)][compared], ranges(out.offsets[batch], out.offsets[batch + 1])
        if out.scales is None:
            out.values[targets] = vectors
        else:
            out.values[targets], out.scales[targets] = eight_bits(vectors)

    read_rows(model, lengths, lambda batch: passage_arrays(model, tokens, batch)[:2], store, **options)


def max_similarities(
    queries: np.ndarray,
    passages: TokenVectors,
    query: np.ndarray,
    passage: np.ndarray,
    progress: Progress | None = None,
) -> np.ndarray:
    """Scores fp32 [r] of the pairs of queries `query` [r] and passages `passage` [r]; `progress` counts pairs.

    The score is the sum over query tokens of the largest inner product with a passage token. On a CPU no passage is
    padded. Each passage is read once, for all its queries. This takes a fifth of the time of the other order, which
    reads a passage again for each of its queries: in a first stage's hits, queries share passages
    (`benchmarks/max_similarity.py`). On a GPU pairs with passages of similar lengths are compared together.

    Args:
        queries: vectors fp32 [n, l, d]; 0 at tokens that are not summed over, so that these add 0.
    """
    scores, where = np.empty(len(query), np.float32), device()
    order = np.argsort(passage, kind="stable")
    present, begins = np.unique(passage[order], return_index=True)
    bounds = np.append(begins, len(order))
    asking, (_, length, width) = torch.from_numpy(queries).to(where), queries.shape
    if tokens := TOKENS_BY_BLOCK[where.type]:
        lengths, results = np.diff(passages.offsets)[passage[order]], torch.empty(len(order), device=where)
        sums = torch.ones(1, length, dtype=torch.bool, device=where)
        for block in budget_batches(lengths, tokens):
            pairs = order[block]
            rows, at = np.unique(passage[pairs], return_inverse=True)
            (vectors, inside), index = passages.take(rows, where).padded(), on_device(at, where)
            query_vectors = asking.index_select(0, on_device(query[pairs], where))
            results[on_device(pairs, where)] = max_similarity(query_vectors, vectors[index], sums, inside[index])
            if progress:
                progress.advance(len(pairs))
        scores[:] = results.cpu().numpy()
        return scores

    def score(start: int) -> int:
        end = min(start + PASSAGES_PER_CHUNK, len(present))
        with torch.inference_mode():
            for number in range(start, end):
                tokens = passages.of(present[number], where)
                pairs = order[bounds[number] : bounds[number + 1]]
                for begin in range(0, len(pairs), QUERIES_PER_PRODUCT):
                    block = pairs[begin : begin + QUERIES_PER_PRODUCT]
                    query_vectors = asking.index_select(0, torch.from_numpy(query[block]).to(where))
                    best = (tokens @ query_vectors.view(-1, width).T).amax(dim=0)  # products: [tokens, pairs · l]
                    scores[block] = best.view(-1, length).sum(dim=1).cpu().numpy()
        return int(bounds[end] - bounds[start])

    chunk_by_core(score, range(0, len(present), PASSAGES_PER_CHUNK), where, progress)
    return scores


def late_scores(
    model: LateInteraction,
    data: Texts,
    query: np.ndarray,
    passage: np.ndarray,
    *,
    token_vectors: str = "fp16",
    **options: Unpack[ReadOptions],
) -> np.ndarray:
    """Scores fp32 [r] of the pairs of dataset rows `query` [r] and `passage` [r]. Each text is encoded once."""
    query_rows, first = np.unique(query, return_inverse=True)
    passage_rows, second = np.unique(passage, return_inverse=True)
    if progress := options.pop("progress", None):
        options["progress"] = Progress(progress.step, "encoding", len(passage_rows), "passages")
    queries = encode_queries(model, data.query_texts(query_rows), options.get("precision", "auto"))
    passages = encode_passages(model, data.passages, passage_rows, token_vectors=token_vectors, **options)
    return max_similarities(queries, passages, first, second, progress)
