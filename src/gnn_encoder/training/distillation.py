"""Lists for distillation: candidates of training queries, with the scores of a trained cross-encoder."""

import numpy as np

from gnn_encoder.artifacts import PairScores
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.training.batches import draw_negatives


class Teacher:
    """Draws lists from the pairs that `score_candidates` scored, whatever their labels.

    Attributes:
        weight: of the divergence in the loss. temperature: of both distributions.
    """

    def __init__(self, pairs: PairScores, settings: TrainDualEncoder) -> None:
        self._pairs, self._length = pairs, settings.distillation_candidates
        self.weight, self.temperature = settings.distillation, settings.distillation_temperature

    def lists(self, query: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Distinct passages int32 [b, l] and scores fp32 [b, l] of dataset queries `query` [b]; -1, −inf: no passage.

        A query without scored pairs, such as a generated one (-1), has none.
        """
        starts, stops = (np.searchsorted(self._pairs.query, query, side) for side in ("left", "right"))
        rows = starts[:, None] + np.arange(max((stops - starts).max(), 1))
        rows = np.where(rows < stops[:, None], rows, -1)
        rows = draw_negatives(rows, self._length, np.random.default_rng(seed))
        passage, score = self._pairs.passage[rows], self._pairs.score[rows]
        return np.where(rows >= 0, passage, -1), np.where(rows >= 0, score, np.float32(-np.inf))
