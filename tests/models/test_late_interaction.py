"""ColBERT's MaxSim against a float64 loop, its vectors, and what it saves."""

import numpy as np
import pytest
import torch

from gnn_encoder.errors import UserError
from gnn_encoder.models.late_interaction import LateInteraction, LateInteractionLayout, max_similarity


def test_max_similarity_equals_a_loop():
    generator = torch.Generator().manual_seed(0)
    queries, passages = torch.randn(3, 4, 5, generator=generator), torch.randn(3, 6, 5, generator=generator)
    asks = torch.arange(4) < torch.tensor([4, 1, 2])[:, None]
    answers = torch.arange(6) < torch.tensor([6, 2, 1])[:, None]
    answers[0, 2] = False  # punctuation in the middle
    scores = max_similarity(queries, passages, asks, answers).numpy()

    def loop(i: int, answers) -> float:
        q, p = queries[i].double().numpy(), passages[i].double().numpy()
        return sum(max(q[t] @ p[u] for u in range(6) if answers[i, u]) for t in range(4) if asks[i, t])

    np.testing.assert_allclose(scores, [loop(i, answers) for i in range(3)], atol=1e-5)
    # Control: with padding in the maximum the scores differ.
    assert np.abs(scores - [loop(i, torch.ones_like(answers)) for i in range(3)]).max() > 1e-2


@pytest.fixture
def model(tiny_backbone) -> LateInteraction:
    return LateInteraction.from_backbone(str(tiny_backbone), LateInteractionLayout(width=6)).eval()


def test_vectors_have_unit_length_and_survive_saving(model, tmp_path):
    ids, mask = torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    ids[:, 1] = torch.tensor(model.markers)
    with torch.no_grad():
        vectors = model(ids, mask)
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(2, 4))
        model.save(tmp_path)
        again = LateInteraction.load(tmp_path).eval()
        assert torch.equal(again(ids, mask), vectors)
    assert (again.layout, again.markers, again.punctuation) == (model.layout, model.markers, model.punctuation)


def test_a_trained_one_is_a_start_with_its_linear_map(model, tiny_backbone, tmp_path):
    model.save(tmp_path)
    start = LateInteraction.from_backbone(str(tmp_path), LateInteractionLayout(width=6, passage_length=9))
    assert torch.equal(start.projection.weight, model.projection.weight) and not start.projection_is_new
    assert (start.layout.passage_length, start.markers) == (9, model.markers)
    fresh = LateInteraction.from_backbone(str(tiny_backbone), LateInteractionLayout(width=6))  # control
    assert not torch.equal(fresh.projection.weight, model.projection.weight) and fresh.projection_is_new
    with pytest.raises(UserError, match="vectors of 6 numbers: set token_width to 6"):
        LateInteraction.from_backbone(str(tmp_path), LateInteractionLayout(width=8))


def test_markers_are_tokens_of_their_own(model):
    """The tiny vocabulary has no unused tokens, MiniLM's has."""
    words = set(model.tokenizer("the words of a text")["input_ids"])
    assert len({*model.markers} - words) == 2
    assert model.backbone.get_input_embeddings().num_embeddings > max(model.markers)
    minilm = LateInteraction.from_backbone("minilm", LateInteractionLayout())
    assert minilm.tokenizer.convert_ids_to_tokens(list(minilm.markers)) == ["[unused0]", "[unused1]"]
    marks = minilm.tokenizer.convert_ids_to_tokens(sorted(minilm.punctuation))
    assert len(marks) == 32 and {".", ",", "(", "#"} < set(marks)


@pytest.mark.parametrize("style", ["RoBERTa", "SentencePiece"])
def test_punctuation_of_tokenizers_with_a_space_in_the_token(style, tiny_backbone):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    if style == "RoBERTa":
        bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    else:
        marks = pre_tokenizers.Split(Regex(r" ?[,.;!()]"), "isolated")
        bpe.pre_tokenizer = pre_tokenizers.Sequence([marks, pre_tokenizers.Metaspace(prepend_scheme="first")])
        bpe.decoder = decoders.Metaspace()
    special = ["<unk>", "<mask>", "<pad>", "[Q]", "[D]"]
    text = "the old river, the stone . (the cloud) ! the letter ;"
    bpe.train_from_iterator([text] * 9, trainers.BpeTrainer(vocab_size=300, special_tokens=special))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, unk_token="<unk>", mask_token="<mask>", pad_token="<pad>",
        additional_special_tokens=special[3:],
    )  # fmt: skip
    backbone = BertModel(BertConfig.from_pretrained(tiny_backbone, vocab_size=len(tokenizer)))
    model = LateInteraction(backbone, tokenizer, LateInteractionLayout(width=6))
    ids = tokenizer(text)["input_ids"]
    kept = [tokenizer.decode([i]).strip() for i in ids if i not in model.punctuation]
    assert kept == ["the", "old", "river", "the", "stone", "the", "cloud", "the", "letter"]
    # Control: the tokens of a mark alone are not all.
    alone = [tokenizer(mark)["input_ids"] for mark in ",.;!()"]
    assert {*ids} & model.punctuation > {*ids} & {token[0] for token in alone if len(token) == 1}


def test_a_tokenizer_without_mask_is_refused(model):
    model.tokenizer.mask_token = None
    with pytest.raises(UserError, match=r"\[MASK\], which this backbone's tokenizer lacks"):
        LateInteraction(model.backbone, model.tokenizer, model.layout)
    LateInteraction(model.backbone, model.tokenizer, LateInteractionLayout(expand_queries=False))
