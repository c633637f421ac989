"""QA-LSTM and K-NRM against float64 loops over their papers' formulas."""

import math

import numpy as np
import pytest
import torch

from gnn_encoder.models.word_models import Knrm, QaLstm

WORDS = 7


def pairs() -> tuple[torch.Tensor, ...]:
    """Word numbers and lengths of three queries and passages; the padding is word 6."""
    query = torch.tensor([[0, 1, 6, 6], [2, 6, 6, 6], [3, 4, 5, 1]])
    passage = torch.tensor([[1, 3, 6], [2, 4, 5], [0, 6, 6]])
    return query, torch.tensor([2, 1, 4]), passage, torch.tensor([2, 3, 1])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_loop(w: dict[str, np.ndarray], inputs: np.ndarray, suffix: str) -> list[np.ndarray]:
    d = w[f"lstm.weight_hh_l0{suffix}"].shape[1]
    h, c, states = np.zeros(d), np.zeros(d), []
    for x in inputs:
        gates = w[f"lstm.weight_ih_l0{suffix}"] @ x + w[f"lstm.bias_ih_l0{suffix}"]
        gates = gates + w[f"lstm.weight_hh_l0{suffix}"] @ h + w[f"lstm.bias_hh_l0{suffix}"]
        i, f, g, o = gates[:d], gates[d : 2 * d], gates[2 * d : 3 * d], gates[3 * d :]
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return states


def qa_lstm_loop(model: QaLstm, query: list[int], passage: list[int], pool) -> float:
    w = {name: value.detach().double().numpy() for name, value in model.named_parameters()}

    def states(words):
        vectors = w["words.weight"][words]
        backward = lstm_loop(w, vectors[::-1], "_reverse")[::-1]
        return [np.concatenate(both) for both in zip(lstm_loop(w, vectors, ""), backward, strict=True)]

    asked = pool(np.stack(states(query)), 0)
    found = states(passage)
    logits = [w["logit.weight"][0] @ np.tanh(w["of_state.weight"] @ h + w["of_query.weight"] @ asked) for h in found]
    weights = np.exp(logits) / np.exp(logits).sum()
    answer = pool(np.stack([weight * h for weight, h in zip(weights, found, strict=True)]), 0)
    return asked @ answer / np.linalg.norm(asked) / np.linalg.norm(answer)


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_qa_lstm_equals_a_loop(pooling):
    torch.manual_seed(0)
    model = QaLstm(torch.randn(WORDS, 5), width=3, pooling=pooling).eval()
    query, query_length, passage, passage_length = pairs()
    scores = model(query, query_length, passage, passage_length).detach().numpy()
    pool, other = (np.max, np.mean) if pooling == "max" else (np.mean, np.max)
    for i in range(3):
        texts = query[i, : query_length[i]].tolist(), passage[i, : passage_length[i]].tolist()
        assert scores[i] == pytest.approx(qa_lstm_loop(model, *texts, pool), abs=1e-5)
        if len(texts[0]) > 1:  # control: the other pooling gives another score
            assert abs(scores[i] - qa_lstm_loop(model, *texts, other)) > 1e-3


def knrm_loop(model: Knrm, query: list[int], passage: list[int]) -> float:
    words = model.words.weight.detach().double().numpy()
    unit = words / np.linalg.norm(words, axis=1, keepdims=True)
    total = 0.0
    for kernel, (mean, width) in enumerate(zip(Knrm.MEANS, Knrm.WIDTHS, strict=True)):
        feature = 0.0
        for q in query:
            count = sum(math.exp(-((unit[q] @ unit[p] - mean) ** 2) / (2 * width**2)) for p in passage)
            feature += math.log(max(count, 1e-10))
        total += model.score.weight[0, kernel].item() * feature
    return math.tanh(total + model.score.bias.item())


def test_k_nrm_equals_a_loop():
    torch.manual_seed(0)
    model = Knrm(torch.randn(WORDS, 5))
    with torch.no_grad():
        model.score.weight.mul_(0.05)  # else tanh is 1 everywhere
    query, query_length, passage, passage_length = pairs()
    scores = model(query, query_length, passage, passage_length).detach().numpy()
    for i in range(3):
        texts = query[i, : query_length[i]].tolist(), passage[i, : passage_length[i]].tolist()
        assert abs(scores[i]) < 0.99
        assert scores[i] == pytest.approx(knrm_loop(model, *texts), abs=1e-4)
        assert scores[i] != pytest.approx(knrm_loop(model, texts[0], [*texts[1], 5]), abs=1e-4)  # control


def test_an_equal_word_is_what_the_first_kernel_counts():
    model = Knrm(torch.eye(WORDS))
    with torch.no_grad():
        model.score.weight.copy_(torch.tensor([[0.01] + [0.0] * 10]))
        model.score.bias.zero_()
    one = torch.tensor([1])
    same, other = (model(torch.tensor([[2]]), one, torch.tensor([[word]]), one).item() for word in (2, 3))
    assert same == pytest.approx(0.0, abs=1e-5)  # log 1
    assert other == pytest.approx(math.tanh(0.01 * math.log(1e-10)), abs=1e-5)
