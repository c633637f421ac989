"""Grades of passages for queries by a language model: 0 to 3, with one line of reason.

The manner is UMBRELA's (Upadhyay, Pradeep, Thakur, Craswell and Lin, arXiv 2406.06519, after Thomas, Spielman, Craswell
and Mitra, SIGIR 2024): one pair a call, no examples, TREC's four grades, and what the user wants, what the passage
gives and its trustworthiness before the grade. The words in `grade.j2` are this project's.

Queries and passages are material from anywhere. They stand between tags that they cannot close; the answer must have
one line with a grade and is refused otherwise; what comes back is a digit and a line of plain text of bounded length.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from jinja2 import StrictUndefined, Template
from jinja2.sandbox import SandboxedEnvironment

from gnn_encoder.artifacts import Qrels
from gnn_encoder.errors import UserError, one_line, printable
from gnn_encoder.evaluation.trec import write_qrels
from gnn_encoder.inference.language_model import LanguageModel, delimited
from gnn_encoder.judging.pool import read_as
from gnn_encoder.settings.judging import Judge
from gnn_encoder.tracking.progress import Progress

GRADES = (0, 1, 2, 3)
GRADE = re.compile(r"^[^\w\n]*grade[^\w\n]{0,4}[:=][^\w\n]*([0-9]+)[^\w\n]*$", re.IGNORECASE | re.MULTILINE)
REASON = re.compile(r"^[^\w\n]*reason[^\w\n]{0,4}[:=](.*)$", re.IGNORECASE | re.MULTILINE)
"""Lines of an answer; stars and spaces around them are Markdown's."""
LONGEST_REASON = 300
"""Characters of a reason that are kept."""
SHOWN = 80
"""Characters of an answer without a grade that a message shows."""


@dataclass(frozen=True)
class Pair:
    """A hit of a query: `text` is the passage as models read it."""

    query_id: str
    query: str
    passage_id: str
    text: str


@dataclass(frozen=True)
class Judgement:
    """The grade of a passage for a query; `origin`: the model that gave it."""

    query_id: str
    query: str
    passage_id: str
    grade: int
    reason: str
    origin: str


@dataclass(frozen=True)
class Graded:
    """The judgements in the order of the pairs; numbers of calls that failed, and of answers without a grade."""

    judgements: list[Judgement]
    failed: int
    without_grade: int


def read_prompt(file: str) -> Template:
    """Returns the prompt's template: the user's file, or the project's.

    Raises:
        UserError: the file cannot be read, is no template, or leaves the query or the passage out.
    """
    path = Path(file) if file else Path(__file__).parent / "grade.j2"
    try:
        template = SandboxedEnvironment(undefined=StrictUndefined).from_string(path.read_text("utf-8"))
        filled = template.render(query="\1", passage="\2")
    except Exception as error:  # as many errors as a template can raise
        raise UserError(f"prompt {path}: {one_line(error)}") from None
    if "\1" not in filled or "\2" not in filled:
        raise UserError(f"prompt {path}: it must have {{{{ query }}}} and {{{{ passage }}}}")
    return template


def prompt_of(template: Template, pair: Pair, characters: int) -> str:
    """Returns the prompt that asks for the grade of a pair."""
    query, passage = delimited(pair.query, "query", characters), delimited(pair.text, "passage", characters)
    return template.render(query=_without_tag(query, "passage"), passage=_without_tag(passage, "query")).strip()


def _without_tag(text: str, tag: str) -> str:
    """Returns a delimited text without the other text's tag, which it could begin."""
    return re.sub(rf"<(?=\s*/?\s*{tag})", "‹", text, flags=re.IGNORECASE)


def grade_in(answer: str) -> tuple[int | None, str]:
    """Returns the grade in an answer and its reason; None: it has no line with a grade of 0 to 3, or several grades."""
    named = set(GRADE.findall(answer))
    grade = named.pop() if len(named) == 1 else ""
    if grade not in map(str, GRADES):
        return None, ""
    reason = REASON.search(answer)
    return int(grade), printable(reason[1])[:LONGEST_REASON].strip() if reason else ""


def graded(
    model: LanguageModel, pairs: Sequence[Pair], settings: Judge, say: Callable[[str], None], progress: Progress
) -> Graded:
    """Asks the model for the grade of each pair; answers of an earlier attempt are not asked for again.

    Args:
        say: says a line to the user: what it will take, then what failed, one line for each kind of failure.
        progress: of `len(pairs)` answers.

    Raises:
        UserError: no answer has a grade.
        Unreachable: the model's service does not answer; the answers that came are kept.
    """
    template = read_prompt(settings.prompt)
    prompts = [prompt_of(template, pair, settings.passage_characters) for pair in pairs]
    say(f"{model.name} grades {len(pairs):,} passages: {model.estimate(prompts)}")
    grades: dict[int, tuple[int, str]] = {}
    failures, others = Counter[str](), Counter[str]()
    for answer in model.answers(prompts):
        progress.advance()
        if answer.text is None:
            failures[answer.failure] += 1
            continue
        grade, reason = grade_in(answer.text)
        if grade is None:
            others[printable(answer.text)[:SHOWN] or "an empty one"] += 1
        else:
            grades[answer.index] = (grade, reason)
    for kind, description in ((failures, "calls failed"), (others, "answers have no grade")):
        if kind:
            ((example, _),) = kind.most_common(1)
            say(f"{kind.total():,} {description}, such as: {printable(example)}")
    if not grades:
        raise UserError(f"{model.name} gave no grade, in {len(pairs):,} calls: try another model")
    judgements = [
        Judgement(pair.query_id, pair.query, pair.passage_id, *grades[index], model.name)
        for index, pair in enumerate(pairs)
        if index in grades
    ]
    return Graded(judgements, failures.total(), others.total())


def write_qrels_of(path: Path, judgements: Sequence[Judgement]) -> None:
    """Writes the grades as gzipped TREC qrels, for `gnn-encoder evaluate --run … --qrels`."""
    queries, passages = (
        {name: number for number, name in enumerate(dict.fromkeys(names))}
        for names in ((j.query_id for j in judgements), (j.passage_id for j in judgements))
    )
    columns = zip(*((queries[j.query_id], passages[j.passage_id], j.grade) for j in judgements), strict=True)
    ids = (pa.chunked_array([pa.array(list(names), pa.string())]) for names in (queries, passages))
    write_qrels(path, Qrels(*(np.array(column, np.int32) for column in columns)), *ids)


def read_judgements(path: Path) -> list[Judgement]:
    """Returns the judgements in a file, if there is one; raises UserError for another file."""
    return read_as(path, Judgement) if path.exists() else []
