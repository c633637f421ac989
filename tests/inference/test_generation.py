"""log P(query | passage) of each kind of generator, against transformers' own loss of one pair at a time; sampling."""

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import Dataset, DatasetWriter, drafting
from gnn_encoder.inference.generation import generate, generation_batches, log_likelihoods, passage_ids, sampled
from gnn_encoder.models.query_generator import QueryGenerator

SEPARATOR = "\nQuestion:"
PASSAGES = ["the old river", "a bright violin and the narrow copper garden in winter", "stone", "what about the market"]
QUERIES = ["what is the river", "violin", "is the stone old and broken in the early winter of the engine", ""]
QUERY, PASSAGE = np.divmod(np.array([13, 2, 5, 5, 0, 15, 10, 7, 8, 3]), 4)  # one pair twice


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("data") / "dataset"
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages([f"p{i}" for i in range(4)], ["winter", "", "", ""], PASSAGES)
        writer.queries([f"q{i}" for i in range(4)], QUERIES, ["test"] * 4, [[]] * 4)
        writer.qrels(["q0"], ["p0"], [1], [0], [0])
        writer.close()
    return Dataset(path)


@pytest.fixture(scope="module", params=["tiny_backbone", "tiny_seq2seq", "tiny_causal", "tiny_gpt2"])
def generator(request: pytest.FixtureRequest) -> QueryGenerator:
    torch.manual_seed(2)
    model = QueryGenerator.from_pretrained(str(request.getfixturevalue(request.param)), 9, 10, SEPARATOR).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # as loaded they are too small to prefer any token
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def by_transformers(model: QueryGenerator, query: str, passage: str) -> float:
    """Minus the loss that transformers computes from `labels`, a mean over the tokens, times their number."""
    tokenizer = model.tokenizer
    passage_part = tokenizer(passage, truncation=True, max_length=9)["input_ids"]
    if model.causal:
        passage_part += tokenizer(SEPARATOR, add_special_tokens=False)["input_ids"]
        target = [*tokenizer(query)["input_ids"], tokenizer.eos_token_id][:10]
        ids, labels = passage_part + target, [-100] * len(passage_part) + target
    else:
        target = tokenizer(query, truncation=True, max_length=10)["input_ids"]
        ids, labels = passage_part, target[1:] if target[0] == model.model.config.decoder_start_token_id else target
    with torch.inference_mode():
        loss = model.model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss
    return -loss.item() * sum(label != -100 for label in labels)


@pytest.mark.parametrize("budget", [1, 40, 10_000])
def test_log_likelihoods_are_transformers_own_losses(generator: QueryGenerator, dataset: Dataset, budget: int) -> None:
    options = {"precision": "fp32", "tokens_per_batch": budget}
    likelihoods = log_likelihoods(generator, dataset, QUERY, PASSAGE, **options)  # type: ignore[arg-type]
    texts = dataset.passages.take(np.arange(4)).full_texts()
    expected = [by_transformers(generator, QUERIES[q], texts[p]) for q, p in zip(QUERY, PASSAGE, strict=True)]
    assert likelihoods.dtype == np.float32
    np.testing.assert_allclose(likelihoods, expected, rtol=2e-5)
    other = [by_transformers(generator, QUERIES[q], texts[p - 1]) for q, p in zip(QUERY, PASSAGE, strict=True)]
    # Of ten pairs one may be close by chance: the noise of the weights is another on another processor.
    assert np.isclose(likelihoods, other, rtol=2e-5).sum() < 3, "the control: the passage matters"
    assert len(set(expected)) == 9, "and one pair is there twice"


def test_no_pairs_have_no_log_likelihoods(generator: QueryGenerator, dataset: Dataset) -> None:
    nothing = np.empty(0, dtype=np.int32)
    assert log_likelihoods(generator, dataset, nothing, nothing).shape == (0,)


def test_samples_depend_on_seed_and_row_alone(generator: QueryGenerator) -> None:
    tokens = passage_ids(generator, PASSAGES * 2)
    options = {"precision": "fp32", "top_k": 20}

    def written(**changes: object) -> list[str]:
        return generate(generator, tokens, **options | changes)  # type: ignore[arg-type]

    first = written(tokens_per_batch=1)
    assert written(tokens_per_batch=10_000) == first
    assert written(seed=1) != first
    assert first[:4] != first[4:], "another row of the same passage"
    some = [6, 1]
    tokens = passage_ids(generator, [PASSAGES[row % 4] for row in some])
    assert written(rows=np.array(some)) == [first[row] for row in some] != written()
    tokens = passage_ids(generator, PASSAGES * 2)
    assert written(top_k=1) == written(temperature=1e-6) == generate(generator, tokens, precision="fp32")


def test_chosen_batches_are_written_alone(generator: QueryGenerator) -> None:
    tokens = passage_ids(generator, PASSAGES * 2)
    batches = generation_batches(generator, tokens, tokens_per_batch=26)
    whole = generate(generator, tokens, precision="fp32", tokens_per_batch=26)
    assert len(batches) > 2
    some = generate(generator, tokens, precision="fp32", tokens_per_batch=26, batches=batches[1:3])
    assert some == [text if row in np.concatenate(batches[1:3]) else "" for row, text in enumerate(whole)]


def test_samples_have_the_probabilities_of_the_softmax_over_the_likeliest() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 1.0, 0.9])
    draws = sampled(np.arange(20_000), 3, 0.7, seed=5)(torch.empty(0), logits.expand(20_000, 5)).argmax(1)
    frequencies = np.bincount(draws.numpy(), minlength=5) / 20_000
    expected = torch.softmax(torch.tensor([-torch.inf, -torch.inf, 2.0, 1.0, 0.9]) / 0.7, 0).numpy()
    np.testing.assert_allclose(frequencies, expected, atol=0.012)  # 3 standard errors
    assert abs(frequencies[2] - torch.softmax(logits, 0)[2]) > 0.05, "the control: without top_k and temperature"
