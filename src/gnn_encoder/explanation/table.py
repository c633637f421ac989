"""An explained hit on a terminal."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gnn_encoder.errors import printable
from gnn_encoder.explanation.passages import ExplainedPassage
from gnn_encoder.explanation.search import ExplainedHit

LONGEST = 160
"""Characters shown of a passage that flowed into a query."""


def show_hit(screen: Console, each: ExplainedHit) -> None:
    """The passage, where it stands with the graph and without, and what flowed into it."""
    hit, why = each.hit, each.why
    screen.print(hit.heading(), markup=False, style="bold")
    lines = [
        printable(hit.text),
        f"with the graph {why.score:.4f}, rank {each.rank:,}; "
        f"without it {why.plain_score:.4f}, rank {each.plain_rank:,}",
        f"gate open by {why.opening:.2f} on average, above 0.5 in {why.open_share:.0%} of its dimensions",
    ]
    if not why.influences:
        lines.append("no training query flowed into it, only the passage itself")
    for line in lines:
        screen.print(f"     {line}", markup=False, highlight=False)
    if why.influences:
        screen.print(influences_table(why))
    screen.print()


def influences_table(why: ExplainedPassage) -> Table:
    """The training queries in a passage's vector; indented below each, what flowed into the query."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("     weight", justify="right", no_wrap=True)
    table.add_column("without it", justify="right", no_wrap=True)
    table.add_column("training query")
    for each in why.influences:
        mark = " (labelled)" if each.labelled else ""
        query = Text(printable(f"{each.query} [{each.query_id}]{mark}"))
        table.add_row(f"{each.weight:.0%}", f"{each.score_change:+.4f}", query)
        if each.inflows:
            table.add_row("", "", Text(f"  {each.own:>4.0%} the query itself", style="dim"))
        for inflow in each.inflows:
            text = printable(f"{inflow.title} {inflow.text}")
            text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
            place = f"  {inflow.weight:>4.0%} [{printable(inflow.passage_id)}]"
            table.add_row("", "", Text(f"{place} {text}", style="dim"))
    if why.others:
        table.add_row(
            f"{why.others_weight:.0%}", "", f"{why.others:,} more {'query' if why.others == 1 else 'queries'}"
        )
    table.add_row(f"{why.own:.0%}", "", "the passage itself")
    return table
