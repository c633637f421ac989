"""BERT-DMN: what the memory network reads of the encoder's outputs, the answer module, and what is saved."""

import numpy as np
import pytest
import torch

from gnn_encoder.models.bert_dmn import BertDmn, reading

# Two pairs. [CLS] q q [SEP] s1 s1 s2 [SEP], and [CLS] q [SEP] s1 [SEP] and padding.
SEGMENTS = torch.tensor([[-1, 0, 0, -1, 1, 1, 2, -1], [-1, 0, -1, 1, -1, -1, -1, -1]])


def test_sentences_are_the_means_of_their_tokens_and_separators_are_dropped():
    outputs = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0))
    read = reading(outputs, SEGMENTS)
    for i in range(2):
        parts = {n: [outputs[i, t].double().numpy() for t in range(8) if SEGMENTS[i, t] == n] for n in range(3)}
        assert read.query_length[i] == len(parts[0])
        np.testing.assert_allclose(read.query[i, : len(parts[0])], parts[0], atol=1e-6)
        means = [np.mean(parts[n], axis=0) for n in (1, 2) if parts[n]]
        assert read.sentence_count[i] == len(means)
        np.testing.assert_allclose(read.sentences[i, : len(means)], means, atol=1e-6)
        np.testing.assert_array_equal(read.cls[i], outputs[i, 0])
    # Control: the outputs of separators and padding are not read, all others are.
    for position in range(8):
        changed = outputs.clone()
        changed[0, position] += 1
        same = all(torch.equal(a, b) for a, b in zip(reading(changed, SEGMENTS), read, strict=True))
        assert same == (position in (3, 7))


def test_a_query_and_a_passage_without_tokens():
    read = reading(torch.randn(1, 3, 4), torch.tensor([[-1, -1, -1]]))
    assert (read.query_length.item(), read.sentence_count.item()) == (0, 0)
    assert (read.query.shape, read.sentences.shape) == ((1, 1, 4), (1, 1, 4))


@pytest.fixture
def model(tiny_backbone) -> BertDmn:
    torch.manual_seed(0)
    return BertDmn.from_backbone(str(tiny_backbone), 16, width=4, episodes=2).eval()


def pairs() -> tuple[torch.Tensor, ...]:
    ids = torch.tensor([[2, 5, 6, 3, 7, 8, 9, 3], [2, 5, 3, 6, 3, 0, 0, 0]])
    return ids, (ids > 0).long(), (SEGMENTS > 0).long(), SEGMENTS


def test_the_score_is_a_linear_answer_over_cls_question_and_memory(model):
    with torch.no_grad():
        ids, mask, types, segments = pairs()
        outputs = model.backbone(input_ids=ids, attention_mask=mask, token_type_ids=types)[0]
        read = reading(outputs, segments)
        question, memory = model.memory(*read[1:])
        weight, bias = model.answer.weight.double().numpy()[0], model.answer.bias.item()
        scores = model(ids, mask, types, segments)
        for i in range(2):
            facts = np.concatenate([part[i].double().numpy() for part in (read.cls, question, memory)])
            assert scores[i].item() == pytest.approx(weight @ facts + bias, abs=1e-5)
        assert torch.equal(model.score(read), scores)  # what the lite model computes
        # Control: a token that moves to the other sentence changes the score.
        moved = segments.clone()
        moved[0, 5] = 2
        assert (model(ids, mask, types, moved) - scores)[0].abs() > 1e-6
        # Padding does not.
        pad = torch.nn.functional.pad
        wider = [pad(part, (0, 2), value=value) for part, value in zip(pairs(), (0, 0, 0, -1), strict=True)]
        torch.testing.assert_close(model(*wider), scores, atol=1e-5, rtol=0)


def test_what_is_saved_gives_the_same_scores(model, tmp_path):
    model.save(tmp_path)
    again = BertDmn.load(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(again(*pairs()), model(*pairs()))
    assert again.memory.config == model.memory.config


def test_a_text_without_tokens_has_a_score(model):
    ids = torch.tensor([[2, 3, 3]])
    with torch.no_grad():
        score = model(ids, torch.ones_like(ids), torch.zeros_like(ids), torch.full_like(ids, -1))
    assert score.isfinite().all()
