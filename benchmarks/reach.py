"""How near to the highest figure on test any choice of a system can come, from finished runs.

The highest of several figures is high by chance, too. Test queries are drawn with replacement, as many as there are. In
each draw the system with the highest mean over all test queries, which no choice on dev can know, is compared with the
highest in the draw. The last columns are the shares of draws in which it is within `--reach` of the highest, and in
which the recommended system is.

    python benchmarks/reach.py ROOT [ROOT …] [--reach 0.005] [--draws 5000]
"""

import argparse
from pathlib import Path

import numpy as np
from common import show

from gnn_encoder.artifacts import Report


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", type=Path, nargs="+")
    parser.add_argument("--reach", type=float, default=0.005)
    parser.add_argument("--draws", type=int, default=5000)
    options = parser.parse_args()
    rows = []
    for root in options.roots:
        report = Report.read(root / "latest" / "report")
        recommended, measure = (report.metrics["recommendation"][key] for key in ("system", "measure"))
        systems = [each["system"] for each in report.metrics["recommendation"]["standings"]]
        table = report.per_query.to_pandas()
        table = table[(table["split"] == "test") & table["system"].isin(systems)]
        values = table.pivot(index="query", columns="system", values=measure)[systems].to_numpy()
        n, best = len(values), int(values.mean(axis=0).argmax())
        drawn = np.random.default_rng(0).integers(0, n, (options.draws, n))
        means = np.stack([values[queries].mean(axis=0) for queries in drawn])
        within = means >= means.max(axis=1, keepdims=True) - options.reach
        own = systems.index(recommended)
        figures = [f"{systems[place]}, {values[:, place].mean():.3f}" for place in (best, own)]
        shares = [f"{100 * within[:, place].mean():.0f} %" for place in (best, own)]
        rows.append((root.name, f"{n:,}", *figures, *shares))
    headings = ("", "queries", "highest", "recommended", "highest within reach", "recommended within reach")
    title = f"Within {options.reach} of the highest on test"
    show(title, headings, rows, f"{options.draws:,} draws of the test queries")


if __name__ == "__main__":
    main()
