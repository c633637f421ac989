"""The GNN against PyG's GATConv and against float64 loops written straight from eq. 3–10."""

import json
import math

import numpy as np
import pytest
import torch

from gnn_encoder.models.gnn import GNN, GATLayer, GnnConfig

D, DE, K = 12, 6, 5


def config(heads: int = 4, **changes) -> GnnConfig:
    return GnnConfig(width=D, edge_width=DE, heads=heads, **changes)


def layer_and_peer(heads: int):
    """Our layer and PyG's with the same weights."""
    from torch_geometric.nn import GATConv

    torch.manual_seed(heads)
    layer = GATLayer(config(heads))
    peer = GATConv((D, D), D // heads, heads=heads, edge_dim=DE, add_self_loops=False, bias=False)
    with torch.no_grad():
        peer.lin_src.weight.copy_(layer.source.weight)
        peer.lin_dst.weight.copy_(layer.target.weight)
        peer.lin_edge.weight.copy_(layer.edge.weight)
        peer.att_dst.copy_(layer.attention[0][None])
        peer.att_src.copy_(layer.attention[1][None])
        peer.att_edge.copy_(layer.attention[2][None])
    return layer, peer


def peer_output(peer, targets, sources, edges, features, loops):
    """PyG sees self-loops as edges from extra source nodes, one per target."""
    t, s = len(targets), len(sources)
    self_edges = torch.stack([torch.arange(s, s + t), torch.arange(t)])
    return peer(
        (torch.cat([sources, targets]), targets),
        torch.cat([edges, self_edges], dim=1),
        torch.cat([features, loops.expand(t, -1)]),
    )


@pytest.mark.parametrize("heads", [1, 4])
def test_ragged_equals_pyg(heads):
    layer, peer = layer_and_peer(heads)
    targets, sources, loop = torch.randn(7, D), torch.randn(9, D), torch.randn(DE)
    degrees = [0, 1, 9, 3, 0, 5, 2]  # ragged, with isolated passages
    source = torch.cat([torch.randperm(9)[:n] for n in degrees])
    target = torch.repeat_interleave(torch.arange(7), torch.tensor(degrees))
    edges, features = torch.stack([source, target]), torch.randn(sum(degrees), DE)
    expected = peer_output(peer, targets, sources, edges, features, loop)
    assert torch.allclose(layer.ragged(targets, sources, edges, features, loop)[0], expected, atol=1e-5)
    # Control: the comparison notices other edge features.
    assert not torch.allclose(layer.ragged(targets, sources, edges, features + 1, loop)[0], expected, atol=1e-3)


@pytest.mark.parametrize("heads", [1, 4])
def test_dense_equals_pyg(heads):
    layer, peer = layer_and_peer(heads)
    targets, sources, loops = torch.randn(6, D), torch.randn(6, K, D), torch.randn(6, DE)
    mask = torch.rand(6, K) < 0.7
    mask[2] = False
    features = torch.randn(6, K, DE)
    edges = torch.stack([torch.arange(6 * K)[mask.flatten()], torch.arange(6).repeat_interleave(K)[mask.flatten()]])
    expected = peer_output(peer, targets, sources.flatten(0, 1), edges, features[mask], loops)
    arriving = layer.source_scalars(sources) + layer.edge_scalars(features)
    assert torch.allclose(layer.dense(targets, sources, mask, arriving, loops), expected, atol=1e-5)
    assert not torch.allclose(layer.dense(targets, sources, ~mask, arriving, loops), expected, atol=1e-3)


def loop_gat(layer: GATLayer, target, sources, features):
    """Eq. 3–5 for one target, a list of sources (itself among them) and their edge features, in float64."""
    w_t, w_s, w_e = (m.weight.detach().double().numpy() for m in (layer.target, layer.source, layer.edge))
    heads, size = layer.heads, D // layer.heads
    out = []
    for h in range(heads):
        rows = slice(h * size, (h + 1) * size)
        a = np.concatenate([layer.attention[i, h].detach().double().numpy() for i in range(3)])
        logits = []
        for x, f in zip(sources, features, strict=True):
            e = a @ np.concatenate([w_t[rows] @ target, w_s[rows] @ x, w_e[rows] @ f])
            logits.append(e if e > 0 else 0.2 * e)
        weights = [math.exp(e) for e in logits]
        out.append(sum(w / sum(weights) * (w_s[rows] @ x) for w, x in zip(weights, sources, strict=True)))
    return np.concatenate(out)


@pytest.mark.parametrize("gate", ["filter", "fixed"])
@pytest.mark.parametrize("layers", [1, 2])
def test_whole_gnn_equals_loop_over_the_equations(layers, gate):
    torch.manual_seed(3)
    gnn = GNN(config(layers=layers, gate=gate, gate_alpha=0.3)).eval()
    for parameter in gnn.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    u, t = 5, 6
    h_q, h_p, neighbours = torch.randn(u, D), torch.randn(t, D), torch.randn(u, K, D)
    mask = torch.rand(u, K) < 0.8
    f_q = torch.randn(u, K, DE)
    edges = torch.tensor([[0, 1, 4, 2, 3], [0, 0, 0, 3, 5]])
    f_p = torch.randn(edges.shape[1], DE)
    numpy = {k: v.double().numpy() for k, v in {"q": h_q, "p": h_p, "n": neighbours, "fq": f_q, "fp": f_p}.items()}

    queries = []
    for i in range(u):
        if layers == 1:
            queries.append(numpy["q"][i])
            continue
        chosen = [j for j in range(K) if mask[i, j]]
        context = loop_gat(  # eq. 6
            gnn.query_attention,
            numpy["q"][i],
            [numpy["n"][i, j] for j in chosen] + [numpy["q"][i]],
            [numpy["fq"][i, j] for j in chosen] + [gnn.query_loop.detach().double().numpy()],
        )
        merge = gnn.query_merge
        both = np.concatenate([context, numpy["q"][i]])
        queries.append(merge.weight.detach().double().numpy() @ both + merge.bias.detach().double().numpy())  # eq. 7
    expected = []
    for i in range(t):
        incoming = [e for e in range(edges.shape[1]) if edges[1, e] == i]
        context = loop_gat(  # eq. 8
            gnn.passage_attention,
            numpy["p"][i],
            [queries[edges[0, e]] for e in incoming] + [numpy["p"][i]],
            [numpy["fp"][e] for e in incoming] + [gnn.passage_loop.detach().double().numpy()],
        )
        opening = 0.3
        if gate == "filter":  # eq. 9
            z = gnn.gate.weight.detach().double().numpy() @ np.concatenate([context, numpy["p"][i]])
            opening = 1 / (1 + np.exp(-(z + gnn.gate.bias.detach().double().numpy())))
        expected.append(opening * context + numpy["p"][i])  # eq. 10

    computed = gnn.passage_vectors(h_p, gnn.query_vectors(h_q, neighbours, mask, f_q), edges, f_p).detach().numpy()
    assert np.abs(computed - np.array(expected)).max() < 1e-5
    swapped = gnn.passage_vectors(h_p, gnn.query_vectors(h_q, neighbours, mask, f_q), edges[:, [1, 0, 2, 3, 4]], f_p)
    assert np.abs(swapped.detach().numpy() - np.array(expected)).max() > 1e-3


def test_without_edge_features_and_without_gnn():
    torch.manual_seed(0)
    plain = GNN(GnnConfig(width=D, edge_width=0))
    h_p, queries, edges = torch.randn(4, D), torch.randn(3, D), torch.tensor([[0, 1, 2], [0, 0, 3]])
    out = plain.passage_vectors(h_p, queries, edges, None)
    assert out.shape == (4, D) and not torch.equal(out, h_p)
    assert torch.equal(GNN(config(layers=0)).passage_vectors(h_p, queries, edges, torch.randn(3, DE)), h_p)


def test_normalized_passages_have_unit_length():
    torch.manual_seed(0)
    arguments = (torch.randn(4, D), torch.randn(3, D), torch.tensor([[0, 1, 2], [0, 0, 3]]), torch.randn(3, DE))
    lengths = {
        flag: GNN(config(normalize_passages=flag)).passage_vectors(*arguments).norm(dim=1) for flag in (True, False)
    }
    assert torch.allclose(lengths[True], torch.ones(4), atol=1e-6)
    assert not torch.allclose(lengths[False], torch.ones(4), atol=1e-2)


def test_mean_start_of_an_isolated_passage_keeps_its_direction():
    gnn = GNN(config())
    gnn.start_from_mean(-2.0)
    h_p = torch.randn(3, D)
    out = gnn.passage_vectors(h_p, torch.empty(0, D), torch.empty(2, 0, dtype=torch.long), torch.empty(0, DE))
    assert torch.allclose(out, h_p * (1 + torch.sigmoid(torch.tensor(-2.0))), atol=1e-5)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="divide"):
        GATLayer(config(heads=5))


def test_a_saved_gnns_config_keeps_its_form() -> None:
    written = {
        "width": 384, "edge_width": 6, "heads": 8, "negative_slope": 0.1, "activation": "elu", "layers": 1,
        "gate": "fixed", "gate_alpha": 0.25, "learned_loops": False, "normalize_passages": True,
        "cached_passages": False,
    }  # fmt: skip
    read = GnnConfig(**written)
    assert json.loads(read.model_dump_json()) == written
    assert (read.heads, read.gate_alpha, read.cached_passages) == (8, 0.25, False)
