"""What the heads of lite re-rankers read: outputs of a frozen encoder, computed once and kept ragged (BERT-DMN 5.1)."""

import tempfile
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from gnn_encoder.artifacts.arrays import ranges
from gnn_encoder.inference.encoding import ReadOptions, read_rows
from gnn_encoder.inference.scoring import Pairs
from gnn_encoder.models.bert_dmn import Reading
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.models.packed import Row


class FrozenEncoder(nn.Module):
    """The encoder of a cross-encoder or BERT-DMN alone, in eval mode, so that no draw of dropout is kept."""

    def __init__(self, scorer: Any) -> None:
        super().__init__()
        self.backbone, self._has_token_types = scorer.backbone, scorer._has_token_types
        self.width: int = scorer.backbone.config.hidden_size
        self.eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Outputs fp32 [b, l, d] of all tokens."""
        types = {"token_type_ids": token_type_ids} if self._has_token_types else {}
        outputs: Tensor = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **types)[0]
        return outputs.float()

    def packed(self, row: Row) -> Tensor:
        """Outputs fp32 [t, d] of the tokens of a row."""
        row = row if self._has_token_types else replace(row, types=None)
        return row.hidden(self.backbone).float()


class PairOutputs(NamedTuple):
    """Vectors of n pairs, one pair after the other: `[CLS]`, the query's tokens, and the means of the sentences."""

    values: np.ndarray
    """fp32 or fp16 [t, d], memory-mapped."""
    starts: np.ndarray
    """int64 [n], each pair's first row of `values`."""
    query_length: np.ndarray
    sentence_count: np.ndarray
    """int64 [n]."""

    def reading(self, rows: np.ndarray) -> Reading:
        """What a memory network reads of the pairs at `rows` [b]; a linear head reads its `cls`."""
        starts, query_length, sentence_count = self.starts[rows], self.query_length[rows], self.sentence_count[rows]

        def padded(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
            inside = np.arange(max(int(lengths.max()), 1)) < lengths[:, None]
            vectors = np.zeros((*inside.shape, self.values.shape[1]), np.float32)
            vectors[inside] = self.values[ranges(begins, begins + lengths)]
            return vectors

        queries = padded(starts + 1, query_length)
        sentences = padded(starts + 1 + query_length, sentence_count)
        arrays = (self.values[starts].astype(np.float32), queries, query_length, sentences, sentence_count)
        return Reading(*(torch.from_numpy(np.asarray(array)).to(device()) for array in arrays))


def read_outputs(
    encoder: FrozenEncoder,
    pairs: Pairs,
    first: np.ndarray,
    second: np.ndarray,
    dtype: Any,
    **options: Unpack[ReadOptions],
) -> PairOutputs:
    """Reads the pairs (first[i], second[i]); the vectors go to a temporary file.

    Of pairs without sentences, only the `[CLS]` vectors are kept. On a CPU a pair's vectors do not depend on the other
    pairs (`gnn_encoder.models.packed`).
    """
    starts, query_length, sentence_count = np.zeros((3, len(first)), np.int64)
    written = 0
    with tempfile.TemporaryFile() as file:

        def store(rows: np.ndarray, outputs: np.ndarray) -> None:
            nonlocal written
            _, mask, _, *segments = pairs.padded(first[rows], second[rows])
            real, part = mask > 0, segments[0] if segments else np.full(mask.shape, -1)
            part[:, 0] = 0  # [CLS] is a part of its own, as each token of the query is
            begins = (part == 0) | (part > np.roll(part, 1, axis=1))
            kept = part[real] >= 0
            tokens = (outputs[real] if outputs.ndim == 3 else outputs[: len(kept)])[kept]
            positions = np.flatnonzero(begins[real][kept])
            means = np.add.reduceat(tokens, positions, axis=0) / np.diff([*positions, len(tokens)])[:, None]
            means.astype(dtype).tofile(file)
            amount = begins.sum(axis=1)
            starts[rows] = written + np.cumsum(amount) - amount
            query_length[rows] = (part == 0).sum(axis=1) - 1
            sentence_count[rows] = part.max(axis=1)
            written += len(means)

        with torch.autocast(device().type, enabled=False):
            lengths = pairs.lengths(first, second)
            read_rows(encoder, lengths, lambda rows: pairs.padded(first[rows], second[rows])[:3], store, **options)
        file.flush()
        values = np.memmap(file, dtype, "r", shape=(written, encoder.width))
    return PairOutputs(values, starts, query_length, sentence_count)
