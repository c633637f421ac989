"""Passages with random fields of every type, random filters, and what fits a filter, in plain Python."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from gnn_encoder.data.fields import FieldColumns, of_records

GROUPS = [f"team-{number}" for number in range(8)]
PRODUCTS = ["pump", "valve", "Ventil ä", "", "motor"]
FIRST = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def random_records(generator: np.random.Generator, count: int) -> list[dict[str, Any]]:
    """Fields as a corpus in JSON lines has them; some are missing."""
    records = []
    for _ in range(count):
        record: dict[str, Any] = {
            "product": str(generator.choice(PRODUCTS)),
            "groups": sorted({str(generator.choice(GROUPS)) for _ in range(generator.integers(4))}),
            "year": int(generator.integers(2000, 2008)),
            "price": round(float(generator.uniform(0, 10)), 1),
            "day": _day(generator),
            "public": bool(generator.random() < 0.5),
            "sizes": generator.integers(5, size=generator.integers(3)).tolist(),
        }
        records.append({name: value for name, value in record.items() if generator.random() < 0.9})
    return records


def columns(records: list[dict[str, Any]]) -> pa.RecordBatch:
    """The columns as an ingestion makes them, in three batches."""
    taken = FieldColumns()
    for part in np.array_split(np.array(records, object), 3):
        taken.add(of_records(part.tolist(), ()), len(part))
    table = taken.columns()
    assert table is not None
    (batch,) = table.combine_chunks().to_batches()
    return batch


def random_filter(generator: np.random.Generator, known: list[dict[str, Any]]) -> dict[str, Any]:
    """Conditions on one to three fields, with values of the passages `known` or near them."""
    names = generator.choice(["product", "groups", "year", "price", "day", "public", "sizes"], 3, replace=False)
    return {str(name): _condition(generator, str(name), known) for name in names[: generator.integers(1, 4)]}


def fits(record: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a passage fits a filter."""
    return all(_fits(record.get(name), condition, name == "day") for name, condition in wanted.items())


def _day(generator: np.random.Generator) -> str:
    moment = datetime.fromtimestamp(FIRST + 3600 * float(generator.integers(24 * 30)), UTC)
    return moment.strftime("%Y-%m-%d" if generator.random() < 0.5 else "%Y-%m-%dT%H:%M:%S")


def _condition(generator: np.random.Generator, name: str, known: list[dict[str, Any]]) -> Any:
    def value() -> Any:
        if generator.random() < 0.1:
            return None
        of_passage = known[generator.integers(len(known))].get(name)
        if isinstance(of_passage, list):
            return of_passage[0] if of_passage else None
        if name == "year" and generator.random() < 0.3:
            return (of_passage or 2000) + 0.5
        return of_passage

    kind = generator.integers(4)
    if kind == 0:
        return value()
    if kind == 1:
        return [value() for _ in range(generator.integers(4))]
    if kind == 2:
        return {"!=": value() if generator.random() < 0.5 else [value(), value()]}
    operators = generator.choice(["<", "<=", ">", ">="], generator.integers(1, 3), replace=False)
    bounds = {str(operator): value() for operator in operators}
    return {operator: bound for operator, bound in bounds.items() if bound is not None} or value()


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _fits(value: Any, condition: Any, is_day: bool) -> bool:
    values = value if isinstance(value, list) else [] if value is None else [value]
    condition = condition if isinstance(condition, dict) else {"=": condition}
    if is_day:
        values = [_moment(one) for one in values]

    def read(one: Any) -> Any:
        return _moment(one) if is_day and one is not None else one

    compared = {
        "<": lambda a, b: a < b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
    }
    bounds = {operator: read(bound) for operator, bound in condition.items() if operator in compared}
    if bounds and not any(all(compared[o](one, bound) for o, bound in bounds.items()) for one in values):
        return False
    for operator in ("=", "!="):
        if operator in condition:
            wanted = condition[operator] if isinstance(condition[operator], list) else [condition[operator]]
            equal = any(one == read(other) for one in values for other in wanted if other is not None)
            equal = equal or (None in wanted and not values)
            if equal != (operator == "="):
                return False
    return True
