"""The re-rankers in training: for each kind its model, its scores with gradient, and its scores of dev candidates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnn_encoder.artifacts import Dataset, PassageTable
from gnn_encoder.inference.late_interaction import (
    all_passage_tokens,
    late_scores,
    passage_arrays,
    query_arrays,
    query_tokens,
)
from gnn_encoder.inference.scoring import Pairs, PublishedPairs, logits_of, pair_tokens
from gnn_encoder.inference.sentences import SentencePairs, Sentences
from gnn_encoder.inference.tokens import Tokens, passage_tokens
from gnn_encoder.inference.words import WordPairs
from gnn_encoder.models.bert_dmn import BertDmn
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import on_device
from gnn_encoder.models.late_interaction import LateInteraction, LateInteractionLayout, max_similarity
from gnn_encoder.models.published_late_interaction import published_late_interaction
from gnn_encoder.models.published_reranker import PublishedReranker
from gnn_encoder.models.word_models import Knrm, QaLstm, WordDmn, WordModel
from gnn_encoder.retrieval.terms import language_of
from gnn_encoder.settings.foundation import TrainCrossEncoder
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.settings.reranking_systems import PAIR_KINDS, WORD_KINDS
from gnn_encoder.training.embed import passes
from gnn_encoder.training.loop import parameter_groups
from gnn_encoder.training.pairs import PairBatch
from gnn_encoder.training.word_vectors import word_vectors


@dataclass(frozen=True)
class Reranker:
    """A re-ranker to train. Its functions take dataset rows of queries [r] and passages [r].

    `score`, `lengths` and `table` know the generated queries, too: their rows follow the dataset's last query.
    """

    model: Any
    score: Callable[[np.ndarray, np.ndarray], Tensor]
    """Scores [r] with gradient: logits, or sums of similarities."""
    lengths: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """Tokens of each pair."""
    rank: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """Scores fp32 [r] without gradient, in eval mode."""
    logits: bool = True
    table: Callable[[np.ndarray, np.ndarray], Tensor] | None = None
    """Scores [g, c], with gradient, of all pairs of queries [g] and passages [c]; None: each pair would be read."""
    before: Callable[[PairBatch], None] | None = None
    """Is called with each batch before the batch is scored."""
    facts: Callable[[], dict[str, float]] = dict
    """Figures of the trained weights, for people."""
    read: tuple[Pairs, np.ndarray] | None = None
    """The pairs, for a kind that reads a pair as one text, and the dataset rows of their passages, ascending."""

    @property
    def heads(self) -> list[nn.Module]:
        """The modules that start at random."""
        parts = [module for name, module in self._text.named_children() if name != "backbone"]
        return parts if self._text is self.model else [*parts, self.model.context]

    @property
    def _text(self) -> Any:
        """The model that has the backbone; in a re-ranker over documents it is a part of the model."""
        return getattr(self.model, "text", self.model)

    def groups(self, settings: TrainReranker) -> list[dict[str, Any]]:
        """AdamW's parameter groups; a backbone has a rate of its own, and none where it is frozen.

        A linear map that was trained with the backbone has the backbone's rate.
        """
        known = None if getattr(self._text, "projection_is_new", True) else self._text.projection
        rates = [
            (head, settings.learning_rate if head is known else settings.head_learning_rate) for head in self.heads
        ]
        if not settings.lite and hasattr(self._text, "backbone"):
            rates.insert(0, (self._text.backbone, settings.learning_rate))
        groups = (group for part, rate in rates for group in parameter_groups(part, rate, settings.weight_decay))
        return [{**group, "eps": settings.adam_epsilon} for group in groups]


def new_reranker(
    settings: TrainReranker, data: Dataset, passages: np.ndarray, generated: Sequence[str] = ()
) -> Reranker:
    """The re-ranker of the settings' kind, with the backbone's weights and a new head.

    `passages`: the dataset rows that it will score, ascending. `generated`: queries that the dataset does not have.
    """
    torch.manual_seed(settings.seed)  # the new weights are random
    if settings.kind in WORD_KINDS:
        return _on_words(settings, data, passages, generated)
    if settings.kind == "bert_dmn":
        return _bert_dmn(settings, data, passages, generated)
    if settings.kind == "colbert":
        return _colbert(settings, data, generated)
    if settings.kind in PAIR_KINDS:
        return cross_encoder(settings, data, generated)
    raise ValueError(f"nothing trains a re-ranker of the kind {settings.kind}")


def cross_encoder(
    settings: TrainCrossEncoder | TrainReranker, data: Dataset, generated: Sequence[str] = ()
) -> Reranker:
    """A cross-encoder with a new head, or a published one."""
    rows = np.arange(len(data.passages))
    if settings.published:
        published = PublishedReranker.published(settings.published)
        texts = [*data.queries.column("text").to_pylist(), *generated]
        return _reading_pairs(
            published, PublishedPairs(published, texts, data.passages, rows), rows, settings.precision
        )
    model = CrossEncoder.from_backbone(settings.backbone, settings.pair_length)
    return _reading_pairs(model, pair_tokens(model, data, generated), rows, settings.precision)


def _memory(settings: TrainReranker, passages: PassageTable) -> dict[str, Any]:
    """The fields of `MemoryConfig` but its source; sentences are divided by the rules of the passages' language."""
    names = ("episodes", "shared_episodes", "bidirectional", "memory_includes_question")
    values = {name: getattr(settings, name) for name in names}
    split = f"{settings.split_sentences} {language_of(passages)}"
    return {
        "width": settings.memory_width, "dropout": settings.memory_dropout, "split_sentences": split, **values
    }  # fmt: skip


def _bert_dmn(settings: TrainReranker, data: Dataset, rows: np.ndarray, generated: Sequence[str]) -> Reranker:
    model = BertDmn.from_backbone(settings.backbone, settings.pair_length, **_memory(settings, data.passages))
    texts = [*data.queries.column("text").to_pylist(), *generated]
    questions = Tokens.of(model.tokenizer, texts, model.max_length)
    passages = Sentences(model.tokenizer, data.passages, rows, model.max_length, model.memory.config.split_sentences)
    pairs = SentencePairs(model.tokenizer, questions, passages, model.max_length)
    return _reading_pairs(model, pairs, rows, settings.precision)


def _on_words(settings: TrainReranker, data: Dataset, rows: np.ndarray, generated: Sequence[str]) -> Reranker:
    learned = [*data.query_texts(data.query_rows("train")), *generated]
    tokenizer, words = word_vectors(settings, data.passages, learned)
    kernels = {
        "kernels": settings.kernels, "width": settings.kernel_width, "exact_width": settings.exact_kernel_width,
        "scale": settings.feature_scale,
    }  # fmt: skip
    lstm = {"width": settings.lstm_width, "pooling": settings.lstm_pooling, "rate": settings.lstm_dropout}
    networks: dict[str, tuple[type[WordModel], dict[str, Any]]] = {
        "qa_lstm": (QaLstm, lstm),
        "k_nrm": (Knrm, kernels),
        "dmn": (WordDmn, _memory(settings, data.passages)),
    }
    network, options = networks[settings.kind]
    model = network(words, tokenizer, settings.pair_length, **options)
    model.words.requires_grad_(settings.train_word_vectors)
    questions = Tokens.of(tokenizer, [*data.queries.column("text").to_pylist(), *generated], model.max_length)
    if model.reads_sentences:
        passages = Sentences(tokenizer, data.passages, rows, model.max_length, options["split_sentences"])
        pairs = WordPairs(questions, passages.tokens, passages.number)
    else:
        pairs = WordPairs(questions, passage_tokens(tokenizer, data.passages, model.max_length))
        rows = np.arange(len(data.passages))
    return replace(_reading_pairs(model, pairs, rows, "fp32"), logits=settings.kind == "dmn")


def _reading_pairs(model: Any, pairs: Pairs, rows: np.ndarray, precision: str) -> Reranker:
    """The re-ranker of a model that reads pairs as arrays; `pairs` has the passages at `rows`, ascending."""

    def score(query: np.ndarray, passage: np.ndarray) -> Tensor:
        read = model(*map(on_device, pairs.padded(query, np.searchsorted(rows, passage))))
        logits: Tensor = read[0] if isinstance(read, tuple) else read
        return logits

    def lengths(query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        return pairs.lengths(query, np.searchsorted(rows, passage))

    def rank(query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        return logits_of(model, pairs, query, np.searchsorted(rows, passage), precision=precision)

    return Reranker(model, score, lengths, rank, read=(pairs, rows))


def _colbert(settings: TrainReranker, data: Dataset, generated: Sequence[str]) -> Reranker:
    layout = LateInteractionLayout(
        settings.token_width,
        settings.query_length,
        settings.passage_length,
        settings.expand_queries,
        titles=settings.titles,
    )
    if settings.published:
        model = published_late_interaction(settings.published)
        model.layout = replace(model.layout, titles=settings.titles)
    else:
        model = LateInteraction.from_backbone(settings.backbone, layout)
    questions = query_tokens(model, [*data.queries.column("text").to_pylist(), *generated])
    passages = all_passage_tokens(model, data.passages)

    def vectors(ids: Tensor, mask: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
        return model(ids, mask), used

    def score(query: np.ndarray, passage: np.ndarray) -> Tensor:
        query_rows, first = np.unique(query, return_inverse=True)
        passage_rows, second = np.unique(passage, return_inverse=True)
        queries, asks = vectors(*map(on_device, query_arrays(model, questions, query_rows)))
        passage_vectors, answers = vectors(*map(on_device, passage_arrays(model, passages, passage_rows)))
        of_query, of_passage = map(on_device, (first, second))
        read = queries.index_select(0, of_query), passage_vectors.index_select(0, of_passage)
        return max_similarity(*read, asks[of_query], answers[of_passage])

    def table(query: np.ndarray, passage: np.ndarray) -> Tensor:
        queries, asks = vectors(*map(on_device, query_arrays(model, questions, query)))
        parts, scores = list(passes(passages.lengths[passage], kept=True)), []
        for part in parts:
            passage_vectors, answers = vectors(*map(on_device, passage_arrays(model, passages, passage[part])))
            scores.append(max_similarity(queries[:, None], passage_vectors[None], asks[:, None], answers[None]))
        return torch.cat(scores, dim=1)[:, on_device(np.argsort(np.concatenate(parts)))]

    def lengths(query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        return np.asarray(passages.lengths[passage] + model.layout.query_length)

    def rank(query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        return late_scores(model, data, query, passage, precision=settings.precision)

    return Reranker(model, score, lengths, rank, logits=False, table=table)
