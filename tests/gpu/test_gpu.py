"""What only a GPU runs: the kernel for packed texts, copies beside the work, NCCL."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from conftest import WORDS, write_first_run
from document_graphs import random_graph, random_tokens
from reference_attention import ReferenceAttention
from required import missing
from safetensors.torch import load_file
from torch import multiprocessing
from torch.nn.attention.varlen import varlen_attn
from torch.optim.optimizer import register_optimizer_step_post_hook

from gnn_encoder.artifacts import Dataset, TrainingSet, drafting
from gnn_encoder.document_graph.neighbourhoods import edges_into
from gnn_encoder.engines.elastic import train_in_processes
from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import autocast, encode_texts
from gnn_encoder.inference.late_interaction import TokenVectors, max_similarities
from gnn_encoder.inference.replicas import streamed
from gnn_encoder.inference.scoring import PairTokens, score_pairs
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.document_gat import DocumentGatConfig, TokenMatrices, TypedAttention
from gnn_encoder.models.dual_encoder import DualEncoder, TextEncoder
from gnn_encoder.models.packed import first_position, is_packed, packed_attention
from gnn_encoder.retrieval import exact
from gnn_encoder.settings.foundation import TrainDpr
from gnn_encoder.steps.train_dpr import train_dpr
from gnn_encoder.storage.checkpoint_store import Checkpoints
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.training import loop, ranks
from gnn_encoder.training.checkpoint import FILE, Position, Saver
from gnn_encoder.training.computation import computing_as_trained, set_dropout
from gnn_encoder.training.contrastive import train_contrastive
from gnn_encoder.training.embed import embed

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
GROUPS_KNOWN = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""torch 2.11 has no attention with fewer heads of keys than of queries over packed texts."""
TEXTS = [" ".join(WORDS[(i * j) % len(WORDS)] for j in range(1, 2 + i % 9 * 3)) for i in range(300)]


@pytest.fixture(autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        missing("no NVIDIA GPU")


@pytest.mark.parametrize("window", [(-1, -1), (3, 3), (16, 16)])
@pytest.mark.parametrize(
    "groups", [4, pytest.param(2, marks=pytest.mark.skipif(not GROUPS_KNOWN, reason="this torch has none"))]
)
def test_the_kernels_attention_stays_in_each_text(window: tuple[int, int], groups: int) -> None:
    torch.manual_seed(2)
    kernel = packed_attention(GPU, torch.bfloat16)
    assert kernel
    bounds = torch.tensor([0, 30, 47, 64, 80, 96, 97, 100], dtype=torch.int32)
    query, (key, value) = torch.randn(105, 4, 32), torch.randn(2, 105, groups, 32)
    halves = [x.bfloat16() for x in (query, key, value)]
    options: dict[str, Any] = {"scale": 0.3, "window_size": window, "enable_gqa": groups == 2}
    expected = ReferenceAttention()(*(x.double() for x in halves), bounds, 30, **options)[:99]

    def error(edges: torch.Tensor, **others: Any) -> float:
        attention = kernel(*(x.to(GPU) for x in halves), edges.to(GPU), 30, **options | others)[:99].double().cpu()
        return float((attention - expected).norm() / expected.norm())

    assert error(bounds) < 1e-2
    assert error(bounds.clamp(min=1) - 1) > 0.1  # controls: texts that begin one later, and other windows
    assert error(bounds, window_size=(1, 1)) > 0.1


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_vectors_and_scores_are_those_of_a_cpu(precision: str, tiny_backbone: Path, monkeypatch) -> None:
    encoder = TextEncoder.from_backbone(str(tiny_backbone), max_length=24)
    assert first_position(encoder.backbone.to(GPU, torch.bfloat16), packed_attention(GPU, torch.bfloat16)) == 0
    encoder.float()
    scorer = CrossEncoder.from_backbone(str(tiny_backbone), max_length=40)
    tokens = Tokens.of(scorer.tokenizer, TEXTS, 24)
    pairs, order = PairTokens(scorer.tokenizer, tokens, tokens, 40), np.arange(len(TEXTS))

    def results(precision: str) -> tuple[np.ndarray, np.ndarray]:
        scores = np.empty(len(order), np.float32)
        score_pairs(scorer, pairs, order, order[::-1], scores, None, precision=precision)
        return encode_texts(encoder, TEXTS, precision=precision), scores

    vectors, scores = results(precision)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    exactly, right = results("fp32")
    allowed = 1e-4 if precision == "fp32" else 3e-2
    assert np.abs(vectors - exactly).max() < allowed * np.abs(exactly).max()
    assert np.abs(scores - right).max() < allowed * np.abs(right).max() and right.std() > 0


def test_no_copy_overtakes_the_work() -> None:
    """Batches of several sizes whose work takes longer, and shorter, than the copies."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 2_000, 400)
    arrays = [generator.standard_normal((int(size), 64)).astype(np.float32) for size in sizes]
    weights = torch.randn(64, 64, device=GPU)

    def work(rows: torch.Tensor, times: int) -> tuple[torch.Tensor, ...]:
        sums = rows.sum(0)
        for _ in range(times):
            weights @ weights
        return rows * 2, sums

    batches = ((number, (array, number % 40)) for number, array in enumerate(arrays))
    read = 0
    for number, (doubled, sums) in streamed(batches, work, GPU):
        assert np.array_equal(doubled, arrays[number] * 2), number
        assert np.allclose(sums, arrays[number].sum(0), atol=1e-2), number
        read += 1
    assert read == len(arrays)


def test_one_process_of_a_team_trains_what_a_process_trains_alone(
    tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TrainDpr(
        backbone=str(tiny_backbone), epochs=3, batch_size=16, precision="fp32", dropout=0.1, dev_queries=0
    )
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    inputs = {"dataset": tiny_dataset.path, "bm25_run": write_first_run(tiny_dataset, tmp_path / "bm25")}

    def trained(name: str, size: int) -> dict[str, torch.Tensor]:
        with mlflow_runs.step_log("test", params={}, tags={}) as log:
            context = Context("train_dpr", log, name)
            with drafting(tmp_path / name, "model") as draft:
                if size:
                    metrics = train_in_processes(train_dpr, size, context, settings, inputs, {"dpr": draft})
                else:
                    metrics = train_dpr.__wrapped__(context, settings, **inputs, dpr=draft)
        assert metrics["steps"] > 10
        return DualEncoder.load(tmp_path / name).state_dict()

    team, alone = trained("team", 1), trained("alone", 0)
    assert max(float((weight - alone[name]).abs().max()) for name, weight in team.items()) < 1e-4
    with pytest.raises(UserError, match=f"has {torch.cuda.device_count()} GPUs"):
        trained("more", torch.cuda.device_count() + 1)


def test_control_a_work_that_does_not_wait_for_the_copies_reads_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.Stream, "wait_stream", lambda self, other: None)
    arrays = [np.full((40_000, 256), number, np.float32) for number in range(20)]
    batches = ((number, (array,)) for number, array in enumerate(arrays))
    sums_of = {number: sums for number, (sums,) in streamed(batches, lambda rows: (rows.sum(1),), GPU)}
    assert any((sums_of[number] != 256 * number).any() for number in sums_of)


@pytest.mark.parametrize("waits", [True, False])
def test_a_state_is_copied_in_the_order_of_the_work(
    waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy comes after the steps before and before the next ones; the control is a thread that does not wait."""
    if not waits:
        monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda self: None)
    net = torch.nn.Linear(4000, 4000, bias=False).to(GPU)
    weights = torch.randn(8000, 8000, device=GPU)
    checkpoints = Checkpoints(str(tmp_path), "key")
    with Saver(checkpoints, net, torch.optim.AdamW(net.parameters()), {}, share=1.0) as saver, torch.no_grad():
        saver.ready()
        for value in (1.0, 2.0):
            for _ in range(100):
                weights @ weights
            net.weight.fill_(value)
            if value == 1.0:
                saver.save(Position(step=1), {})
        assert all(copy.is_pinned() for copy in saver._copies.values())
    written = load_file(checkpoints.folder / FILE)["model.weight"]
    assert bool((written == 1.0).all()) == waits


def train_some(model: DualEncoder, data: Dataset, cached: bool, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """An epoch in bf16 with dropout, whose losses are read at its end alone."""
    monkeypatch.setenv(CHECKPOINTS, str(folder))
    monkeypatch.setattr(loop, "UNREAD_STEPS", {"cuda": 10**6})
    monkeypatch.setattr(loop, "UNREAD_SECONDS", 1e6)
    labels = data.split_qrels("train")
    negatives = np.random.default_rng(0).integers(0, 100, (len(labels.query), 2)).astype(np.int32)
    examples = TrainingSet(
        data.query_texts(labels.query), labels.query, labels.passage, negatives, np.zeros(len(labels.query))
    )
    settings = TrainDpr(epochs=1, batch_size=8, dev_queries=0, precision="bf16", dropout=0.1, gradient_cache=cached)
    with mlflow_runs.step_log("test", params={}, tags={}) as log:
        train_contrastive(model, examples, data, settings, Context("test", log, "key"))


@pytest.mark.parametrize("cached", [False, True])
def test_training_steps_do_not_wait_for_the_gpu(
    cached: bool, tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the third step until the losses are read, torch raises an error where a call waits."""
    model = DualEncoder.from_backbone(str(tiny_backbone), query_length=32, passage_length=32, share_encoders=False)
    read, steps = torch.Tensor.tolist, []

    def may_wait(tensor: torch.Tensor) -> Any:
        torch.cuda.set_sync_debug_mode("default")
        return read(tensor)

    def after_step(*_: object) -> None:
        steps.append(is_packed(model.query_encoder.backbone))
        if len(steps) == 3:
            torch.cuda.set_sync_debug_mode("error")

    monkeypatch.setattr(torch.Tensor, "tolist", may_wait)
    hook = register_optimizer_step_post_hook(after_step)
    try:
        train_some(model, tiny_dataset, cached, monkeypatch, tmp_path)
        assert len(steps) > 5 and all(steps)
        torch.cuda.set_sync_debug_mode("error")  # control
        with pytest.raises(RuntimeError):
            torch.ones(1, device=GPU).item()
    finally:
        hook.remove()
        torch.cuda.set_sync_debug_mode("default")


def test_packed_rows_train_as_padded_texts(tiny_backbone: Path) -> None:
    encoder = TextEncoder.from_backbone(str(tiny_backbone), "mean", "yes", max_length=24).to(GPU).train()
    set_dropout(encoder, 0.0)
    tokens, rows = Tokens.of(encoder.tokenizer, TEXTS, 24), np.arange(len(TEXTS))
    wanted = torch.randn(len(TEXTS), encoder.width, device=GPU)

    def gradient() -> torch.Tensor:
        encoder.zero_grad()
        with autocast("bf16"):
            (embed(encoder, tokens, rows) * wanted).sum().backward()
        return torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None])

    padded = gradient()
    with computing_as_trained(encoder, "bf16"):
        assert is_packed(encoder.backbone)
        packed = gradient()
        wanted = wanted.roll(1, 0)  # control
        assert (gradient() - padded).norm() > 0.5 * padded.norm()
    assert packed.isfinite().all() and (packed - padded).norm() < 0.1 * padded.norm()


def test_the_kernel_drops_weights_at_the_rate() -> None:
    kernel = packed_attention(GPU, torch.bfloat16)
    assert kernel
    bounds = torch.tensor([0, 64, 128], dtype=torch.int32, device=GPU)
    query, key = (torch.randn(128, 4, 32, device=GPU, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    value = torch.ones(128, 4, 32, device=GPU, dtype=torch.bfloat16)
    options: dict[str, Any] = {"scale": 0.1, "window_size": (-1, -1), "enable_gqa": False}
    dropped = kernel(query, key, value, bounds, bounds.diff().max().item(), dropout=0.3, **options)
    assert dropped.float().mean().item() == pytest.approx(1, abs=0.02) and dropped.float().std() > 0.02
    assert kernel(query, key, value, bounds, 64, **options).float().std() < 0.01  # control: nothing is dropped
    dropped.square().sum().backward()
    assert query.grad.isfinite().all() and query.grad.abs().max() > 0


def test_exact_search_and_the_network_over_documents_are_those_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(2)
    vectors, queries = (generator.standard_normal((n, 32)).astype(np.float32) for n in (3_000, 40))
    graph = random_graph()
    tokens, edges = random_tokens(graph, 16), edges_into(graph, np.arange(len(graph)))
    layer = TypedAttention(DocumentGatConfig(width=16, heads=2, dropout=0.0))

    def results(where: torch.device) -> list[np.ndarray]:
        matrices = TokenMatrices(tokens.values.to(where), tokens.lengths)
        heard = layer.to(where)(matrices, matrices, edges).detach().cpu().numpy()
        return [heard, *exact.search(vectors, queries, 10, chunk=256)]

    on_gpu = results(GPU)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    on_cpu = results(torch.device("cpu"))
    assert np.array_equal(on_gpu[2], on_cpu[2])
    assert all(np.abs(one - other).max() < 1e-4 for one, other in zip(on_gpu, on_cpu, strict=True))
    assert np.abs(on_cpu[0]).max() > 1e-2


def collectives(rank: int, folder: str) -> None:
    """NCCL gathers vectors and their gradients, and averages a model's, in a group of one process."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", store=dist.FileStore(f"{folder}/meeting", 1), rank=rank, world_size=1)
    vectors = torch.randn(5, 3, device=GPU, requires_grad=True)
    gathered = ranks._Gather.apply(vectors, [5])
    (gathered * torch.arange(15.0, device=GPU).view(5, 3)).sum().backward()
    assert torch.equal(gathered, vectors) and torch.equal(vectors.grad, torch.arange(15.0, device=GPU).view(5, 3))
    weight = torch.nn.Parameter(torch.ones(2, 2, device=GPU))
    weight.grad = torch.arange(4.0, device=GPU).view(2, 2)
    ranks.world_size = lambda: 2  # else nothing is sent
    ranks.average_gradients([weight], torch.zeros((), device=GPU))
    assert torch.equal(weight.grad, torch.arange(4.0, device=GPU).view(2, 2) / 2)
    dist.destroy_process_group()


def test_collectives_over_nccl(tmp_path: Path) -> None:
    multiprocessing.spawn(collectives, (str(tmp_path),), nprocs=1)


def test_late_interaction_is_that_of_a_plain_loop() -> None:
    generator = np.random.default_rng(1)
    lengths = generator.integers(1, 30, 500)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = generator.standard_normal((int(offsets[-1]), 32)).astype(np.float16)
    queries = generator.standard_normal((40, 6, 32)).astype(np.float32)
    query, passage = generator.integers(0, 40, 3_000), generator.integers(0, 500, 3_000)
    similarities = max_similarities(queries, TokenVectors(values, offsets), query, passage)

    def plain(q: int, p: int) -> float:
        return (queries[q].astype(np.float64) @ values[offsets[p] : offsets[p + 1]].astype(np.float64).T).max(1).sum()

    expected = np.array([plain(q, p) for q, p in zip(query, passage, strict=True)])
    assert np.abs(similarities - expected).max() < 1e-3
    assert np.abs(similarities - np.roll(expected, 1)).max() > 1  # control: other pairs
