"""The query encoder as a folder that SentenceTransformer loads."""

import json
import shutil
from pathlib import Path

import numpy as np

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


def _replay(job: Job, folder: Path) -> str:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise missing("sentence-transformers", "export") from None
    questions, vectors, done = job.questions, job.queries, job.stage("comparing", len(job.questions), "texts")
    encoded = SentenceTransformer(str(folder), device="cpu").encode(questions, batch_size=32, show_progress_bar=False)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    worst = np.abs((np.asarray(encoded, np.float32) - vectors) / np.maximum(lengths, np.finfo(np.float32).tiny)).max(
        axis=1
    )
    if not (worst <= CLOSE).all():
        text = questions[int(np.argmax(worst))]
        raise UserError(
            f"sentence-transformers gives other vectors: {text!r} differs by {worst.max():.2g}; not exported"
        )
    done(len(questions))
    return f"{len(questions):,} texts have the bundle's vectors, within {CLOSE:g}"
