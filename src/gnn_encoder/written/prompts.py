"""Prompts by which a language model writes queries of several kinds, and the queries in its answers.

A kind of query is a Jinja file `KIND.j2`, here `keyword.j2`, `question.j2` and `scenario.j2`, or those of the user's
folder `write_queries.prompts`. It gets `passage`, between tags that the text cannot close, `count`, and `examples`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jinja2 import StrictUndefined, Template
from jinja2.sandbox import SandboxedEnvironment

from gnn_encoder.errors import UserError, one_line, printable
from gnn_encoder.inference.language_model import delimited
from gnn_encoder.settings.written import KINDS

TAG = "passage"
SHOWN_EXAMPLES = 4
"""Example queries in a prompt, by a draw for each passage."""
LONGEST, MOST_LINES = 300, 50
"""Characters of a query, and lines of an answer, beyond which they are no query and no answer."""
ITEM = re.compile(
    r"^(?:(?:[-*•]|\(?\d{1,2}[.):])\s+"
    r"|(?:（\d{1,2}）|\d{1,2}[、）]|\d{1,2}[．：](?!\d)|[①-⑳]|・)\s*"
    r"|\(?\d{1,2}[.)](?=[^\W\d_a-zA-Z]|[「『《“（]))"
    r"(?=\S)"
)
"""The beginning of a line of a list. Chinese and Japanese have marks of their own, and no space after a mark."""
QUOTES = "\"'`*_“”„«»‘’"
JAPANESE_QUOTES = "「」", "『』"
"""Marks that also stand around a name within a query, so only those around a whole query are taken away."""


@dataclass(frozen=True)
class Prompts:
    """The prompts of each kind of query, kind → template, and example queries of people."""

    kinds: Mapping[str, Template]
    examples: Sequence[str]
    seed: int
    characters: int
    """Of a passage, at most."""

    @classmethod
    def read(cls, folder: str, examples: str, seed: int, characters: int) -> "Prompts":
        """Reads the templates of a folder, by default the project's, and a file with an example query a line.

        Raises:
            UserError: no such folder or file, none in it, or a template with an error.
        """
        files = (
            sorted(Path(folder).glob("*.j2")) if folder else [Path(__file__).parent / f"{kind}.j2" for kind in KINDS]
        )
        if not files:
            raise UserError(f"write_queries.prompts = {folder}: no file KIND.j2 is there")
        environment = SandboxedEnvironment(
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False
        )
        kinds = {}
        for file in files:
            try:
                kinds[file.stem] = environment.from_string(file.read_text("utf-8"))
                kinds[file.stem].render(passage="", count=1, examples=[])
            except Exception as error:  # as many errors as a template can raise
                raise UserError(f"write_queries.prompts: {file.name}: {one_line(error)}") from None
        return cls(kinds, _examples(examples), seed, characters)

    def counts(self, number: int, queries: int) -> dict[str, int]:
        """How many of a passage's queries are of each kind; with fewer queries than kinds, the kinds take turns."""
        names = list(self.kinds)
        turn = [names[(number + i) % len(names)] for i in range(queries)]
        return {name: turn.count(name) for name in names if name in turn}

    def prompt(self, kind: str, number: int, text: str, count: int) -> str:
        """The prompt for `count` queries of a kind, for a passage with a number, by which the examples are drawn."""
        draw = np.random.default_rng((self.seed, number)).permutation(len(self.examples))[:SHOWN_EXAMPLES]
        shown = [self.examples[number] for number in draw]
        passage = delimited(text, TAG, self.characters)
        return self.kinds[kind].render(passage=passage, count=count, examples=shown).strip()


def queries_in(answer: str, count: int, is_cut: bool = False) -> list[str]:
    """Returns at most `count` queries of an answer, each one line of text; nothing in them is obeyed or executed.

    If the answer has a list, its lines are the queries; otherwise all lines are, unless they are more than `count`.
    Lines without a letter or digit, longer than `LONGEST`, or with the passage's tag are left out. `is_cut`: so is the
    last line, which may be half a line.
    """
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    if is_cut:
        lines = lines[:-1]
    if len(lines) > MOST_LINES:
        return []
    listed = [line for line in lines if ITEM.match(line)]
    if not listed:
        listed = [line for line in lines if not line.endswith((":", "：")) and not line.startswith("```")]
        if len(listed) > count:
            return []
    queries: dict[str, str] = {}
    for line in listed:
        query = printable(ITEM.sub("", line)).strip(QUOTES + " ")
        if query[:1] + query[-1:] in JAPANESE_QUOTES and query.count(query[0]) == 1:
            query = query[1:-1]
        if any(map(str.isalnum, query)) and len(query) <= LONGEST and f"{TAG}>" not in query:
            queries.setdefault(query.casefold(), query)
    return list(queries.values())[:count]


def _examples(file: str) -> list[str]:
    if not file:
        return []
    try:
        lines = Path(file).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"write_queries.examples = {file}: {one_line(error)}; give a text file, a query a line"
        ) from None
    examples = [printable(line)[:LONGEST] for line in lines if line.strip()]
    if not examples:
        raise UserError(f"write_queries.examples = {file} is empty: give a text file, a query a line")
    return examples
