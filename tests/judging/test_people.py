"""Queries that people judge in an order: what the first of them say of all, and the file of grades."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from judged_folder import write_folder

from gnn_encoder.artifacts.added_labels import AddedLabel, new_query_id
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.prediction_powered import Corrected, corrected_mean, corrected_sample
from gnn_encoder.judging.agreement import figures_of
from gnn_encoder.judging.order import Place, chances, gains_of, order_of
from gnn_encoder.judging.people import Comparison, People, PeoplesFile, labels_of
from gnn_encoder.judging.pool import ORDER, POOL, Pool, PooledPassage, pooled, read_as, write_records

QUERIES, JUDGED, ROUNDS = 240, 60, 200


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pool, dict, dict]:
    """Queries of three kinds: two orders of the first two passages, or of the last two, and one order.

    To people, the second system gains where much can change, and loses where little can. The model errs in favour of
    the first system.
    """
    random, path = np.random.default_rng(5), tmp_path_factory.mktemp("uneven") / POOL
    queries = {f"q{n}": f"query {n}" for n in range(QUERIES)}
    first = [[f"{query}-{letter}" for letter in "abcde"] for query in queries]
    swaps = [([1, 0, 2, 3, 4], [0, 1, 2, 4, 3], [0, 1, 2, 3, 4])[n % 3] for n in range(QUERIES)]
    second = [[hits[place] for place in swap] for hits, swap in zip(first, swaps, strict=True)]
    texts = {p: PooledPassage(p, "", p) for of in first for p in of}
    write_records(path, pooled(queries, {"one": first, "two": second}, texts))
    people, model = {}, {}
    for n, (query, hits) in enumerate(zip(queries, first, strict=True)):
        gains = random.random() < 0.8
        relevant = hits[int(gains)] if n % 3 == 0 else hits[3 if gains else 4]
        for passage in hits:
            people[query, passage] = 3 if passage == relevant else int(random.integers(2))
            model[query, passage] = 2 if random.random() < (0.7 if passage == relevant else 0.1) else 1
        model[query, hits[0]] = max(model[query, hits[0]], int(2 * (random.random() < 0.4)))
    return Pool(path), people, model


def test_the_most_decisive_queries_come_first_and_still_stand_for_all(uneven: tuple[Pool, dict, dict]) -> None:
    pool, people, model = uneven
    order = order_of(pool, model, "RR@10", 0)
    weight = {place.query_id: place.weight for place in order}
    ids = list(pool.queries)
    assert set(weight) == {query for n, query in enumerate(ids) if n % 3 < 2}, "where a label can change something"
    assert min(weight[q] for q in ids[::3]) > max(weight[q] for q in ids[1::3])
    relevant = [{pair: int(grade >= 2) for pair, grade in grades.items()} for grades in (people, model)]
    human, judged = (gains_of(figures_of(pool.hits, ids, labels, ["RR@10"]))["two"][:, 0] for labels in relevant)
    full, names, weights = float(human.mean()), np.array(list(weight)), np.array(list(weight.values()))
    number = {query: n for n, query in enumerate(ids)}
    assert not human[2::3].any() and not judged[2::3].any()
    random, by_sample, naive = np.random.default_rng(1), list[Corrected](), list[Corrected]()
    for _ in range(ROUNDS):
        keys = random.random(len(names)) / weights
        drawn = [Place(str(names[i]), float(weights[i]), float(keys[i])) for i in np.argsort(keys)]
        rows = [number[place.query_id] for place in drawn[:JUDGED]]
        one = corrected_sample(human[rows], judged[rows], chances(drawn, JUDGED), judged, len(names))
        by_sample.append(one)
        naive.append(corrected_mean(human[rows], judged[rows], np.delete(judged, rows)))
        assert one.corrected.high - one.corrected.low <= one.human.high - one.human.low
    inside, of_naive, of_judge = (
        np.mean([interval.low <= full <= interval.high for interval in intervals])
        for intervals in ([f.corrected for f in by_sample], [n.corrected for n in naive], [f.judged for f in by_sample])
    )
    assert inside >= 0.93
    assert abs(np.mean([f.corrected.estimate for f in by_sample]) - full) < 0.006
    assert abs(np.mean([f.human.estimate for f in by_sample]) - full) < 0.006
    # The controls: the first queries of the order are no random draw of all, and the model errs.
    assert of_naive < 0.5 and of_judge == 0
    assert np.mean([n.corrected.estimate for n in naive]) - full > 0.05


def test_equal_chances_are_a_random_draw_and_all_queries_are_their_mean() -> None:
    random = np.random.default_rng(2)
    human = random.normal(size=50)
    corrected = corrected_sample(human, np.zeros(50), np.full(50, 0.01), np.zeros(5000), 5000)
    alone = corrected_mean(human, np.zeros(50), np.zeros(4950)).human
    assert corrected.human.estimate == pytest.approx(alone.estimate)
    assert corrected.human.high - corrected.human.low == pytest.approx(alone.high - alone.low, rel=0.02)
    every = corrected_sample(human, human + 1, np.ones(50), human + 1, 50)
    assert every.weight == 0 and every.corrected.estimate == pytest.approx(human.mean())
    assert corrected_sample(human[:1], human[:1], np.ones(1), human, 50).corrected.high == np.inf
    none = corrected_sample(human[:0], human[:0], np.ones(0), human, 50)
    assert np.isnan(none.corrected.estimate) and none.judged.estimate == pytest.approx(human.mean())


def test_the_order_is_stable_and_a_lone_system_has_one(uneven: tuple[Pool, dict, dict], tmp_path: Path) -> None:
    pool = uneven[0]
    once, again, other = (order_of(pool, {}, "RR@10", seed) for seed in (0, 0, 1))
    assert once == again != other and [place.key for place in once] == sorted(place.key for place in once)
    queries = {f"q{n}": f"query {n}" for n in range(5)}
    hits = [[f"{query}-a"] if query != "q3" else [] for query in queries]
    texts = {p: PooledPassage(p, "", p) for of in hits for p in of}
    write_records(tmp_path / POOL, pooled(queries, {"one": hits}, texts))
    alone = Pool(tmp_path / POOL)
    order = order_of(alone, {}, "RR@10", 0)
    assert {place.query_id for place in order} == {"q0", "q1", "q2", "q4"}
    people = People()
    people.grades = {(query, of[0]): 3 for query, of in zip(queries, hits, strict=True) if of}
    gain = Comparison(alone, order, {}, 2, ["RR@10"]).decided(people).gains["RR@10"]["one"]
    assert gain.corrected.estimate == pytest.approx(0.8)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield write_folder(tmp_path / "judged")


def test_a_query_counts_when_all_its_passages_are_judged_and_skipped_ones_leave(folder: Path) -> None:
    pool, order = Pool(folder / POOL), read_as(folder / ORDER, Place)
    comparison, people = Comparison(pool, order, {}, 2, ["RR@10"]), People()
    for place in order[:3]:
        people.grades |= {(place.query_id, p): 3 * p.endswith("b") for p in pool.passages[place.query_id]}
    decided = comparison.decided(people)
    assert (decided.judged, decided.deciding) == (3, 12)
    assert decided.gains["RR@10"]["<i>DPR</i>"].human.high == np.inf, "equal gains say nothing of the others"
    assert decided.gains["RR@10"]["<i>DPR</i>"].human.estimate == pytest.approx(12 / 15 * 0.5)
    del people.grades[order[1].query_id, f"{order[1].query_id}-c"]
    assert comparison.decided(people).judged == 1, "later ones do not count before it is judged"
    people.skipped.add(order[1].query_id)
    decided = comparison.decided(people)
    assert (decided.judged, decided.deciding) == (2, 11)
    people.skipped = {place.query_id for place in order}
    assert comparison.decided(people).deciding == 0


def test_grades_survive_a_crash_and_one_process_writes(folder: Path) -> None:
    path = folder / "people.jsonl"
    file = PeoplesFile(path)
    with pytest.raises(UserError, match="another server takes grades"):
        PeoplesFile(path)
    file.add("q1", "q1-a", 3)
    file.add("q1", "q1-b", 1)
    file.add("q1", "q1-b", None)
    file.add("q2", None, None)
    file.close()
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[0][:20])  # killed while it wrote
    assert People.read(path).grades == {("q1", "q1-a"): 3}
    file = PeoplesFile(path)
    assert file.people.grades == {("q1", "q1-a"): 3} and file.people.skipped == {"q2"}
    file.add("q2", None, 0)
    file.close()
    assert path.read_bytes().startswith(whole) and not People.read(path).skipped
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len(lines) == 5 and set(lines[0]) == {"query_id", "passage_id", "grade", "added"}
    for wrong in ('{"query_id": "q1", "passage_id": "p", "grade": 4, "added": ""}', '{"a": 1}', "[]", "nothing"):
        path.write_text(f"{wrong}\n", encoding="utf-8")
        with pytest.raises(UserError, match="restore the file"):
            People.read(path)


def test_relevant_grades_are_labels_for_training(folder: Path) -> None:
    pool, people = Pool(folder / POOL), People()
    people.grades = {("q1", "q1-a"): 2, ("q1", "q1-b"): 1}
    for of_data, query_id in ((True, "q1"), (False, new_query_id(pool.queries["q1"]))):
        labels = list(labels_of(people, pool, 2, of_data))
        assert labels == [AddedLabel(query_id, pool.queries["q1"], "q1-a")]
