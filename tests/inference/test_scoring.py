"""Token pairs against the tokenizer's own; scores against a plain pass."""

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import Run
from gnn_encoder.inference.scoring import PairTokens, score_pairs
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.retrieval.first_stage import merge_candidates

QUERIES = ["what is the old river", "a", "the bright copper " * 9]
PASSAGES = ["the engine is in the narrow garden", "stone", "warm winter market and " * 8]
FIRST, SECOND = np.repeat(np.arange(3), 3), np.tile(np.arange(3), 3)


@pytest.fixture(scope="module")
def model(tiny_backbone) -> CrossEncoder:
    torch.manual_seed(1)
    return CrossEncoder.from_backbone(str(tiny_backbone), 40).eval()


def pair_tokens(model: CrossEncoder) -> PairTokens:
    first, second = (Tokens.of(model.tokenizer, texts, 40) for texts in (QUERIES, PASSAGES))
    return PairTokens(model.tokenizer, first, second, 40)


def test_equals_the_tokenizers_pairs_where_nothing_but_the_passage_is_cut(model):
    pairs = pair_tokens(model)
    keep = FIRST < 2
    ids, mask, types = pairs.padded(FIRST[keep], SECOND[keep])
    for i, (q, p) in enumerate(zip(FIRST[keep], SECOND[keep], strict=True)):
        expected = model.tokenizer(QUERIES[q], PASSAGES[p], truncation="only_second", max_length=40)
        length = int(mask[i].sum())
        assert ids[i, :length].tolist() == expected["input_ids"]
        assert types[i, :length].tolist() == expected["token_type_ids"]
        assert not types[i, length:].any()
    assert pairs.lengths(FIRST[keep], SECOND[keep]).tolist() == mask.sum(1).tolist()


def test_a_long_query_is_cut_to_half_and_still_ends_in_sep(model):
    pairs = pair_tokens(model)
    ids, mask, types = pairs.padded(np.array([2]), np.array([2]))
    separator = model.tokenizer.sep_token_id
    assert mask.sum() == 40 and ids[0, 19] == separator and ids[0, 39] == separator
    assert (ids[0] == separator).sum() == 2 and types[0].tolist() == [0] * 20 + [1] * 20


@pytest.mark.parametrize("budget", [1, 90, 4096])
def test_scores_and_vectors_equal_a_plain_pass(model, budget):
    scores, cls = np.empty(9, np.float32), np.empty((9, 32), np.float32)
    score_pairs(model, pair_tokens(model), FIRST, SECOND, scores, cls, precision="fp32", tokens_per_batch=budget)
    for i, (q, p) in enumerate(zip(FIRST, SECOND, strict=True)):
        if q == 2:
            continue  # cut queries differ from the tokenizer's own truncation
        inputs = model.tokenizer(QUERIES[q], PASSAGES[p], truncation="only_second", max_length=40, return_tensors="pt")
        with torch.inference_mode():
            vector = model.backbone(**inputs)[0][0, 0]
            assert abs(float(model.head(vector)) - scores[i]) < 1e-5
        assert np.abs(vector.numpy() - cls[i]).max() < 1e-5
    assert np.abs(scores[0] - scores[1]) > 1e-6


def test_bf16_scores_are_close_and_not_rounded_to_bf16(model):
    (exact, _), (rough, vectors) = (scored(model, precision) for precision in ("fp32", "bf16"))
    assert 0 < np.abs(rough - exact).max() < 0.02
    assert (torch.from_numpy(rough).bfloat16().float().numpy() != rough).any()
    assert next(model.parameters()).dtype is torch.float32 and np.isfinite(vectors).all()


def scored(model: CrossEncoder, precision: str) -> tuple[np.ndarray, np.ndarray]:
    scores, cls = np.empty(9, np.float32), np.empty((9, 32), np.float32)
    score_pairs(model, pair_tokens(model), FIRST, SECOND, scores, cls, precision=precision)
    return scores, cls


def test_training_under_bf16_autocast_has_finite_gradients(model):
    ids, mask, types = (torch.from_numpy(a) for a in pair_tokens(model).padded(FIRST, SECOND))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores, _ = model(ids, mask, types)
    assert scores.dtype is torch.float32
    scores.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    model.zero_grad()


def test_round_trip(tmp_path, model):
    model.save(tmp_path)
    again = CrossEncoder.load(tmp_path)
    assert again.max_length == 40 and torch.equal(again.head.weight, model.head.weight)


def test_candidates_merge_by_rank_without_repeats():
    def run(hits):
        array = np.array([hits])
        return Run.from_hits(np.array([4]), array, np.zeros(array.shape))

    merged = merge_candidates([run([7, 3, 9, 1]), run([3, 8, 7, 2])], np.array([4]), 5)
    assert merged.tolist() == [[7, 3, 8, 9, 1]]
    assert merge_candidates([run([7]), run([7])], np.array([4]), 2).tolist() == [[7, -1]]
