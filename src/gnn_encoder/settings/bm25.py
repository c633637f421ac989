"""BM25's parameters: the settings of the step that indexes the passages, and the languages that it knows."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from gnn_encoder.settings.values import Fraction, PositiveFloat, StepSettings, known_names

STEMMERS = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek", "en": "english",
    "eo": "esperanto", "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish",
    "fr": "french", "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian",
    "it": "italian", "lt": "lithuanian", "ne": "nepali", "nl": "dutch", "no": "norwegian", "pl": "polish",
    "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian", "st": "sesotho", "sv": "swedish",
    "ta": "tamil", "tr": "turkish", "yi": "yiddish",
}  # fmt: skip
"""Language (ISO 639) → its stemmer in Snowball."""
STOPWORDS = frozenset(("da", "de", "en", "es", "fr", "it", "nl", "no", "pt", "ru", "sv", "tr"))
"""Languages whose stop words bm25s ships, without Chinese and Korean: that list for Chinese hurts on dev."""
OTHER = "other"
LANGUAGES = frozenset((*STEMMERS, "ja", "km", "ko", "lo", "my", "th", "zh", OTHER))


def _known(value: str) -> str:
    if value != "auto" and value not in LANGUAGES:
        raise ValueError(f"unknown language {value!r}: {known_names(value, ('auto', *LANGUAGES))}")
    return value


# YAML reads an unquoted `no`, Norwegian, as a boolean.
Language = Annotated[str, BeforeValidator(lambda value: "no" if value is False else value), AfterValidator(_known)]


class IndexBm25(StepSettings):
    """Indexes all passages for BM25: how texts are split into terms, and how they are scored."""

    k1: PositiveFloat = 1.5
    """Saturation of the term frequency."""
    b: Fraction = 0.75
    """Share of length normalisation."""
    language: Language = "auto"
    """Language of passages and queries, by its code in ISO 639. `auto`: that of most of a sample of the passages.
    `other`: none that has a stemmer. The index keeps what was taken."""
    stemmer: Literal["language", "english", "none"] = "language"
    """Snowball's stemmer of the language, if it has one, or the English one."""
    stopwords: Literal["language", "english", "none"] = "language"
    """Words that are left out: bm25s's list of the language, if it has one, or the English list. In Arabic, Greek and
    Hindi other packages' lists gain nothing (docs/notebook.md)."""
    ngrams: Literal["language", "none"] = "language"
    """Terms beside the words in all languages but English: the parts of four characters of each word, and of runs
    without spaces the words of ICU's dictionaries."""
    fields: Literal["joined", "separate"] = "joined"
    """Title and text as one field, or as two fields whose scores are added."""
