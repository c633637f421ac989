"""Lite re-rankers: the encoder is frozen, and its outputs are computed once, in the first epoch (BERT-DMN 5.1)."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts.tables import find_pairs, pair_keys
from gnn_encoder.inference.encoding import ReadOptions
from gnn_encoder.inference.pair_outputs import FrozenEncoder, PairOutputs, read_outputs
from gnn_encoder.models.bert_dmn import BertDmn, Reading
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.tracking.progress import Progress
from gnn_encoder.training.rerankers import Reranker

Pairs = tuple[np.ndarray, np.ndarray]
"""Dataset rows of queries [r] and of passages [r]."""
Begin = Callable[[str, int, str], Progress]
"""Starts the progress of a stage of so many units (`Context.progress`)."""
RANKED = 256
"""Dev pairs that a head scores together."""


def with_frozen_encoder(full: Reranker, settings: TrainReranker, train: Pairs, dev: Pairs, begin: Begin) -> Reranker:
    """The re-ranker whose heads alone are trained; the encoder's outputs of `train` and `dev` are kept."""
    model, training, measuring = full.model, *(_Readings(full, settings, pairs, begin) for pairs in (train, dev))

    def scores(read: Reading) -> Tensor:
        return model.score(read) if isinstance(model, BertDmn) else model.scored(read.cls)[0]

    def score(query: np.ndarray, passage: np.ndarray) -> Tensor:
        return scores(training.of(query, passage))

    def lengths(query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        return np.ones(len(query), np.int64)  # a head reads a whole batch at once

    def rank(query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        parts = (slice(start, start + RANKED) for start in range(0, len(query), RANKED))
        with torch.no_grad():
            return torch.cat([scores(measuring.of(query[part], passage[part])) for part in parts]).cpu().numpy()

    return replace(full, score=score, lengths=lengths, rank=rank)


class _Readings:
    """What a head reads of `pairs`. The frozen encoder reads them all when the first is needed, in the first epoch.

    So `batches_per_second` of the first epoch has the encoder's work, as in BERT-DMN's Table 3. A resumed training
    reads the pairs again.
    """

    def __init__(self, full: Reranker, settings: TrainReranker, pairs: Pairs, begin: Begin) -> None:
        assert full.read, f"{settings.kind} reads texts alone"
        self._tokens, self._rows = full.read
        self._encoder, self._settings, self._begin = FrozenEncoder(full.model), settings, begin
        self._keys = np.unique(pair_keys(*pairs))

    def of(self, query: np.ndarray, passage: np.ndarray) -> Reading:
        """The reading of pairs, in their order."""
        if self._settings.cache == "none":
            return self._read(query, passage).reading(np.arange(len(query)))
        return self._kept.reading(find_pairs(self._keys, query, passage))

    @cached_property
    def _kept(self) -> PairOutputs:
        progress = self._begin("encoding", len(self._keys), "pairs")
        return self._read(self._keys >> 32, self._keys & 0xFFFFFFFF, progress)

    def _read(self, query: np.ndarray, passage: np.ndarray, progress: Progress | None = None) -> PairOutputs:
        dtype = np.float16 if self._settings.cache == "fp16" else np.float32
        options: ReadOptions = {"precision": self._settings.precision, "progress": progress}
        return read_outputs(self._encoder, self._tokens, query, np.searchsorted(self._rows, passage), dtype, **options)
