"""Plans of batches, and batches of training examples: queries, their distinct passages, which one is a positive."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnn_encoder.artifacts import KnownPositives, TrainingSet


@dataclass(frozen=True)
class Batch:
    """b examples and the c distinct passages P_b = P_b⁺ ∪ P_b⁻ among them.

    `examples` [b] rows of the training set; `passages` [c] dataset rows, ascending; `positive` [b] indices into
    `passages`; `excluded` [2, x] int64, (example, passage) indices of pairs that are not negatives; `masked` bool [n]:
    the graph's queries that this round removes from the graph (None outside graph training).
    """

    examples: np.ndarray
    passages: np.ndarray
    positive: np.ndarray
    excluded: np.ndarray
    masked: np.ndarray | None = None
    seed: int = 0
    """Of the random draws that the work on the batch needs."""


@dataclass(frozen=True)
class Draw:
    """What is random in a batch: `examples` [b] rows, `negatives` [b, k] passages, -1 for none; `masked` as there."""

    examples: np.ndarray
    negatives: np.ndarray
    masked: np.ndarray | None
    seed: int


def draw_negatives(pool: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """`count` distinct entries of each row of `pool` [b, s] (-1: none), [b, count] with -1 where it has fewer."""
    if count == 0 or pool.shape[1] == 0:
        return np.empty((len(pool), 0), dtype=pool.dtype)
    keys = np.where(pool >= 0, generator.random(pool.shape), 2.0)
    chosen = np.argsort(keys, axis=1)[:, :count]
    return np.take_along_axis(pool, chosen, axis=1)


class ShuffledBatches:
    """Plan: rows 0…n-1, shuffled in each epoch and split into batches of at most `batch_size`, int64 [b]."""

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        self.rows, self.seed = rows, seed
        self.steps_per_epoch = -(-rows // max(min(batch_size, rows), 1))
        self.batch_examples = rows / max(self.steps_per_epoch, 1)

    def draws(self, epoch: int) -> Iterator[Any]:
        """The epoch's draws."""
        generator = np.random.default_rng((self.seed, epoch))
        for rows in np.array_split(generator.permutation(self.rows), self.steps_per_epoch):
            yield self.draw(rows, generator)

    def draw(self, rows: np.ndarray, generator: np.random.Generator) -> Any:
        """The draw of some rows; a plan with further random choices replaces it."""
        return rows

    def batch(self, drawn: Any) -> Any:
        """The batch of a draw."""
        return drawn


class ExampleBatches(ShuffledBatches):
    """Plan of plain contrastive training: all examples."""

    def __init__(
        self, examples: TrainingSet, batch_size: int, negatives: int, known: KnownPositives, seed: int
    ) -> None:
        super().__init__(len(examples.query), batch_size, seed)
        self.examples, self.negatives, self.known = examples, negatives, known

    def draw(self, rows: np.ndarray, generator: np.random.Generator, masked: np.ndarray | None = None) -> Draw:
        """A batch of some examples, with up to `negatives` hard negatives each."""
        negatives = draw_negatives(self.examples.negatives[rows], self.negatives, generator)
        return Draw(rows, negatives, masked, int(generator.integers(2**31)))

    def batch(self, drawn: Draw) -> Batch:
        """The batch of a draw."""
        queries, answers = self.examples.query[drawn.examples], self.examples.positive[drawn.examples]
        passages = np.unique(np.concatenate([answers, drawn.negatives[drawn.negatives >= 0]]))
        positive = np.searchsorted(passages, answers)
        excluded = self.known.excluded(queries, passages, positive)
        return Batch(drawn.examples, passages, positive, excluded, drawn.masked, drawn.seed)
