"""Tests whether a passage contains an answer, by DPR's rule (Karpukhin et al., 2020, `has_answer`, string matching).

Texts are normalized to Unicode's form NFD and split into tokens. A token is a run of letters, digits and marks, or any
other single character that is neither a separator nor a control character. Tokens are lower-cased. A passage contains
an answer if the answer's tokens are adjacent in the passage's text; the title does not count. One deviation from DPR:
an answer without any token is in no passage. DPR's rule finds such an answer in every passage.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import regex

from gnn_encoder.artifacts import PassageTable, pair_keys

TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
CUTOFFS = (5, 20, 100)
MEASURES = tuple(f"Answer@{k}" for k in CUTOFFS)
"""Share of the queries with an answer in the first k passages: DPR's top-k retrieval accuracy."""
DEPTH = max(CUTOFFS)
BATCH = 10_000
"""Number of passages whose texts are in memory at a time."""


def tokens(text: str) -> list[str]:
    """Returns the tokens of a text, in order."""
    return [token.lower() for token in TOKEN.findall(unicodedata.normalize("NFD", text))]


class Answers:
    """The alternative answers to one query; false if no answer has a token."""

    def __init__(self, answers: Sequence[str]) -> None:
        # No token contains a space, so a text between spaces matches whole tokens only.
        self._wanted = [
            (_folded(max(words, key=len)), f" {' '.join(words)} ") for words in map(tokens, answers) if words
        ]

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def are_in(self, passage: "Passage") -> bool:
        """Returns whether the passage contains one of the answers."""
        # Few passages contain the answer's longest token. The other passages are not tokenized.
        return any(word in passage.folded and wanted in passage.tokens for word, wanted in self._wanted)


class Passage:
    """The text of a passage, tokenized at the first use of `tokens`."""

    def __init__(self, text: str) -> None:
        self.text, self.folded = text, _folded(text)

    @cached_property
    def tokens(self) -> str:
        """All tokens in one text, each between spaces."""
        return f" {' '.join(tokens(self.text))} "


def _folded(text: str) -> str:
    """Returns the text without case. The folded text contains every folded token of the text."""
    return unicodedata.normalize("NFD", text).casefold()


def answer_recall(
    passages: PassageTable, answers: Sequence[Answers], hits: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns `MEASURES` of each query, float64 {system: [n, 3]}: 1 if the first k passages contain an answer, else 0.

    Args:
        passages: the corpus; each passage that is a hit is read once, in batches.
        answers: [n] of the queries.
        hits: {system: [n, DEPTH]} passage rows, best first, -1 after the last hit.
    """
    keys = {system: pair_keys(np.arange(len(answers))[:, None], rows) for system, rows in hits.items()}
    pairs = np.unique(
        np.concatenate([np.empty(0, np.int64), *(keys[system][rows >= 0] for system, rows in hits.items())])
    )
    query, passage = pairs >> 32, pairs & 0xFFFFFFFF
    order = np.argsort(passage, kind="stable")
    distinct, starts = np.unique(passage[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    answered = np.zeros(len(pairs), dtype=bool)
    for first in range(0, len(distinct), BATCH):
        part = slice(first, first + BATCH)
        texts = passages.take(distinct[part]).texts
        for text, start, end in zip(texts, starts[part].tolist(), ends[part].tolist(), strict=True):
            read = Passage(text)
            for pair in order[start:end].tolist():
                answered[pair] = answers[query[pair]].are_in(read)
    right = {system: np.isin(keys[system], pairs[answered]) & (rows >= 0) for system, rows in hits.items()}
    return {
        system: np.stack([is_right[:, :k].any(axis=1) for k in CUTOFFS], axis=1).astype(np.float64)
        for system, is_right in right.items()
    }
