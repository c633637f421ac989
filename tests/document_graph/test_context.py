"""Streamed context vectors equal the network on each passage's own neighbourhood, whatever the chunks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from document_graphs import CASES, PASSAGES, WIDTH, matching, random_graph, random_tokens, stored

from gnn_encoder.document_graph.context import context_vectors
from gnn_encoder.document_graph.neighbourhoods import neighbourhood, within
from gnn_encoder.inference.late_interaction import TokenVectors
from gnn_encoder.models.document_reranker import ContextMatching


def plain(context: ContextMatching, graph, tokens, passages: np.ndarray) -> np.ndarray:
    config = context.network.config
    parts = []
    with torch.no_grad():
        for passage in passages:
            hood = neighbourhood(
                graph, np.array([passage]), config.layers, context_only=config.context_only, kinds=config.edge_types
            )
            matrices = context.network(tokens.take(hood.nodes), hood.hops, 1)
            parts.append(context.context_vectors(matrices.values).numpy())
    return np.concatenate(parts)


@pytest.mark.parametrize("kind", ["lim", "mim"])
@pytest.mark.parametrize("changes", CASES, ids=str)
def test_streamed_vectors_equal_the_networks(kind: str, changes: dict) -> None:
    passages = np.random.default_rng(1).permutation(PASSAGES)
    for seed in range(2):
        graph = random_graph(seed)
        tokens, context = random_tokens(graph, WIDTH), matching(kind, **changes)
        expected = plain(context, graph, tokens, passages)
        for chunk in (10_000, 60):
            streamed = context_vectors(context, graph, stored(tokens), passages, token_vectors="fp32", chunk=chunk)
            np.testing.assert_allclose(streamed.values, expected, atol=3e-5 * np.abs(expected).max(), rtol=1e-4)
    lengths = tokens.lengths[passages] if changes.get("context_asks") != "learned" or kind == "mim" else [32] * PASSAGES
    assert np.diff(streamed.offsets).tolist() == list(lengths)
    # Control: with p's edges the vectors differ.
    if kind == "lim":
        context.network.config = replace(context.network.config, context_only=False)
        assert np.abs(plain(context, graph, tokens, passages) - expected).max() > 1e-2 * np.abs(expected).max()


def test_some_passages_need_some_nodes_and_small_types() -> None:
    graph, passages = random_graph(), np.array([3, 11])
    tokens, context = random_tokens(graph, WIDTH), matching("lim", layers=2)
    every = context_vectors(context, graph, stored(tokens), passages, token_vectors="fp32")
    read = within(graph, passages, 2)
    assert not read.all()
    lengths = np.where(read, tokens.lengths, 0)
    few = TokenVectors(tokens.take(np.flatnonzero(read)).values.numpy(), np.concatenate([[0], np.cumsum(lengths)]))
    streamed = context_vectors(context, graph, few, passages, token_vectors="fp32")
    np.testing.assert_allclose(streamed.values, every.values, atol=1e-5)
    for kind, error in (("fp16", 1e-3), ("int8", 1e-2)):
        small = context_vectors(context, graph, stored(tokens), passages, token_vectors=kind)
        wide = small.values.astype(np.float32) * (1 if small.scales is None else small.scales[:, None])
        assert 0 < np.abs(wide - every.values).max() < error * np.abs(every.values).max()


def test_training_mode_is_restored_and_dropout_is_off() -> None:
    graph = random_graph()
    tokens, context = stored(random_tokens(graph, WIDTH)), matching("lim", dropout=0.9)
    first = context_vectors(context, graph, tokens, np.arange(4), token_vectors="fp32")
    context.train()
    second = context_vectors(context, graph, tokens, np.arange(4), token_vectors="fp32")
    np.testing.assert_array_equal(first.values, second.values)
    assert context.network.training
