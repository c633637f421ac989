"""What each share λ of the context is worth in a trained LiM or Mix-iM: (1 − λ) · content + λ · context (eq. 3).

    python benchmarks/context_share.py --run ROOT/pipeline/RUN [--system lim]

RUN is a run of `gnn-encoder rerank` whose steps were all computed in it. The trained model stays as it is: its two
similarities are computed once for the first stage's hits of all dev and test queries, and their sums ranked for each λ.
λ = 0 is what the trained encoder ranks without any context, λ = 1 what the context knows alone.
"""

from pathlib import Path

from common import options, show

from gnn_encoder.artifacts import Dataset, Run
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.evaluation.measures import labelled_queries, per_query
from gnn_encoder.retrieval.scorers import DocumentScorer, load_scorer

SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
MEASURES = ("RR@10", "AP")


def main() -> None:
    """Score, and print the table."""
    choices = options(__doc__, None, run=None, system="lim")
    folder = Path(choices.run)
    data = Dataset(folder / "ingest/dataset")
    first = Run.read(folder / "first-stage/run").of(evaluated_queries(data))
    scorer = load_scorer(folder / f"encode-context-{choices.system}/scorer".replace("_", "-"))
    assert isinstance(scorer, DocumentScorer), f"{choices.system} has no context"
    learned, similarities = float(scorer.reranker.context.share.detach()), []
    for share in (0.0, 1.0):
        scorer.reranker.context.fix_share(share)
        similarities.append(scorer.score(data, first.query, first.passage, precision="auto"))
    content, context = similarities
    rows = []
    for share in sorted({*SHARES, round(learned, 3)}):
        total = (1 - share) * content + share * context
        ranked = Run.by_score(first.query, first.passage, total)
        row = [f"{share:.3f}" + (" (trained)" if share == round(learned, 3) else "")]
        for split in ("dev", "test"):
            labels = data.split_qrels(split)
            means = per_query(ranked, labels, labelled_queries(labels), data.judged_ids(), MEASURES).mean(axis=0)
            row += [f"{mean:.3f}" for mean in means]
        rows.append(tuple(row))
    show(f"{len(first.query):,} pairs", ("λ", "dev MRR@10", "dev MAP", "test MRR@10", "test MAP"), rows)


if __name__ == "__main__":
    main()
