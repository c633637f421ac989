"""The settings of the steps that write queries for passages, and select those that serve as labels."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from gnn_encoder.settings.language_model import Asking
from gnn_encoder.settings.shared import MINILM, SMOLLM2, Inference
from gnn_encoder.settings.values import Count, Fraction, PositiveInt

TITLES = "titles"
NO_FOLDERS = (TITLES, SMOLLM2, MINILM)
"""Names of generators and encoders that name no folder, even if there is one of that name; `./titles` is the folder."""
MOST_OF_TITLES = 50_000
"""Passages of which `titles` takes sentences, if no limit is set: far more than `select_queries` keeps by default."""
KINDS = ("keyword", "question", "scenario")
"""Of queries that a language model writes, if the user has no prompts of other kinds."""


class WriteQueries(Asking):
    """Writes queries for passages of data that have too few queries of their own."""

    generator: str = ""
    """What writes them. `titles`: headings and sentences of the documents, without a model. A language model: the
    address of a chat service in OpenAI's form, `http://…/v1#MODEL`, to which the passages are sent (for the key see
    `settings.services`); or `smollm2`, a Hugging Face name, or a folder of a causal or seq2seq model, also of one
    that `train_query_generator` has trained, which reads passages without a prompt. Empty: nothing; the data have
    queries of their own."""
    per_passage: PositiveInt = 3
    """Most queries for a passage."""
    max_passages: Count = 0
    """Most passages that get queries, by a seeded draw. 0: all, but `titles` takes sentences of 50,000."""
    prompts: str = ""
    """Folder with a prompt for each kind of query, `KIND.j2` (`written.prompts`). Empty: the project's, for keywords,
    questions and scenarios."""
    examples: str = ""
    """A text file with a query of real people a line, of which each prompt shows a few. Empty: none."""
    passage_characters: PositiveInt = 3000
    """Most characters of a passage in a prompt."""
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 0.7
    """Of sampling (Promptagator: Dai et al., 2022). 0: the likeliest token each time."""
    answer_tokens: PositiveInt = 160
    """Most tokens of an answer."""
    seed: Count = 0
    """Of all draws."""

    def _problems(self) -> Iterator[str]:
        of_prompts = [name for name in ("prompts", "examples") if getattr(self, name)]
        if of_prompts and not self.is_asked:
            yield (
                f"{of_prompts[0]} is for a language model, and generator = {self.generator!r} is none: name one with "
                "--generator"
            )
        if self.max_calls and not self.generator:
            yield "max_calls is for a generator, and there is none: name one with --generator"

    @property
    def is_asked(self) -> bool:
        """Whether a language model writes."""
        return self.generator not in ("", TITLES)

    def passages_of(self, count: int, kinds: int = len(KINDS)) -> tuple[int, int]:
        """Returns how many of `count` passages get queries at most, and the calls that each takes."""
        calls = min(self.per_passage, kinds) if self.is_asked else 0
        limit = self.max_calls // calls if calls and self.max_calls else count
        most = count if self.is_asked else MOST_OF_TITLES
        return min(count, self.max_passages or most, limit), calls


class SelectQueries(Inference):
    """Selects written queries, each a label of the passage that it was written for, and assigns splits."""

    found_within: PositiveInt = 20
    """A query is kept if its passage is among this many first hits of BM25."""
    agreeing_reranker: str = ""
    """A re-ranker that has to agree, after BM25: the folder, hub name or `s3://` address of a published cross-encoder,
    or the folder of a trained re-ranker. Empty: none."""
    reranked: PositiveInt = 10
    """BM25's first hits that it scores together with the query's passage."""
    agreed_within: PositiveInt = 1
    """A query is kept if its passage is among this many first ones of them (Promptagator's consistency, K = 1: Dai et
    al., 2022)."""
    agreed_probability: Fraction = 0.0
    """A query is kept if the re-ranker gives its passage at least this probability. 0: all stay."""
    similarity: Fraction = 0.8
    """A query is left out if its set of words is at least this similar (Jaccard) to that of an earlier one, or of a
    query that came with the data. 0: all stay, but for equal texts."""
    quoted_words: PositiveInt = 8
    """A query is left out if so many words in a row are the beginning of its passage's text, or all its words are."""
    dev_fraction: Fraction = 0.1
    """Share of the documents whose queries become dev queries where the data have none of their own, by a hash of the
    documents' names, so that further documents move none to another split. Few documents of unlike size are moved so
    far that the share of the queries is at most half as large again, or half as small (`written.selection`)."""
    test_fraction: Fraction = 0.2
    """The same of test queries."""
    fewest_units: PositiveInt = 20
    """Of fewer documents the top sections are divided among the splits, or those below them. The document that makes
    them enough changes their splits once."""
    max_train: Count = 2_000
    """Most written queries that become training queries, by a seeded draw. 0: all."""
    max_evaluated: Count = 500
    """The same of dev, and of test queries: each system ranks them all."""
    quoting: Fraction = 0.9
    """If words alone find a passage of so many of the written dev queries first, they are quotations, and tune no
    weight of a sum with BM25."""
    seed: Count = 0
    """Of all draws."""
