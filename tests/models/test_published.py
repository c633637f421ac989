"""A published model gives the vectors that sentence-transformers gives, or it is refused by what is not understood."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write_tiny_backbone, write_tokenizer
from published_folders import (
    LENGTH,
    SIZE,
    Change,
    edit,
    publish,
    published_vectors,
    refusal,
    vectors_of,
    worst_cosine,
    write,
    write_transformer,
)
from safetensors.torch import load_file, save_file

from gnn_encoder.flow.graph import Node
from gnn_encoder.models.backbone import load_encoder
from gnn_encoder.models.backbone_files import sentence_transformers_layout
from gnn_encoder.models.bert_dmn import BertDmn
from gnn_encoder.models.check import check_models
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.models.late_interaction import LateInteraction, LateInteractionLayout
from gnn_encoder.models.query_generator import QueryGenerator
from gnn_encoder.settings.foundation import TrainCrossEncoder, TrainDpr, TrainQueryGenerator
from gnn_encoder.settings.outcome import Rank
from gnn_encoder.settings.reranking import TrainReranker


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_transformer(tmp_path_factory.mktemp("raw") / "bert")


@pytest.fixture(scope="module")
def mean_model(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(raw, tmp_path_factory.mktemp("published") / "mean", "mean")


@pytest.fixture
def copied(mean_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(mean_model, tmp_path / "copy"))


@pytest.mark.parametrize(
    ("kind", "pooling", "legacy"),
    [("bert", "cls", False), ("roberta", "mean", True), ("mpnet", "mean", True), ("modernbert", "cls", False)],
)
def test_one_pooling_of_an_encoder_is_read(tmp_path: Path, kind: str, pooling: str, legacy: bool) -> None:
    from sentence_transformers.base.modules import Normalize

    padding = {"pad_token_id": 1} if kind == "roberta" else {}
    raw = write_transformer(tmp_path / "raw", kind, **padding)
    folder = publish(raw, tmp_path / "st", pooling, legacy=legacy, more=[Normalize()])
    read = vectors_of(folder)
    for side in ("encode_query", "encode_document"):
        np.testing.assert_allclose(read, published_vectors(folder, side), atol=2e-6)
    # Control: the other pooling would be seen.
    other = vectors_of(folder, pooling={"cls": "mean", "mean": "cls"}[pooling])
    assert worst_cosine(read, other) < 0.99


@pytest.mark.parametrize("kind", ["qwen2", "llama", "gemma"])
def test_the_mean_of_a_causal_model_is_read(tmp_path: Path, kind: str) -> None:
    folder = publish(write_transformer(tmp_path / "raw", kind), tmp_path / "st", "mean", legacy=True)
    assert worst_cosine(vectors_of(folder), published_vectors(folder)) > 0.99999


@pytest.mark.parametrize(
    ("kind", "config"), [("qwen2", {"is_causal": False}), ("gemma", {"use_bidirectional_attention": True})]
)
def test_a_decoder_that_reads_ahead_is_read(tmp_path: Path, kind: str, config: dict[str, Any]) -> None:
    folder = publish(write_transformer(tmp_path / "raw", kind, **config), tmp_path / "st", "cls")
    assert worst_cosine(vectors_of(folder), published_vectors(folder)) > 0.99999


def test_vectors_compared_by_cosine_have_unit_length(copied: Path) -> None:
    assert json.loads((copied / "config_sentence_transformers.json").read_text())["similarity_fn_name"] == "cosine"
    read, published = vectors_of(copied), published_vectors(copied)
    np.testing.assert_allclose(read, published / np.linalg.norm(published, axis=1, keepdims=True), atol=2e-6)
    # As they are if their inner product compares them, and if the setting says so.
    np.testing.assert_allclose(vectors_of(copied, normalize="no"), published, atol=1e-5)
    edit("config_sentence_transformers.json", similarity_fn_name="dot")(copied)
    np.testing.assert_allclose(vectors_of(copied), published, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        edit("sentence_bert_config.json", do_lower_case=True),  # the tokenizer does so
        edit("sentence_bert_config.json", max_seq_length=LENGTH, model_args={}, processing_kwargs={}),
        edit("config_sentence_transformers.json", prompts={"query": "", "document": ""}, default_prompt_name="query"),
        edit("config_sentence_transformers.json", truncate_dim=None, similarity_fn_name=None),
        edit("1_Pooling/config.json", pooling_mode=["mean"], pooling_mode_cls_token=True),
        lambda folder: (folder / "config_sentence_transformers.json").unlink(),
    ],
)
def test_a_key_that_changes_no_vector_is_no_obstacle(copied: Path, change: Change) -> None:
    change(copied)
    assert worst_cosine(vectors_of(copied), published_vectors(copied)) > 0.99999


def add_module(kind: str, position: int = 2, **more: Any) -> Change:
    def change(folder: Path) -> None:
        entries = json.loads((folder / "modules.json").read_text())
        entries.insert(position, {"idx": 9, "name": "9", "path": "9_More", "type": kind, **more})
        write(folder / "modules.json", entries)

    return change


def change_weights(lost: str = "", added: str = "") -> Change:
    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weights = {name: value for name, value in weights.items() if not lost or lost not in name}
        if added:
            weights[added] = torch.ones(4)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def several(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes] and None  # type: ignore[func-returns-value]


REFUSED: dict[str, tuple[Change, str]] = {
    "foreign pooling": (edit("1_Pooling/config.json", pooling_mode="attention"), "pools by attention"),
    "two poolings": (add_module("sentence_transformers.models.Pooling"), "and then one Pooling"),
    "no pooling file": (lambda folder: (folder / "1_Pooling/config.json").unlink(), "1_Pooling/config.json is missing"),
    "unknown pooling": (edit("1_Pooling/config.json", pooling_mode_attention=True), "sets pooling_mode_attention"),
    **{
        kind: (add_module(f"sentence_transformers.models.{kind}"), f"modules.json has {kind}")
        for kind in ("LSTM", "CNN", "WordWeights")
    },
    **{
        f"first {kind}": (add_module(f"sentence_transformers.models.{kind}", 0), f"modules.json has {kind}")
        for kind in ("Router", "WordEmbeddings", "BoW", "CLIPModel", "Asym")
    },
    "own module": (add_module("custom_st.Transformer", 0), "modules.json has custom_st.Transformer"),
    "no weights of a map": (add_module("sentence_transformers.models.Dense"), "is refused: its 9_More"),
    "foreign function": (
        several(
            add_module("sentence_transformers.models.Dense"),
            lambda folder: (folder / "9_More").mkdir(),
            edit("9_More/config.json", activation_function="custom.Activation"),
        ),
        "names the function custom.Activation",
    ),
    "inputs": (add_module("sentence_transformers.models.Normalize", kwargs=["task"]), "Normalize the inputs task"),
    "other folder": (
        lambda folder: (folder / "modules.json").write_text(
            (folder / "modules.json").read_text().replace('"path": ""', '"path": "0_Transformer"')
        ),
        "its transformer is in '0_Transformer'",
    ),
    "prompts": (edit("config_sentence_transformers.json", prompts={"query": 3}), "has prompts that are no texts"),
    "euclidean": (edit("config_sentence_transformers.json", similarity_fn_name="euclidean"), "compares by euclidean"),
    "manhattan": (edit("config_sentence_transformers.json", similarity_fn_name="manhattan"), "compares by manhattan"),
    "shorter": (edit("config_sentence_transformers.json", truncate_dim=-1), "sets truncate_dim to -1"),
    "longer": (edit("config_sentence_transformers.json", truncate_dim=33), "dimension = 33, and its vectors have 32"),
    "sparse": (edit("config_sentence_transformers.json", model_type="SparseEncoder"), "sets model_type to 'SparseEnc"),
    "chat": (
        edit("sentence_bert_config.json", modality_config={"text": {}, "message": {}}),
        "sentence_bert_config.json sets modality_config",
    ),
    "arguments": (edit("sentence_bert_config.json", model_args={"num_hidden_layers": 1}), "sets model_args"),
    "length of queries": (edit("sentence_bert_config.json", query_length=8), "sets query_length to '8'"),
    "older name of a file": (
        several(
            lambda folder: (folder / "sentence_bert_config.json").unlink(),
            edit("sentence_roberta_config.json", query_expansion={"length": 32}),
        ),
        "sentence_roberta_config.json sets query_expansion",
    ),
    "own code": (edit("config.json", auto_map={"AutoModel": "modeling.Own"}), r"names code of its own \(auto_map\)"),
    "foreign code": (edit("config.json", auto_map={"AutoModel": "a/b--c.Own"}), "code of another repository"),
    "own tokenizer": (
        edit("tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization.Own", None]}),
        r"tokenizer_config.json names code of its own \(auto_map\)",
    ),
    "own class": (edit("config.json", architectures=["XLMRobertaLoRA"]), "names the class XLMRobertaLoRA"),
    "unknown type": (edit("config.json", model_type="new", architectures=["NewModel"]), "cannot load backbone.*new"),
    "quantized": (edit("config.json", quantization_config={"quant_method": "gptq", "bits": 4}), "quantization_config"),
    "adapter": (edit("adapter_config.json", peft_type="LORA"), "adapter_config.json says that it is an adapter"),
    "pickled code": (
        several(
            lambda folder: (folder / "model.safetensors").unlink(),
            lambda folder: torch.save({"weight": pytest.approx}, folder / "pytorch_model.bin"),
        ),
        "cannot load backbone",
    ),
    "lost weights": (change_weights(lost="layer.1.attention"), r"lack the weights encoder.layer.1.*and \d+ more"),
    "foreign weights": (change_weights(added="lora.query"), "does not read its weights lora.query"),
    "foreign names": (
        several(change_weights(lost="layer.1.output"), change_weights(added="layer.1.norm2.weight")),
        "lack the weights encoder.layer.1.output",
    ),
    "another linear map": (change_weights(added="linear.weight"), "does not read its weights linear.weight"),
}  # fmt: skip


def test_settings_that_change_no_vector_are_no_reason(copied: Path) -> None:
    edit("1_Pooling/config.json", include_prompt=False)(copied)
    modules = copied / "modules.json"
    modules.write_text(modules.read_text().replace('"path": ""', '"path": "."'))
    assert worst_cosine(vectors_of(copied), published_vectors(copied)) > 0.99999


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused_by_its_name(copied: Path, case: str) -> None:
    change, reason = REFUSED[case]
    TextEncoder.from_backbone(str(copied))  # control: as published it is read
    change(copied)
    message = refusal(lambda: TextEncoder.from_backbone(str(copied)))
    assert str(copied) in message
    assert re.search(reason, message), message
    call = Node("train_dpr", TrainDpr(backbone=str(copied)), {})
    assert refusal(lambda: check_models([call])) == message


def test_all_reasons_are_in_the_line(copied: Path) -> None:
    for case in ("foreign pooling", "prompts", "CNN"):
        REFUSED[case][0](copied)
    message = refusal(lambda: sentence_transformers_layout(str(copied)))
    assert "attention" in message and "prompts" in message and "CNN" in message


def test_a_pooling_in_the_settings_goes_before_the_files(copied: Path) -> None:
    expected = vectors_of(copied)
    edit("1_Pooling/config.json", pooling_mode="lasttoken")(copied)
    assert worst_cosine(vectors_of(copied), expected) < 0.99
    assert worst_cosine(vectors_of(copied, pooling="mean"), expected) > 0.99999


def test_a_head_that_nothing_here_uses_is_left_out(tmp_path: Path) -> None:
    from transformers import AutoConfig, BertForPreTraining, BertForSequenceClassification

    config = AutoConfig.from_pretrained(write_tiny_backbone(tmp_path / "raw"))
    for head in (BertForPreTraining, BertForSequenceClassification):
        folder = tmp_path / head.__name__
        write_tokenizer(folder)
        model = head(config)
        model.save_pretrained(folder)
        words = load_encoder(str(folder)).get_input_embeddings().weight
        assert torch.equal(words, model.bert.get_input_embeddings().weight)
        # The same weights again: no part of the encoder starts at random.
        for first, second in zip(
            load_encoder(str(folder)).parameters(), load_encoder(str(folder)).parameters(), strict=True
        ):
            assert torch.equal(first, second)


def test_a_causal_model_reads_no_pair_and_no_first_token(tmp_path: Path, raw: Path) -> None:
    causal = str(write_transformer(tmp_path / "qwen2", "qwen2"))
    same = "qwen2 is causal, so its first token has the same vector in all texts"
    for read in (
        lambda name: TextEncoder.from_backbone(name, pooling="cls"),
        lambda name: CrossEncoder.from_backbone(name, 32),
        lambda name: BertDmn.from_backbone(name, 32, width=4),
        lambda name: check_models([Node("train_cross_encoder", TrainCrossEncoder(backbone=name, pair_length=32), {})]),
        lambda name: check_models([Node("train_reranker", TrainReranker(backbone=name, pair_length=32), {})]),
        lambda name: check_models([Node("train_dpr", TrainDpr(backbone=name, pooling="cls"), {})]),
    ):
        assert same in refusal(lambda read=read: read(causal))
        read(str(raw))  # control: an encoder is read
    assert TextEncoder.from_backbone(causal, pooling="mean").pooling == "mean"


def test_attention_that_the_config_names_and_transformers_lacks_is_refused(tmp_path: Path) -> None:
    causal = write_transformer(tmp_path / "gpt", "llama")
    edit("config.json", use_bidirectional_attention=True)(causal)
    message = refusal(lambda: TextEncoder.from_backbone(str(causal)))
    assert "asks for bidirectional attention, which llama has not" in message


def test_an_encoder_with_a_decoder_is_refused(tiny_seq2seq: Path, tmp_path: Path) -> None:
    for read in (load_encoder, TextEncoder.from_backbone):
        assert "bart has an encoder and a decoder" in refusal(lambda read=read: read(str(tiny_seq2seq)))
    t5 = str(write_transformer(tmp_path, "t5"))
    TextEncoder.from_backbone(t5, "mean")  # control
    for read in (load_encoder, partial(CrossEncoder.from_backbone, max_length=32)):
        assert "t5 has an encoder and a decoder" in refusal(lambda read=read: read(t5))


def test_a_model_of_images_is_refused_in_one_line(tmp_path: Path) -> None:
    import transformers

    write_tokenizer(tmp_path)
    sizes = {**SIZE, "image_size": 8, "patch_size": 4}
    transformers.ViTModel(transformers.ViTConfig(**sizes)).save_pretrained(tmp_path)
    assert "is refused" in refusal(lambda: load_encoder(str(tmp_path)))


def test_a_tokenizer_that_does_not_write_pairs_is_refused(tiny_causal: Path, raw: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(raw, tmp_path / "copy"))
    for file in tiny_causal.glob("tokenizer*"):
        shutil.copy(file, folder)
    message = refusal(lambda: CrossEncoder.from_backbone(str(folder), 32))
    assert "does not write two texts as [CLS] query [SEP] passage [SEP]" in message


def test_late_interaction_refuses_another_package_s_map(copied: Path) -> None:
    layout = LateInteractionLayout(8, 16, 24)
    LateInteraction.from_backbone(str(copied), layout)
    linear = Path(shutil.copytree(copied, copied.parent / "linear"))
    add_module("sentence_transformers.models.Dense", 1)(linear)
    assert "modules.json has Dense" in refusal(lambda: LateInteraction.from_backbone(str(linear), layout))
    add_module("pylate.models.Dense.Dense", 1)(copied)
    assert "modules.json has pylate.models.Dense" in refusal(lambda: LateInteraction.from_backbone(str(copied), layout))
    settings = TrainReranker(kind="colbert", backbone=str(copied), query_length=16, passage_length=24)
    assert "pylate" in refusal(lambda: check_models([Node("train_reranker", settings, {})]))


def test_a_generator_without_some_of_its_weights_is_refused(
    tiny_seq2seq: Path, tiny_causal: Path, tmp_path: Path
) -> None:
    for number, model in enumerate((tiny_seq2seq, tiny_causal)):
        folder = Path(shutil.copytree(model, tmp_path / str(number)))
        settings = TrainQueryGenerator(generator=str(folder), passage_length=24, query_length=12)
        assert check_models([Node("train_query_generator", settings, {})]) == [str(folder)]
        change_weights(lost="fc1" if model is tiny_seq2seq else "mlp.up_proj")(folder)
        call = Node("train_query_generator", settings, {})
        assert "lack the weights" in refusal(partial(QueryGenerator.from_pretrained, str(folder), 24, 12))
        assert "lack the weights" in refusal(partial(check_models, [call]))


def test_what_this_project_writes_is_read_again(raw: Path, tmp_path: Path) -> None:
    encoder = TextEncoder.from_backbone(str(raw), pooling="mean", normalize="yes", max_length=LENGTH)
    encoder.save(tmp_path / "own")
    assert TextEncoder.load(tmp_path / "own").pooling == "mean"
    assert TextEncoder.from_backbone(str(tmp_path / "own")).normalize


def test_minilm_needs_no_load() -> None:
    rank = Node("rank", Rank(system="untrained", backbone="minilm"), {})
    assert check_models([Node("train_dpr", TrainDpr(backbone="minilm"), {}), rank]) == ["minilm"]
    longer = Node("train_dpr", TrainDpr(backbone="minilm", passage_length=257), {})
    assert "reads at most 256 tokens" in refusal(lambda: check_models([longer]))
    code = (
        "import sys; from gnn_encoder.models.check import check_models; "
        "from gnn_encoder.flow.graph import Node; from gnn_encoder.settings.foundation import TrainDpr; "
        "check_models([Node('train_dpr', TrainDpr(backbone='minilm'), {})]); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_a_run_with_a_refused_model_starts_no_step(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from command_line import call

    edit("config_sentence_transformers.json", model_type="SparseEncoder")(copied)
    data = tmp_path / "data"
    data.mkdir()
    for name, rows in {"corpus": [{"_id": "p", "text": "a stone"}], "queries": [{"_id": "q", "text": "stone"}]}.items():
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (data / "qrels").mkdir()
    (data / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp\t1\n")
    command = ["run", "--dataset", str(data), "--root", str(tmp_path / "root"), "--set", f"shared.backbone={copied}"]
    for preset in ("quickstart", "auto"):
        more = ["--set", "ingest.format=auto"] if preset == "quickstart" else []
        assert call(*command, "--preset", preset, *more) == 2
        assert "sets model_type to 'SparseEncoder'" in capsys.readouterr().err
    assert not list((tmp_path / "root").rglob("dataset*"))
