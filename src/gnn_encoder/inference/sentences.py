"""Token pairs whose passage is divided into sentences, as BERT-DMN reads them (BERT-DMN 3.2)."""

from functools import cache
from typing import Any

import numpy as np
import regex

from gnn_encoder.artifacts import PassageTable
from gnn_encoder.errors import UserError
from gnn_encoder.inference.scoring import PairTokens
from gnn_encoder.inference.tokens import Tokens

_CLOSING = "[\"'”’)\\]]*"
_OTHER_ENDS = r"[。！？]+[”’」』）]*\s*|[؟۔।॥።፧։။។៕๚๛]+[\"'”’»)\]]*\s*|(?<=\p{sc=Greek})[;\u037e]\s+|\s*\n\s*"
"""Ends that need no white space behind them, of CJK, Arabic, Urdu, Hindi (the danda), Ethiopic, Armenian, Burmese,
Khmer and Thai; Greek's question mark; and the end of a line."""
END = regex.compile(rf"[.!?…]+{_CLOSING}\s+|{_OTHER_ENDS}")
"""The end of a sentence: punctuation, closing marks and white space, or one of `_OTHER_ENDS`. So 3.5 stays whole, and
"e.g. this" does not."""
_ABBREVIATIONS = (
    *("Abb", "Abs", "Bd", "bzgl", "bzw", "ca", "Dr", "engl", "evtl", "geb", "gest", "ggf", "Hrsg", "inkl"),
    *("insb", "Jh", "lat", "Mio", "Mrd", "Nr", "Prof", "sog", "St", "Tel", "vgl", "Vgl"),
)
_BEFORE_NUMBERS = "Art|Kap|Str"
"""Words, or last words of an address, that are abbreviations before a digit alone."""
_MONTHS = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember Jahrhundert"
ENDS = {
    "de": regex.compile(
        rf"(?<!\b(?:\p{{L}}|{'|'.join(_ABBREVIATIONS)}))"
        rf"(?!(?<=\b(?:{_BEFORE_NUMBERS}))\.\s*\d)"
        rf"(?!(?<=\b\d{{1,2}})\.\s+(?:{_MONTHS.replace(' ', '|')})\b)"
        rf"[.!?…]+{_CLOSING}\s++(?!\p{{Ll}})|{_OTHER_ENDS}"
    ),
}
"""Language → `END` without what is no end in it. In German: after abbreviations and single letters (z. B.), in dates,
and before a small letter."""
TEXTS = 2_000
"""Passages that are tokenized at a time. The tokens' positions in the text are Python objects: 163 bytes a token."""


def sentence_starts(text: str, split: str = "rules") -> np.ndarray:
    """Positions int64 [m] of the sentences' first characters, ascending; a text without any end is one sentence.

    Args:
        split: a method and the texts' language, as in `rules de`. `rules`: at the ends of the language in `ENDS`, or
            else at every `END`. `pysbd`: its rules know abbreviations, and need 100 times as long; it reads a language
            without rules, and none, as English.
    """
    method, _, language = split.partition(" ")
    if method == "pysbd":
        return np.array(sorted({0, *(sentence.start for sentence in _pysbd(language).segment(text))}), dtype=np.int64)
    ends = ENDS.get(language, END).finditer(text)
    starts = [0, *(end.end() for end in ends if end.end() < len(text))]
    return np.array(starts, dtype=np.int64)


@cache
def _pysbd(language: str) -> Any:
    try:
        from pysbd import Segmenter
        from pysbd.languages import LANGUAGE_CODES
    except ImportError:
        raise UserError(
            "split_sentences = pysbd needs the package pysbd: pip install 'gnn-encoder[pysbd]', or set rules"
        ) from None
    return Segmenter(language=language if language in LANGUAGE_CODES else "en", char_span=True)


class Sentences:
    """Passages as tokens, and the number of each token's sentence.

    Attributes:
        tokens: the tokens of n passages, with special tokens.
        number: int32 [total], as `tokens.ids`: from 1, and -1 at special tokens.
    """

    def __init__(
        self, tokenizer: Any, passages: PassageTable, rows: np.ndarray, max_length: int, split: str = "rules"
    ) -> None:
        shards = [rows[start : start + TEXTS] for start in range(0, len(rows), TEXTS)]
        read = [_divided(tokenizer, passages.take(shard).full_texts(), max_length, split) for shard in shards]
        self.tokens = Tokens.join([tokens for tokens, _ in read])
        self.number = np.concatenate([np.zeros(0, np.int32), *(number for _, number in read)])


def _divided(tokenizer: Any, texts: list[str], max_length: int, split: str) -> tuple[Tokens, np.ndarray]:
    read = tokenizer(
        texts, truncation=True, max_length=max_length, return_offsets_mapping=True, return_special_tokens_mask=True
    )
    numbers = [np.zeros(0, np.int32)]
    for text, spans, special in zip(texts, read["offset_mapping"], read["special_tokens_mask"], strict=True):
        # The last character, because some tokenizers let a word's token begin at the space before it.
        last = np.array([max(end - 1, 0) for _, end in spans])
        number, real = np.searchsorted(sentence_starts(text, split), last, side="right"), np.array(special) == 0
        # A sentence of characters that make no token has no number.
        number[real] = np.unique(number[real], return_inverse=True)[1] + 1
        numbers.append(np.where(real, number, -1).astype(np.int32))
    return Tokens.flatten(read["input_ids"]), np.concatenate(numbers)


class SentencePairs(PairTokens):
    """Token pairs with the number of each token's sentence."""

    def __init__(self, tokenizer: Any, first: Tokens, second: Sentences, max_length: int) -> None:
        super().__init__(tokenizer, first, second.tokens, max_length)
        self.number = second.number

    def padded(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, ...]:
        """Ids, mask and token types as of `PairTokens`, and segments int64 [b, l].

        A segment is 0 at the query's tokens, n at the tokens of the passage's nth sentence, and -1 elsewhere. A
        sentence that is cut by the pair's length counts as it is.
        """
        ids, mask, types = super().padded(first, second)
        segments = np.full(ids.shape, -1, dtype=np.int64)
        columns = np.arange(ids.shape[1])
        head = np.minimum(self.first.lengths[first], self.max_length // 2)[:, None]
        segments[(columns > 0) & (columns < head - 1)] = 0
        last = self.lengths(first, second)[:, None] - 1
        token_index = self.second.offsets[second][:, None] + 1 + columns - head - len(self.middle)
        inside = (types > 0) & (columns < last)
        segments[inside] = self.number[token_index[inside]]
        return ids, mask, types, segments
