"""The Dynamic Memory Network against a float64 loop over texts, sentences and episodes (BERT-DMN 3.1)."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gnn_encoder.models.dynamic_memory import AttentionGRU, DynamicMemory, MemoryConfig

CONFIG = MemoryConfig(source=5, width=4, episodes=3)


def memory(**changes) -> DynamicMemory:
    torch.manual_seed(1)
    return DynamicMemory(replace(CONFIG, **changes)).eval()


def weights(module) -> dict[str, np.ndarray]:
    return {name: value.detach().double().numpy() for name, value in module.named_parameters()}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru_loop(w: dict[str, np.ndarray], inputs: np.ndarray, name: str, suffix: str = "") -> list[np.ndarray]:
    """States of a GRU with the gates in torch's order: reset, update, candidate."""
    d = w[f"{name}.weight_hh_l0{suffix}"].shape[1]
    h, states = np.zeros(d), []
    for x in inputs:
        a = w[f"{name}.weight_ih_l0{suffix}"] @ x + w[f"{name}.bias_ih_l0{suffix}"]
        b = w[f"{name}.weight_hh_l0{suffix}"] @ h + w[f"{name}.bias_hh_l0{suffix}"]
        reset, update = sigmoid(a[:d] + b[:d]), sigmoid(a[d : 2 * d] + b[d : 2 * d])
        h = (1 - update) * np.tanh(a[2 * d :] + reset * b[2 * d :]) + update * h
        states.append(h)
    return states


def memory_loop(model: DynamicMemory, query: np.ndarray, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray, list]:
    """Q, m and the gates of each episode, of one text without padding."""
    w, config = weights(model), model.config
    d = config.width
    question = ([np.zeros(d), *gru_loop(w, query, "question")])[-1]
    states = gru_loop(w, sentences, "input")
    if config.bidirectional:
        backward = gru_loop(w, sentences[::-1], "input", "_reverse")[::-1]
        states = [one + other for one, other in zip(states, backward, strict=True)]
    m, memories, all_gates = question, [question] if config.memory_includes_question else [], []
    for episode in range(config.episodes):
        i = 0 if config.shared_episodes else episode
        logits = []
        for s in states:
            z = np.concatenate([s * question, s * m, abs(s - question), abs(s - m)])
            hidden = np.tanh(w[f"gates.{i}.hidden.weight"] @ z + w[f"gates.{i}.hidden.bias"])
            logits.append((w[f"gates.{i}.logit.weight"] @ hidden + w[f"gates.{i}.logit.bias"])[0])
        gates = np.exp(logits) / np.exp(logits).sum()
        e = np.zeros(d)
        for s, g in zip(states, gates, strict=True):
            a = w[f"episodes.{i}.input.weight"] @ np.concatenate([s, m]) + w[f"episodes.{i}.input.bias"]
            b = w[f"episodes.{i}.state.weight"] @ e + w[f"episodes.{i}.state.bias"]
            e = g * np.tanh(a[d:] + sigmoid(a[:d] + b[:d]) * b[d:]) + (1 - g) * e
        m = e
        memories.append(m)
        all_gates.append(gates)
    return question, gru_loop(w, memories, "memory")[-1], all_gates


@pytest.mark.parametrize(
    "changes",
    [{}, {"shared_episodes": False}, {"bidirectional": True}, {"memory_includes_question": True}, {"episodes": 1}],
)
def test_equals_a_loop_over_texts_of_any_length(changes):
    model = memory(**changes)
    generator = torch.Generator().manual_seed(2)
    query, sentences = torch.randn(4, 6, 5, generator=generator), torch.randn(4, 7, 5, generator=generator)
    query_length, count = torch.tensor([6, 1, 3, 0]), torch.tensor([1, 7, 3, 2])
    question, remembered = model(query, query_length, sentences, count)
    for i in range(4):
        expected = memory_loop(
            model, query[i, : query_length[i]].double().numpy(), sentences[i, : count[i]].double().numpy()
        )
        np.testing.assert_allclose(question[i].detach().numpy(), expected[0], atol=1e-6)
        np.testing.assert_allclose(remembered[i].detach().numpy(), expected[1], atol=1e-6)
    # Controls: another last sentence and another query are noticed.
    sentences[1, 6] += 1
    query[2, 0] += 1
    other = model(query, query_length, sentences, count)
    assert (other[1][1] - remembered[1]).abs().max() > 1e-4
    assert (other[0][2] - question[2]).abs().max() > 1e-4


def test_padding_changes_nothing():
    model = memory(bidirectional=True)
    query, sentences = torch.randn(2, 4, 5), torch.randn(2, 3, 5)
    lengths = torch.tensor([4, 2]), torch.tensor([3, 1])
    plain = model(query, lengths[0], sentences, lengths[1])
    wider = torch.full((2, 2, 5), 9.0)
    padded = model(torch.cat([query, wider], 1), lengths[0], torch.cat([sentences, wider], 1), lengths[1])
    for one, other in zip(plain, padded, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_gates_sum_to_one_over_the_real_sentences_alone():
    model = memory()
    states, vector = torch.randn(3, 5, 4), torch.randn(3, 4)
    real = torch.arange(5) < torch.tensor([5, 2, 0])[:, None]
    gates = model.gates[0](states, vector, vector + 1, real)
    torch.testing.assert_close(gates.sum(1), torch.tensor([1.0, 1.0, 0.0]))
    assert not gates[~real].any()
    assert (gates[real] > 0).all()


def test_a_passage_without_a_sentence_has_finite_gradients():
    model = memory().train()
    sentences = torch.randn(2, 1, 5, requires_grad=True)
    question, remembered = model(torch.randn(2, 2, 5), torch.tensor([2, 2]), sentences, torch.tensor([0, 1]))
    (question.sum() + remembered.sum()).backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())
    assert not sentences.grad[0].any()


def test_the_attention_gru_is_torchs_cell_with_another_update_gate():
    torch.manual_seed(3)
    ours, cell = AttentionGRU(3, 4), torch.nn.GRUCell(3, 4)
    with torch.no_grad():  # torch's rows are reset, update, candidate; its update gate is 1 - ours
        for theirs, mine in ((cell.weight_ih, ours.input.weight), (cell.weight_hh, ours.state.weight)):
            mine.copy_(torch.cat([theirs[:4], theirs[8:]]))
        for theirs, mine in ((cell.bias_ih, ours.input.bias), (cell.bias_hh, ours.state.bias)):
            mine.copy_(torch.cat([theirs[:4], theirs[8:]]))
        cell.weight_ih[4:8], cell.weight_hh[4:8], cell.bias_hh[4:8] = 0, 0, 0
        cell.bias_ih[4:8] = torch.logit(torch.tensor(0.3))
    inputs = torch.randn(2, 3, 3)
    state = torch.zeros(2, 4)
    for t in range(3):
        state = cell(inputs[:, t], state)
    torch.testing.assert_close(ours(inputs, torch.full((2, 3), 0.7)), state)
    assert not torch.allclose(ours(inputs, torch.full((2, 3), 0.6)), state)
