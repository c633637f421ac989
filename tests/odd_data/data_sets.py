"""Generates small data sets with odd texts, ids, copies and labels, and writes them in several layouts."""

import csv
import io
import json
import unicodedata
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from hypothesis import strategies as st

from gnn_encoder.data.validation import Kind

T = TypeVar("T")
SPLITS = ("train", "dev", "test")

WORDS = {
    "latin": ("river", "Stone", "CLOUD", "the", "what", "is", "ab", "C++", "C", "naïve", "cafe", "café", "cafe\u0301"),
    "folding": ("Straße", "STRASSE", "ﬁne", "fine", "ＦＵＬＬ", "full", "①", "1", "İz", "ı", "ŉ", "ͅα", "ﬀ", "K", "½"),
    "cjk": ("東京", "図書館", "検索", "한국어", "한국어", "カタカナ", "ｶﾀｶﾅ", "ガ", "ｶﾞ", "中文分词", "㎏"),
    "thai": ("ภาษาไทย", "น้ำ", "นํ้า", "กิน", "ข้าว"),
    "devanagari": ("हिन्दी", "क़लम", "क\u093cलम", "पुस्तक", "किताब"),
    "arabic": ("العربية", "كِتَاب", "كتاب", "ﻻ", "لا", "ـكـ", "٣"),
    "emoji": ("👩‍👩‍👧", "👩👩👧", "❤️", "❤", "🏳️‍🌈", "🇩🇪", "👍🏽"),
    "signs": ("#1", "100%", "%20", '"quoted"', "it's", "a\\b", "<b>", "&amp;", "?", "—", "[PAD]", "$x$", "{}"),
}
SPACES = (" ", " ", " ", "  ", "\u00a0", "\u3000", "\t", "\n", "\r\n", "\u2028", "\x85")
INVISIBLE = ("\u200b", "\ufeff", "\u00ad", "\u200e", "\u2060", "\ufe0f", "\u034f", "\u180e", "\U000e0041", "\u3164")
BLANK = ("", " ", "\u200b", "\ufeff", "\u2800", "\u3164 \u00a0", "\t\n", "\u00ad\u200e", "\x01")

COLLIDING_IDS = (
    "a b", "a%20b", "a%2520b", "a\u00a0b", "a%C2%A0b", "a\u3000b", "a%E3%80%80b", "a+b", "a!b", "a  b", " a", "a ",
    "%20a", "é", "e\u0301", "É", "ﬁ", "fi", "a\u200b", "a", "A", "\u200b", " ", "%20", "%", "%%", "%2", "%25", "a\x1cb",
    "a%1Cb", "a\x85b", "a\u2028b", "b\ufeff", "b", "c\x00d", "c\x00e", "c",
)  # fmt: skip
"""Ids of which some are equal once they are written with escapes, or compared as texts are, or read by C."""
ODD_IDS = (
    *COLLIDING_IDS, "'", "a;b", "a,b", "#", "a#b:1", "\\", "\\t", "a/b", "../a", "0", "00", "1", "01", "-1", "1.0",
    "1e3", "nan", "None", "null", "true", "Q0", "👩‍👩‍👧", "日本", "ไทย", "हिन्दी", "العربية", "<a>", "&amp;",
)  # fmt: skip
QUOTED_IDS = ('"', '""', '"a"', 'a"b', "a\tb", "\ta", '"\t"')
"""Ids that a table needs quotes for."""


class Passage(NamedTuple):
    """A row of a corpus."""

    id: str
    title: str
    text: str


class Question(NamedTuple):
    """A row of the queries."""

    id: str
    text: str


class Label(NamedTuple):
    """A row of the labels of a split."""

    query: str
    passage: str
    relevance: int


class Broken(NamedTuple):
    """A row that no reader can read, as it stands in the file, and the kind of its problem."""

    line: bytes
    kind: Kind


@dataclass
class OddData:
    """A data set, row by row as in its files."""

    corpus: list[Passage | Broken]
    queries: list[Question | Broken]
    labels: dict[str, list[Label | Broken]] = field(default_factory=dict)
    """Per split that has a file."""
    candidates: list[tuple[str, str]] = field(default_factory=list)
    """Ids of a query and a passage in each row of the pool."""

    @property
    def passages(self) -> list[Passage]:
        """The rows that are not broken."""
        return [row for row in self.corpus if isinstance(row, Passage)]


class Dice:
    """Choices made by bytes, which cost a thirtieth of as many draws of hypothesis; without bytes the first choice."""

    def __init__(self, rolls: bytes) -> None:
        self._rolls = iter(rolls)

    def below(self, count: int) -> int:
        """A number from 0 to `count` - 1; `count` is at most 256."""
        return next(self._rolls, 0) % count

    def one_of(self, choices: Sequence[T]) -> T:
        """One of at most 256 choices."""
        return choices[self.below(len(choices))]

    def seldom(self, one_in: int) -> bool:
        """True once in so many calls."""
        return self.below(one_in) == one_in - 1


FIRST_SPLITS = ("train", "test", "train", "dev")
"""Splits of the first queries, which have a relevant passage: without these, most data sets are refused."""
FEW = 6
"""A data set with so few rows often lacks something: a negative, a text of its own for each passage, a test query."""
ROLLS = st.binary(min_size=48, max_size=48).map(Dice)
"""Dice for one row."""


def _inserted(sign: str) -> Callable[[str], str]:
    return lambda text: text[: len(text) // 2] + sign + text[len(text) // 2 :]


EQUAL_FORMS: tuple[Callable[[str], str], ...] = (
    str,
    *(lambda text, form=form: unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")),
    str.casefold,
    lambda text: f"\ufeff{text}",
    lambda text: f" {text} ",
    lambda text: "\u200b".join(text),
    *map(_inserted, INVISIBLE),
)
"""Ways to write a text so that a reader sees the same."""
OTHER_FORMS: tuple[Callable[[str], str], ...] = (
    str.upper,
    str.title,
    lambda text: text + "?",
    lambda text: text.replace(" ", ""),
    lambda text: "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c)),
)
"""Ways to write a text of which some change it."""


def new_text(dice: Dice) -> str:
    """One to five words of one script or two."""
    scripts = [WORDS[dice.one_of(tuple(WORDS))] for _ in range(1 + dice.seldom(3))]
    parts = []
    for _ in range(1 + dice.below(5)):
        parts += [dice.one_of(dice.one_of(scripts)), dice.one_of(SPACES)]
    return "".join(parts[:-1])


def any_text(dice: Dice, earlier: list[str]) -> str:
    """A new text, or one of the earlier ones in the same or another form; it joins the earlier ones."""
    if earlier and dice.seldom(3):
        text = dice.one_of((*EQUAL_FORMS, *OTHER_FORMS))(dice.one_of(earlier))
    else:
        text = new_text(dice)
    earlier.append(text)
    return text


def new_id(dice: Dice, taken: Collection[str], pool: Sequence[str], letter: str, one_in: int) -> str:
    """An id that is not taken, odd once in so many cases."""
    odd = dice.one_of(pool) if dice.seldom(one_in) else ""
    return odd if odd and odd not in taken else f"{letter}{len(taken)}"


def sizes(most: int) -> st.SearchStrategy[int]:
    """Numbers of rows from 1 to `most`, every other one at most `FEW`."""
    return st.one_of(st.integers(1, min(most, FEW)), st.integers(1, most))


@st.composite
def data_sets(
    draw: st.DrawFn, *, most: int = 50, ids: Sequence[str] = (*ODD_IDS, *QUOTED_IDS), one_in: int = 3
) -> OddData:
    """Data sets whose rows are all right: 1 to `most` passages and queries, one to three splits; one id in `one_in` is
    of `ids`."""
    earlier: list[str] = []
    corpus: dict[str, Passage] = {}
    for _ in range(draw(sizes(most))):
        dice = draw(ROLLS)
        name, shape = new_id(dice, corpus, ids, "d", one_in), dice.below(10)
        if shape == 9:
            corpus[name] = Passage(name, any_text(dice, earlier), dice.one_of(BLANK))
        else:
            title = dice.one_of(BLANK) if shape < 5 else new_text(dice)
            corpus[name] = Passage(name, title, any_text(dice, earlier))
    queries: dict[str, Question] = {}
    labels: dict[str, dict[tuple[str, str], Label]] = {split: {} for split in SPLITS}
    repeated: dict[str, list[Label]] = {split: [] for split in SPLITS}
    for number in range(draw(sizes(most))):
        dice = draw(ROLLS)
        name = new_id(dice, queries, ids, "q", one_in)
        queries[name] = Question(name, any_text(dice, earlier))
        split = FIRST_SPLITS[number] if number < len(FIRST_SPLITS) else SPLITS[max(0, dice.below(6) - 3)]
        for number_of_label in range(max(number < len(FIRST_SPLITS), min(dice.below(5), 3))):
            relevance = 1 if number_of_label == 0 else dice.one_of((1, 1, 2, 3, 0, 0, -1))
            label = Label(name, dice.one_of(tuple(corpus)), relevance)
            repeated[split].append(labels[split].setdefault(label[:2], label))
    kept = SPLITS if draw(st.integers(0, 3)) else ("train", *(s for s in SPLITS[1:] if draw(st.booleans())))
    return OddData([*corpus.values()], [*queries.values()], {split: repeated[split] for split in kept})


BROKEN_JSON = (
    Broken(b'{"_id": "x", "text"', Kind.BAD_JSON),
    Broken(b"not json", Kind.BAD_JSON),
    Broken(b"[]", Kind.BAD_ROW),
    Broken(b'"text"', Kind.BAD_ROW),
    Broken(b'{"title": "a", "text": "without an id"}', Kind.BAD_ROW),
    Broken(b'{"_id": "", "text": "an empty id"}', Kind.BAD_ROW),
    Broken(b'{"_id": 1.5, "text": "a"}', Kind.BAD_ROW),
    Broken(b'{"_id": "x", "text": 5}', Kind.BAD_ROW),
    Broken(b'{"_id": "x", "text": ["a"]}', Kind.BAD_ROW),
    Broken(b'{"_id": "x", "text": "caf\xe9"}', Kind.ENCODING),
    Broken(b'{"_id": "x", "text": "a \\ud800 b"}', Kind.ENCODING),
    Broken(b'{"_id": "\\udfff", "text": "a"}', Kind.ENCODING),
)
BROKEN_LABELS = (
    Broken(b"q0\td0", Kind.BAD_ROW),
    Broken(b"q0\t0\td0\t1", Kind.BAD_ROW),
    Broken(b"q0\td0\t0.5", Kind.BAD_RELEVANCE),
    Broken(b"q0\td0\t", Kind.BAD_RELEVANCE),
    Broken(b"q0\td0\t1001", Kind.BAD_RELEVANCE),
    Broken("q0\td0\t\u0661".encode(), Kind.BAD_RELEVANCE),
    Broken(b"q\xff\td0\t1", Kind.ENCODING),
)


@st.composite
def spoilt_data_sets(draw: st.DrawFn, *, most: int = 20) -> OddData:
    """Data sets with bad rows: empty, repeated, broken, of unknown ids, of a query in two splits."""
    data = draw(data_sets(most=most))
    passage_ids, query_ids = [row.id for row in data.corpus], [row.id for row in data.queries]
    for _ in range(draw(st.integers(0, 8))):
        dice = draw(ROLLS)
        table = dice.below(3)
        if table == 0:
            blank = Passage(dice.one_of(("blank", *passage_ids)), dice.one_of(BLANK), dice.one_of(BLANK))
            again = Passage(dice.one_of(passage_ids), "", new_text(dice))
            row = dice.one_of((blank, again, dice.one_of(BROKEN_JSON)))
            data.corpus.insert(dice.below(len(data.corpus) + 1), row)
        elif table == 1:
            blank = Question(dice.one_of(("blank", *query_ids)), dice.one_of(BLANK))
            again = Question(dice.one_of(query_ids), new_text(dice))
            row = dice.one_of((blank, again, dice.one_of(BROKEN_JSON)))
            data.queries.insert(dice.below(len(data.queries) + 1), row)
        else:
            rows, others = (data.labels[dice.one_of(tuple(data.labels))] for _ in range(2))
            query, passage = dice.one_of(query_ids), dice.one_of(passage_ids)
            wrong = [Label("nobody", passage, 1), Label(query, "nothing", 1), dice.one_of(BROKEN_LABELS)]
            if labels := [row for row in others if isinstance(row, Label)]:
                label = dice.one_of(labels)  # as it is, with another relevance, or for another passage
                wrong += [label._replace(passage=dice.one_of((label.passage, passage)), relevance=dice.below(3))] * 2
            rows.insert(dice.below(len(rows) + 1), dice.one_of(wrong))
    for _ in range(draw(st.integers(0, 3))):
        dice = draw(ROLLS)
        pair = dice.one_of(query_ids), dice.one_of(passage_ids)
        data.candidates += [pair, ("nobody", pair[1]), (pair[0], "nothing"), pair][: 1 + dice.below(4)]
    return data


def _quoted(*fields: object) -> bytes:
    """A line of a tab-separated file, as Python's `csv` writes it."""
    line = io.StringIO()
    csv.writer(line, delimiter="\t").writerow(fields)
    return line.getvalue().removesuffix("\r\n").encode()


def _file(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def _as_json(row: Passage | Question | Broken) -> bytes:
    if isinstance(row, Broken):
        return row.line
    fields = {"_id": row.id, **row._asdict()}
    del fields["id"]
    return json.dumps(fields, ensure_ascii=len(row.text) % 2 == 0).encode()  # both ways to write a character


def write_beir(folder: Path, data: OddData) -> Path:
    """Writes a BEIR folder: line i of corpus and queries is row i from 1, line i of a qrels file row i from 2,
    line i of the candidates row i from 1."""
    (folder / "qrels").mkdir(parents=True)
    _file(folder / "corpus.jsonl", [_as_json(row) for row in data.corpus])
    _file(folder / "queries.jsonl", [_as_json(row) for row in data.queries])
    for split, rows in data.labels.items():
        lines = [row.line if isinstance(row, Broken) else _quoted(*row) for row in rows]
        _file(folder / "qrels" / f"{split}.tsv", [b"query-id\tcorpus-id\tscore", *lines])
    if data.candidates:
        (folder / "candidates").mkdir()
        _file(folder / "candidates" / "train.tsv", [_quoted(*pair) for pair in data.candidates])
    return folder


def flat(data: OddData) -> OddData:
    """The data with a space for each tab and line end in its texts, for layouts of one row a line."""

    def plain(text: str) -> str:
        return text.translate(dict.fromkeys(map(ord, "\t\r\n"), " "))

    corpus = [Passage(row.id, plain(row.title), plain(row.text)) for row in data.passages]
    queries = [Question(row.id, plain(row.text)) for row in data.queries if isinstance(row, Question)]
    return OddData(corpus, queries, data.labels)


def split_of_queries(data: OddData) -> dict[str, str]:
    """Query id → the split of its labels; the first split of the data for queries without labels."""
    split_of = {row.query: split for split, rows in data.labels.items() for row in rows if isinstance(row, Label)}
    return {row.id: split_of.get(row.id, "train") for row in data.queries}


def write_msmarco(folder: Path, data: OddData) -> Path:
    """Writes MS MARCO's files; the collection has titles, and a header line, if a passage has a title."""
    folder.mkdir()
    titled = any(row.title for row in data.passages)
    rows = [("id", "title", "text"), *data.passages] if titled else [(row.id, row.text) for row in data.passages]
    _file(folder / "collection.tsv", ["\t".join(row).encode() for row in rows])
    split_of = split_of_queries(data)
    for split, labels in data.labels.items():
        queries = [f"{row.id}\t{row.text}".encode() for row in data.queries if split_of[row.id] == split]
        _file(folder / f"queries.{split}.tsv", queries)
        lines = [f"{row.query}\t0\t{row.passage}\t{row.relevance}".encode() for row in labels]
        _file(folder / f"qrels.{split}.tsv", lines)
    return folder


def write_dpr(folder: Path, data: OddData) -> Path:
    """Writes DPR's corpus and a training file for each split, with the positive labels; queries lose their ids."""
    folder.mkdir()
    header, *rows = ("id", "text", "title"), *((row.id, row.text, row.title) for row in data.passages)
    _file(folder / "psgs_odd.tsv", [b"\t".join(name.encode() for name in header), *(_quoted(*row) for row in rows)])
    for split, labels in data.labels.items():
        positive: dict[str, list[str]] = {row.query: [] for row in labels}
        for row in labels:
            positive[row.query] += [row.passage] * (row.relevance >= 1)
        records = [
            {"question": row.text, "answers": [], "positive_ctxs": [{"passage_id": p} for p in positive[row.id]]}
            for row in data.queries
            if positive.get(row.id)
        ]
        (folder / f"odd-{split}.json").write_text(json.dumps(records), encoding="utf-8")
    return folder
