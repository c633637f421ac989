"""The command `judge`: bundles, a service that grades, labels by people; resumed without paying twice."""

import gzip
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_service import chat_service
from command_line import call

from gnn_encoder.artifacts import Dataset, drafting
from gnn_encoder.artifacts.added_labels import read_labels
from gnn_encoder.artifacts.extended_dataset import extend_queries
from gnn_encoder.artifacts.folder import folder_digest
from gnn_encoder.artifacts.texts import written_id
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.trec import Ids, read_qrels
from gnn_encoder.judging.order import Place
from gnn_encoder.judging.people import PeoplesFile
from gnn_encoder.judging.pool import Pool, read_as
from gnn_encoder.models.backbone_files import PACKAGED
from gnn_encoder.retrieval.search import Hit
from gnn_encoder.serving.judging import PeoplesJudging
from gnn_encoder.serving.retriever import Retriever
from gnn_encoder.serving.schema import Grade
from gnn_encoder.settings.shared import SMOLLM2

HITS = 4


def reply(prompt: str) -> str:
    return f"grade: {zlib.crc32(prompt.encode()) % 4}\nreason: <i>by</i> chance"


def arguments(bundles: dict[str, Path], data: Dataset, output: Path, address: str) -> list[str]:
    named = [part for name in ("vectors", "words") for part in ("--bundle", str(bundles[name]))]
    return ["judge", str(output), "--judge", f"{address}#tiny", *named, "--dataset", str(data.path), "--set", "depth=4"]


def files(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_bytes().hex() for name in ("judgements.jsonl", "qrels.gz", "figures.json")}


def test_a_split_is_judged_resumed_and_compared(
    bundles: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_service(reply) as service:
        whole = arguments(bundles, tiny_dataset, tmp_path / "whole", service.address)
        assert call(*whole) == 0
        printed, said = capsys.readouterr()
        calls = len(service.answered)
        assert f"grades {calls} passages: {calls} calls" in said
        assert "agreement with people on" in printed and "BM25 + words" in printed and "Kendall" in printed
        lines = [json.loads(line) for line in (tmp_path / "whole" / "judgements.jsonl").read_text("utf-8").splitlines()]
        assert len(lines) == calls and {line["reason"] for line in lines} == {"<i>by</i> chance"}
        queries, passages = Ids(), Ids()
        labels = read_qrels(tmp_path / "whole" / "qrels.gz", queries, passages)
        assert sorted(labels.relevance.tolist()) == sorted(line["grade"] for line in lines)
        figures = json.loads((tmp_path / "whole" / "figures.json").read_text("utf-8"))
        assert figures["comparison"]["labelled"] == figures["comparison"]["queries"] == 20
        # A service that refuses after some calls: one line, and what came is kept.
        service.answered.clear()
        broken = arguments(bundles, tiny_dataset, tmp_path / "broken", service.address)
        service.faults[:] = [0] * 30 + [401] * 100
        assert call(*broken) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert "run again to go on" in error
        paid = service.answered.total()
        assert 0 < paid < calls
        service.faults.clear()
        assert call(*broken) == 0
        assert f"{paid} more answers are kept" in capsys.readouterr().err
        assert set(service.answered.values()) == {1} and len(service.answered) == calls
        assert files(tmp_path / "broken") == files(tmp_path / "whole")
        # Without a service, everything is in the folder already.
    assert call(*broken) == 0
    assert files(tmp_path / "broken") == files(tmp_path / "whole")
    # People judge the three queries that come first; nothing is asked of a model, and other queries are refused.
    capsys.readouterr()
    pool, order = Pool(tmp_path / "whole" / "pool.jsonl"), read_as(tmp_path / "whole" / "order.jsonl", Place)
    file = PeoplesFile(tmp_path / "whole" / "people.jsonl")
    assert call(*broken[:1], str(tmp_path / "whole"), *broken[2:]) == 2
    assert "another server takes grades" in capsys.readouterr().err
    file.add(order[0].query_id, pool.passages[order[0].query_id][0], 0)
    file.close()
    alone = [part for part in whole if part not in ("--judge", whole[3])]
    assert call(*alone) == 0
    printed = capsys.readouterr().out
    assert "not known yet" in printed and "nan" not in printed
    file = PeoplesFile(tmp_path / "whole" / "people.jsonl")
    for relevant, entry in enumerate(order[:3]):
        for number, passage in enumerate(pool.passages[entry.query_id]):
            file.add(entry.query_id, passage, 3 * (number == relevant))
    file.close()
    assert call(*alone) == 0
    printed = capsys.readouterr().out
    assert f"3 of the {len(order)} queries" in printed and "people alone" in printed
    figures = json.loads((tmp_path / "whole" / "figures.json").read_text("utf-8"))
    gain = figures["people"]["decided"]["gains"]["RR@10"]["BM25 + words"]
    assert gain["human"]["low"] < gain["human"]["high"] and figures["people"]["agreement"]["graded_equal"] is not None
    assert figures["people"]["grades"] == figures["people"]["agreement"]["pairs"]
    assert len(read_labels(tmp_path / "whole" / "labels.jsonl")) == 3
    assert read_as(tmp_path / "whole" / "order.jsonl", Place) == order
    for other in (("--set", "max_queries=3"), ("--bundle", str(bundles["both"]))):
        assert call(*alone, *other) == 2
        assert "grades by people of other queries or bundles" in capsys.readouterr().err
    assert Pool(tmp_path / "whole" / "pool.jsonl").passages == pool.passages


def test_no_order_of_other_hits_stays_while_a_model_grades(
    bundles: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "judged"
    with chat_service(reply) as service:
        graded = arguments(bundles, tiny_dataset, folder, service.address)
        alone = [part for part in graded if part not in ("--judge", graded[3])]
        assert call(*alone, "--set", "depth=1") == 0
        of_one = len(read_as(folder / "order.jsonl", Place))
        service.faults[:] = [401] * 100
        assert call(*graded) == 2
        with pytest.raises(UserError, match=r"order\.jsonl cannot be read"):
            PeoplesJudging(folder)
    assert call(*alone) == 0
    order = read_as(folder / "order.jsonl", Place)
    assert len(order) > of_one, "more hits, in more of which the systems differ"
    judging = PeoplesJudging(folder)
    judging.take(Grade(query_id=order[0].query_id, grade=None))
    judging.close()
    (folder / "pool.jsonl").unlink()
    capsys.readouterr()
    assert call(*alone) == 2
    assert "grades by people of other queries or bundles" in capsys.readouterr().err


def test_grades_by_people_stay_if_equal_scores_are_ordered_otherwise(
    bundles: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Another machine is played by another tie-break: the last two hits of a query change places, or one falls out."""
    folder = tmp_path / "judged"
    alone = [part for part in arguments(bundles, tiny_dataset, folder, "http://127.0.0.1:9/v1") if "#tiny" not in part]
    alone.remove("--judge")
    assert call(*alone) == 0
    order, before = read_as(folder / "order.jsonl", Place), Pool(folder / "pool.jsonl")
    first, second = order[0].query_id, order[1].query_id
    judging = PeoplesJudging(folder)
    for query_id in (first, second):
        for number, passage in enumerate(before.passages[query_id]):
            judging.take(Grade(query_id=query_id, passage_id=passage, grade=3 if number == 0 else 0))
    judging.close()
    search = Retriever.search

    def other_order(self: Retriever, questions: list[str], k: int) -> list[list[Hit]]:
        hits_of = search(self, questions, k + 1)
        of_first = hits_of[[*before.queries].index(first)]
        of_first[k - 2 : k + 1] = [*of_first[k - 1 : k + 1], *of_first[k - 2 : k - 1]]
        return [hits[:k] for hits in hits_of]

    monkeypatch.setattr(Retriever, "search", other_order)
    capsys.readouterr()
    taking = PeoplesJudging(folder)
    assert call(*alone) == 2 and "another server takes grades" in capsys.readouterr().err
    taking.close()
    assert call(*alone) == 0
    after = Pool(folder / "pool.jsonl")
    assert set(after.passages[first]) != set(before.passages[first])
    assert after.passages[second] == before.passages[second]
    now = {place.query_id: place for place in read_as(folder / "order.jsonl", Place)}
    assert [now[place.query_id] for place in order] == order, "each keeps its place"
    assert "0 of the" in capsys.readouterr().out, "the first query has a hit that nobody has graded"
    judging = PeoplesJudging(folder)
    missing = set(after.passages[first]) - set(before.passages[first])
    while (pair := judging.progressed().next) and pair.query_id == first:
        assert pair.passage_id in missing
        judging.take(Grade(query_id=first, passage_id=pair.passage_id, grade=1))
    judging.close()
    assert call(*alone) == 0
    assert "2 of the" in capsys.readouterr().out
    figures = json.loads((folder / "figures.json").read_text("utf-8"))
    assert figures["people"]["grades"] == sum(len(before.passages[query]) for query in (first, second)) + len(missing)


def test_people_judged_some_queries_of_a_file(
    bundles: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.concatenate([tiny_dataset.query_rows(split) for split in ("dev", "test")])
    ids = [tiny_dataset.queries.column("query_id")[int(row)].as_py() for row in rows]
    records = [json.dumps({"_id": i, "text": t}) for i, t in zip(ids, tiny_dataset.query_texts(rows), strict=True)]
    (tmp_path / "queries.jsonl").write_text("\n".join(records), encoding="utf-8")
    passages = tiny_dataset.passages.ids().to_pylist()
    labels = tiny_dataset.split_qrels("test")
    lines = [f"q{q} 0 {passages[p]} 1" for q, p in zip(labels.query.tolist(), labels.passage.tolist(), strict=True)]
    with gzip.open(tmp_path / "qrels.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines))
    with chat_service(reply) as service:
        shared = [
            "judge",
            str(tmp_path / "out"),
            "--judge",
            f"{service.address}#tiny",
            "--bundle",
            str(bundles["both"]),
        ]
        options = ["--queries", str(tmp_path / "queries.jsonl"), "--set", "depth=4"]
        assert call(*shared, *options, "--qrels", str(tmp_path / "qrels.gz")) == 0
        figures = json.loads((tmp_path / "out" / "figures.json").read_text("utf-8"))
        assert (figures["comparison"]["queries"], figures["comparison"]["labelled"]) == (40, 20)
        assert figures["origin"].endswith("#tiny") and figures["agreement"]["assumed"]
        ends = figures["comparison"]["means"]["RR@10"]["BM25 + both"]
        widths = {kind: ends[kind]["high"] - ends[kind]["low"] for kind in ("corrected", "human")}
        assert widths["corrected"] <= widths["human"] + 1e-12
        assert call(*shared, *options, "--set", "max_calls=9") == 0
        printed = capsys.readouterr().out
        assert "of 2 queries have a grade" in printed and "the judge's alone" in printed
        (tmp_path / "log.txt").write_text("what is the first\t3\nwhat is the second\n", encoding="utf-8")
        assert call(*shared, "--queries", str(tmp_path / "log.txt"), "--set", "depth=2") == 0
        assert "of 2 queries have a grade" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "out")


def test_the_passage_that_a_written_query_quotes_is_not_judged(
    bundles: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path
) -> None:
    ids, (quoted,) = tiny_dataset.passages.ids().to_pylist(), tiny_dataset.passages.take(np.array([3])).texts
    for name, source in (("quoting", 3), ("control", -1)):
        with drafting(tmp_path / name, "dataset") as draft:
            extend_queries(draft, tiny_dataset, [quoted], ["test"], [[5]], [source], np.zeros(0, np.int32), False)
    judged = {}
    with chat_service(reply) as service:
        for name in ("quoting", "control"):
            data = Dataset(tmp_path / name)
            assert call(*arguments(bundles, data, tmp_path / f"{name}-out", service.address)) == 0
            lines = (tmp_path / f"{name}-out" / "judgements.jsonl").read_text("utf-8").splitlines()
            records = [json.loads(line) for line in lines]
            judged[name] = [one["passage_id"] for one in records if one["query_id"] == written_id(quoted)]
            figures = json.loads((tmp_path / f"{name}-out" / "figures.json").read_text("utf-8"))["comparison"]
            assert (figures["queries"], figures["labelled"]) == (21, 20), "people's labels beside written ones"
    assert ids[3] in judged["control"] and ids[3] not in judged["quoting"] and len(judged["quoting"]) >= HITS


def test_a_packaged_model_is_no_folder_of_its_name(
    bundles: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []

    def opened(*arguments: Any) -> None:
        digests.append(arguments[-1])
        raise UserError("opened")

    monkeypatch.setattr(
        "gnn_encoder.models.backbone_files._packaged_weights", lambda _: tmp_path / "packaged" / "weights"
    )
    monkeypatch.setattr("gnn_encoder.inference.language_model.open_language_model", opened)
    monkeypatch.chdir(tmp_path)
    for name in (SMOLLM2, "other"):
        (tmp_path / name).mkdir()
        named = ["--judge", name, "--bundle", str(bundles["words"]), "--dataset", str(tiny_dataset.path)]
        assert call("judge", "out", *named) == 2
    assert digests == [PACKAGED[SMOLLM2].sha256, folder_digest(tmp_path / "other")]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--set", "dept=3"], "did you mean 'depth'"),
        (["--set", "depth=0"], "depth = 0"),
        (["--qrels", "labels.txt"], "--qrels has labels for --queries"),
        (["--split", "nothing"], "has no nothing query"),
        (["--set", "max_calls=2"], "a query takes up to 8"),
        (["--queries", "none.jsonl"], "none.jsonl cannot be read"),
    ],
)
def test_what_cannot_be_judged_is_said_in_one_line(
    more: list[str], message: str, bundles: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert call(*arguments(bundles, tiny_dataset, tmp_path, "http://127.0.0.1:9/v1"), *more) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
