"""Written queries become labels: what `titles` writes, what each filter leaves out, and the split of each query."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from published_rerankers import write_reranker

from gnn_encoder.artifacts import Dataset, DatasetWriter, WrittenQueries, drafting
from gnn_encoder.artifacts.added_labels import AddedLabel, write_labels
from gnn_encoder.artifacts.bundle import Bm25Index
from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.artifacts.folder import folder_digest
from gnn_encoder.artifacts.structure import NODES
from gnn_encoder.artifacts.texts import written_id
from gnn_encoder.data import canonicalize, open_source
from gnn_encoder.engines.provenance import source_digests
from gnn_encoder.errors import UserError
from gnn_encoder.models.published_reranker import PublishedReranker
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.scorers import Scorer, open_scorer, save_scorer
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.settings.written import SelectQueries, WriteQueries
from gnn_encoder.steps.index_bm25 import index_bm25
from gnn_encoder.steps.select_queries import select_queries
from gnn_encoder.steps.write_queries import write_queries
from gnn_encoder.written.selection import Selection, assign, select, splits_of, units_of

ANIMALS = ("otter", "heron", "badger", "falcon", "weasel", "lizard", "beetle", "salmon", "sparrow", "hedgehog")
PLACES = ("river", "marsh", "forest", "meadow")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 pages of two passages each."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "docs").mkdir()
    for animal in ANIMALS:
        for habitat in PLACES:
            text = f"# {animal} of the {habitat}\n\nThe {animal} lives by the {habitat}. "
            text += f"It hunts {habitat} {animal} rivals at dawn."
            text += f"\n\nWinter drives every {animal} from the {habitat}. Then it sleeps long below {habitat} stones."
            (folder / "docs" / f"{animal}-{habitat}.md").write_text(text)
    settings = Ingest(dataset=str(folder / "docs"), format="documents", needs="passages", passage_words=16)
    with drafting(folder / "dataset", "dataset") as draft:
        canonicalize(open_source(settings), settings, draft=draft)
        draft.manifest.step, draft.manifest.settings = "ingest", settings.model_dump()
    index_bm25(IndexBm25(), dataset=folder / "dataset", bm25_index=folder / "index")
    return folder


def selected(folder: Path, out: Path, written: WrittenQueries, **changes: object) -> Dataset:
    with drafting(out / "written", "written_queries") as draft:
        written.write(draft)
    inputs = {"passages": folder / "dataset", "bm25_index": folder / "index", "written_queries": out / "written"}
    select_queries(SelectQueries(**changes), **inputs, dataset=out / "dataset")
    return Dataset(out / "dataset")


def of(*queries: tuple[int, str]) -> WrittenQueries:
    rows = [row for row, _ in queries]
    none = [""] * len(rows)
    return WrittenQueries(rows, ["test"] * len(rows), [text for _, text in queries], none, none)


def test_titles_writes_headings_and_sentences(folder: Path, tmp_path: Path) -> None:
    write_queries(WriteQueries(generator="titles"), dataset=folder / "dataset", written_queries=tmp_path / "all")
    written = WrittenQueries.read(tmp_path / "all")
    data = Dataset(folder / "dataset")
    passages = next(data.passages.stream())
    first = passages.ids.index("otter-marsh.md#otter-of-the-marsh:1")
    rows = list(zip(written.passage, written.kind, written.query, written.quoted, strict=True))
    assert [row for row in rows if row[3] in (first, first + 1)] == [
        (first + 1, "sentence", "It hunts marsh otter rivals at dawn", first),
        (first + 1, "sentence", "The otter lives by the marsh", first),
        (first, "sentence", "Winter drives every otter from the marsh", first + 1),
        (first, "sentence", "Then it sleeps long below marsh stones", first + 1),
    ]
    assert not any(row[0] == row[3] for row in rows)
    few = WriteQueries(generator="titles", max_passages=7, per_passage=1, seed=3)
    write_queries(few, dataset=folder / "dataset", written_queries=tmp_path / "few")
    drawn = WrittenQueries.read(tmp_path / "few").quoted
    assert len(set(drawn)) == len(drawn) == 7
    assert WriteQueries(generator="titles").passages_of(10**7) == (50_000, 0), "memory holds all sentences"
    assert WriteQueries(generator="titles", max_passages=10**6).passages_of(10**7) == (10**6, 0)
    with pytest.raises(UserError, match=r"write_queries.generator = none-such"):
        write_queries(
            WriteQueries(generator="none-such"), dataset=folder / "dataset", written_queries=tmp_path / "unknown"
        )


def test_each_filter_leaves_out_what_it_should(folder: Path, tmp_path: Path) -> None:
    ids = next(Dataset(folder / "dataset").passages.stream()).ids
    row = {name: ids.index(f"{name}.md#{name.replace('-', '-of-the-')}:1") for name in ("otter-marsh", "heron-river")}
    otter, heron = row["otter-marsh"], row["heron-river"]
    written = of(
        (otter, "where do otters of the marsh hunt"),
        (otter, "Where do otters of the marsh HUNT"),
        (heron, "where do otters of the marsh hunt"),
        (otter, "where do the otters of the marsh hunt"),
        (otter, "zebra crossing rules"),
        (otter, "The otter lives by the marsh"),
        (otter, "  "),
        (heron, "who rivals the heron by its river at dawn"),
    )
    index = Bm25.load(Bm25Index.read(folder / "index").path)
    selection = select(
        written, Dataset(folder / "dataset"), lambda texts, k: index.search(texts, k)[1], SelectQueries(found_within=1)
    )
    # The first query was written for the heron, too, which stays, as the otter is found.
    assert dict(zip(selection.texts, selection.passages, strict=True)) == {
        "where do otters of the marsh hunt": [otter, heron], "who rivals the heron by its river at dawn": [heron],
    }  # fmt: skip
    assert selection.left_out == {
        "without text": [("  ", otter)],
        "a query of the data": [],
        "quotes the passage's beginning": [("The otter lives by the marsh", otter)],
        "nearly equal to an earlier query": [("where do the otters of the marsh hunt", otter)],
        "passage not in BM25's first 1 hits": [("zebra crossing rules", otter)],
    }
    assert "**without text**: 1" in selection.examples(str) and f"zebra crossing rules → {otter}" in selection.examples(
        str
    )


def test_no_copy_of_a_written_query_in_the_data_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in train by the label that people added; its copy could be in test."""
    data, index = Dataset(folder / "dataset"), Bm25.load(Bm25Index.read(folder / "index").path)
    labelled, copy = "where do otters of the marsh hunt", "where do the otters of the marsh hunt"
    monkeypatch.setattr(data, "queries", pa.table({"query_id": [written_id(labelled)], "text": [labelled]}))

    def kept(*texts: str) -> list[str]:
        written = of(*((int(index.search([text], 1)[1][0, 0]), text) for text in texts))
        return select(written, data, lambda some, k: index.search(some, k)[1], SelectQueries()).texts

    assert kept(copy) == []
    assert kept(copy, labelled, "heron river") == [labelled, "heron river"]


def test_a_reranker_has_to_agree(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores are those of sentence-transformers, from which a loop finds the queries that stay."""
    from sentence_transformers import CrossEncoder

    monkeypatch.setattr("gnn_encoder.written.selection.RERANKED_AT_A_TIME", 16)
    data, index = Dataset(folder / "dataset"), Bm25.load(Bm25Index.read(folder / "index").path)
    write_queries(
        WriteQueries(generator="titles", max_passages=10), dataset=data.path, written_queries=tmp_path / "written"
    )
    written, name = WrittenQueries.read(tmp_path / "written"), str(write_reranker(tmp_path / "reranker"))
    model, texts = CrossEncoder(name, device="cpu"), data.passages.take(np.arange(80)).full_texts()

    def kept(scorer: Scorer | None = None, **changes: float) -> Selection:
        settings = SelectQueries(agreeing_reranker=name, reranked=5, precision="fp32", tokens_per_batch=256, **changes)
        searched.clear()

        def found(some: list[str], k: int) -> np.ndarray:
            searched.append(len(some))
            return index.search(some, k)[1]

        return select(written, data, found, settings, scorer)

    searched = list[int]()
    every, scorer, figures = kept(), open_scorer(name), list[tuple[str, float, int]]()
    for text, passages, quoted in zip(every.texts, every.passages, every.quoted, strict=True):
        hits = [row for row in index.search([text], 6)[1][0].tolist() if row not in (quoted, -1)][:5]
        rows = sorted({*hits, *passages})
        chances = dict(zip(rows, model.predict([(text, texts[row]) for row in rows]), strict=True))
        best = max(chances[row] for row in passages)
        figures.append((text, best, sum(chances[row] > best for row in rows if row not in passages)))
    for within, probability in ((1, 0.0), (3, 0.0), (3, 0.5)):
        selection = kept(scorer, agreed_within=within, agreed_probability=probability)
        assert selection.texts == [t for t, best, above in figures if above < within and best >= probability]
        assert len(searched) == 1, "the progress of the search counts each query once"
        left_out = selection.left_out["the re-ranker does not agree"]
        assert len(left_out) + len(selection.texts) == len(every.texts)
        assert f"**the re-ranker does not agree**: {len(left_out)}" in selection.examples(str)
    assert 0 < len(kept(scorer).texts) < len(kept(scorer, agreed_within=3).texts) < len(every.texts)
    save_scorer("published", PublishedReranker.published(name), tmp_path / "trained")
    assert kept(open_scorer(str(tmp_path / "trained"))).texts == kept(scorer).texts, "as a training writes it"
    digests = source_digests("select_queries", SelectQueries(agreeing_reranker=name))
    assert digests["agreeing_reranker"] == folder_digest(Path(name))


def test_splits_are_of_whole_documents_and_the_data_are_the_same(folder: Path, tmp_path: Path) -> None:
    write_queries(WriteQueries(generator="titles"), dataset=folder / "dataset", written_queries=tmp_path / "written")
    written = WrittenQueries.read(tmp_path / "written")
    data = selected(folder, tmp_path / "out", written)
    quoted = dict(zip(written.query, written.quoted, strict=True))
    assert [quoted[text] for text in data.queries["text"].to_pylist()] == data.identical.tolist() and not data.quoting
    before = Dataset(folder / "dataset")
    assert data.passages.digest == before.passages.digest and data.structure and before.structure
    assert data.structure._column(NODES, "node_id").equals(before.structure._column(NODES, "node_id"))
    assert data.manifest.settings == before.manifest.settings and data.written_splits == ("train", "dev", "test")
    assert before.written_splits == ()
    documents = {
        split: set(data.structure.document[data.split_qrels(split).passage].tolist())
        for split in ("train", "dev", "test")
    }
    assert all(documents.values()) and len(set().union(*documents.values())) == sum(map(len, documents.values()))
    assert len(documents["test"]) == pytest.approx(8, abs=3)
    assert not (data.identical[data.qrels.query] == data.qrels.passage).any()
    again = selected(folder, tmp_path / "again", WrittenQueries.read(tmp_path / "written"))
    assert again.manifest.digest == data.manifest.digest
    other = selected(folder, tmp_path / "other", WrittenQueries.read(tmp_path / "written"), seed=1, max_train=5)
    assert other.manifest.digest != data.manifest.digest and len(other.query_rows("train")) == 5
    easy = selected(folder, tmp_path / "easy", of(*enumerate(next(data.passages.stream()).titles)), quoted_words=99)
    assert easy.quoting and easy.written_splits
    with pytest.raises(UserError, match=r"too few; left out: 1 quotes the passage's beginning"):
        selected(folder, tmp_path / "none", of((0, "The badger lives by the forest.")))


def test_no_passage_is_of_two_splits(folder: Path) -> None:
    """Each query is written for a passage of its own, and for one that all queries share."""
    data = Dataset(folder / "dataset")
    selection = Selection.of(
        of(
            *((row, f"query {2 * row}") for row in range(0, 40, 2)),
            *((79, f"query {2 * row}") for row in range(0, 40, 2)),
        )
    )
    split = assign(selection, data, dict.fromkeys(SPLITS, 0), SelectQueries())
    sharing = {int(code) for code, passages in zip(split, selection.passages, strict=True) if 79 in passages}
    assert len(set(split.tolist())) == 3 and len(sharing) == 1


def test_people_s_test_queries_stay_alone(folder: Path, tmp_path: Path) -> None:
    with drafting(tmp_path / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        old = Dataset(folder / "dataset")
        for batch in old.passages.batches():
            writer.passages(*batch.columns)
        writer.queries(["q"], ["what does a hedgehog do in winter"], ["test"], [[]])
        writer.qrels(["q"], [old.passages.ids()[1].as_py()], [1], [0], [1])
        writer.close()
        draft.manifest.settings = old.manifest.settings
    (tmp_path / "index").symlink_to(folder / "index")
    write_queries(WriteQueries(generator="titles"), dataset=tmp_path / "dataset", written_queries=tmp_path / "written")
    data = selected(tmp_path, tmp_path / "out", WrittenQueries.read(tmp_path / "written"))
    assert data.written_splits == ("train", "dev") and data.query_rows("test").tolist() == [0]
    assert data.split_qrels("test").passage.tolist() == [1] and len(data.query_rows("train")) > 20


def test_examples_are_text_whatever_the_documents_hold() -> None:
    selection = Selection.of(of((0, "a river \x1b[31m\u202e red\x07")))
    assert "- a river [31m red → p 1\n" in selection.examples(lambda _: "p\x1b1") and "\x1b" in selection.texts[0]


def test_a_label_that_was_added_to_a_written_query_is_of_the_same_one_later(folder: Path, tmp_path: Path) -> None:
    """The file of added labels names a written query by its id; the next run reads it before queries are written."""
    write_queries(WriteQueries(generator="titles"), dataset=folder / "dataset", written_queries=tmp_path / "written")
    written = WrittenQueries.read(tmp_path / "written")
    before = selected(folder, tmp_path / "before", written)
    row = int(before.query_rows("train")[0])
    query_id, text = (before.queries.column(name)[row].as_py() for name in ("query_id", "text"))
    passage = before.passages.ids()[7].as_py()
    write_labels(tmp_path / "labels.jsonl", [AddedLabel(query_id, text, passage)])
    settings = Ingest.model_validate({**before.manifest.settings, "labels": str(tmp_path / "labels.jsonl")})
    with drafting(tmp_path / "dataset", "dataset") as draft:
        canonicalize(open_source(settings), settings, draft=draft)
        draft.manifest.step, draft.manifest.settings = "ingest", settings.model_dump()
    (tmp_path / "index").symlink_to(folder / "index")
    after = selected(tmp_path, tmp_path / "after", written)
    ids = after.queries["query_id"].to_pylist()
    assert len(set(ids)) == len(ids) and after.queries["text"][ids.index(query_id)].as_py() == text

    def labels(data: Dataset) -> dict[str, set[str]]:
        passages, passages_of = data.passages.ids().to_pylist(), dict[str, set[str]]()
        names = data.queries["query_id"].to_pylist()
        for query, row in zip(data.qrels.query.tolist(), data.qrels.passage.tolist(), strict=True):
            passages_of.setdefault(names[query], set()).add(passages[row])
        return passages_of

    expected = labels(before)
    expected[query_id].add(passage)
    assert labels(after) == expected, "the generated label stays"
    assert (np.diff(after.qrels.query) >= 0).all()
    assert after.identical[ids.index(query_id)] == before.identical[row]


SHARES = {2: 0.2, 1: 0.1}
"""Of test and dev."""


def test_units_are_dealt_out_by_share(folder: Path) -> None:
    units = [f"u{i}.md" for i in range(1000)]
    split = splits_of(dict.fromkeys(units, 1), SHARES, 0)
    taken = [sum(split[unit] == code for unit in units) for code in (0, 1, 2)]
    assert taken[2] == pytest.approx(200, abs=40) and taken[1] == pytest.approx(100, abs=30)
    few = splits_of(dict.fromkeys(units[:4], 1), SHARES, 0)
    assert set(few.values()) == {0, 1, 2}, "none is without a unit"
    data = Dataset(folder / "dataset")
    assert len(set(units_of(data, 20))) == 40
    # Of too few documents, the units are sections: one here, so each page stays whole.
    assert len(set(units_of(data, 41))) == 40 and units_of(data, 41) != units_of(data, 20)


def test_a_copy_in_another_split_is_no_test_passage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, written = Dataset(folder / "dataset"), of(*((row, f"query {row}") for row in range(80)))

    def rows(groups: np.ndarray | None) -> dict[str, set[int]]:
        monkeypatch.setattr(data, "passage_groups", groups)
        selection = Selection.of(written)
        split = assign(selection, data, dict.fromkeys(SPLITS, 0), SelectQueries())
        of_split: dict[str, set[int]] = {name: set() for name in SPLITS}
        for code, passages in zip(split.tolist(), selection.passages, strict=True):
            of_split[SPLITS[code]] |= set(passages)
        return of_split

    before = rows(None)
    train, others = sorted(before["train"]), sorted(before["test"] | before["dev"])
    groups = np.arange(80, dtype=np.int32)
    copy, original, twin = others[0], train[0], train[-1]
    groups[[copy, original]] = min(copy, original)
    groups[twin] = groups[train[1]]  # within train copies change nothing
    after = rows(groups)
    assert after["train"] == before["train"]
    assert after["test"] | after["dev"] == set(others) - {copy}
