"""What a table in a browser shows, for tests."""

from typing import Any


def cells(table: Any) -> dict[str, list[str]]:
    """A table's rows: the first cell, and the others' first lines, of the cells that are shown."""
    rows = table.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].filter(c => !c.hidden).map(c => c.dataset.v ?? c.innerText))"
    )
    return {row[0]: [cell.split("\n")[0] for cell in row[1:]] for row in rows}
