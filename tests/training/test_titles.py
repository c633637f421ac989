"""A passage is read with or without its title, alike in training, re-ranking and explanations."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import Dataset, DatasetWriter, drafting
from gnn_encoder.inference.tokens import Tokens, passage_tokens, tokens_at
from gnn_encoder.models.backbone import load_tokenizer
from gnn_encoder.retrieval.scorers import LateInteractionScorer, load_scorer, save_scorer
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.tracking.context import TOKENS
from gnn_encoder.training.rerankers import Reranker, new_reranker


def texts_of(tokens: Tokens) -> list[list[int]]:
    return [tokens.ids[a:b].tolist() for a, b in zip(tokens.offsets, tokens.offsets[1:], strict=False)]


def test_the_tokens_differ_by_the_title_alone_and_the_cache_has_both(
    tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, passages = load_tokenizer(str(tiny_backbone)), tiny_dataset.passages
    title_ids = tokenizer(passages.take(np.arange(100)).titles, add_special_tokens=False)["input_ids"]
    few = np.array([40, 3, 99])
    for order in ((True, False), (False, True)):
        monkeypatch.setenv(TOKENS, str(tmp_path / str(order)))
        texts = {titles: texts_of(passage_tokens(tokenizer, passages, 32, titles)) for titles in order}
        again = {titles: texts_of(passage_tokens(tokenizer, passages, 32, titles)) for titles in order}
        assert again == texts and len([*(tmp_path / str(order)).glob("[!.]*")]) == 2
        for with_title, (first, *rest), title in zip(texts[True], texts[False], title_ids, strict=True):
            assert title and with_title == [first, *title, *rest]
        for titles in order:
            tokens, places = tokens_at(tokenizer, passages, few, 32, titles)
            assert len(tokens) == 3 and texts_of(tokens.take(places)) == [texts[titles][row] for row in few]


def reranker_of(dataset: Dataset, backbone: Path, titles: bool) -> Reranker:
    settings = TrainReranker(
        kind="colbert", backbone=str(backbone), token_width=16, query_length=24, passage_length=40, precision="fp32",
        titles=titles,
    )  # fmt: skip
    reranker = new_reranker(settings, dataset, np.arange(len(dataset.passages)))
    torch.nn.init.normal_(reranker.model.projection.weight, generator=torch.Generator().manual_seed(0))
    reranker.model.eval()
    return reranker


@pytest.mark.parametrize("titles", [True, False])
def test_training_re_ranking_and_explanations_agree_also_after_loading(
    titles: bool, tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path
) -> None:
    reranker = reranker_of(tiny_dataset, tiny_backbone, titles)
    queries, passages = (axis.ravel() for axis in np.meshgrid([3, 70, 85], [5, 17, 42, 99], indexing="ij"))
    with torch.no_grad():
        trained = reranker.score(queries, passages).cpu().numpy()
        assert reranker.table is not None
        table = reranker.table(np.array([3, 70, 85]), np.array([5, 17, 42, 99])).cpu().numpy()
    np.testing.assert_allclose(table.ravel(), trained, atol=1e-5)
    lengths = [
        len(ids) for ids in texts_of(passage_tokens(reranker.model.tokenizer, tiny_dataset.passages, 39, titles))
    ]
    assert (reranker.lengths(queries, passages) == np.array(lengths)[passages] + 24).all()

    save_scorer("colbert", reranker.model, tmp_path)
    scorer = load_scorer(tmp_path)
    assert isinstance(scorer, LateInteractionScorer) and scorer.model.layout.titles == titles
    pairs = zip(tiny_dataset.query_texts(queries), passages.tolist(), strict=True)
    explained = [sum(part.amount for part in scorer.explain(tiny_dataset, *pair)) for pair in pairs]
    several = {
        "rank": reranker.rank(queries, passages),
        "score": scorer.score(tiny_dataset, queries, passages, precision="fp32"),
        "explain": np.array(explained),
    }
    # The control is the same model, which reads passages the other way.
    other = reranker_of(tiny_dataset, tiny_backbone, not titles).rank(queries, passages)
    for scores in several.values():
        np.testing.assert_allclose(scores, trained, atol=2e-3)  # vectors are stored in fp16
        assert np.abs(scores - other).max() > 0.1


def test_one_system_reads_titles_whatever_the_general_setting_is() -> None:
    for general in (True, False):
        settings = TrainReranker(titles=general)
        read = {name: settings.for_system(name).titles for name in ("colbert", "colbert_titles", "ss_bert_h")}
        assert read == {"colbert": general, "colbert_titles": True, "ss_bert_h": general}
        assert settings.for_system("k_nrm") == TrainReranker().for_system("k_nrm")
    with pytest.raises(ValueError, match="colbert_titles cannot have titles"):
        TrainReranker(systems={"colbert_titles": {"titles": False}})
    of_system = TrainReranker(systems={"colbert": {"titles": False}})
    assert not of_system.for_system("colbert").titles and of_system.for_system("colbert_titles").titles


def test_a_model_that_reads_no_titles_reads_the_title_of_a_passage_without_text(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    with drafting(tmp_path / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(["p0", "p1", "p2"], ["the river", "", "a mountain"], ["", "the old harbour", "of stone"])
        writer.close()
    tokenizer, passages = load_tokenizer(str(tiny_backbone)), Dataset(tmp_path / "dataset").passages
    for titles, texts in (
        (True, ["the river", "the old harbour", "a mountain of stone"]),
        (False, ["the river", "the old harbour", "of stone"]),
    ):
        expected = tokenizer(texts, truncation=True, max_length=16)["input_ids"]
        assert texts_of(passage_tokens(tokenizer, passages, 16, titles)) == expected
        assert texts_of(tokens_at(tokenizer, passages, np.arange(3), 16, titles)[0]) == expected
