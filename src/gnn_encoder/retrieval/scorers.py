"""Scorers of query–passage pairs: one interface, a kind for each network, and one loader for all kinds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Unpack

import numpy as np
import torch

from gnn_encoder.artifacts import DocumentContext, Texts
from gnn_encoder.document_graph.explaining import explained
from gnn_encoder.document_graph.neighbourhoods import within
from gnn_encoder.document_graph.nodes import encode_texts
from gnn_encoder.errors import UserError
from gnn_encoder.inference.document_scores import document_scores
from gnn_encoder.inference.encoding import ReadOptions, inference_copy
from gnn_encoder.inference.late_interaction import (
    TokenVectors,
    encode_queries,
    late_scores,
    passage_arrays,
    query_arrays,
    query_tokens,
)
from gnn_encoder.inference.scoring import Pairs, PairTokens, PublishedPairs, logits_of
from gnn_encoder.inference.sentences import SentencePairs, Sentences
from gnn_encoder.inference.tokens import Tokens, tokens_at
from gnn_encoder.inference.words import WordPairs
from gnn_encoder.models.backbone_files import SCORER, is_trained_reranker
from gnn_encoder.models.bert_dmn import BertDmn
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.document_reranker import DocumentReranker
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.models.late_interaction import LateInteraction
from gnn_encoder.models.published_reranker import PublishedReranker
from gnn_encoder.models.word_models import Knrm, QaLstm, WordDmn
from gnn_encoder.retrieval.filters import Selection
from gnn_encoder.settings.reranking_systems import DOCUMENT_KINDS

NAMED = 10
"""Neighbours that an explanation of a passage's context names."""


class Contribution(NamedTuple):
    """A part of a score, for an explanation: the source in words, and the amount."""

    source: str
    amount: float


class Scorer(Protocol):
    """Scores query–passage pairs; a higher score means more relevant."""

    def score(self, data: Texts, query: np.ndarray, passage: np.ndarray, **options: Unpack[ReadOptions]) -> np.ndarray:
        """Scores fp32 [r] of the pairs of rows `query` [r] and `passage` [r]."""

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities [r] of relevance from scores [r]."""

    def explain(self, data: Texts, query: str, passage: int) -> list[Contribution]:
        """The parts of the score of a query and a passage of `data`, by row, largest first; empty without parts."""


class CrossEncoderScorer:
    """A cross-encoder (GNN-encoder 3.4); the scores are logits."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def score(self, data: Texts, query: np.ndarray, passage: np.ndarray, **options: Unpack[ReadOptions]) -> np.ndarray:
        """See `Scorer`."""
        return logits_of(self.model, *self.pairs(data, query, passage), **options)

    def pairs(self, data: Texts, query: np.ndarray, passage: np.ndarray) -> tuple[Pairs, np.ndarray, np.ndarray]:
        """The tokens of pairs, and the places [r] in them of each query and of each passage.

        Only the passages of the pairs are tokenized.
        """
        query_rows, first = np.unique(query, return_inverse=True)
        passage_rows, second = np.unique(passage, return_inverse=True)
        questions = Tokens.of(self.model.tokenizer, data.query_texts(query_rows), self.model.max_length)
        pairs, positions = self._pairs(questions, data, passage_rows)
        return pairs, first, positions[second]

    def _pairs(self, questions: Tokens, data: Texts, rows: np.ndarray) -> tuple[Pairs, np.ndarray]:
        """Pairs of the questions with the passages at `rows`, and the place of each row among the pairs' passages."""
        tokenizer, length = self.model.tokenizer, self.model.max_length
        texts, positions = tokens_at(tokenizer, data.passages, rows, length)
        return PairTokens(tokenizer, questions, texts, length), positions

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """The logistic function of each logit, float64."""
        return 1.0 / (1.0 + np.exp(-scores.astype(np.float64)))

    def explain(self, data: Texts, query: str, passage: int) -> list[Contribution]:
        """Empty: the score has no parts."""
        return []


class PublishedScorer(CrossEncoderScorer):
    """A published re-ranker; the scores are its logits, also where it publishes their logistic function."""

    def pairs(self, data: Texts, query: np.ndarray, passage: np.ndarray) -> tuple[Pairs, np.ndarray, np.ndarray]:
        """See `CrossEncoderScorer`."""
        query_rows, first = np.unique(query, return_inverse=True)
        passage_rows, second = np.unique(passage, return_inverse=True)
        questions = data.query_texts(query_rows)
        return PublishedPairs(self.model, questions, data.passages, passage_rows), first, second


class BertDmnScorer(CrossEncoderScorer):
    """BERT-DMN; the scores are logits (BERT-DMN 3.2)."""

    def _pairs(self, questions: Tokens, data: Texts, rows: np.ndarray) -> tuple[Pairs, np.ndarray]:
        tokenizer, length = self.model.tokenizer, self.model.max_length
        passages = Sentences(tokenizer, data.passages, rows, length, self.model.memory.config.split_sentences)
        return SentencePairs(tokenizer, questions, passages, length), np.arange(len(rows))


class WordScorer(CrossEncoderScorer):
    """A Dynamic Memory Network on word vectors; the scores are logits. See `WordModel` for its precision."""

    def score(self, data: Texts, query: np.ndarray, passage: np.ndarray, **options: Unpack[ReadOptions]) -> np.ndarray:
        """See `Scorer`. Pairs of one passage are neighbours, because `QaLstm` then reads the passage once for them."""
        options["precision"] = "fp32"
        if "tokens_per_batch" in options:
            options["tokens_per_batch"] *= 4  # a word takes less memory than a token
        order, scores = np.argsort(passage, kind="stable"), np.empty(len(passage), np.float32)
        scores[order] = super().score(data, query[order], passage[order], **options)
        return scores

    def _pairs(self, questions: Tokens, data: Texts, rows: np.ndarray) -> tuple[Pairs, np.ndarray]:
        tokenizer, length = self.model.tokenizer, self.model.max_length
        if self.model.reads_sentences:
            passages = Sentences(tokenizer, data.passages, rows, length, self.model.memory.config.split_sentences)
            return WordPairs(questions, passages.tokens, passages.number), np.arange(len(rows))
        texts, positions = tokens_at(tokenizer, data.passages, rows, length)
        return WordPairs(questions, texts), positions


class BoundedScorer(WordScorer):
    """QA-LSTM and K-NRM; the scores are in [-1, 1]."""

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """The scores, moved to [0, 1]; they are not calibrated."""
        return (scores.astype(np.float64).clip(-1, 1) + 1) / 2


class LateInteractionScorer:
    """ColBERT; a score is the sum, over the query's tokens, of the best similarity with a passage's token."""

    token_vectors = "fp16"
    """Storage type of the passages' vectors: `fp16` or `int8`."""

    def __init__(self, model: LateInteraction) -> None:
        self.model = model

    def score(self, data: Texts, query: np.ndarray, passage: np.ndarray, **options: Unpack[ReadOptions]) -> np.ndarray:
        """See `Scorer`. Each text is encoded once."""
        return late_scores(self.model, data, query, passage, token_vectors=self.token_vectors, **options)

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """The mean similarity per token of a full query, at least 0. It is not calibrated."""
        return np.clip(scores.astype(np.float64) / self.model.layout.query_length, 0.0, 1.0)

    def explain(self, data: Texts, query: str, passage: int) -> list[Contribution]:
        """The share of each query token: the token, the passage's most similar token, and their similarity."""
        model = self.model
        row, one_passage = np.zeros(1, np.int64), data.passages.take(np.array([passage]))
        texts = one_passage.full_texts() if model.layout.titles else one_passage.bare_texts()
        query_side = query_tokens(model, [query])
        passage_side = Tokens.of(model.tokenizer, texts, model.layout.passage_length - 1)
        with inference_copy(model, "fp32"), torch.inference_mode():
            sides = []
            for ids, mask, used in (query_arrays(model, query_side, row), passage_arrays(model, passage_side, row)):
                vectors = model(*(torch.from_numpy(array).to(device()) for array in (ids, mask))).cpu().numpy()
                sides.append((vectors[0][used[0]], model.tokenizer.convert_ids_to_tokens(ids[0][used[0]].tolist())))
        (queries, words), (passages, others) = sides
        similar = queries @ passages.T
        best = similar.argmax(axis=1)
        parts = [
            Contribution(f"{word} ~ {others[at]}", float(row[at]))
            for word, at, row in zip(words, best, similar, strict=True)
        ]
        return sorted(parts, key=lambda part: -part.amount)


class DocumentScorer(LateInteractionScorer):
    """MiM, LiM and Mix-iM; a score mixes the similarities with a passage's content and with its context."""

    def __init__(self, model: DocumentReranker, context: DocumentContext | None) -> None:
        super().__init__(model.text)
        self.reranker, self.context = model, context

    def score(self, data: Texts, query: np.ndarray, passage: np.ndarray, **options: Unpack[ReadOptions]) -> np.ndarray:
        """See `Scorer`. Raises UserError without context vectors, or with those of another corpus."""
        contexts = TokenVectors(*self._context_of(data).vectors)
        return document_scores(
            self.reranker, data, contexts, query, passage, passage, token_vectors=self.token_vectors, **options
        )

    def explain(
        self, data: Texts, query: str, passage: int, only: Selection | None = None, precision: str = "auto"
    ) -> list[Contribution]:
        """The passage's content, and the `NAMED` neighbours with the largest amounts, of either sign; then the rest.

        With `only`, the neighbours that may be named are the passages in `seen`, and the rest is not counted.

        Reads all nodes that the passage's context depends on: in three layers, the neighbours of neighbours of its
        neighbours. Raises UserError as `score`.
        """
        text, matching, stored = self.reranker.text, self.reranker.context.to(device()), self._context_of(data)
        config = matching.network.config
        reads = within(stored.graph, np.array([passage]), config.layers, config.edge_types)
        tokens = encode_texts(text, data.passages, stored.titles, reads, precision=precision)
        (query_vectors,) = encode_queries(text, [query], precision)
        explanation = explained(matching, stored.graph, tokens, query_vectors, passage)
        share, parts = explanation.share, []
        if matching.uses_content:
            parts.append(Contribution(f"content × {1 - share:.2f}", (1 - share) * explanation.content))
        order = sorted(explanation.shares, key=lambda neighbour: -abs(neighbour.amount))
        seen, first = only.seen if only else None, order
        if seen is not None:  # sections are not named, since others' passages may be in them
            first = [neighbour for neighbour in order if neighbour.node < len(seen) and seen[neighbour.node]]
        first = first[:NAMED]
        names = _names(data, stored, [neighbour.node for neighbour in first])
        for neighbour, name in zip(first, names, strict=True):
            other = "" if neighbour.node == passage else f" {name}"
            parts.append(Contribution(f"context × {share:.2f}, {neighbour.kind}{other}", share * neighbour.amount))
        rest = [neighbour for neighbour in order if neighbour not in first]
        if rest or seen is not None:
            amount, more = share * sum(neighbour.amount for neighbour in rest), f"{len(rest):,} more"
            parts.append(Contribution(f"context × {share:.2f}, {more if seen is None else 'the rest'}", amount))
        return sorted(parts, key=lambda part: -part.amount)

    def _context_of(self, data: Texts) -> DocumentContext:
        kind = self.reranker.context.kind
        if self.context is None:
            raise UserError(f"{kind} scores need context vectors: run encode_context first")
        if self.context.corpus["passages"] != data.passages.digest:
            raise UserError(f"the {kind} re-ranker has the context of other passages: run encode_context for these")
        return self.context


def _names(data: Texts, context: DocumentContext, nodes: list[int]) -> list[str]:
    """Passages' ids, and sections' titles in quotation marks."""
    count = context.graph.passages
    ids = iter(data.passages.take(np.array([node for node in nodes if node < count], np.int64)).ids)
    return [f"“{context.titles[node - count].as_py()}”" if node >= count else next(ids) for node in nodes]


KINDS: dict[str, Callable[[Path], Scorer]] = {
    "cross_encoder": lambda folder: CrossEncoderScorer(CrossEncoder.load(folder)),
    "published": lambda folder: PublishedScorer(PublishedReranker.load(folder)),
    "bert_dmn": lambda folder: BertDmnScorer(BertDmn.load(folder)),
    "qa_lstm": lambda folder: BoundedScorer(QaLstm.load(folder)),
    "k_nrm": lambda folder: BoundedScorer(Knrm.load(folder)),
    "dmn": lambda folder: WordScorer(WordDmn.load(folder)),
    "colbert": lambda folder: LateInteractionScorer(LateInteraction.load(folder)),
    **dict.fromkeys(
        DOCUMENT_KINDS, lambda folder: DocumentScorer(DocumentReranker.load(folder), DocumentContext.of(folder))
    ),
}
"""Kind → function that loads a scorer from a folder. A new kind is a new entry."""


def save_scorer(kind: str, model: Any, folder: Path) -> None:
    """Writes a model with the kind by which `load_scorer` loads it."""
    model.save(folder)
    (folder / SCORER).write_text(json.dumps({"kind": kind}), encoding="utf-8")


def open_scorer(name: str) -> Scorer:
    """Loads the scorer in a folder that a training wrote, or a published re-ranker: a folder, hub name or address.

    Raises:
        UserError: as `PublishedReranker.published`.
    """
    if is_trained_reranker(name):
        return load_scorer(Path(name))
    return PublishedScorer(PublishedReranker.published(name))


def load_cross_encoder(folder: Path) -> CrossEncoderScorer:
    """Loads what a training or a publication of a cross-encoder made."""
    scorer = load_scorer(folder)
    assert isinstance(scorer, CrossEncoderScorer)
    return scorer


def load_scorer(folder: Path) -> Scorer:
    """Loads the scorer in a folder that `save_scorer` wrote."""
    kind = json.loads((file := folder / SCORER).read_text("utf-8"))["kind"]
    if kind not in KINDS:
        raise UserError(f"{file}: unknown kind of scorer {kind!r}: known are {', '.join(sorted(KINDS))}")
    return KINDS[kind](folder)
