"""A folder of `gnn-encoder judge`, for tests of people's grades."""

import json
from pathlib import Path

from gnn_encoder.judging.grading import Judgement
from gnn_encoder.judging.order import order_of
from gnn_encoder.judging.pool import FIGURES, JUDGEMENTS, ORDER, POOL, Pool, PooledPassage, pooled, write_records

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def write_folder(folder: Path, deciding: int = 12, alike: int = 3, by_model: bool = True) -> Path:
    """Writes the pool of two systems, which differ in the order of the first two of three passages.

    They have the same hits for the last queries, `alike`. All texts hold markup.
    """
    folder.mkdir(parents=True, exist_ok=True)
    queries = {f"q{n}": f"query {n} {MARKUP}" for n in range(deciding + alike)}
    first = [[f"{query}-{letter}" for letter in "abc"] for query in queries]
    second = [[b, a, c] if n < deciding else [a, b, c] for n, (a, b, c) in enumerate(first)]
    texts = {p: PooledPassage(p, f"title {p} <b>bold</b>", f"text {p} {MARKUP}") for of in first for p in of}
    write_records(folder / POOL, pooled(queries, {"BM25": first, "<i>DPR</i>": second}, texts))
    judgements = [
        Judgement(query, queries[query], passage, number % 4, f"reason of {passage} {MARKUP}", "a model")
        for number, (query, passage) in enumerate((p.split("-")[0], p) for p in texts)
    ]
    if by_model:
        write_records(folder / JUDGEMENTS, judgements)
    grades = {(j.query_id, j.passage_id): j.grade for j in judgements} if by_model else {}
    write_records(folder / ORDER, order_of(Pool(folder / POOL), grades, "RR@10", 0))
    settings = {"settings": {"relevant": 2, "measures": ["RR@10", "nDCG@10"]}}
    (folder / FIGURES).write_text(json.dumps(settings), encoding="utf-8")
    return folder
