"""QA-LSTM, K-NRM and the DMN on word vectors against float64 loops over their papers' formulas."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnn_encoder.models.word_models import Knrm, QaLstm, WordDmn, WordModel
from gnn_encoder.training.word_vectors import word_tokenizer
from tests.models.test_dynamic_memory import memory_loop, sigmoid

VECTORS = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
Texts = tuple[list[int], list[list[int]]]
PAIRS: list[Texts] = [([1, 2], [[2, 4], [6]]), ([3], [[3, 5, 6]]), ([4, 5, 6, 2], [[1]])]
"""Words of a query, and of each sentence of a passage; word 0 is padding."""


def joined(sentences: list[list[int]]) -> list[int]:
    return [word for words in sentences for word in words]


def arrays(pairs: list[Texts], wider: int = 0) -> list[torch.Tensor]:
    """The arguments of a model's `forward`, with `wider` further columns of padding."""
    sides = [[query for query, _ in pairs], [[1] * len(query) for query, _ in pairs]]
    sides.append([joined(sentences) for _, sentences in pairs])
    sides.append([[n for n, words in enumerate(sentences, 1) for _ in words] for _, sentences in pairs])
    width = [wider + max(1, *map(len, rows)) for rows in sides]
    return [torch.tensor([row + [0] * (w - len(row)) for row in rows]) for rows, w in zip(sides, width, strict=True)]


def build(network: type[WordModel], **options: Any) -> Any:
    torch.manual_seed(0)
    return network(VECTORS.clone(), None, 8, **options).eval()


def parameters(model: WordModel) -> dict[str, np.ndarray]:
    return {name: value.detach().double().numpy() for name, value in model.named_parameters()}


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


def qa_lstm_loop(model: QaLstm, query: list[int], sentences: list[list[int]]) -> float:
    w, pool = parameters(model), np.max if model.pooling == "max" else np.mean

    def states(words: list[int]) -> list[np.ndarray]:
        vectors = w["words.weight"][words]
        backward = lstm_loop(w, vectors[::-1], "_reverse")[::-1]
        return [np.concatenate(both) for both in zip(lstm_loop(w, vectors, ""), backward, strict=True)]

    question, sentence_states = pool(np.stack(states(query)), 0), states(joined(sentences))
    logits = [
        w["logit.weight"][0] @ np.tanh(w["of_state.weight"] @ h + w["of_query.weight"] @ question)
        for h in sentence_states
    ]
    weights = np.exp(logits) / np.exp(logits).sum()
    answer = pool(np.stack([weight * h for weight, h in zip(weights, sentence_states, strict=True)]), 0)
    return question @ answer / np.linalg.norm(question) / np.linalg.norm(answer)


def knrm_loop(model: Knrm, query: list[int], sentences: list[list[int]]) -> float:
    w = parameters(model)
    unit = w["words.weight"] / np.linalg.norm(w["words.weight"], axis=1, keepdims=True)
    kernels = [(1.0, 1e-3)] + [(mean, 0.1) for mean in (0.9, 0.7, 0.5, 0.3, 0.1, -0.1, -0.3, -0.5, -0.7, -0.9)]
    total = w["answer.bias"][0]
    for weight, (mean, width) in zip(w["answer.weight"][0], kernels, strict=True):
        for q in query:
            counts = [math.exp(-((unit[q] @ unit[p] - mean) ** 2) / (2 * width**2)) for p in joined(sentences)]
            total += weight * model.options["scale"] * math.log(max(sum(counts), 1e-10))
    return math.tanh(total)


def dmn_loop(model: WordDmn, query: list[int], sentences: list[list[int]]) -> float:
    w = parameters(model)
    means = np.stack([w["words.weight"][words].mean(axis=0) for words in sentences])
    question, remembered, _ = memory_loop(model.memory, w["words.weight"][query], means)
    return w["answer.weight"][0] @ np.concatenate([question, remembered]) + w["answer.bias"][0]


MODELS: list[Any] = [
    (QaLstm, {"width": 3}, qa_lstm_loop),
    (QaLstm, {"width": 3, "pooling": "mean"}, qa_lstm_loop),
    (Knrm, {}, knrm_loop),
    (Knrm, {"scale": 0.03}, knrm_loop),
    (WordDmn, {"width": 4}, dmn_loop),
]


@pytest.mark.parametrize(("network", "options", "loop"), MODELS)
def test_scores_equal_a_loop_over_texts_of_any_length(network: Any, options: Any, loop: Any) -> None:
    model = build(network, **options)
    for wider in (0, 2):
        scores = model(*arrays(PAIRS, wider)).tolist()
        assert scores == pytest.approx([loop(model, *pair) for pair in PAIRS], abs=1e-5)
    # Controls: another word of the query or of the passage, and texts that change places, give another score.
    query, sentences = PAIRS[0]
    for other in (([1, 3], sentences), (query, [[2, 4], [5]]), (joined(sentences), [query])):
        assert abs(scores[0] - loop(model, *other)) > 1e-4


def test_qa_lstm_reads_a_passage_once_for_several_pairs_in_a_row() -> None:
    model = build(QaLstm, width=3)
    (first, passage), (second, other), *_ = PAIRS
    several = [(first, passage), (second, passage), (second, other), (first, passage)]
    read: list[int] = []
    model.lstm.register_forward_hook(lambda _, arguments, __: read.append(int(arguments[0].batch_sizes[0])))
    scores = model(*arrays(several, 0)).tolist()
    assert read == [4, 3]  # the queries, then the passages
    assert scores == pytest.approx([qa_lstm_loop(model, *pair) for pair in several], abs=1e-5)


def test_the_other_pooling_is_another_score() -> None:
    model = build(QaLstm, width=3)
    most = model(*arrays(PAIRS))
    model.pooling = "mean"
    assert ((model(*arrays(PAIRS)) - most).abs() > 1e-3).any()


def test_sentences_matter_to_the_dmn_alone() -> None:
    whole = [(query, [joined(sentences)]) for query, sentences in PAIRS]
    for network, options, _ in MODELS:
        model = build(network, **options)
        same = torch.equal(model(*arrays(PAIRS)), model(*arrays(whole)))
        assert same == (not model.reads_sentences)


def test_an_equal_word_is_what_the_first_kernel_counts() -> None:
    model = Knrm(torch.eye(7), None, 8)
    with torch.no_grad():
        model.answer.weight.copy_(torch.tensor([[1.0] + [0.0] * 10]))
        model.answer.bias.zero_()
        same, other = model(*arrays([([2], [[2]]), ([2], [[3]])])).tolist()
    assert same == pytest.approx(0.0, abs=1e-5)  # log 1
    assert other == pytest.approx(math.tanh(0.01 * math.log(1e-10)), abs=1e-5)


@pytest.mark.parametrize(("network", "options", "loop"), MODELS)
def test_a_text_without_words_has_a_score_and_finite_gradients(network: Any, options: Any, loop: Any) -> None:
    model = build(network, **options).train()
    scores = model(*arrays([([], []), PAIRS[0]]))
    scores.sum().backward()
    assert scores.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
    assert model.words.weight.grad.any()


@pytest.mark.parametrize(("network", "options", "loop"), MODELS)
def test_scores_are_fp32_under_autocast(network: Any, options: Any, loop: Any) -> None:
    model = build(network, **options)
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(*arrays(PAIRS))
        assert (VECTORS @ VECTORS.T).dtype is torch.bfloat16  # control
    assert torch.equal(scores, model(*arrays(PAIRS)))


@pytest.mark.parametrize(("network", "options", "loop"), MODELS)
def test_what_is_saved_gives_the_same_scores(network: Any, options: Any, loop: Any, tmp_path: Path) -> None:
    model = build(network, **options)
    model.tokenizer = word_tokenizer([["one two three four five"]], 7)
    model.save(tmp_path)
    again = network.load(tmp_path).eval()
    assert torch.equal(again(*arrays(PAIRS)), model(*arrays(PAIRS)))
    assert again.tokenizer.get_vocab() == model.tokenizer.get_vocab() and again.max_length == 8
