"""Two bundles on the present queries, whatever the champion's corpus was."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from conftest import write_tiny_dataset
from gate_inputs import write_bundle
from table_cells import printed

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle, Dataset, DatasetWriter, drafting
from gnn_encoder.artifacts.bundle import Reranking, Serving
from gnn_encoder.artifacts.dataset import IDENTICAL, MISSING
from gnn_encoder.cli.bundles import _compare_bundles
from gnn_encoder.evaluation.compare import comparison_table, notes
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.promotion.champion import compare_with_champion, present_rows
from gnn_encoder.promotion.gate import ChampionComparison
from gnn_encoder.retrieval.scorers import save_scorer
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.tracking.progress import Progress

MEASURES = ("RR@10", "R@1000")


def searcher(path: Path, data: Dataset, backbone: Path, right: int) -> Searcher:
    return Searcher(Bundle.read(write_bundle(path, data, backbone, right)))


def compared(data: Dataset, challenger: Searcher, champion: Searcher) -> ChampionComparison:
    settings = Evaluate(permutations=200, precision="fp32")

    def progress(name: str, total: int) -> Progress:
        return Progress("promote", name, total, "queries")

    return compare_with_champion(data, "test", challenger, champion, "7", MEASURES, settings, progress)


def with_passages(
    path: Path, data: Dataset, kept: Sequence[int], labels: Iterable[tuple[int, int]],
    more: Callable[[DatasetWriter], object] = lambda writer: None,
) -> Dataset:  # fmt: skip
    """The dataset with some of its passages, in an order, and labels (row of a query, row of a passage before)."""
    passages, queries = next(data.passages.stream()), data.queries.to_pydict()
    row_of, pairs = {row: i for i, row in enumerate(kept)}, [(int(q), int(p)) for q, p in labels]
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(*([column[row] for row in kept] for column in (passages.ids, passages.titles, passages.texts)))
        writer.queries(*(queries[name] for name in ("query_id", "text", "split", "answers")))
        ids = [queries["query_id"][q] for q, _ in pairs], [passages.ids[p] for _, p in pairs]
        writer.qrels(*ids, [1] * len(pairs), [q for q, _ in pairs], [row_of[p] for _, p in pairs])
        more(writer)
        writer.close()
    return Dataset(path)


def test_the_same_bundle_twice_makes_no_difference(tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path) -> None:
    one = searcher(tmp_path / "one", tiny_dataset, tiny_backbone, 8)
    comparison = compared(tiny_dataset, one, one)
    whole = comparison.strata["all"]
    assert whole.challenger == whole.other == {"RR@10": 8 / 20, "R@1000": 1.0}
    assert whole.p_values == {"RR@10": 1.0, "R@1000": 1.0}
    assert whole.better == whole.worse == {"RR@10": 0.0, "R@1000": 0.0}
    assert comparison.challenger.index_bytes == comparison.champion.index_bytes > 4 * 32
    assert comparison.challenger.query_ms > 0
    assert (comparison.version, whole.queries, comparison.gone) == ("7", 20, 0)


def test_the_better_one_is_seen(tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path) -> None:
    few, many = (searcher(tmp_path / str(n), tiny_dataset, tiny_backbone, n) for n in (5, 19))
    comparison = compared(tiny_dataset, many, few)
    assert comparison.strata["all"].difference("RR@10") == pytest.approx(14 / 20)
    assert comparison.strata["all"].p_values["RR@10"] < 0.05
    assert compared(tiny_dataset, few, many).strata["all"].difference("RR@10") == pytest.approx(-14 / 20)


def test_a_re_ranker_is_measured_with_the_bundle(tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path) -> None:
    """The reference is what an application gets: `Retriever.search`. The control is the same bundle without it."""
    plain, scorer = searcher(tmp_path / "plain", tiny_dataset, tiny_backbone, 8), tmp_path / "scorer"
    torch.manual_seed(0)
    model = CrossEncoder.from_backbone(str(tiny_backbone), 48)
    torch.nn.init.normal_(model.head.weight, std=1.0)
    save_scorer("cross_encoder", model, scorer)
    serving = Serving("Re-ranked", None, None, Reranking("GNN-encoder", 1.0, 10, "fp32"))
    with drafting(tmp_path / "bundle", "bundle") as draft:
        plain.bundle.serve(draft, serving, scorer)
    comparison = compared(tiny_dataset, Searcher(Bundle.read(tmp_path / "bundle")), plain)
    labels, ids = tiny_dataset.split_qrels("test"), tiny_dataset.passages.ids().to_pylist()
    answers = Retriever.load(tmp_path / "bundle").search(tiny_dataset.query_texts(labels.query), 10)
    ranks = ([hit.passage_id for hit in hits].index(ids[p]) + 1 if ids[p] in {hit.passage_id for hit in hits} else 0
             for hits, p in zip(answers, labels.passage.tolist(), strict=True))  # fmt: skip
    expected = sum(1 / rank for rank in ranks if rank) / 20
    whole = comparison.strata["all"]
    assert whole.challenger == {"RR@10": pytest.approx(expected), "R@1000": 1.0}
    assert whole.other["RR@10"] == 8 / 20 != pytest.approx(expected)
    assert comparison.challenger.query_ms > comparison.champion.query_ms and comparison.of_one_kind


def test_a_former_corpus_is_matched_by_text_ids(tiny_backbone: Path, tmp_path: Path) -> None:
    """The champion's corpus had another order, and passages that are gone: three of them it found first."""
    former = Dataset(write_tiny_dataset(tmp_path / "former"))
    labels = former.split_qrels("test")
    gone = set(labels.passage[:3].tolist())
    kept = [row for row in reversed(range(100)) if row not in gone]
    # The three queries are answered by another passage now, of which the champion does not know.
    pairs = [(q, p if p not in gone else kept[0]) for q, p in zip(labels.query, labels.passage, strict=True)]
    present = with_passages(tmp_path / "present", former, kept, pairs)
    champion = searcher(tmp_path / "champion", former, tiny_backbone, 10)
    comparison = compared(present, searcher(tmp_path / "challenger", present, tiny_backbone, 20), champion)
    whole = comparison.strata["all"]
    assert comparison.gone == 3
    assert whole.other["RR@10"] == pytest.approx(7 / 20, abs=0.02)
    assert whole.other["R@1000"] == 1.0
    assert whole.challenger["RR@10"] > 0.8


def test_queries_on_passages_that_the_champion_lacks_are_new(
    tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path
) -> None:
    """The champion finds the passages of ten queries; the challenger of six, four of which the champion lacks."""
    labels = tiny_dataset.split_qrels("test")
    kept = [row for row in range(100) if row not in labels.passage[:4]]
    pairs = [(q, p) for q, p in zip(labels.query, labels.passage, strict=True) if p in kept]
    former = with_passages(tmp_path / "former", tiny_dataset, kept, pairs)
    champion = searcher(tmp_path / "champion", former, tiny_backbone, 10)
    strata = compared(tiny_dataset, searcher(tmp_path / "challenger", tiny_dataset, tiny_backbone, 6), champion).strata
    old, new = strata["old"], strata["new"]
    assert (old.queries, new.queries, strata["all"].queries) == (16, 4, 20)
    assert (new.other["RR@10"], new.challenger["RR@10"], new.better["RR@10"]) == (0.0, 1.0, 1.0), "gained"
    assert (old.other["RR@10"], old.challenger["RR@10"]) == (10 / 16, 2 / 16), "forgotten"
    assert old.worse["RR@10"] == 8 / 16 and old.p_values["RR@10"] < 0.05 and "old_labels" not in strata
    # The command says the same.
    bundles = {name: tmp_path / name for name in ("champion", "challenger")}
    by_command = _compare_bundles(bundles, tiny_dataset, "test", MEASURES, None, "randomization")
    for stratum, paired in (("old", old), ("new", new)):
        assert by_command["strata"][stratum]["queries"] == paired.queries
        assert by_command["strata"][stratum]["results"] == {"champion": paired.other, "challenger": paired.challenger}
    shown = printed(comparison_table(by_command), *notes(by_command))
    assert "MRR@10, 4 new queries" in shown and "MRR@10, 16 old queries" in shown


def test_missing_passages_and_the_query_itself_are_no_hits(
    tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path
) -> None:
    """The corpus has lost the passages of four test queries, which labels still name; the champion has them and finds
    them first. It also finds first the passage of a fifth query, which is this query itself."""
    labels, ids = tiny_dataset.split_qrels("test"), tiny_dataset.passages.ids().to_pylist()
    lost = labels.passage[:4]
    kept = np.setdiff1d(np.arange(100), lost)

    def lose(writer: DatasetWriter) -> None:
        writer.table(MISSING, labels.query[:4], [ids[row] for row in lost], [1] * 4)
        writer.table(IDENTICAL, labels.query[4:5], np.searchsorted(kept, labels.passage[4:5]))

    pairs = zip(labels.query[4:], labels.passage[4:], strict=True)
    present = with_passages(tmp_path / "present", tiny_dataset, kept.tolist(), pairs, lose)
    champion = searcher(tmp_path / "champion", tiny_dataset, tiny_backbone, 10)
    comparison = compared(present, champion, champion)
    assert (comparison.gone, comparison.strata["all"].queries) == (4, 20)
    assert set(comparison.strata) == {"all", "cold", "old"}
    assert comparison.strata["all"].other["RR@10"] == pytest.approx(5 / 20)  # the fifth to the tenth but one
    assert comparison.strata["all"].other["R@1000"] == pytest.approx(15 / 20)
    by_command = _compare_bundles({"x": tmp_path / "champion"}, present, "test", MEASURES, None, "randomization")
    assert by_command["results"]["x"] == comparison.strata["all"].other
    assert any(
        remark.startswith("4 of 20 test labels name a passage that the corpus lacks") for remark in notes(by_command)
    )


def test_rows_of_passages_that_are_gone_come_after_all() -> None:
    rows, ids = present_rows(pa.chunked_array([["b", "x"], ["a", "y"]]), pa.chunked_array([["a"], ["b", "c"]]))
    np.testing.assert_array_equal(rows, [1, 3, 0, 4])
    assert ids.to_pylist() == ["a", "b", "c", "x", "y"]
    rows, ids = present_rows(pa.chunked_array([["a"]]), pa.chunked_array([["a"]]))
    assert rows.tolist() == [0] and ids.to_pylist() == ["a"]
