"""All measures of a run of 7,000 queries with 1,000 hits each, against pytrec_eval called on ready dictionaries.

python benchmarks/evaluate.py [--queries 7000] [--hits 1000]
"""

import argparse
import time

import numpy as np
import pyarrow as pa
import pytrec_eval
from rich.console import Console
from rich.table import Table

from gnn_encoder.artifacts import Qrels, Run
from gnn_encoder.evaluation.measures import per_query

PASSAGES = 8_841_823


def main() -> None:
    """Run both and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=7000)
    parser.add_argument("--hits", type=int, default=1000)
    options = parser.parse_args()
    n, k = options.queries, options.hits
    generator = np.random.default_rng(0)
    queries, passages = np.arange(n, dtype=np.int32), generator.integers(0, PASSAGES, (n, k), dtype=np.int32)
    scores = -np.sort(-generator.random((n, k), dtype=np.float32), axis=1)
    run = Run.from_hits(queries, passages, scores)
    relevant = passages[queries, generator.integers(0, k, n)]
    qrels = Qrels(queries, relevant, np.ones(n, dtype=np.int32))
    ids = pa.chunked_array([pa.array(np.arange(PASSAGES)).cast(pa.string())])

    began = time.perf_counter()
    ours = per_query(run, qrels, queries, ids)
    seconds = {"gnn-encoder": time.perf_counter() - began}
    labels = {str(q): {str(p): 1} for q, p in zip(queries.tolist(), relevant.tolist(), strict=True)}
    ranking = {
        str(q): dict(zip(map(str, row), values, strict=True))
        for q, (row, values) in enumerate(zip(passages.tolist(), scores.tolist(), strict=True))
    }
    began = time.perf_counter()
    theirs = pytrec_eval.RelevanceEvaluator(labels, {"recip_rank", "ndcg_cut.10", "map", "recall.5,20,50,100,1000"})
    found = theirs.evaluate(ranking)
    seconds["pytrec_eval on ready dictionaries"] = time.perf_counter() - began
    difference = np.abs(ours[:, 2] - [found[str(q)]["map"] for q in queries]).max()
    table = Table(title=f"{n:,} queries, {k:,} hits; largest difference in average precision {difference:.0e}")
    for heading in ("side", "seconds", "ratio"):
        table.add_column(heading, justify="left" if heading == "side" else "right")
    for side, taken in seconds.items():
        table.add_row(side, f"{taken:.1f}", f"{taken / seconds['pytrec_eval on ready dictionaries']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
