"""BM25 by bm25s, in Lucene's variant: the idf is never negative, so a score of 0 means no shared term.

The corpus is tokenized as a stream, and the index that bm25s searches is built from its tokens on disk
(`bm25_index`): what is in memory is the vocabulary, and a query's score of every passage.

Two passes over the tokens of some texts at a time: the first counts the passages of each term, which says where its
postings begin, the second puts each passage's scores there. Tokens and postings lie in unlinked files.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import Stemmer
from bm25s.tokenization import Tokenizer

from gnn_encoder.artifacts import Passages, PassageTable
from gnn_encoder.errors import UserError
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.settings.shared import Lexical
from gnn_encoder.tracking.progress import Progress

FIELDS: dict[str, tuple[Callable[[Passages], list[str]], ...]] = {
    "joined": (Passages.full_texts,),
    "separate": (lambda batch: batch.titles, lambda batch: batch.texts),
}
"""What is indexed: title and text as one field, or each with its own lengths and idf, scores added."""

FACTS, VOCABULARY = "bm25.json", "vocabulary.json"
ARRAYS = ("data", "indices", "indptr")
"""What bm25s calls scores, texts and where each term's postings begin, in the order in which it loads them."""
TEXTS = 20_000
"""Texts whose terms are counted together."""


class Bm25:
    """A BM25 index over passages, one part per field."""

    def __init__(self, kind: Lexical, passages: int, parts: list[tuple[Tokenizer, bm25s.BM25]]) -> None:
        self.kind, self.passages, self._parts = kind, passages, parts

    @classmethod
    def build(cls, passages: PassageTable, kind: Lexical, progress: Progress | None = None) -> "Bm25":
        """Index all passages, read as a stream; `progress` counts them, once per field.

        Raises:
            UserError: no passage has a word.
        """
        parts = []
        for field in FIELDS[kind.fields]:
            tokenizer = _tokenizer(kind)
            texts = _texts(passages, field, progress)
            # Without `allow_empty`: an empty query would otherwise find every empty passage.
            tokens = Tokens.gather(tokenizer.streaming_tokenize(texts, update_vocab=True, allow_empty=False))
            if len(tokens.ids) == 0:
                continue
            vocabulary = tokenizer.stem_to_sid if tokenizer.stemmer else tokenizer.word_to_id
            parts.append((tokenizer, bm25_index(tokens, len(vocabulary), k1=kind.k1, b=kind.b)))
        if not parts:
            raise UserError(
                "BM25: no passage has a word that is not a stop word; check the dataset or set stopwords=none"
            )
        return cls(kind, len(passages), parts)

    def save(self, folder: Path) -> None:
        """Write the index into a folder, to be searched without the passages."""
        kind = self.kind.model_dump(include=set(Lexical.model_fields))
        facts = {"kind": kind, "passages": self.passages, "parts": len(self._parts)}
        (folder / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        for i, (tokenizer, index) in enumerate(self._parts):
            (folder / f"{i}").mkdir()
            tokenizer.save_vocab(str(folder / f"{i}"), vocab_name=VOCABULARY)
            for name in ARRAYS:
                np.save(folder / f"{i}" / f"{name}.npy", index.scores[name], allow_pickle=False)

    @classmethod
    def load(cls, folder: Path) -> "Bm25":
        """An index that was saved; its postings are memory-mapped."""
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        kind, parts = Lexical(**facts["kind"]), []
        for i in range(facts["parts"]):
            tokenizer = _tokenizer(kind)
            tokenizer.load_vocab(str(folder / f"{i}"), vocab_name=VOCABULARY)
            index = empty_index(k1=kind.k1, b=kind.b)
            index.load_scores(folder / f"{i}", *(f"{name}.npy" for name in ARRAYS), facts["passages"], mmap=True)
            parts.append((tokenizer, index))
        return cls(kind, facts["passages"], parts)

    def search(self, queries: Sequence[str], k: int, progress: Progress | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The best `k` passages of each query that share a term with it.

        Returns:
            Scores fp32 [n, k] and passage rows int32 [n, k], best first, ties by ascending row; row -1
            with score -inf where fewer passages match.
        """
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        rows = np.full((len(queries), k), -1, dtype=np.int32)
        # `update_vocab=False` still maps an unseen word to a known stem.
        tokens = (t.streaming_tokenize(queries, update_vocab=False, allow_empty=False) for t, _ in self._parts)
        for query, per_part in enumerate(zip(*tokens, strict=True)):
            found = [
                index.get_scores_from_ids(ids) for ids, (_, index) in zip(per_part, self._parts, strict=True) if ids
            ]
            if found:
                exact: np.ndarray = np.stack(found).sum(axis=0, dtype=np.float32)
                best = top_positive(exact, k)
                scores[query, : len(best)], rows[query, : len(best)] = exact[best], best
            if progress:
                progress.advance()
        return scores, rows


def top_positive(scores: np.ndarray, k: int) -> np.ndarray:
    """Rows of the `k` largest positive entries of [m], fewer if there are fewer; ties by ascending row."""
    rows = np.flatnonzero(scores > 0)
    if len(rows) > k:
        cut = np.partition(scores[rows], len(rows) - k)[len(rows) - k]
        above, level = rows[scores[rows] > cut], rows[scores[rows] == cut]
        rows = np.concatenate([above, level[: k - len(above)]])
    order: np.ndarray = rows[np.lexsort((rows, -scores[rows]))]
    return order


def _tokenizer(kind: Lexical) -> Tokenizer:
    """A tokenizer without a vocabulary."""
    return Tokenizer(
        stemmer=None if kind.stemmer == "none" else Stemmer.Stemmer(kind.stemmer),
        stopwords=None if kind.stopwords == "none" else kind.stopwords,
    )


def _texts(passages: PassageTable, field: Callable[[Passages], list[str]], progress: Progress | None) -> Iterator[str]:
    for batch in passages.stream():
        yield from field(batch)
        if progress:
            progress.advance(len(batch.ids))


def _counts(tokens: Tokens) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Text, term and how often it stands there, int64 [e] each, sorted by the two: `TEXTS` texts at a time."""
    for start in range(0, len(tokens), TEXTS):
        bounds = tokens.offsets[start : start + TEXTS + 1]
        ids = tokens.ids[bounds[0] : bounds[-1]].astype(np.int64)
        text = np.repeat(np.arange(start, start + len(bounds) - 1), np.diff(bounds))
        keys, often = np.unique(text << 32 | ids, return_counts=True)
        yield keys >> 32, keys & 0xFFFFFFFF, often


def bm25_index(tokens: Tokens, vocabulary: int, *, k1: float, b: float) -> bm25s.BM25:
    """bm25s's index over n texts: of each term in each text idf · tf / (k1 · (1 − b + b · length / mean length) + tf),
    idf = ln(1 + (n − df + ½) / (df + ½)), fp32 (Lucene's variant, accurate lengths; Kamphuis et al., 2020).

    Args:
        tokens: ids below `vocabulary`, the number of terms.

    Raises:
        OSError: no room for the postings, 8 bytes for each distinct term of each text.
    """
    lengths = tokens.lengths
    n, mean = len(lengths), lengths.mean()
    passages = np.zeros(vocabulary, np.int64)
    for _, term, _ in _counts(tokens):
        passages += np.bincount(term, minlength=vocabulary)
    idf = np.log(1 + (n - passages + 0.5) / (passages + 0.5)).astype(np.float32)
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(passages)])
    scores, texts = scratch(int(begins[-1])), scratch(int(begins[-1]), dtype=np.int32)
    free = begins[:-1].copy()
    for text, term, often in _counts(tokens):
        frequency = often / (k1 * (1 - b + b * lengths[text] / mean) + often)
        order = np.argsort(term, kind="stable")
        term, text = term[order], text[order]
        place = free[term] + np.arange(len(term)) - np.searchsorted(term, term)
        scores[place], texts[place] = idf[term] * frequency[order], text
        free += np.bincount(term, minlength=vocabulary)
    index = empty_index(k1=k1, b=b)
    index.scores = {"data": scores, "indices": texts, "indptr": begins, "num_docs": n}
    return index


def empty_index(*, k1: float, b: float) -> bm25s.BM25:
    """bm25s's index in Lucene's variant, without its arrays: `scores` is to be set, or `load_scores` to be called."""
    index: Any = bm25s.BM25(method="lucene", k1=k1, b=b)
    index.nonoccurrence_array = None  # only the variants need it that score what does not occur
    return index
