"""A log of searches becomes labels: above chance, without position bias, split by time."""

import gzip
import json
from pathlib import Path
from typing import Any

import beir_folder
import numpy as np
import pytest
from beir_folder import check, lines, write_beir
from scipy.stats import poisson
from sklearn.linear_model import PoissonRegressor

from gnn_encoder.artifacts import Dataset
from gnn_encoder.data import source_digest
from gnn_encoder.data.clicks_by_chance import by_chance, propensities
from gnn_encoder.data.log_rows import Clicks
from gnn_encoder.data.query_log import log_query_id
from gnn_encoder.data.validation import DataReport, Problems
from gnn_encoder.engines.provenance import source_digests
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest


def write_corpus(folder: Path, passages: int = 6) -> Path:
    """A corpus without queries and labels."""
    folder.mkdir(parents=True)
    rows = [{"_id": f"d{i}", "title": "", "text": f"text of passage {i}"} for i in range(passages)]
    (folder / "corpus.jsonl").write_text(lines(rows), encoding="utf-8")
    return folder


def ingested(folder: Path, log: Path, **settings: Any) -> tuple[Dataset, DataReport]:
    chosen = Ingest.model_validate({"dataset": str(folder), "log": str(log), **settings})
    return beir_folder.ingested(chosen, folder.with_name(f"{folder.name}-dataset"))


def labels(data: Dataset, split: str) -> dict[str, list[str]]:
    """Query text → ids of its labelled passages."""
    ids, passages_of = data.passages.ids().to_pylist(), dict[str, list[str]]()
    qrels = data.split_qrels(split)
    for text, passage in zip(data.query_texts(qrels.query), qrels.passage.tolist(), strict=True):
        passages_of.setdefault(text, []).append(ids[passage])
    return passages_of


COUNTS = """query,passage,count
how do I reset it,d0,5
How do i  RESET it,d0,2
how do I reset it,d5,9
where is the key,d1,4
where is the key,d5,8
what is the price,d2,6
what is the price,d5,11
who made it,d3,1
is it safe,gone,7
when was it made,d4,3
"""
"""d5 is the page that everybody opens."""


def test_counts_above_chance_become_labels_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(COUNTS, encoding="utf-8")
    data, report = ingested(write_corpus(tmp_path / "corpus"), tmp_path / "log.csv", dev_fraction=0.3)
    every = {text: passages for split in ("train", "dev", "test") for text, passages in labels(data, split).items()}
    assert every == {
        "how do I reset it": ["d0"],
        "where is the key": ["d1"],
        "what is the price": ["d2"],
        "when was it made": ["d4"],
    }
    said = " ".join(report.remarks)
    assert "1 rows, 7 clicks, name a passage that the corpus lacks" in said
    assert "1 train queries, 1 clicks, were left out: no passage was clicked 2 times" in said
    assert data.traffic is not None
    rows = data.queries.column("query_id").to_pylist()
    assert data.traffic[rows.index(log_query_id("how do i reset it"))] == 16
    # The control: without the floor for chance, the page that everybody opens answers everything.
    data, _ = ingested(tmp_path / "corpus", tmp_path / "log.csv", dev_fraction=0.3, log_chance=1)
    of_all = [passages for split in ("train", "dev", "test") for passages in labels(data, split).values()]
    assert sum("d5" in passages for passages in of_all) == 3


def test_probabilities_are_those_of_a_poisson_variable() -> None:
    query, passage = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 2, 0])
    clicks, views = np.array([9.0, 1, 4, 4, 0]), np.array([30.0, 20, 40, 40, 5])
    others = [(1 / 20, 8 / 85), (9 / 30, 8 / 85), (4 / 40, 10 / 55), (4 / 40, 10 / 55), (0, 18 / 130)]
    expected = [poisson.sf(c - 1, v * max(rates)) for c, v, rates in zip(clicks, views, others, strict=True)]
    assert by_chance(query, passage, clicks, views) == pytest.approx(expected)
    shares = [10 * 4 / 8, 10 * 0 / 8, 8 * 9 / 10, 0, 0]
    expected = [poisson.sf(c - 1, mean) for c, mean in zip(clicks, shares, strict=True)]
    assert by_chance(query, passage, clicks, None) == pytest.approx(expected)


def shown_rows(random: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Of 60 queries with 8 passages each: query, passage, position, clicks, views; the first 2 of each are relevant.

    An engine shows irrelevant passages above relevant ones; half of the time, two neighbours are swapped.
    """
    looked = np.array([1, 0.6, 0.4, 0.3, 0.2, 0.15, 0.1, 0.08])
    rows = []
    for query in range(60):
        order = np.concatenate([2 + random.permutation(6)[:3], [0, 1], 2 + np.arange(6)])
        order = order[np.sort(np.unique(order, return_index=True)[1])]
        for _ in range(6):
            shown, at = order.copy(), random.integers(7)
            shown[[at, at + 1]] = shown[[at + 1, at]]
            for position, passage in enumerate(shown):
                rate = looked[position] * (0.5 if passage < 2 else 0.12)
                rows.append((query, query * 8 + passage, position + 1, random.binomial(30, rate), 30))
    return tuple(np.array(column) for column in zip(*rows, strict=True))


def test_propensities_are_the_maximum_of_the_likelihood() -> None:
    """scikit-learn fits the same model, with a variable for each position and each pair."""
    query, passage, position, clicks, views = (column[:480] for column in shown_rows(np.random.default_rng(1)))
    pair = np.unique(query * 1000 + passage, return_inverse=True)[1]
    estimated = propensities(pair, position, clicks.astype(float), views.astype(float))
    clicked = np.bincount(pair, clicks)[pair] > 0  # others: the more negative the better
    design = np.hstack([np.eye(9)[position][:, 2:], np.eye(pair.max() + 1)[pair]])[clicked]
    model = PoissonRegressor(alpha=0, fit_intercept=False, tol=1e-10, max_iter=10_000)
    model.fit(design, (clicks / views)[clicked], sample_weight=views[clicked])
    assert estimated[2:] == pytest.approx(np.exp(model.coef_[:7]), rel=1e-3)


def test_position_bias_is_of_the_training_part_alone(tmp_path: Path) -> None:
    """At test time the log's users look at all positions alike: that may not change how training clicks count."""
    rows = ["query,passage,position,clicks,views,time"]
    for day in range(1, 11):
        for query in range(8):
            # d0 and d1 change places; of the last days all is new.
            late, places = day > 7, (1, 2) if (day + query) % 2 else (2, 1)
            for passage, position in zip(("d0", "d1"), places, strict=True):
                clicks = 40 if late or position == 1 else 20
                rows.append(f"query {query + 8 * late},{passage},{position},{clicks},100,2026-01-{day:02}")
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    _, report = ingested(write_corpus(tmp_path / "corpus"), tmp_path / "log.csv", log_chance=1, dev_fraction=0.2)
    assert any(remark.endswith("from passages that moved: 1: 1.00, 2: 0.50") for remark in report.remarks)


def test_positions_that_nothing_links_are_unknown() -> None:
    pair, position = np.array([0, 0, 1, 1, 2, 2, 3]), np.array([1, 2, 1, 2, 4, 5, 3])
    p = propensities(pair, position, np.array([8.0, 4, 6, 3, 2, 1, 5]), np.full(7, 20.0))
    assert p[1] == 1 and p[2] == pytest.approx(0.5)
    assert np.isnan(p[[0, 3, 4, 5]]).all()
    assert np.isnan(propensities(np.arange(3), np.arange(3) + 1, np.ones(3), np.full(3, 5.0))).all()


def write_shown(path: Path, positions: bool) -> Path:
    columns = shown_rows(np.random.default_rng(2))
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for query, passage, position, clicks, views in zip(*(column.tolist() for column in columns), strict=True):
            row = {"query": f"question {query}", "passage": f"d{passage}", "clicks": clicks, "views": views}
            file.write(json.dumps(row | ({"position": position} if positions else {})) + "\n")
    return path


def test_positions_take_the_bias_of_positions_off(tmp_path: Path) -> None:
    relevant = {(f"question {q}", f"d{q * 8 + p}") for q in range(60) for p in range(2)}
    folder, right, wrong = write_corpus(tmp_path / "corpus", 480), {}, {}
    for positions in (True, False):
        log = write_shown(tmp_path / f"{positions}.jsonl.gz", positions)
        data, report = ingested(folder, log)
        labelled = {(q, p) for split in ("train", "dev", "test") for q, of in labels(data, split).items() for p in of}
        right[positions], wrong[positions] = len(labelled & relevant), len(labelled - relevant)
        assert any("how often users look at a position" in remark for remark in report.remarks) == positions
    assert right[True] > 100 and wrong[True] <= 5
    # The control: as if all positions were alike, what stands on top is labelled, and what stands low is not.
    assert right[False] < 100 and wrong[False] > 20


def daily(day: int, query: str, passage: str, clicks: int = 3) -> str:
    return f"2026-03-{day:02d};{query};{passage};{clicks}\n"


def test_the_future_is_tested_and_no_training_label_knows_it(tmp_path: Path) -> None:
    rows = [daily(day, f"question {day}", f"d{day % 5}") for day in range(1, 21)]
    rows += [daily(1, "old question", "d0", 2), daily(20, "old question", "d4", 2), daily(19, "question 3", "d1", 2)]
    (tmp_path / "log.csv").write_text("Date;Search;doc-id;Clicks\n" + "".join(rows), encoding="utf-8")
    data, report = ingested(write_corpus(tmp_path / "corpus"), tmp_path / "log.csv", dev_fraction=0.2, log_chance=1)
    assert set(labels(data, "test")) == {f"question {day}" for day in (18, 19, 20)}
    assert set(labels(data, "dev")) == {f"question {day}" for day in (14, 15, 16, 17)}
    train = labels(data, "train")
    assert train["old question"] == ["d0"] and train["question 3"] == ["d3"] and len(train) == 14
    assert any("test is the log from 2026-03-18 on; 31 % of its clicks are of queries" in r for r in report.remarks)
    assert data.traffic is not None and data.traffic.sum() == 2 + 20 * 3
    # The control: without dates, later rows label the old query, too.
    undated = "".join(row.partition(";")[2] for row in rows)
    (tmp_path / "log.csv").write_text("search;doc-id;clicks\n" + undated, encoding="utf-8")
    data, _ = ingested(tmp_path / "corpus", tmp_path / "log.csv", dev_fraction=0.2, log_chance=1)
    every = {text: passages for split in ("train", "dev", "test") for text, passages in labels(data, split).items()}
    assert sorted(every["old question"]) == ["d0", "d4"]


def test_a_query_for_a_passage_that_is_gone_was_asked_all_the_same(tmp_path: Path) -> None:
    rows = [
        daily(1, "question 1", "d0", 2), daily(1, "asked before", "gone", 2), daily(2, "question 2", "d1", 4),
        daily(3, "question 3", "d2", 4), daily(4, "asked before", "d3", 2), daily(4, "question 4", "d4", 2),
    ]  # fmt: skip
    (tmp_path / "log.csv").write_text("date;query;passage;count\n" + "".join(rows), encoding="utf-8")
    data, _ = ingested(write_corpus(tmp_path / "corpus"), tmp_path / "log.csv", dev_fraction=0.25, log_chance=1)
    assert labels(data, "test") == {"question 4": ["d4"]} and labels(data, "dev") == {"question 3": ["d2"]}


def test_human_labels_stay_the_test_and_the_log_trains(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", qrels={"test": [("q4", "d4", 1), ("q5", "d5", 1)]})
    rows = [daily(day, f"question {day}", f"d{day % 5}") for day in range(1, 21)]
    (tmp_path / "log.csv").write_text("date;query;passage;count\n" + "".join(rows), encoding="utf-8")
    data, _ = ingested(folder, tmp_path / "log.csv", dev_fraction=0.2, log_chance=1)
    assert labels(data, "test") == {"what is number 4": ["d4"], "what is number 5": ["d5"]}
    assert set(labels(data, "dev")) == {f"question {day}" for day in (17, 18, 19, 20)}
    assert len(labels(data, "train")) == 16
    assert check(Ingest(dataset=str(folder))).fatal  # the control: it has nothing to train on


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("query,count\na,1\n", "must name the columns, query and passage"),
        ("x" * 140_000 + "\n", "must name the columns, query and passage"),
        ("query,passage\nwhat,elsewhere\n", "names no passage of the corpus"),
        ("query,passage\nwhat,d1\n", "gives no label: no passage was clicked 2 times"),
        ("query,passage,clicks,views\nwhat,d1,5,2\n", "line 2: 5 clicks of 2 views"),
        ("query,passage,count\nwhat,d1,many\n", "line 2: count 'many' is not a number from 0"),
        ("query,passage,count,time\nwhat,d1,2,yesterday\n", "is not a date or time in ISO 8601"),
        ("query,passage,count,time\nwhat,d1,2,2026-01-01\nwho,d2,2,\n", "line 3: not the fields of the first row"),
        ("query,passage,count,time\nwhat,d1,2,2026-01-01\nwho,d2,2,2026-01-01\n", "has 1 different times"),
        ('query,passage\n"what,d1\n' + "x" * 140_000, "line 2: a field begins with a quote that nothing closes"),
        (
            'query\tpassage\tcount\nwho\td2\t2\n"what now\td1\t3\n"where\td0\t2\n',
            "line 3: a field begins with a quote that is closed in line 4",
        ),
        ("query,passage,position\nwhat,d1,1.4\n", "line 2: position '1.4' is not a whole number from 1"),
        ("query,passage_id,passage\nwhat,d1,text of d1\n", "both 'passage_id' and 'passage' hold the passage"),
        ("query,passage,date,time\nwhat,d1,2026-01-01,13:45:00\n", "both 'date' and 'time' hold the time"),
        ("query,passage\n", "has no row that can be used: it is empty, or has a header line and no rows"),
    ],
)
def test_a_wrong_log_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "log.csv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message) as error:
        ingested(write_corpus(tmp_path / "corpus"), tmp_path / "log.csv")
    assert "\n" not in str(error.value)


def test_a_log_without_a_good_row_is_refused_with_its_problems_though_bad_rows_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("query,passage,time\n" + "what,d1,1767225600\n" * 5, encoding="utf-8")
    with pytest.raises(
        UserError, match=r"5 × wrong columns or fields \(log.csv line 2: time '1767225600' is not a date"
    ):
        ingested(write_corpus(tmp_path / "corpus"), tmp_path / "log.csv", on_bad_rows="drop")


def test_problems_of_the_data_are_not_told_as_those_of_the_log(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus")
    (folder / "corpus.jsonl").write_text((folder / "corpus.jsonl").read_text("utf-8") + "no JSON\n", encoding="utf-8")
    (tmp_path / "log.csv").write_text("query,passage,count\nwhat,d1,many\n", encoding="utf-8")
    with pytest.raises(UserError, match="line 2: count 'many' is not a number") as error:
        ingested(folder, tmp_path / "log.csv")
    assert "corpus.jsonl" not in str(error.value)
    (tmp_path / "log.csv").write_text("query,passage,count\nwhat,d1,many\nwho,d2,2\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"log.csv line 2: count 'many'") as error:
        ingested(folder, tmp_path / "log.csv")
    assert "corpus.jsonl line" in str(error.value), "where the data are refused, all their problems are told"


def test_each_line_of_a_quoted_text_may_have_as_many_commas_as_a_row(tmp_path: Path) -> None:
    for text in ("red shoes, size 9\ncheap", "red shoes, size 9\ncheap, blue"):
        problems = Problems()
        (tmp_path / "log.csv").write_text(f'query,passage\n"{text}",p1\n', encoding="utf-8")
        assert Clicks.read(tmp_path / "log.csv", problems).texts == [text] and not problems.all()
    rows = ["query,passage,clicks", '"best pizza,d1,3', 'cheap 12",d2,4', "last,d3,1", ""]
    (tmp_path / "log.csv").write_text("\n".join(rows), encoding="utf-8")
    problems = Problems()
    assert Clicks.read(tmp_path / "log.csv", problems).texts == ["last"]
    assert "closed in line 3: double it if it is text" in str(problems.all())


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("block", [20, 1 << 20])
def test_quotes_are_those_of_csv_with_each_delimiter(
    tmp_path: Path, delimiter: str, end: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnn_encoder.data.lines.BLOCK_BYTES", block)
    rows = ['"query"?passage?count', 'a "plain" word?d0?1', '"on ""two""\nlines; or, more"?d1?2', '"last"?d2?3', ""]
    (tmp_path / "log.csv").write_bytes(end.join(rows).replace("?", delimiter).encode())
    problems = Problems()
    clicks = Clicks.read(tmp_path / "log.csv", problems)
    assert clicks.texts == ['a "plain" word', 'on "two"\nlines; or, more', "last"]
    assert (clicks.passage_ids, clicks.clicks.tolist()) == (["d0", "d1", "d2"], [1, 2, 3])
    assert clicks.line.tolist() == [2, 3, 5] and not problems.all()


def test_a_field_of_json_that_is_named_twice_makes_a_bad_row(tmp_path: Path) -> None:
    rows = [
        {"query": "one", "passage": None, "passage_id": "d0"},
        {"query": "two", "passage": "a text", "passage_id": "d1"},
    ]
    (tmp_path / "log.jsonl").write_text(lines(rows), encoding="utf-8")
    problems = Problems()
    assert Clicks.read(tmp_path / "log.jsonl", problems).passage_ids == ["d0"]
    assert problems.all()[0].places == ["log.jsonl line 2: both 'passage' and 'passage_id' hold the passage"]


def test_a_changed_log_is_ingested_again(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(COUNTS, encoding="utf-8")
    settings = Ingest(dataset=str(write_corpus(tmp_path / "corpus")), log=str(tmp_path / "log.csv"))
    before, plan = source_digests("ingest", settings), source_digest(settings)
    (tmp_path / "log.csv").write_text(COUNTS.replace(",5\n", ",6\n"), encoding="utf-8")
    assert source_digests("ingest", settings) != before
    assert source_digest(settings) != plan, "a plan that was made with the old log is not used again"
    (tmp_path / "log.csv").unlink()
    with pytest.raises(UserError, match=r"ingest\.log = .*no such file"):
        source_digest(settings)
