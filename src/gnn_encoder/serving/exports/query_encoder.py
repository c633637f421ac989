"""The query encoder as a folder that SentenceTransformer loads.

A bundle that ranks by its query adapter is written as a Router: `encode_query` maps the encoder's vector by the
adapter, and `encode_document` does not. Both read as many tokens as a query has: passages' vectors are the bundle's.
"""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from gnn_encoder.errors import UserError
from gnn_encoder.models.address import AddressEncoder
from gnn_encoder.models.dual_encoder import LAYOUT
from gnn_encoder.serving.exports.job import Job, export_to_folder, missing
from gnn_encoder.serving.exports.replay import CLOSE


def export(job: Job) -> str:
    """Writes the encoder into a new folder and returns what was compared, in words."""
    return export_to_folder(job, _write, _replay)


def _write(job: Job, folder: Path) -> None:
    encoder = job.encoder
    if isinstance(encoder, AddressEncoder):
        raise UserError(f"the encoder is at {encoder.address or 'no address'} and has no weights to export")
    for source in sorted(job.bundle.query_encoder_path.iterdir()):
        if source.name != LAYOUT:
            shutil.copyfile(source, folder / source.name)
    names = ["Transformer", "Pooling", *(["Normalize"] if encoder.normalize else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(names)
    ]
    for module in modules[1:]:
        (folder / str(module["path"])).mkdir()
    modes = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
    pooling = {"word_embedding_dimension": encoder.width} | {
        key: mode == encoder.pooling for mode, key in modes.items()
    }
    files = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": encoder.max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {"similarity_fn_name": "dot", "prompts": {}},
        "1_Pooling/config.json": pooling,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    if (adapter := job.adapter) is not None:
        _add_adapter(folder, adapter)


def _add_adapter(folder: Path, adapter: np.ndarray) -> None:
    """Makes the encoder in a folder a Router whose route of queries ends with the matrix W fp32 [d, d]."""
    modules = _modules()
    model = _opened(folder)
    parts = [module for _, module in model.named_children()]
    mapping = modules.Dense(
        *adapter.shape, bias=False, activation_function=nn.Identity(), init_weight=torch.from_numpy(adapter.T.copy())
    )
    router = modules.Router.for_query_document([*parts, mapping], parts)
    shutil.rmtree(folder)
    type(model)(modules=[router], similarity_fn_name="dot", device="cpu").save(str(folder), create_model_card=False)


def _opened(folder: Path) -> Any:
    """Returns the SentenceTransformer in a folder."""
    return _modules().SentenceTransformer(str(folder), device="cpu")


def _replay(job: Job, folder: Path) -> str:
    questions, vectors, done = job.questions, job.queries, job.stage("comparing", len(job.questions), "texts")
    model, options = _opened(folder), {"batch_size": 32, "show_progress_bar": False}
    if (adapter := job.adapter) is None:
        _compare(questions, model.encode(questions, **options), vectors)
    else:
        _compare(questions, model.encode_query(questions, **options), vectors @ adapter)
        _compare(questions, model.encode_document(questions, **options), vectors)
    done(len(questions))
    return f"{len(questions):,} texts have the bundle's vectors, within {CLOSE:g}"


def _compare(texts: list[str], encoded: np.ndarray, vectors: np.ndarray) -> None:
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    worst = np.abs((np.asarray(encoded, np.float32) - vectors) / lengths).max(axis=1)
    if not (worst <= CLOSE).all():
        text = texts[int(np.argmax(worst))]
        raise UserError(
            f"sentence-transformers gives other vectors: {text!r} differs by {worst.max():.2g}; not exported"
        )


def _modules() -> Any:
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Dense, Router
    except ImportError:
        raise missing("sentence-transformers", "export") from None
    return SimpleNamespace(SentenceTransformer=SentenceTransformer, Dense=Dense, Router=Router)
