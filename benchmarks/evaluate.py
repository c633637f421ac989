"""All measures of a run of 7,000 queries with 1,000 hits each, against pytrec_eval called with prepared dictionaries.

python benchmarks/evaluate.py [--queries 7000] [--hits 1000]
"""

import argparse

import numpy as np
import pyarrow as pa
import pytrec_eval
from common import in_turns, show

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

    labels = {str(q): {str(p): 1} for q, p in zip(queries.tolist(), relevant.tolist(), strict=True)}
    ranking = {
        str(q): dict(zip(map(str, row), values, strict=True))
        for q, (row, values) in enumerate(zip(passages.tolist(), scores.tolist(), strict=True))
    }
    peer = pytrec_eval.RelevanceEvaluator(labels, {"recip_rank", "ndcg_cut.10", "map", "recall.5,20,50,100,1000"})
    ready = "pytrec_eval on ready dictionaries"
    sides = {ready: lambda: peer.evaluate(ranking), "gnn-encoder": lambda: per_query(run, qrels, queries, ids)}
    seconds, found = in_turns(sides, 3)
    difference = np.abs(found["gnn-encoder"][:, 2] - [found[ready][str(q)]["map"] for q in queries]).max()
    rows = [(name, f"{taken:.1f}", f"{seconds[ready] / taken:.2f}") for name, taken in seconds.items()]
    title = f"{n:,} queries, {k:,} hits; average precision differs by {difference:.0e} at most"
    show(title, ("side", "seconds (median)", "ratio"), rows)


if __name__ == "__main__":
    main()
