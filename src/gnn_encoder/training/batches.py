"""What a batch of examples holds: queries, their distinct passages, and who is whose positive."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gnn_encoder.artifacts import KnownPositives, TrainingSet
from gnn_encoder.settings.graph import TrainGnn


@dataclass(frozen=True)
class Batch:
    """b examples and the c distinct passages P_b = P_b⁺ ∪ P_b⁻ among them.

    `examples` [b] rows of the training set; `passages` [c] dataset rows, ascending; `positive` [b]
    index into `passages`; `excluded` [2, x] int64, (example, passage) places of pairs that are no negatives;
    `masked` bool [n] over graph queries, those out of the graph in this round (None outside graph training).
    """

    examples: np.ndarray
    passages: np.ndarray
    positive: np.ndarray
    excluded: np.ndarray
    masked: np.ndarray | None = None
    seed: int = 0
    """For draws made while the batch is worked on."""


@dataclass(frozen=True)
class Draw:
    """What is random in a batch: `examples` [b] rows, `negatives` [b, k] passages, -1 for none; the rest as there."""

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
    drawn: np.ndarray = np.take_along_axis(pool, chosen, axis=1)
    return drawn


class ExampleBatches:
    """Plan of plain contrastive training: all examples, shuffled anew each epoch."""

    def __init__(
        self, examples: TrainingSet, batch_size: int, negatives: int, known: KnownPositives, seed: int
    ) -> None:
        self.examples, self.negatives, self.known, self.seed = examples, negatives, known, seed
        self.batch_examples = min(batch_size, len(examples.query))
        self.steps_per_epoch = -(-len(examples.query) // max(self.batch_examples, 1))

    def draws(self, epoch: int) -> Iterator[Draw]:
        """The epoch's draws."""
        generator = np.random.default_rng((self.seed, epoch))
        for rows in np.array_split(generator.permutation(len(self.examples.query)), self.steps_per_epoch):
            yield self.draw(rows, generator)

    def draw(self, rows: np.ndarray, generator: np.random.Generator, masked: np.ndarray | None = None) -> Draw:
        """A batch of some examples, with up to `negatives` hard negatives each."""
        negatives = draw_negatives(self.examples.negatives[rows], self.negatives, generator)
        return Draw(rows, negatives, masked, int(generator.integers(2**31)))

    def batch(self, drawn: Draw) -> Batch:
        """The batch of a draw."""
        asked, answers = self.examples.query[drawn.examples], self.examples.positive[drawn.examples]
        passages = np.unique(np.concatenate([answers, drawn.negatives[drawn.negatives >= 0]]))
        positive = np.searchsorted(passages, answers)
        excluded = self.known.excluded(asked, passages, positive)
        return Batch(drawn.examples, passages, positive, excluded, drawn.masked, drawn.seed)


class MaskedBatches(ExampleBatches):
    """Plan of Masked Graph Training (Algorithm 1): rounds over query folds, each out of its round's graph.

    Args:
        examples: those whose query is a node of the graph.
        node: graph node of each example's query, int [e].
        groups: int [n], the group of each of the graph's n queries. Twins, queries of one group, are masked together:
            a round in which one stayed would show the other its own passages (`Dataset.groups`).
        settings: `mask` is `folds` (disjoint, every query once an epoch) or `sample` (each round drawn afresh). With
            any other no query is masked, and batches are as in plain training. With β = `mask_fraction`, an epoch has
            round(1/β) rounds; a fold is one part in that many, a sample β of the groups.
    """

    def __init__(
        self, examples: TrainingSet, node: np.ndarray, groups: np.ndarray, known: KnownPositives, settings: TrainGnn
    ) -> None:
        super().__init__(examples, settings.batch_size, settings.negatives, known, settings.seed)
        self.node, self.groups, self.schedule, fraction = node, groups, settings.mask, settings.mask_fraction
        self.masks = self.schedule in ("folds", "sample")
        """Whether a round takes queries out of the graph."""
        self.trained = np.unique(groups[node])
        fewest = 2 if self.schedule == "folds" else 1
        self.rounds = min(max(round(1 / fraction), fewest), len(self.trained)) if self.masks else 1
        self.sampled = max(1, round(fraction * len(self.trained)))
        in_round = self.sampled if self.schedule == "sample" else len(self.trained) // self.rounds
        # Every epoch must have the same number of steps whatever the draw puts into a round. So the number of batches
        # in a round is fixed, and their sizes vary by what the round holds.
        wanted = max(1, round(len(node) * in_round / len(self.trained) / settings.batch_size))
        self.batches_per_round = min(wanted, in_round)
        self.steps_per_epoch = self.rounds * self.batches_per_round
        self.batch_examples = max(1, len(node) // self.steps_per_epoch)

    def draws(self, epoch: int) -> Iterator[Draw]:
        """The epoch's draws, round after round."""
        generator = np.random.default_rng((self.seed, epoch))
        # The trained groups, split at random into one part per round.
        folds = np.array_split(generator.permutation(self.trained), self.rounds) if self.schedule == "folds" else None
        for number in range(self.rounds):
            rows, masked = np.arange(len(self.node)), np.zeros(len(self.groups), dtype=bool)
            if self.masks:
                chosen = folds[number] if folds else generator.permutation(self.trained)[: self.sampled]
                masked = np.isin(self.groups, chosen)
                rows = np.flatnonzero(masked[self.node])
            for part in np.array_split(generator.permutation(rows), self.batches_per_round):
                yield self.draw(part, generator, masked)
