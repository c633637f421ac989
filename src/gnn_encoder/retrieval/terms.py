"""Terms of texts by language, for BM25, and the language of a corpus.

In English a term is a word of `artifacts.words`, stemmed. In other languages a text has more terms beside these:

- A word of a script with spaces has its parts of `PART` characters, its ends included (McNamee & Mayfield, 2004). They
  reach compounds and forms that the stemmer does not.
- A run of a script without spaces has the words of ICU's dictionaries beside its parts. The parts have two characters,
  as in English texts, or three in alphabetic scripts (`ALPHABETIC`), whose characters are single sounds.

On dev, both kinds of terms together find more than each kind alone (docs/notebook.md, BM25 in other languages).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache

import numpy as np

from gnn_encoder.artifacts import PassageTable
from gnn_encoder.artifacts.words import words
from gnn_encoder.machine.absent import absent
from gnn_encoder.settings.bm25 import LANGUAGES, OTHER, STEMMERS, STOPWORDS, IndexBm25

ENGLISH = "en"
PART = 4
"""Characters of a word's part: of 3 to 5, the best on train (docs/notebook.md)."""
ALPHABETIC = ("Thai", "Lao", "Khmer", "Myanmar")
SAMPLE, PIECES, CHARACTERS = 100, 20, 500
"""Passages from which a language is found, the texts that they are joined to, and the characters of each."""
ENGLISH_SHARE = 0.15
"""A sample with at least this share of English stop words is English. Three English sets have 0.27 to 0.33, German
0.03."""
LEAST = 0.5
"""Probability of a text's language. Random words have 0.2 at most, 100 characters of a language mostly 0.7 or more."""
FEWEST = 10
"""A sample of fewer words has no language."""
VARIETIES = {"arz": "ar", "ary": "ar", "wuu": "zh", "yue": "zh", "nb": "no", "nn": "no"}
"""py3langid's name of a variety → the language with its stemmer or dictionary."""
_WORD_PART, _RUN_PART, _RUN_WORD = "\0\1\2"
"""First characters of the terms that are not words of `artifacts.words`, in which no control stands."""
_MARKS = _WORD_PART + _RUN_PART + _RUN_WORD


class Unit(str):
    """A term that stands for a text: it is split no further. A text of a query or a passage is none."""


def language_of(passages: PassageTable) -> str:
    """Returns the language of most of a sample of the passages, a member of `LANGUAGES`.

    py3langid decides on each of `PIECES` texts, which are spread evenly over the corpus. Without a language that most
    of them have, as with few or random words, it is English. An English sample is recognised by its stop words, as
    py3langid's model needs half a second to load.
    """
    count = len(passages)
    rows = np.unique(np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.int64))
    texts = [text[:CHARACTERS] for text in passages.take(rows).full_texts()]
    in_sample = [word for text in texts for word in words(text)]
    english = stop_words(ENGLISH)
    if len(in_sample) < FEWEST or sum(word in english for word in in_sample) >= ENGLISH_SHARE * len(in_sample):
        return ENGLISH
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    pieces = np.array_split(np.array(texts, object), min(PIECES, len(texts)))
    likely = [identifier.classify("\n".join(piece)) for piece in pieces]
    names = Counter(VARIETIES.get(name, name) for name, probability in likely if probability >= LEAST)
    name, most = next(iter(names.most_common(1)), (ENGLISH, 0))
    if 2 * most <= len(pieces):
        return ENGLISH
    return name if name in LANGUAGES else OTHER


@lru_cache(8)
def stop_words(language: str) -> frozenset[str]:
    """Returns the stop words of a language that bm25s ships, split as texts are; none of other languages."""
    if language not in STOPWORDS:
        return frozenset()
    with absent("jax"), absent("scipy"):  # as in `bm25`
        from bm25s.tokenization import Tokenizer

    return frozenset(word for entry in Tokenizer(stopwords=language).stopwords for word in words(entry, 1))


def stopped(kind: IndexBm25) -> frozenset[str]:
    """Returns the words that an index leaves out."""
    return stop_words({"language": kind.language, "english": ENGLISH, "none": OTHER}[kind.stopwords])


def splitter(kind: IndexBm25) -> Callable[[str], list[str]]:
    """Returns what splits a text into terms, not stemmed; those of words that are left out are missing.

    English texts have words alone, with stop words. `kind.language` is not `auto`. A `Unit` is one term.
    """
    if kind.language == ENGLISH or kind.ngrams == "none":
        return words
    without = stopped(kind)

    def split(text: str) -> list[str]:
        terms = [text] if isinstance(text, Unit) else words(text, runs=_terms_of_run)
        return [term for word in terms if shown(word) not in without for term in _terms(str(word))]

    return split


def stemmer(kind: IndexBm25) -> Callable[[str], str] | None:
    """Returns what stems a term; None: terms stay as they are."""
    name = STEMMERS.get(kind.language) if kind.stemmer == "language" else kind.stemmer
    if name in (None, "none"):
        return None
    import Stemmer

    stem: Callable[[str], str] = Stemmer.Stemmer(name).stemWord
    return stem if splitter(kind) is words else lambda term: term if term[0] in _MARKS else stem(term)


def units(kind: IndexBm25, text: str) -> list[Unit]:
    """Returns the words of a text, and the terms of its runs without spaces: texts whose scores add up to its score."""
    return [Unit(term) for term in splitter(kind)(text) if term[0] != _WORD_PART]


def shown(unit: str) -> str:
    """Returns a unit as a reader sees it."""
    return unit.lstrip(_MARKS)


@lru_cache(1 << 16)
def _terms(word: str) -> tuple[str, ...]:
    """Returns a word and its parts; a term of a run is itself."""
    if word[0] in _MARKS:
        return (word,)
    return word, *_parts(f" {word} ", PART, _WORD_PART)


def _terms_of_run(run: str) -> Iterator[str]:
    """Yields the terms of a run of characters of scripts without spaces."""
    word_breaks, alphabetic = _of_runs()
    yield from (_RUN_WORD + word for word in word_breaks(run, "root"))
    yield from _parts(run, 3 if alphabetic(run) else 2, _RUN_PART)


def _parts(text: str, size: int, mark: str) -> Iterator[str]:
    """Yields the parts of so many characters, marked; a shorter text is one part."""
    return (mark + text[i : i + size] for i in range(max(len(text) - size + 1, 1)))


@cache
def _of_runs() -> tuple[Callable[[str, str], Iterable[str]], Callable[[str], object]]:
    """Returns what finds the words of a run, and what finds whether it is of `ALPHABETIC`."""
    import regex  # these take a tenth of a second, which English texts do not need
    from icu4py.breakers import WordBreaker

    return WordBreaker, regex.compile("[" + "".join(rf"\p{{sc={script}}}" for script in ALPHABETIC) + "]").match
