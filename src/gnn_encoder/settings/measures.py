"""Names of measures, in the form of `ir_measures`: `RR@10`, `AP`, `R(rel=2)@100` or `PRES(doc)@100`.

The mean of RR@10 over queries is MRR@10, and the mean of AP is MAP. A label is relevant from 1 upwards, or from N
with `(rel=N)`. nDCG uses every label as a gain. Judged@k is the share of the first k hits that have any label.

With `(doc)`, documents are ranked instead of passages: a document scores as its best passage, and its label is the
highest label of its passages, so it is relevant if one of its passages is. k then counts documents. MAP(D) and PREC(D)
are CLEF-IP's measures of the passages within each relevant document (`evaluation.clef_ip`). The data must say which
document a passage is in.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator

DEFAULT = ("RR@10", "nDCG@10", "AP", "R@5", "R@20", "R@50", "R@100", "R@1000")
FORM = (
    "RR@k, nDCG@k, AP, AP@k, R@k, P@k, Success@k, PRES@k, Rprec or Judged@k; all but Judged also with (doc), such as "
    "R(doc)@100, for documents as good as their best passage; MAP(D) or PREC(D), also with @k, for the passages within "
    "relevant documents; all but nDCG and Judged also with (rel=N), such as R(doc,rel=2)@100"
)
DOCUMENTS, WITHIN = "doc", "D"
ALL, WARM, COLD, OLD, NEW = "all", "warm", "cold", "old", "new"
OF_LABELS = "_labels"
STRATA = tuple(name + of for of in ("", OF_LABELS) for name in (WARM, COLD, OLD, NEW))
"""Names of strata of queries and of labels (`evaluation.strata`)."""


class Rules(NamedTuple):
    """What may follow the first word of a measure's name."""

    of: tuple[str, ...] = ("", DOCUMENTS)
    rel: bool = True
    cut: tuple[bool, ...] = (True,)
    """Whether the name has a k; two values: with or without."""


RULES = {
    "nDCG": Rules(rel=False, cut=(True, False)),
    **dict.fromkeys(("RR", "AP"), Rules(cut=(True, False))),
    **dict.fromkeys(("R", "P", "Success", "PRES"), Rules()),
    "Rprec": Rules(cut=(False,)),
    "Judged": Rules(of=("",), rel=False),
    **dict.fromkeys(("MAP", "PREC"), Rules(of=(WITHIN,), cut=(True, False))),
}
_NUMBER = r"[1-9]\d{0,8}"
_NAME = re.compile(
    rf"(?P<word>[A-Za-z]+)(?P<brackets>\((?P<of>doc|D)?(?P<comma>,)?(rel=(?P<rel>{_NUMBER}))?\))?(@(?P<k>{_NUMBER}))?"
)


class Parts(NamedTuple):
    """A measure's name, taken apart."""

    word: str
    of: str
    """What is measured: passages (empty), `DOCUMENTS`, or passages `WITHIN` each relevant document."""
    rel: int
    """The lowest relevant label."""
    k: int
    """The number of first hits that count; 0: all."""

    @classmethod
    def of_name(cls, name: str) -> Self:
        """Takes a name apart; raises ValueError for the name of no measure."""
        if (match := _NAME.fullmatch(name)) and (rules := RULES.get(match["word"])):
            of, rel, k = match["of"] or "", match["rel"], match["k"]
            well_formed = bool(match["comma"]) == bool(of and rel) and bool(match["brackets"]) == bool(of or rel)
            if well_formed and of in rules.of and (rules.rel or not rel) and bool(k) in rules.cut:
                return cls(match["word"], of, int(rel or 1), int(k or 0))
        raise ValueError(f"{name} is no measure known here: write {FORM}")

    @property
    def plain(self) -> str:
        """The name of the same measure of a ranking, whatever is ranked."""
        return f"{self.word}{f'(rel={self.rel})' if self.rel > 1 else ''}{f'@{self.k}' if self.k else ''}"


def checked(name: str) -> str:
    """Returns the name of a known measure; raises ValueError for other names."""
    Parts.of_name(name)
    return name


def checked_list(names: Sequence[str]) -> tuple[str, ...]:
    """Returns a list of at least one measure without repetition; raises ValueError for other lists."""
    if not names or len(set(names)) < len(names):
        raise ValueError("name at least one measure, and each of them once")
    return tuple(checked(name) for name in names)


def split_names(value: Any) -> Any:
    """Splits a text of names at spaces and commas outside parentheses; returns other values unchanged."""
    return re.split(r"[\s,]+(?![^()]*\))", value.strip(" ,\n\t")) if isinstance(value, str) else value


def cutoff(name: str) -> int:
    """Returns k for a measure of the first k passages or documents, and 0 for a measure of all hits."""
    return int(name.partition("@")[2] or 0)


def of_documents(names: Sequence[str]) -> list[str]:
    """Returns the names of the measures that must know which document a passage is in."""
    return [name for name in names if re.search(r"\((doc|D)\b", name)]


LOOKED_AT = 1000
"""Passages that stand for the whole list where a measure has no k, or is of documents."""


def depth_of(name: str, whole: int = LOOKED_AT) -> int:
    """Returns how many passages a measure looks at: the first k, or `whole` if it has no k or is of documents."""
    return (0 if of_documents((name,)) else cutoff(name)) or whole


def floor_parts(name: str) -> tuple[str, str]:
    """Returns the stratum, or `ALL`, and the measure of a floor such as `cold/RR@10` or `R@1000`."""
    stratum, _, measure = name.rpartition("/")
    return stratum or ALL, measure


def checked_floor(name: str) -> str:
    """Returns the name of a floor; raises ValueError for an unknown stratum or measure."""
    stratum, measure = floor_parts(name)
    if stratum not in (ALL, *STRATA):
        raise ValueError(f"{stratum} in {name} is no stratum: write one of {', '.join(STRATA)} before the /")
    checked(measure)
    return name


Floor = Annotated[str, AfterValidator(checked_floor)]
Measure = Annotated[str, AfterValidator(checked)]
Measures = Annotated[tuple[Measure, ...], AfterValidator(checked_list), BeforeValidator(split_names)]
