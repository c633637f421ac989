"""Names of measures, in the form of `ir_measures`: `RR@10`, `AP` or `R(rel=2)@100`.

The mean of RR@10 over queries is MRR@10, and the mean of AP is MAP. A label is relevant from 1 upwards, or from N
with `(rel=N)`. nDCG uses every label as a gain. Judged@k is the share of the first k hits that have any label.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

DEFAULT = ("RR@10", "nDCG@10", "AP", "R@5", "R@20", "R@50", "R@100", "R@1000")
FORM = "RR@k, nDCG@k, AP, AP@k, R@k, P@k, Success@k, Rprec or Judged@k; all but nDCG and Judged also with (rel=N)"
_REL, _AT = r"(\(rel=[1-9]\d{0,8}\))?", r"@[1-9]\d{0,8}"
_NAME = re.compile(f"(nDCG|(RR|AP){_REL})({_AT})?|Rprec{_REL}|(Judged|(R|P|Success){_REL}){_AT}")


def checked(name: str) -> str:
    """Returns the name of a known measure; raises ValueError for other names."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name} is no measure known here: write {FORM}")
    return name


def checked_list(names: Sequence[str]) -> tuple[str, ...]:
    """Returns a list of at least one measure without repetition; raises ValueError for other lists."""
    if not names or len(set(names)) < len(names):
        raise ValueError("name at least one measure, and each of them once")
    return tuple(checked(name) for name in names)


def split_names(given: Any) -> Any:
    """Splits a text of names at spaces and commas; returns other values unchanged."""
    return re.split(r"[\s,]+", given.strip(" ,\n\t")) if isinstance(given, str) else given


def cutoff(name: str) -> int:
    """Returns k for a measure of the first k hits, and 0 for a measure of all hits."""
    return int(name.partition("@")[2] or 0)


Measure = Annotated[str, AfterValidator(checked)]
Measures = Annotated[tuple[Measure, ...], AfterValidator(checked_list), BeforeValidator(split_names)]
