"""The cosines of BERT-DMN's Fig. 3 against a loop over the tokens of one pair at a time, in float64."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from gnn_encoder.inference import replicas
from gnn_encoder.inference.diffusion import BINS, COSINES, Diffusion, diffusion
from gnn_encoder.inference.pair_outputs import FrozenEncoder
from gnn_encoder.inference.scoring import PairTokens
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.cross_encoder import CrossEncoder

QUERIES = ["what is the old river", "a", "the bright copper"]
PASSAGES = ["the engine is in the narrow garden", "stone", "warm winter market and the letter"]
FIRST, SECOND = np.repeat(np.arange(3), 3), np.tile(np.arange(3), 3)


@pytest.fixture(scope="module")
def model(tiny_backbone: Path) -> CrossEncoder:
    return CrossEncoder.from_backbone(str(tiny_backbone), 40).eval()


def measured(model: CrossEncoder, first: np.ndarray, second: np.ndarray) -> Diffusion:
    texts = (Tokens.of(model.tokenizer, texts, 40) for texts in (QUERIES, PASSAGES))
    pairs = PairTokens(model.tokenizer, *texts, 40)
    return diffusion(FrozenEncoder(model), pairs, first, second, precision="fp32", tokens_per_batch=64)


def looped(model: CrossEncoder, first: np.ndarray, second: np.ndarray) -> list[list[float]]:
    """All cosines of each kind; the texts of a pair are told apart by the tokenizer's own sequence numbers."""
    by_kind: list[list[float]] = [[], [], []]
    for q, p in zip(first, second, strict=True):
        read = model.tokenizer(QUERIES[q], PASSAGES[p], return_tensors="pt")
        with torch.no_grad():
            vectors = model.backbone(**read)[0][0].double().numpy()
        texts = read.sequence_ids(0)
        query, passage = ([v for v, text in zip(vectors, texts, strict=True) if text == n] for n in (0, 1))
        pairs = [[(vectors[0], v) for v in query], [(vectors[0], v) for v in passage], list(combinations(passage, 2))]
        for cosines, some in zip(by_kind, pairs, strict=True):
            cosines += [float(a @ b / np.sqrt((a @ a) * (b @ b))) for a, b in some]
    return by_kind


@pytest.mark.parametrize("packs", [True, False])
def test_cosines_equal_a_loop(model: CrossEncoder, packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not packs:
        monkeypatch.setattr(replicas, "packed_attention", lambda *where: None)
    means, expected = measured(model, FIRST, SECOND), looped(model, FIRST, SECOND)
    assert means.counts.sum(axis=1).tolist() == [len(cosines) for cosines in expected]
    np.testing.assert_allclose(means.means, [np.mean(cosines) for cosines in expected], atol=1e-6)
    for counts, cosines in zip(means.counts, expected, strict=True):
        for edge, below in zip(np.linspace(-1, 1, BINS + 1)[1:], np.cumsum(counts), strict=True):
            least, most = (sum(cosine < edge + shift for cosine in cosines) for shift in (-1e-5, 1e-5))
            assert least <= below <= most  # a cosine at an edge may lie in either bin


def test_control_the_cosines_of_other_pairs_differ(model: CrossEncoder) -> None:
    means, other = measured(model, FIRST[:6], SECOND[:6]), looped(model, FIRST[3:], SECOND[3:])
    assert np.abs(means.means - [np.mean(cosines) for cosines in other]).min() > 1e-3


def test_a_passage_of_one_token_has_no_inner_cosine_and_equal_outputs_have_cosine_1(model: CrossEncoder) -> None:
    assert measured(model, np.array([1]), np.array([1])).counts.sum(axis=1).tolist() == [1, 1, 0]

    class Equal(torch.nn.Linear):
        def forward(self, input_ids: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            return torch.full((*input_ids.shape, 3), 0.7)

    texts = (Tokens.of(model.tokenizer, texts, 40) for texts in (QUERIES, PASSAGES))
    cosines = diffusion(Equal(1, 1), PairTokens(model.tokenizer, *texts, 40), FIRST, SECOND, precision="fp32")
    assert (
        len(COSINES) == 3 and (cosines.counts[:, :-1] == 0).all() and cosines.counts.min(axis=1).tolist() == [0, 0, 0]
    )
    np.testing.assert_allclose(cosines.means, 1.0, atol=1e-6)
