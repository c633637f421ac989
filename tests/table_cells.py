"""What a table shows in a browser, or in a terminal, for tests."""

import io
from typing import Any

from rich.console import Console, RenderableType


def cells(table: Any) -> dict[str, list[str]]:
    """A table's rows: the first cell, and the others' first lines, of the cells that are shown."""
    rows = table.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].filter(c => !c.hidden).map(c => c.dataset.v ?? c.innerText))"
    )
    return {row[0]: [cell.split("\n")[0] for cell in row[1:]] for row in rows}


def printed(*shown: RenderableType) -> str:
    """What a terminal of 80 columns shows."""
    screen = io.StringIO()
    Console(width=80, file=screen).print(*shown)
    return screen.getvalue()
