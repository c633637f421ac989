"""Masked Graph Training: trains the dual encoder and the GNN together (GNN-encoder 3.4, Algorithm 1).

Each round masks the queries of one fold and their twins (`MaskedBatches`): `neighbourhood` leaves their edges out of
the graph, and the loss is computed on these queries only. So no query is trained on a passage vector that depends on
this query, or on a query of the same text. Gradients flow through E_Q of the batch's queries and of the neighbour
queries, and through E_P of the batch's passages (`texts`). They do not flow into the stored vectors of the neighbour
queries' passages (eq. 6, `passage_cache`) or into the cross-encoder's edge features.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnn_encoder.artifacts import Dataset, Graph, KnownPositives, TrainingSet
from gnn_encoder.errors import UserError
from gnn_encoder.inference.tokens import Tokens, passage_tokens
from gnn_encoder.models.dual_encoder import DualEncoder, on_device
from gnn_encoder.models.gnn import GNN, GnnConfig, GnnEncoder
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.query_graph.neighborhoods import Neighbourhood, neighbourhood
from gnn_encoder.query_graph.propagation import Propagation, neighbour_vectors, tensor
from gnn_encoder.settings.graph import GnnShape, TrainGnn
from gnn_encoder.tracking.context import Context
from gnn_encoder.training.batches import Batch, Draw, ExampleBatches
from gnn_encoder.training.dev import DevPool
from gnn_encoder.training.embed import by_rows
from gnn_encoder.training.loop import Objective, fit, parameter_groups
from gnn_encoder.training.losses import contrastive_loss, loss_scale
from gnn_encoder.training.passage_cache import PassageCache
from gnn_encoder.training.texts import EncodedTexts, FrozenGnnEncoder, Texts

PART = 256
"""Queries, or passages, that go through the GNN at a time under the gradient cache."""


class MaskedBatches(ExampleBatches):
    """Chooses the masked queries of each round (Algorithm 1), and the round's batches.

    Args:
        examples: training examples whose query is a node of the graph.
        node: graph node of each example's query, int [e].
        groups: int [n], the group of each of the graph's n queries. Twins, queries of one group, are masked together:
            if one of them stayed in the graph, it would lead the other to its own passages (`Dataset.groups`).
        settings: `mask` is `folds` (disjoint, every query once in an epoch) or `sample` (each round draws its queries
            again). With other values no query is masked, and batches are as in plain training. An epoch has round(1/β)
            rounds, β = `mask_fraction`. A fold is that share of the groups, a sample β of them.
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
        self.batch_examples = len(node) / self.steps_per_epoch

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


class MaskedGraphTraining:
    """One joint training: data in flat arrays, and the loss of a batch.

    Args:
        examples: training examples whose query is a graph node; generated queries are not nodes.
        passage_vectors: M_de's vectors [m, d], memory-mapped.
    """

    def __init__(
        self,
        model: GnnEncoder | FrozenGnnEncoder,
        dataset: Dataset,
        examples: TrainingSet,
        graph: Graph,
        passage_vectors: np.ndarray,
        settings: TrainGnn,
    ) -> None:
        self.model, self.graph, self.settings = model, graph, settings
        self.dataset, self.examples = dataset, examples
        self.queries: Texts
        self.passages: Texts
        if isinstance(model, FrozenGnnEncoder):
            self.queries, self.passages, unit_length = model.queries, model.passages, model.unit_length
            self._trained_beside: tuple[nn.Module, float] = model.query_map, model.rate
        else:
            asking, answering = model.dual_encoder.query_encoder, model.dual_encoder.passage_encoder
            questions = dataset.query_texts(np.arange(len(dataset.queries)))
            question_tokens = Tokens.of(asking.tokenizer, questions, asking.max_length, asking.prompt)
            answer_tokens = passage_tokens(
                answering.tokenizer, dataset.passages, answering.max_length, prompt=answering.prompt
            )
            self.queries = EncodedTexts(asking, question_tokens, settings)
            self.passages = EncodedTexts(answering, answer_tokens, settings)
            self._trained_beside = model.dual_encoder, settings.learning_rate
            unit_length = answering.normalize
        neighbours = np.unique(graph.edges[graph.edges >= 0])
        self.cache = PassageCache(passage_vectors, neighbours, self.passages.vectors)
        self.node = np.searchsorted(graph.queries, examples.query)
        self.known = KnownPositives.of(dataset, "train", examples.query, examples.positive)
        self.features = EdgeFeatures(graph)
        self.scale = loss_scale(settings.score_scale, unit_length)
        self.dropped: np.ndarray | None = None
        if settings.mask == "drop_positives":
            self.dropped = self.known.contains(graph.queries[:, None], graph.edges)

    def plan(self) -> MaskedBatches:
        """The rounds and their batches."""
        return MaskedBatches(
            self.examples, self.node, self.dataset.groups[self.graph.queries], self.known, self.settings
        )

    def neighbourhood(self, batch: Batch) -> Neighbourhood:
        """The edges of the round's graph into the batch's passages."""
        return neighbourhood(
            self.graph, batch.passages, masked=batch.masked, dropped=self.dropped,
            limit=self.settings.max_queries_per_passage, generator=np.random.default_rng(batch.seed),
        )  # fmt: skip

    def loss(self, batch: Batch, hood: Neighbourhood | None = None) -> Tensor:
        """Eq. 12 over the batch; `hood` is the batch's neighbourhood if it was already computed."""
        hood = hood or self.neighbourhood(batch)
        distinct, row = np.unique(np.concatenate([self.node[batch.examples], hood.nodes]), return_inverse=True)
        vectors = self.queries.live(self.graph.queries[distinct]).index_select(0, on_device(row))
        query_vectors, neighbours = vectors[: len(batch.examples)], vectors[len(batch.examples) :]
        passages = self.passages.live(batch.passages)
        interactive = self.interactive_passages(hood, neighbours, passages, batch.passages)
        positive, excluded = on_device(batch.positive), on_device(batch.excluded)
        cached = self.settings.gradient_cache
        return contrastive_loss(query_vectors, interactive, positive, excluded, self.scale, cached=cached)

    def interactive_passages(self, hood: Neighbourhood, queries: Tensor, passages: Tensor, rows: np.ndarray) -> Tensor:
        """h'_p [t, d] from live h_q [u, d] of the neighbours and live h_p [t, d] (eq. 6–10)."""
        where, features, gnn = passages.device, self.features, self.model.gnn
        cached = self.settings.gradient_cache

        def query_side(part: Tensor, start: int) -> Tensor:
            if gnn.config.layers < 2:
                return part
            nodes = hood.nodes[start : start + len(part)]
            stored, exists = neighbour_vectors(self.graph, nodes, self.cache.vectors)
            if self.dropped is not None:
                exists &= ~self.dropped[nodes]
            return gnn.query_vectors(
                part,
                on_device(stored, where),
                on_device(exists, where),
                tensor(features.of_queries(nodes), where),
                tensor(features.query_loops(nodes), where),
            )

        def passage_side(part: Tensor, start: int) -> Tensor:
            # `hood.edges` is sorted by target, so a passage's edges are adjacent.
            first, last = np.searchsorted(hood.edges[1], [start, start + len(part)])
            edges, sources = hood.edges[:, first:last] - [[0], [start]], interactive_queries
            if len(part) < len(passages):
                used, edges[0] = np.unique(edges[0], return_inverse=True)
                sources = sources.index_select(0, on_device(used, where))
            return gnn.passage_vectors(
                part,
                sources,
                on_device(edges, where),
                tensor(features.of_edges(hood.positions[first:last]), where),
                tensor(features.passage_loops(rows[start : start + len(part)]), where),
            )

        # The encoders return fp32 under bf16 autocast, too. The GNN stays in fp32, because its cost is small.
        with torch.autocast(where.type, enabled=False):
            interactive_queries = by_rows(query_side, queries, PART, cached=cached)
            return by_rows(passage_side, passages, PART, cached=cached)

    def measure(self, pool: DevPool) -> dict[str, float]:
        """Dev measures of the pool with the full graph; as in encoding, except that stored vectors may be stale."""
        node_vectors = self.queries.vectors(self.graph.queries)
        full_graph = Propagation(self.model.gnn, self.graph, node_vectors, self.cache.vectors)
        passages = full_graph.passages(pool.passages, self.passages.vectors(pool.passages))
        return pool.measure(self.queries.vectors(pool.queries), passages)

    def fit(self, context: Context) -> dict[str, Any]:
        """Train the model in place; returns the figures of `loop.fit`."""
        s, gnn, folder = self.settings, self.model.gnn, context.checkpoints().folder
        pool, trained = DevPool(self.dataset, s), (self._trained_beside, (gnn, s.gnn_learning_rate))

        def loss(sampled: tuple[Batch, Neighbourhood, int]) -> Tensor:
            batch, hood, version = sampled
            self.cache.advance(version, folder, lambda rows: context.progress("refreshing", rows, "passages"))
            return self.loss(batch, hood)

        objective = Objective(
            self.model,
            SampledBatches(self.plan(), self.neighbourhood, s.cache_refreshes if gnn.config.layers == 2 else 0),
            loss,
            [group for module, rate in trained for group in parameter_groups(module, rate, s.weight_decay)],
            (lambda: self.measure(pool)) if len(pool) else None,
            s.keep,
        )
        return fit(objective, s, context)


class SampledBatches:
    """Batches of a plan, each with its neighbourhood and the version number of the stored vectors that it needs.

    Neighbourhoods are sampled while batches are prepared. The version rises `refreshes` times in an epoch.
    """

    def __init__(self, plan: MaskedBatches, sample: Callable[[Batch], Neighbourhood], refreshes: int) -> None:
        self.plan, self.sample, self.refreshes = plan, sample, refreshes
        self.steps_per_epoch, self.batch_examples = plan.steps_per_epoch, plan.batch_examples

    def draws(self, epoch: int) -> Iterator[tuple[Draw, int]]:
        """The epoch's draws."""
        for i, drawn in enumerate(self.plan.draws(epoch)):
            yield drawn, epoch * self.refreshes + i * self.refreshes // self.steps_per_epoch

    def batch(self, drawn: tuple[Draw, int]) -> tuple[Batch, Neighbourhood, int]:
        """The batch of a draw."""
        batch = self.plan.batch(drawn[0])
        return batch, self.sample(batch), drawn[1]


def training_examples(settings: TrainGnn, data: Dataset, examples: TrainingSet, graph: Graph) -> TrainingSet:
    """The examples whose query is a graph node, with negatives as `hard_negatives` says; two queries at least."""
    examples = examples.take(np.flatnonzero(examples.query >= 0))
    if len(np.unique(data.groups[examples.query])) < 2:
        raise UserError("masked training needs at least two training queries of different text with a positive")
    if settings.hard_negatives == "retrieved":
        assert graph.retrieved is not None
        known = KnownPositives.of(data, "train", examples.query, examples.positive)
        retrieved = graph.retrieved[np.searchsorted(graph.queries, examples.query)]
        negatives = np.where(known.contains(examples.query[:, None], retrieved), -1, retrieved)
        examples = replace(examples, negatives=negatives)
    return examples


def new_gnn(settings: TrainGnn, encoders: DualEncoder, graph: Graph) -> GNN:
    """A GNN with initial weights that fits the encoders and the graph; the settings' seed fixes the weights."""
    torch.manual_seed(settings.seed)
    width = encoders.passage_encoder.width
    if width % settings.heads:
        raise UserError(f"train_gnn.heads = {settings.heads}: must divide the encoder's width {width}")
    scaled = settings.normalize_passages
    config = GnnConfig(
        width=width,
        edge_width=EdgeFeatures(graph).width,
        learned_loops=graph.query_loops is None,
        normalize_passages=encoders.passage_encoder.normalize if scaled == "auto" else scaled == "yes",
        cached_passages=settings.cache_refreshes == 0,
        **settings.model_dump(include=set(GnnShape.model_fields)),
    )
    gnn = GNN(config)
    if settings.start == "mean":
        gnn.start_from_mean(settings.gate_bias)
    return gnn
