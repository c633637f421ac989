"""Does a passage hold an answer? By the rule of DPR (Karpukhin et al., 2020, `has_answer` with string matching).

Texts are brought into Unicode's form NFD and cut into tokens: runs of letters, digits and marks, or any other
single character that is neither a separator nor a control character. Tokens are lower-cased, and a passage holds an
answer if the answer's tokens stand in its text one after the other; the title does not count. One deviation: an
answer without any token, which by the letter would stand in every passage, stands in none.
"""

import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np
import regex

from gnn_encoder.artifacts import PassageTable, pair_keys

TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
CUTOFFS = (5, 20, 100)
MEASURES = tuple(f"Answer@{k}" for k in CUTOFFS)
"""Share of the queries with an answer among the first k passages: DPR's top-k retrieval accuracy."""
DEPTH = max(CUTOFFS)
BATCH = 10_000
"""Passages whose texts are in memory at a time."""


def tokens(text: str) -> list[str]:
    """A text's tokens, in order."""
    return [token.lower() for token in TOKEN.findall(unicodedata.normalize("NFD", text))]


class Answers:
    """The answers to one question, any of which will do."""

    def __init__(self, answers: Sequence[str]) -> None:
        found = [tokens(answer) for answer in answers]
        # No token holds a space, so that between spaces only whole tokens are found.
        self._wanted = [(_folded(max(words, key=len)), f" {' '.join(words)} ") for words in found if words]

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def are_in(self, passage: "Passage") -> bool:
        """Whether one of them is."""
        # Few passages hold even the answer's longest word; the others need not be cut into tokens.
        return any(word in passage.folded and wanted in passage.tokens for word, wanted in self._wanted)


class Passage:
    """A passage's text, tokenized when first asked for."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.folded = _folded(text)
        self._tokens = ""

    @property
    def tokens(self) -> str:
        """All tokens, each between spaces."""
        self._tokens = self._tokens or f" {' '.join(tokens(self.text))} "
        return self._tokens


def _folded(text: str) -> str:
    """The text without case: if a token stands in a text, the one folded stands in the other folded."""
    return unicodedata.normalize("NFD", text).casefold()


def answer_recall(
    passages: PassageTable, answers: Sequence[Answers], hits: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """`MEASURES` of each system and query, float64 {system: [n, 3]}: 1 where an answer is among the first k.

    Args:
        passages: read in batches, each passage once, and only those that someone found.
        answers: [n] to each query.
        hits: {system: [n, DEPTH]} passage rows, best first, -1 where there are fewer.
    """
    found = [pair_keys(np.arange(len(answers))[:, None], rows)[rows >= 0] for rows in hits.values()]
    pairs = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
    query, passage = pairs >> 32, pairs & 0xFFFFFFFF
    order = np.argsort(passage, kind="stable")
    distinct, starts = np.unique(passage[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    holds = np.zeros(len(pairs), dtype=bool)
    for first in range(0, len(distinct), BATCH):
        part = slice(first, first + BATCH)
        texts = passages.take(distinct[part]).texts
        for text, start, end in zip(texts, starts[part].tolist(), ends[part].tolist(), strict=True):
            read = Passage(text)
            for pair in order[start:end].tolist():
                holds[pair] = answers[query[pair]].are_in(read)
    good = pairs[holds]
    out = {}
    for system, rows in hits.items():
        right = np.isin(pair_keys(np.arange(len(answers))[:, None], rows), good) & (rows >= 0)
        out[system] = np.stack([right[:, :k].any(axis=1) for k in CUTOFFS], axis=1).astype(np.float64)
    return out
