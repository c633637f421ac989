"""Token vectors of the document graph's nodes: of the passages' texts, and of the sections' titles."""

from typing import Unpack

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset, PassageTable
from gnn_encoder.artifacts.structure import Structure
from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import ReadOptions
from gnn_encoder.inference.late_interaction import TokenVectors, encode_passages
from gnn_encoder.inference.tokens import SHARD, Tokens
from gnn_encoder.models.late_interaction import LateInteraction


def structure_of(data: Dataset) -> Structure:
    """The documents of a dataset; raises UserError if it has none."""
    if data.structure is None:
        raise UserError(f"{data.path} has no documents: mim, lim and mix_im need data with them")
    return data.structure


def section_tokens(model: LateInteraction, titles: pa.ChunkedArray, rows: np.ndarray) -> Tokens:
    """Tokens of the titles at `rows`, with space for the marker."""
    shards = (rows[start : start + SHARD] for start in range(0, len(rows), SHARD))
    texts = (titles.take(pa.array(shard)).to_pylist() for shard in shards)
    return Tokens.join([Tokens.of(model.tokenizer, part, model.layout.passage_length - 1) for part in texts])


def encode_nodes(
    model: LateInteraction, data: Dataset, wanted: np.ndarray, **options: Unpack[ReadOptions]
) -> TokenVectors:
    """Token vectors fp16 of all n nodes, in temporary files; nodes that are not `wanted` (bool [n]) have no tokens.

    A section's title is read as a passage is. The token ids of the wanted nodes are in memory: 0.3 GB for a million
    nodes of 70 tokens.
    """
    return encode_texts(model, data.passages, structure_of(data).sections, wanted, **options)


def encode_texts(
    model: LateInteraction,
    passages: PassageTable,
    titles: pa.ChunkedArray,
    wanted: np.ndarray,
    **options: Unpack[ReadOptions],
) -> TokenVectors:
    """As `encode_nodes`, of m passages and the titles of the n - m sections."""
    rows, count = np.flatnonzero(wanted), len(passages)
    sections = section_tokens(model, titles, rows[rows >= count] - count)
    vectors = encode_passages(model, passages, rows[rows < count], further=sections, **options)
    lengths = np.zeros(len(wanted), np.int64)
    lengths[rows] = np.diff(vectors.offsets)
    return vectors._replace(offsets=np.concatenate([[0], np.cumsum(lengths)]))
