"""Late interaction over a data set: token vectors and scores against a plain loop over single texts."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import Dataset, DatasetWriter, drafting
from gnn_encoder.inference.late_interaction import encode_passages, late_scores, query_arrays, query_tokens
from gnn_encoder.inference.scorers import LateInteractionScorer
from gnn_encoder.models.late_interaction import LateInteraction, LateInteractionLayout


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Passages of one to many tokens, with punctuation, and longer than the model reads; an empty query."""
    texts = ["river", "the old river , and the stone !", ". . .", "cloud " * 60, "", "a bright stone"]
    with drafting(tmp_path / "data", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages([f"p{i}" for i in range(len(texts))], ["", "garden"] * 3, texts)
        questions = ["what is the river", "", "stone " * 40]
        writer.queries(["q0", "q1", "q2"], questions, ["test"] * 3, [[] for _ in questions])
        writer.qrels(["q0"], ["p0"], [1], [0], [0])
        writer.close()
    return Dataset(tmp_path / "data")


def model_of(backbone: Path, **layout: bool) -> LateInteraction:
    torch.manual_seed(0)
    model = LateInteraction.from_backbone(str(backbone), LateInteractionLayout(16, 12, 20, **layout))
    torch.nn.init.normal_(model.projection.weight)
    # The tiny vocabulary has no punctuation; these words take its place.
    model.punctuation = frozenset(model.tokenizer.convert_tokens_to_ids(["the", "stone"]))
    return model.eval()


def by_hand(model: LateInteraction, query: str, passage: str) -> float:
    """MaxSim of one pair in float64, from the tokenizer's own ids."""

    def vectors(ids: list[int], read: list[int]) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.tensor([ids]), torch.tensor([read]))[0].double().numpy()

    tokenizer, layout = model.tokenizer, model.layout
    first, *rest = tokenizer(query, truncation=True, max_length=layout.query_length - 1)["input_ids"]
    asked = [first, model.markers[0], *rest]
    missing = layout.query_length - len(asked) if layout.expand_queries else 0
    read = [1] * len(asked) + [int(layout.attend_to_masks)] * missing
    queries = vectors([*asked, *[tokenizer.mask_token_id] * missing], read)
    first, *rest = tokenizer(passage, truncation=True, max_length=layout.passage_length - 1)["input_ids"]
    answering = [first, model.markers[1], *rest]
    passages = vectors(answering, [1] * len(answering))
    compared = [p for p, i in zip(passages, answering, strict=True) if tokenizer.decode(i) not in ("the", "stone")]
    return sum(max(float(q @ p) for p in compared) for q in queries)


@pytest.mark.parametrize(
    "layout", [{}, {"attend_to_masks": True}, {"expand_queries": False}], ids=["masks", "attended masks", "no masks"]
)
def test_scores_are_those_of_a_loop_over_pairs(layout: dict[str, bool], dataset: Dataset, tiny_backbone: Path) -> None:
    model = model_of(tiny_backbone, **layout)
    query, passage = (each.ravel() for each in np.meshgrid(np.arange(3), np.arange(6), indexing="ij"))
    order = np.random.default_rng(0).permutation(len(query))
    query, passage = query[order], passage[order]
    scores = late_scores(model, dataset, query, passage, precision="fp32", tokens_per_batch=64)
    texts, questions = dataset.passages.take(np.arange(6)).full_texts(), dataset.query_texts(np.arange(3))
    expected = [by_hand(model, questions[q], texts[p]) for q, p in zip(query, passage, strict=True)]
    np.testing.assert_allclose(scores, expected, atol=5e-3)  # vectors are stored in fp16
    wrong = [by_hand(model, questions[q], texts[p]) for q, p in zip(query, np.roll(passage, 1), strict=True)]
    assert not np.allclose(scores, wrong, atol=5e-3)


def test_no_punctuation_is_kept_and_what_is_kept_has_unit_length(dataset: Dataset, tiny_backbone: Path) -> None:
    model = model_of(tiny_backbone)
    vectors = encode_passages(model, dataset.passages, np.arange(6), precision="fp32")
    counts = np.diff(vectors.offsets)
    # [CLS], the marker, [SEP], and the words but "the" and "stone", as in "garden the old river , and the stone !".
    assert counts.tolist() == [4, 9, 6, 20, 3, 6]
    np.testing.assert_allclose(np.linalg.norm(vectors.values.astype(np.float32), axis=1), 1, atol=2e-3)


def test_a_query_is_filled_up_with_masks(dataset: Dataset, tiny_backbone: Path) -> None:
    model = model_of(tiny_backbone)
    ids, mask, asks = query_arrays(model, query_tokens(model, ["river", "stone " * 40]), np.arange(2))
    assert ids.shape == (2, 12) and asks.all()
    assert mask.sum(axis=1).tolist() == [4, 12]
    assert (ids[0, 4:] == model.tokenizer.mask_token_id).all() and (ids[:, 1] == model.markers[0]).all()
    assert ids[1, -1] == model.tokenizer.sep_token_id


def test_the_shares_of_the_tokens_add_up_to_the_score(dataset: Dataset, tiny_backbone: Path) -> None:
    model = model_of(tiny_backbone)
    parts = LateInteractionScorer(model).explain("what is the river", "the old river , and the stone !")
    assert sum(part.amount for part in parts) == pytest.approx(
        by_hand(model, "what is the river", "the old river , and the stone !"), abs=1e-4
    )
    assert [part.amount for part in parts] == sorted((part.amount for part in parts), reverse=True)
    assert len(parts) == 12 and any(part.source.startswith("river ~ ") for part in parts)
