"""BM25 by bm25s, in Lucene's variant: the idf is never negative, so a score of 0 means no shared term.

`settings.bm25.IndexBm25` has the parameters k1, b, language and fields; `retrieval.terms` splits texts. The corpus is
tokenized as a stream, and the index is built from tokens on disk. Memory holds the vocabulary and, in a search, one
query's scores of a block of passages.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gnn_encoder.artifacts import Passages, PassageTable
from gnn_encoder.errors import UserError
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.machine.absent import absent
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.retrieval.filters import Selection
from gnn_encoder.retrieval.hits import Hits, no_hits
from gnn_encoder.retrieval.terms import language_of, shown, splitter, stemmer, stopped, units
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.tracking.progress import Progress

# bm25s imports SciPy, in 0.2 s, and starts JAX if they are there, for functions that are not used here. On a GPU, JAX
# would take three quarters of the memory, in every process.
with absent("jax"), absent("scipy"):
    import bm25s
    from bm25s.tokenization import Tokenizer

FIELDS: dict[str, tuple[Callable[[Passages], list[str]], ...]] = {
    "joined": (Passages.full_texts,),
    "separate": (lambda batch: batch.titles, lambda batch: batch.texts),
}
"""Title and text as one field, or as two fields with separate lengths and idf; the scores of two fields are added."""
FACTS = "bm25.json"
TEXTS = 20_000
"""Texts whose terms are counted at a time."""
BLOCK = 1 << 24
"""Passages whose scores for a query a search has in memory at a time, 64 MiB."""


@dataclass(frozen=True)
class Statistics:
    """What a term's score depends on besides its text: the number of texts, the number of texts with each term [v], and
    the mean number of terms of a text."""

    texts: int
    texts_of: np.ndarray
    mean_length: float

    def idf(self, terms: int) -> np.ndarray:
        """Returns ln(1 + (n − df + ½) / (df + ½)) of so many terms, fp32; no text has a term from v on."""
        texts_of = np.zeros(terms, np.int64)
        texts_of[: len(self.texts_of)] = self.texts_of
        return np.asarray(np.log(1 + (self.texts - texts_of + 0.5) / (texts_of + 0.5)), np.float32)


class Part(NamedTuple):
    """A field: the tokenizer with the vocabulary, the postings, and the mean number of terms of a text."""

    tokenizer: Tokenizer
    postings: bm25s.BM25
    mean_length: float
    field: int = 0
    """Its place in `FIELDS`."""

    @property
    def terms(self) -> int:
        """The number of terms in the postings; the tokenizer may know more (`Bm25.beside`)."""
        return len(self.postings.scores["indptr"]) - 1

    @property
    def texts(self) -> int:
        """The number of texts."""
        return int(self.postings.scores["num_docs"])

    def known(self, words: Sequence[str], left_out: Set[str]) -> list[int]:
        """Returns the terms of a query's words that the postings have; `left_out`: the stop words.

        They are those of bm25s' `streaming_tokenize`, which would keep every new word of a query in the tokenizer.
        """
        tokenizer, terms = self.tokenizer, []
        for word in words:
            term = tokenizer.word_to_id.get(word)
            if term is None and tokenizer.stemmer and word not in left_out:
                term = tokenizer.stem_to_sid.get(tokenizer.stemmer(word))
            if term is not None and term < self.terms:
                terms.append(term)
        return terms

    def scores(self, terms: Sequence[int], texts: range) -> np.ndarray:
        """Returns the sum of the terms' scores fp32 of some consecutive texts, in the order of the terms."""
        if len(texts) == self.texts:
            return np.asarray(self.postings.get_scores_from_ids(list(terms)))
        of, begins = self.postings.scores, self.postings.scores["indptr"]
        total = np.zeros(len(texts), np.float32)
        for term in terms:
            rows = of["indices"][begins[term] : begins[term + 1]]
            first, last = begins[term] + np.searchsorted(rows, [texts.start, texts.stop])
            np.add.at(total, of["indices"][first:last] - texts.start, of["data"][first:last])
        return total


class Bm25:
    """A BM25 index over passages, one part per field."""

    def __init__(self, kind: IndexBm25, parts: list[Part]) -> None:
        self.kind, self._parts = kind, parts

    @classmethod
    def build(cls, passages: PassageTable, kind: IndexBm25, progress: Progress | None = None) -> "Bm25":
        """Index all passages, read as a stream; `progress` counts them, once per field. `kind` of the index has the
        language that `auto` found."""
        if kind.language == "auto":
            kind = kind.model_copy(update={"language": language_of(passages)})
        parts = []
        for i, field in enumerate(FIELDS[kind.fields]):
            part = _part(kind, _tokenizer(kind), _texts(passages, field, progress))._replace(field=i)
            if part.terms:
                parts.append(part)
        if not parts:
            raise UserError(
                "BM25: no passage has a word that is not a stop word; check the dataset or set stopwords=none"
            )
        return cls(kind, parts)

    def beside(self, batches: Callable[[], Iterator[tuple[Passages, Sequence[str]]]]) -> "Bm25":
        """Index passages again, each with more text in its last field, as if they stood in this index.

        The statistics are this index's. Both indexes have one tokenizer, which learns the new words; no passage of this
        index has them.

        Args:
            batches: starts a stream of passages [b], and of the texts [b] that they have more.
        """
        parts = []
        for part in self._parts:
            texts = _with_more(batches(), FIELDS[self.kind.fields][part.field], part is self._parts[-1])
            statistics = Statistics(part.texts, np.diff(np.asarray(part.postings.scores["indptr"])), part.mean_length)
            parts.append(_part(self.kind, part.tokenizer, texts, statistics)._replace(field=part.field))
        return Bm25(self.kind, parts)

    def save(self, folder: Path) -> None:
        """Write the index into a folder; a search does not need the passages."""
        parts = {"lengths": [part.mean_length for part in self._parts], "fields": [part.field for part in self._parts]}
        facts = {"kind": self.kind.model_dump(), **parts}
        (folder / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        for i, part in enumerate(self._parts):
            part.postings.save(folder / f"{i}")
            part.tokenizer.save_vocab(str(folder / f"{i}"))

    @classmethod
    def load(cls, folder: Path) -> "Bm25":
        """Load a saved index; the postings are memory-mapped."""
        facts, kind, parts = _facts(folder), kind_of(folder), []
        for i, (length, field) in enumerate(zip(facts["lengths"], facts["fields"], strict=True)):
            tokenizer = _tokenizer(kind)
            tokenizer.load_vocab(str(folder / f"{i}"))
            postings = bm25s.BM25.load(folder / f"{i}", mmap=True, load_vocab=False)
            # The same memory as plain arrays: slices of a memory map are slow to make, and a query makes dozens.
            arrays = {name: np.asarray(of) for name, of in postings.scores.items() if isinstance(of, np.ndarray)}
            postings.scores |= arrays
            parts.append(Part(tokenizer, postings, length, field))
        return cls(kind, parts)

    def search(
        self, queries: Sequence[str], k: int, progress: Progress | None = None, only: Selection | None = None
    ) -> Hits:
        """The best `k` passages of each query among the passages that share a term with the query, and are in `only`.

        Ties by ascending row.
        """
        (scores, rows), passages = no_hits(len(queries), k), self._parts[0].texts
        for query, terms in enumerate(self._terms(queries)):
            hit_scores, hits = np.empty(0, np.float32), np.empty(0, np.int64)
            for start in range(0, passages, BLOCK) if any(terms) else ():
                block = range(start, min(start + BLOCK, passages))
                total = self._total(terms, block)
                inside = only.at(slice(block.start, block.stop)) if only and len(block) < passages else only
                best = top_positive(total, k, inside)
                hit_scores, hits = np.append(hit_scores, total[best]), np.append(hits, best + start)
            best = top_positive(hit_scores, k)
            scores[query, : len(best)], rows[query, : len(best)] = hit_scores[best], hits[best]
            if progress:
                progress.advance()
        return scores, rows

    def totals(self, queries: Sequence[str]) -> Iterator[np.ndarray | None]:
        """Each query's scores fp32 [m] of all passages; None: the index knows no term of the query."""
        for terms in self._terms(queries):
            yield self._total(terms, range(self._parts[0].texts)) if any(terms) else None

    def _terms(self, queries: Sequence[str]) -> Iterator[list[list[int]]]:
        """Yields each query's terms that the index has, of each part."""
        split, left_out = splitter(self.kind), stopped(self.kind)
        for query in queries:
            words = split(query)
            yield [part.known(words, left_out) for part in self._parts]

    def _total(self, terms: list[list[int]], passages: range) -> np.ndarray:
        """Returns the scores fp32 of consecutive passages: the sum of the parts that have a term of the query."""
        of_parts = [part.scores(ids, passages) for ids, part in zip(terms, self._parts, strict=True) if ids]
        return np.asarray(np.stack(of_parts).sum(axis=0, dtype=np.float32))

    def words(self, query: str) -> dict[str, list[str]]:
        """Returns the words of a query, and the texts of which each stands for, as often as it occurs.

        The sum of the texts' scores by `totals` is the query's.
        """
        of_word: dict[str, list[str]] = {}
        for unit in units(self.kind, query):
            of_word.setdefault(shown(unit), []).append(unit)
        return of_word


def top_positive(scores: np.ndarray, k: int, only: Selection | None = None) -> np.ndarray:
    """Rows of the `k` largest positive scores of [m], or of all positive scores; ties by ascending row.

    only: passages that may be among them; None: all.
    """
    if only:
        return np.asarray(only.rows[top_positive(scores[only.rows], k)])
    rows = np.flatnonzero(scores > 0)
    if len(rows) > k:
        least = np.partition(scores[rows], len(rows) - k)[len(rows) - k]
        rows = rows[scores[rows] >= least]
    return rows[np.argsort(-scores[rows], kind="stable")][:k]


def kind_of(folder: Path) -> IndexBm25:
    """Returns the parameters of a saved index."""
    return IndexBm25(**_facts(folder)["kind"])


def _facts(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    return facts


def _tokenizer(kind: IndexBm25) -> Tokenizer:
    """A tokenizer without a vocabulary."""
    return Tokenizer(
        lower=False, splitter=splitter(kind), stemmer=stemmer(kind), stopwords=sorted(stopped(kind)) or None
    )


def _texts(passages: PassageTable, field: Callable[[Passages], list[str]], progress: Progress | None) -> Iterator[str]:
    for batch in passages.stream():
        yield from field(batch)
        if progress:
            progress.advance(len(batch.ids))


def _counts(tokens: Tokens) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Distinct (text, term) pairs in order, `TEXTS` texts at a time: text, term, frequency, int64 [e] each."""
    for start in range(0, len(tokens), TEXTS):
        bounds = tokens.offsets[start : start + TEXTS + 1]
        ids = tokens.ids[bounds[0] : bounds[-1]].astype(np.int64)
        text = np.repeat(np.arange(start, start + len(bounds) - 1), np.diff(bounds))
        keys, frequency = np.unique(text << 32 | ids, return_counts=True)
        yield keys >> 32, keys & 0xFFFFFFFF, frequency


def _with_more(
    batches: Iterator[tuple[Passages, Sequence[str]]], field: Callable[[Passages], list[str]], is_last: bool
) -> Iterator[str]:
    for passages, more in batches:
        for text, added in zip(field(passages), more, strict=True):
            yield f"{text}\n{added}" if is_last else text


def _part(kind: IndexBm25, tokenizer: Tokenizer, texts: Iterable[str], statistics: Statistics | None = None) -> Part:
    """Returns an index of texts; `statistics` as of `bm25_index`. Without a word in any text it has no terms."""
    # With `allow_empty` an empty query would match every empty passage.
    tokens = Tokens.gather(tokenizer.streaming_tokenize(texts, update_vocab=True, allow_empty=False))
    vocabulary = tokenizer.stem_to_sid if tokenizer.stemmer else tokenizer.word_to_id
    postings = bm25_index(tokens, len(vocabulary), k1=kind.k1, b=kind.b, statistics=statistics)
    return Part(tokenizer, postings, float(tokens.lengths.mean()) if len(tokens) else 0.0)


def bm25_index(
    tokens: Tokens, vocabulary: int, *, k1: float, b: float, statistics: Statistics | None = None
) -> bm25s.BM25:
    """Builds the index of bm25s over n texts. The score of a term in a text, fp32, is idf · tf / (k1 · (1 − b + b ·
    length / mean length) + tf), idf = ln(1 + (n − df + ½) / (df + ½)) (Lucene's variant with accurate lengths;
    Kamphuis et al., 2020).

    bm25s builds the same arrays from all tokens in memory. Here a first pass over the tokens counts the texts of each
    term, and a second pass writes the postings of each term into an unlinked file.

    Args:
        tokens: ids below `vocabulary`, the number of terms.
        statistics: of other texts, to score these texts as if they were among them; None: of these texts.

    Raises:
        OSError: no disk space for the postings, 8 bytes for each distinct term of each text.
    """
    lengths = tokens.lengths
    texts_of = np.zeros(vocabulary, np.int64)
    for _, term, _ in _counts(tokens):
        texts_of += np.bincount(term, minlength=vocabulary)
    statistics = statistics or Statistics(len(lengths), texts_of, float(lengths.mean()) if len(lengths) else 0.0)
    idf, mean = statistics.idf(vocabulary), statistics.mean_length
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(texts_of)])
    scores, texts = scratch(int(begins[-1])), scratch(int(begins[-1]), dtype=np.int32)
    free = begins[:-1].copy()
    for text, term, frequency in _counts(tokens):
        weight = frequency / (k1 * (1 - b + b * lengths[text] / mean) + frequency)
        order = np.argsort(term, kind="stable")
        term, text = term[order], text[order]
        position = free[term] + np.arange(len(term)) - np.searchsorted(term, term)
        scores[position], texts[position] = idf[term] * weight[order], text
        free += np.bincount(term, minlength=vocabulary)
    index = bm25s.BM25(method="lucene", k1=k1, b=b)
    index.scores = {"data": scores, "indices": texts, "indptr": begins, "num_docs": len(lengths)}
    index.vocab_dict, index.nonoccurrence_array = {}, None  # the tokenizer has the vocabulary
    return index
