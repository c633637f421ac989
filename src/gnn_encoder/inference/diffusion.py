"""Diffusion of information: how similar an encoder's outputs are within a pair (BERT-DMN 6.2, Fig. 3).

Three kinds of cosines: of [CLS] with each token of the query, of [CLS] with each token of the passage, and of every two
tokens of the passage. If training reads [CLS] alone, all outputs become similar.
"""

from dataclasses import dataclass
from typing import Unpack

import numpy as np
from torch import nn

from gnn_encoder.artifacts.arrays import at_unit_length
from gnn_encoder.inference.encoding import ReadOptions, read_rows
from gnn_encoder.inference.scoring import PairTokens

COSINES = ("CLS–query", "CLS–passage", "inner-passage")
BINS = 200
"""Bins of a histogram, from -1 to 1."""


@dataclass(frozen=True)
class Diffusion:
    """The cosines of many pairs, for each of `COSINES`; every cosine counts once, so long passages count more."""

    counts: np.ndarray
    """int64 [3, BINS]."""
    means: np.ndarray
    """float64 [3]; 0 without a cosine."""


def diffusion(
    encoder: nn.Module, pairs: PairTokens, first: np.ndarray, second: np.ndarray, **options: Unpack[ReadOptions]
) -> Diffusion:
    """Returns the cosines of the pairs (first[i], second[i]); memory does not grow with the number of pairs.

    `encoder` returns the outputs of all tokens (`FrozenEncoder`). [SEP] is a token of neither text.
    """
    counts, sums = np.zeros((len(COSINES), BINS), np.int64), np.zeros(len(COSINES))

    def store(rows: np.ndarray, outputs: np.ndarray) -> None:
        query, passage = first[rows], second[rows]
        lengths = pairs.lengths(query, passage)
        heads = np.minimum(pairs.first.lengths[query], pairs.max_length // 2)
        if outputs.ndim == 3:  # padded, not packed
            outputs = outputs[np.arange(outputs.shape[1]) < lengths[:, None]]
        for stop, length, head in zip(np.cumsum(lengths), lengths, heads, strict=True):
            of_pair = pair_cosines(outputs[stop - length : stop], int(head), int(head) + len(pairs.middle))
            for kind, cosines in enumerate(of_pair):
                counts[kind] += np.histogram(cosines, BINS, (-1.0, 1.0))[0]
                sums[kind] += cosines.sum(dtype=np.float64)

    lengths = pairs.lengths(first, second)
    read_rows(encoder, lengths, lambda rows: pairs.padded(first[rows], second[rows])[:3], store, **options)
    return Diffusion(counts, sums / np.maximum(counts.sum(axis=1), 1))


def pair_cosines(outputs: np.ndarray, head: int, tail: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the `COSINES` of one pair from its outputs [t, d].

    The query's tokens are those from 1 to `head` - 2, the passage's those from `tail` to t - 2.
    """
    unit = at_unit_length(outputs)
    passage = unit[tail:-1]
    cosines = unit[1 : head - 1] @ unit[0], passage @ unit[0], (passage @ passage.T)[np.triu_indices(len(passage), 1)]
    # By rounding, the cosine of equal vectors may be larger than 1, and no bin would count it.
    one, two, three = (np.clip(values, -1.0, 1.0) for values in cosines)
    return one, two, three
