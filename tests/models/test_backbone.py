"""What a backbone's own files say is read from a folder and from a hub repository alike."""

import json
from pathlib import Path

import pytest

from gnn_encoder.errors import UserError
from gnn_encoder.models.backbone import backbone_width, load_encoder, sentence_transformers_layout

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
    assert sentence_transformers_layout(str(tmp_path)) == ("cls" if cls else "mean", True)
    assert backbone_width(str(tmp_path)) == 48


def test_layout_of_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--some--encoder"
    write_layout(repository / "snapshots" / ("0" * 40), cls=False)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert sentence_transformers_layout("some/encoder") == ("mean", True)
    assert backbone_width("some/encoder") == 48
    # Control: a name that is not in the cache says nothing.
    assert sentence_transformers_layout("some/other") == (None, False)


def test_a_corrupt_folder_is_one_line(tiny_backbone: Path, tmp_path: Path) -> None:
    for file in tiny_backbone.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"\xff" * 64 + weights.read_bytes()[64:])
    with pytest.raises(UserError, match="cannot load backbone"):
        load_encoder(str(tmp_path))
