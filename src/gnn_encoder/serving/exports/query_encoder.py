"""The query encoder as a folder that SentenceTransformer loads.

A bundle that ranks by its query adapter is written as a Router: `encode_query` maps the encoder's vector by the
adapter, and `encode_document` does not. Both read as many tokens as a query has: passages' vectors are the bundle's.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gnn_encoder.errors import UserError
from gnn_encoder.models.address import AddressEncoder
from gnn_encoder.models.backbone_files import check_files
from gnn_encoder.models.published import write_layout
from gnn_encoder.serving.exports.job import Job, export_to_folder
from gnn_encoder.serving.exports.replay import CLOSE


def export(job: Job) -> str:
    """Writes the encoder into a new folder and returns what was compared, in words."""
    return export_to_folder(job, _write, _replay)


def _write(job: Job, folder: Path) -> None:
    encoder = job.encoder
    if isinstance(encoder, AddressEncoder):
        raise UserError(f"the encoder is at {encoder.address or 'no address'} and has no weights to export")
    if job.adapter is not None and getattr(encoder.backbone.config, "auto_map", None):
        raise UserError("the encoder has code of its own, which no Router keeps: export a bundle without query adapter")
    encoder.save_weights(folder)
    write_layout(folder, encoder, cut=True)
    if (adapter := job.adapter) is not None:
        _add_adapter(folder, adapter, encoder.prompts)


def _add_adapter(folder: Path, adapter: np.ndarray, prompts: dict[str, str]) -> None:
    """Makes the encoder in a folder a Router whose route of queries ends with the matrix W fp32 [d, d]."""
    from sentence_transformers.base.modules import Dense, Router

    model = _opened(folder)
    parts = [module for _, module in model.named_children()]
    mapping = Dense(
        *adapter.shape, bias=False, activation_function=nn.Identity(), init_weight=torch.from_numpy(adapter.T.copy())
    )
    router = Router.for_query_document([*parts, mapping], parts)
    shutil.rmtree(folder)
    routed = type(model)(modules=[router], similarity_fn_name="dot", prompts=prompts, device="cpu")
    routed.save(str(folder), create_model_card=False)


def _opened(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=check_files(str(folder)))


def _replay(job: Job, folder: Path) -> str:
    questions, vectors, done = job.questions, job.queries, job.stage("comparing", len(job.questions), "texts")
    model, options = _opened(folder), {"batch_size": 32, "show_progress_bar": False}
    if (adapter := job.adapter) is None:
        _compare(questions, model.encode_query(questions, **options), vectors)
    else:
        _compare(questions, model.encode_query(questions, **options), vectors @ adapter)
        if not job.encoder.prompts:
            _compare(questions, model.encode_document(questions, **options), vectors)
    done(len(questions))
    return f"{len(questions):,} texts have the bundle's vectors, within {CLOSE:g}"


def _compare(texts: list[str], encoded: np.ndarray, vectors: np.ndarray) -> None:
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    if encoded.shape != vectors.shape:
        widths = f"{encoded.shape[1]} components instead of {vectors.shape[1]}"
        raise UserError(f"sentence-transformers gives other vectors: {widths}; not exported")
    worst = np.abs((np.asarray(encoded, np.float32) - vectors) / lengths).max(axis=1)
    if not (worst <= CLOSE).all():
        text = texts[int(np.argmax(worst))]
        raise UserError(
            f"sentence-transformers gives other vectors: {text!r} differs by {worst.max():.2g}; not exported"
        )
