"""An explained hit on a terminal."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gnn_encoder.explanation.passages import ExplainedPassage
from gnn_encoder.explanation.search import ExplainedHit

LONGEST = 160
"""Characters shown of a passage that flowed into a query."""


def show_hit(screen: Console, each: ExplainedHit) -> None:
    """The passage, where it stands with the graph and without, and what flowed into it."""
    hit, why = each.hit, each.why
    title = f"{hit.title}  " if hit.title else ""
    screen.print(f"{hit.rank:>3}  {hit.score:.4f}  {title}[{hit.passage_id}]", markup=False, style="bold")
    lines = [
        " ".join(hit.text.split()),
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
        table.add_row(f"{each.weight:.0%}", f"{each.score_change:+.4f}", Text(f"{each.query} [{each.query_id}]{mark}"))
        if each.inflows:
            table.add_row("", "", Text(f"  {each.own:>4.0%} the query itself", style="dim"))
        for inflow in each.inflows:
            text = " ".join(f"{inflow.title} {inflow.text}".split())
            text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
            table.add_row("", "", Text(f"  {inflow.weight:>4.0%} [{inflow.passage_id}] {text}", style="dim"))
    if why.others:
        table.add_row(
            f"{why.others_weight:.0%}", "", f"{why.others:,} more {'query' if why.others == 1 else 'queries'}"
        )
    table.add_row(f"{why.own:.0%}", "", "the passage itself")
    return table
