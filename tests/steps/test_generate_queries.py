"""Which negatives get a query, the similarities, and their distribution beside the paper's."""

from pathlib import Path

import numpy as np
import pytest
from conftest import first_stage, write_first_run, write_generator
from scipy.special import expit

from gnn_encoder.artifacts import (
    Dataset,
    Draft,
    GeneratedQueries,
    PairScores,
    drafting,
    pair_keys,
    read_manifest,
)
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.inference.generation import generate, passage_ids
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.models.query_generator import QueryGenerator
from gnn_encoder.settings.foundation import GenerateQueries
from gnn_encoder.steps.generate_queries import choose_triples, cosines, generate_queries
from gnn_encoder.training.denoising import Pairs


def write_pair_scores(draft: Draft, dataset: Dataset, per_query: int = 12) -> None:
    """Each train query's positive and some other passages, with random logits."""
    generator = np.random.default_rng(4)
    labels = dataset.split_qrels("train")
    keys = [pair_keys(labels.query, labels.passage)]
    for query in dataset.query_rows("train"):
        keys.append(pair_keys(query, generator.permutation(100)[:per_query]))
    pairs = np.unique(np.concatenate(keys))
    PairScores.create_cls(draft, len(pairs), 4)[:] = 0
    score = generator.normal(0, 4, len(pairs)).astype(np.float32)
    query, passage = (pairs >> 32).astype(np.int32), (pairs & 0xFFFFFFFF).astype(np.int32)
    PairScores.write(draft, query, passage, score, expit(score))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_seq2seq: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("generate")
    with drafting(folder / "pairs", "pair_scores") as draft:
        write_pair_scores(draft, tiny_dataset)
    write_generator(tiny_seq2seq, folder / "generator", 12)
    return {"dataset": tiny_dataset.path, "candidates": folder / "pairs", "query_generator": folder / "generator"}


def settings_for(tiny_backbone: Path, **changes: object) -> GenerateQueries:
    values = {"sentence_encoder": str(tiny_backbone), "precision": "fp32", "negatives_per_query": 3}
    return GenerateQueries.model_validate(values | changes)


def test_artifact_is_what_a_loop_makes(
    tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path, inputs: dict[str, Path]
) -> None:
    generate_queries(settings_for(tiny_backbone), **inputs, generated_queries=tmp_path / "out")
    out, pairs = GeneratedQueries.read(tmp_path / "out"), PairScores.read(inputs["candidates"])
    labels = tiny_dataset.split_qrels("train")
    positive = set(zip(labels.query.tolist(), labels.passage.tolist(), strict=True))
    expected = []
    for query in np.unique(pairs.query):
        candidates = [(s, p) for q, p, s in zip(pairs.query, pairs.passage, pairs.score, strict=True) if q == query]
        candidates = [(s, p) for s, p in candidates if 1 / (1 + np.exp(-s)) < 0.1 and (query, p) not in positive]
        expected += [(query, p) for _, p in sorted(candidates, key=lambda x: (-x[0], x[1]))[:3]]
    assert 60 < len(expected) < 180, "some queries have three negatives, some fewer"
    assert list(zip(out.query.tolist(), out.negative.tolist(), strict=True)) == expected
    assert out.passage.tolist() == sorted({p for _, p in expected})

    generator, encoder = QueryGenerator.load(inputs["query_generator"]), TextEncoder.from_backbone(str(tiny_backbone))
    texts = tiny_dataset.passages.take(out.passage).full_texts()
    assert out.text == generate(generator, passage_ids(generator, texts), precision="fp32")
    assert len(set(out.text)) > 1
    for row in (0, len(expected) // 2, len(expected) - 1):
        text = out.text[out.passage.tolist().index(out.negative[row])]
        a = encode_texts(encoder, tiny_dataset.query_texts(out.query[row : row + 1]), precision="fp32")[0].astype(float)
        b = encode_texts(encoder, [text], precision="fp32")[0].astype(float)
        assert out.similarity[row] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)

    sampling = {"top_k": 5, "temperature": 2.0, "seed": 3}
    generate_queries(settings_for(tiny_backbone, **sampling), **inputs, generated_queries=tmp_path / "sampled")
    drawn = GeneratedQueries.read(tmp_path / "sampled").text
    read = passage_ids(generator, texts)
    assert drawn == generate(generator, read, rows=out.passage, precision="fp32", **sampling) != out.text
    few = settings_for(tiny_backbone, **sampling, max_passages=5)
    generate_queries(few, **inputs, generated_queries=tmp_path / "few")
    fewer = GeneratedQueries.read(tmp_path / "few")
    assert fewer.text == [drawn[out.passage.tolist().index(row)] for row in fewer.passage], "the same texts"

    metrics = read_manifest(tmp_path / "out").metrics
    assert metrics["triples"] == len(expected) and metrics["queries"] == len(out.text)
    assert sum(v for k, v in metrics.items() if k.startswith("similarity_")) == pytest.approx(100)


def test_hits_of_a_run_without_labels_are_drawn_as_negatives(
    tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path, inputs: dict[str, Path]
) -> None:
    queries, hits = first_stage(tiny_dataset)
    write_first_run(tiny_dataset, tmp_path / "run")
    drawn = {}
    for seed in (0, 1):
        settings = settings_for(tiny_backbone, negative_depth=7, seed=seed)
        with_run = inputs | {"candidates": tmp_path / "run"}
        generate_queries(settings, **with_run, generated_queries=tmp_path / f"out{seed}")
        out = GeneratedQueries.read(tmp_path / f"out{seed}")
        drawn[seed] = list(zip(out.query.tolist(), out.negative.tolist(), strict=True))
    labels = tiny_dataset.split_qrels("train")
    positive = set(zip(labels.query.tolist(), labels.passage.tolist(), strict=True))
    train = tiny_dataset.query_rows("train")
    allowed = {
        (int(q), int(p)) for q, row in zip(queries, hits, strict=True) if q in train for p in row[:7]
    } - positive  # the positive is in sixth place
    assert set(drawn[0]) < allowed and drawn[0] != drawn[1]
    assert sorted(q for q, _ in drawn[0]) == sorted(train.tolist() * 3)
    places = [hits[queries.tolist().index(q)].tolist().index(p) for q, p in drawn[0]]
    assert set(places) == {0, 1, 2, 3, 4, 6}, "not the first hits alone"


def test_no_negatives_at_all_is_an_empty_artifact(tmp_path: Path, tiny_backbone: Path, inputs: dict[str, Path]) -> None:
    settings = settings_for(tiny_backbone, negative_below=0.0)
    generate_queries(settings, **inputs, generated_queries=tmp_path / "out")
    out = GeneratedQueries.read(tmp_path / "out")
    assert len(out.text) == len(out.query) == len(out.similarity) == 0


def test_max_passages_draws_passages() -> None:
    generator = np.random.default_rng(0)
    negatives = Pairs(np.repeat(np.arange(30), 6), generator.integers(0, 50, 180))
    everything = choose_triples(negatives, 4, 0, seed=0)
    some = choose_triples(negatives, 4, 10, seed=0)
    assert len(everything) == 120 and len(np.unique(some.passage)) == 10
    kept = set(np.unique(some.passage).tolist())
    expected = [t for t in zip(everything.query, everything.passage, strict=True) if t[1] in kept]
    assert list(zip(some.query, some.passage, strict=True)) == expected
    assert set(np.unique(choose_triples(negatives, 4, 10, seed=1).passage).tolist()) != kept


def test_cosine_ignores_length_and_survives_zero() -> None:
    left, right = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32), np.array([[30.0, 40.0], [-4.0, 3.0]], np.float32)
    got = cosines(left, np.array([0, 0, 1]), right, np.array([0, 1, 0]))
    np.testing.assert_allclose(got, [1.0, 0.0, 0.0], atol=1e-6)
