"""The sum of a first stage's score and a re-ranker's against a plain loop in float64, and the choice of its weight."""

from pathlib import Path

import numpy as np
import pytest

from gnn_encoder.artifacts import Dataset, Run, drafting
from gnn_encoder.artifacts.tables import System
from gnn_encoder.evaluation.tuning import FOLDS, folds_of
from gnn_encoder.retrieval.reranking import weighed
from gnn_encoder.settings.reranking import WeighReranker
from gnn_encoder.steps.weigh_reranker import scores_of, weigh_reranker

HITS, DEPTH = 30, 12
SERVED = {"dense": "A", "system": "BM25 + A", "weight": 0.3, "tuned_on": "dev"}
RERANKING = {"first_stage": "BM25 + A", "weight": 1.0, "depth": DEPTH}


def written(run: Run, path: Path, **facts: object) -> Path:
    with drafting(path, "run") as draft:
        run.write(draft, path.name, **facts)
    return path


def runs(data: Dataset, good: float, seed: int) -> tuple[Run, Run]:
    """A first stage of random hits, the positive among the first, and its order by scores that are `good` for it."""
    generator, labels = np.random.default_rng(seed), data.judged("dev").positive()
    queries = np.concatenate([data.query_rows("dev"), data.query_rows("test")])
    hits = np.stack([generator.permutation(len(data.passages))[:HITS] for _ in queries])
    for query, passage in zip(labels.query, labels.passage, strict=True):
        row = hits[queries.tolist().index(query)]
        row[row == passage] = (set(range(len(data.passages))) - set(row.tolist())).pop()
        row[generator.integers(1, DEPTH)] = passage
    hits[1, 5:] = -1  # fewer hits than are re-ranked
    first = Run.from_hits(queries, hits, -np.sort(generator.normal(size=hits.shape)))
    head = first.where(first.rank <= DEPTH)
    known = set(zip(labels.query.tolist(), labels.passage.tolist(), strict=True))
    relevant = [pair in known for pair in zip(head.query.tolist(), head.passage.tolist(), strict=True)]
    return first, first.reordered(DEPTH, generator.normal(size=len(relevant)) + good * np.array(relevant))


def by_hand(first: Run, other: Run, query: int, weight: float) -> list[int]:
    hits = [(int(p), float(s)) for q, p, s in zip(first.query, first.passage, first.score, strict=True) if q == query]
    scores = {int(p): float(s) for q, p, s in zip(other.query, other.passage, other.score, strict=True) if q == query}
    head, tail = hits[:DEPTH], [passage for passage, _ in hits[DEPTH:]]
    columns = [[score for _, score in head], [scores[passage] for passage, _ in head]]
    scaled = [[(value - min(values)) / (max(values) - min(values)) for value in values] for values in columns]
    totals = [(1 - weight) * a + weight * b for a, b in zip(*scaled, strict=True)]
    order = sorted(range(len(head)), key=lambda row: -totals[row])
    return [head[row][0] for row in order] + tail


@pytest.mark.parametrize("weight", [0.0, 0.35, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_sum_equals_a_loop(tiny_dataset: Dataset, seed: int, weight: float) -> None:
    first, other = runs(tiny_dataset, 1.0, seed)
    mixed = weighed(first, DEPTH, scores_of(other, first.where(first.rank <= DEPTH)), weight)
    for query in np.unique(first.query).tolist():
        assert mixed.of(np.array([query])).passage.tolist() == by_hand(first, other, query, weight)
    order = {0.0: first, 1.0: other}.get(weight)
    assert order is None or np.array_equal(mixed.passage, order.passage)


@pytest.mark.parametrize(("good", "seed"), [(5.0, 0), (0.0, 0), (0.0, 1), (-5.0, 2)])
def test_on_dev_the_chosen_weight_is_not_below_the_first_stage(
    tiny_dataset: Dataset, good: float, seed: int, tmp_path: Path
) -> None:
    first, other = runs(tiny_dataset, good, seed)
    paths = {"first_run": written(first, tmp_path / "BM25 + A", served=SERVED)}
    paths["ranking"] = written(other, tmp_path / "R", served={**SERVED, "reranking": RERANKING})
    weigh_reranker(WeighReranker(depth=DEPTH), dataset=tiny_dataset.path, run=tmp_path / "out", **paths)
    facts = System.of(tmp_path / "out").facts
    figures = {float(weight): figure for weight, figure in facts["figures"].items()}
    weight = facts["reranker_weight"]
    assert figures[weight] == max(figures.values()) >= figures[0.0] and facts["tuned_on"] == "dev"
    assert facts["served"] == {**SERVED, "reranking": {**RERANKING, "weight": weight}}
    if good:
        assert (weight > 0.5) if good > 0 else (weight == 0.0)
        assert (figures[1.0] > figures[0.0]) is (good > 0), "a control: the re-ranker alone can lose"


@pytest.mark.parametrize("seed", range(3))
def test_a_dev_query_is_ranked_by_the_weight_that_the_others_choose(
    tiny_dataset: Dataset, seed: int, tmp_path: Path
) -> None:
    first, other = runs(tiny_dataset, 0.5, seed)
    paths = {"first_run": written(first, tmp_path / "A"), "ranking": written(other, tmp_path / "R")}
    settings = WeighReranker(depth=DEPTH)
    weigh_reranker(settings, dataset=tiny_dataset.path, run=tmp_path / "out", **paths)
    mixed, qrels = Run.read(tmp_path / "out"), tiny_dataset.judged("dev").positive()
    chosen, dev = System.of(tmp_path / "out").facts["reranker_weight"], tiny_dataset.query_rows("dev")
    fold = folds_of(tiny_dataset.groups[dev], FOLDS, np.random.default_rng(0))

    def reciprocal_rank_at_10(query: int, weight: float) -> float:
        relevant = set(qrels.passage[qrels.query == query].tolist())
        places = [place for place, hit in enumerate(by_hand(first, other, query, weight)[:10], 1) if hit in relevant]
        return 1 / places[0] if places else 0.0

    weights = [w for w in settings.reranker_weights if (w == 1) == (chosen == 1)]  # 1 has scores of another scale
    figures = {w: np.array([reciprocal_rank_at_10(q, w) for q in dev.tolist()]) for w in weights}
    by_others = []
    for place, query in enumerate(dev.tolist()):
        means = {w: round(float(values[fold != fold[place]].mean()), 12) for w, values in figures.items()}
        by_others.append(max(weights, key=means.__getitem__))
        assert mixed.of(np.array([query])).passage.tolist() == by_hand(first, other, query, by_others[-1])
    assert len(set(by_others)) > 1, "the control"
    assert mixed.score[np.isin(mixed.query, dev) & (mixed.rank <= DEPTH)].max() <= 1 or set(by_others) == {1.0}
    for query in np.setdiff1d(np.unique(first.query), dev).tolist():
        assert mixed.of(np.array([query])).passage.tolist() == by_hand(first, other, query, chosen)


def test_the_first_stage_alone_is_among_the_weights() -> None:
    with pytest.raises(ValueError, match="0, the first stage alone, has to be the first"):
        WeighReranker(reranker_weights=(0.5, 0.0))
