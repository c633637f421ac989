"""What a backbone's own files say is read from a folder and from a hub repository alike."""

import json
import os
import shutil
from pathlib import Path

import pytest

from gnn_encoder.errors import UserError
from gnn_encoder.models.backbone import load_encoder, load_tokenizer
from gnn_encoder.models.backbone_files import backbone_width, sentence_transformers_layout
from gnn_encoder.models.sentence_layout import TextLayout

MODULES = [
    {"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


def write_layout(folder: Path, cls: bool) -> None:
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": cls}))
    (folder / "config.json").write_text(json.dumps({"hidden_size": 48}))


@pytest.mark.parametrize("cls", [True, False])
def test_layout_of_a_folder(tmp_path: Path, cls: bool) -> None:
    write_layout(tmp_path, cls)
    layout = sentence_transformers_layout(str(tmp_path))
    assert layout.pooling == ("cls" if cls else "mean",) and layout.normalize and layout.plain
    assert backbone_width(str(tmp_path)) == 48


def test_layout_of_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--some--encoder"
    write_layout(repository / "snapshots" / ("0" * 40), cls=False)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert sentence_transformers_layout("some/encoder").pooling == ("mean",)
    assert backbone_width("some/encoder") == 48
    # Control: a name that is not in the cache says nothing.
    assert sentence_transformers_layout("some/other") == TextLayout()


def test_a_corrupt_folder_is_one_line(tiny_backbone: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_backbone, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"\xff" * 64 + weights.read_bytes()[64:])
    with pytest.raises(UserError, match="cannot load backbone"):
        load_encoder(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"attn_implementation": "someone/kernel"}, True),
        ({"_attn_implementation": "kernels-community/flash-attn2"}, True),
        ({"attn_implementation": {"": "someone/kernel"}}, True),
        ({"attn_implementation": "flash_attention_2"}, True),  # which transformers may replace by a hub's kernel
        ({"experts_implementation": "someone/kernel"}, True),
        ({"encoder": {"attn_implementation": "someone/kernel"}}, True),
        ({"num_hidden_layers": 10**7}, True),
        ({"decoder": {"decoder_layers": 10**7}}, True),
        ({"attn_implementation": "eager"}, False),
        ({"attn_implementation": None, "num_hidden_layers": 2}, False),
    ],
)
def test_a_config_that_runs_foreign_code_or_never_ends_is_refused(
    tiny_backbone: Path, tmp_path: Path, change: dict[str, object], refused: bool
) -> None:
    shutil.copytree(tiny_backbone, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    for load in (load_encoder, load_tokenizer, lambda name: backbone_width(name)):
        if refused:
            with pytest.raises(UserError, match=r"its config\.json sets .* to ") as caught:
                load(str(tmp_path))
            assert "\n" not in str(caught.value)
        else:
            load(str(tmp_path))


@pytest.mark.parametrize(
    "change", [{"hidden_size": "x"}, {"hidden_size": 0}, {"vocab_size": 10**10}, {"hidden_act": 3}]
)
def test_a_config_with_a_wrong_value_is_one_line(
    tiny_backbone: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    shutil.copytree(tiny_backbone, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UserError, match="cannot load backbone") as caught:
        load_encoder(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["config.json", "modules.json"])
@pytest.mark.parametrize("content", ["", "[1]", "3", "{", "[" * 100_000, '[{"type": 3, "path": 4}]'])
def test_a_file_of_another_type_is_one_line(tmp_path: Path, file: str, content: str) -> None:
    write_layout(tmp_path, cls=True)
    (tmp_path / file).write_text(content)
    read = backbone_width if file == "config.json" else sentence_transformers_layout
    with pytest.raises(UserError, match=file) as caught:
        read(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_pipe_as_config_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert backbone_width(str(tmp_path)) is None
    with pytest.raises(UserError, match="cannot load backbone"):
        load_encoder(str(tmp_path))
