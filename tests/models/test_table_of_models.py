"""The table of docs/models.md: how a model of each layout is read, tried on a small random model of that layout.

After a wanted change: `python tests/models/test_table_of_models.py` writes the table again.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from published_folders import (
    TEXTS,
    edit,
    encoders_of,
    publish,
    published_vectors,
    vectors_of_both,
    worst_cosine,
    write_transformer,
)

from gnn_encoder.errors import UserError
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.backbone_files import sentence_transformers_layout
from gnn_encoder.models.packed import cpu_attention, first_position
from gnn_encoder.models.published import write_layout
from gnn_encoder.training.embed import embed

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- tests/models/test_table_of_models.py writes this table -->\n", "<!-- end of the table -->\n"
PROMPTS = {"query": "query: ", "document": "passage: "}
HEAD = "| such as | transformer | a text's vector | prompts | read | trained | exported |\n" + "|---" * 7 + "|\n"


@dataclass(frozen=True)
class Layout:
    """Models that are published alike."""

    examples: str
    kind: str
    build: Callable[[Path, Path], Path]
    """Writes a model of the layout into the second folder, from a transformer in the first."""
    config: tuple[tuple[str, Any], ...] = ()


def _with(pooling: Any, *more: str, **settings: Any) -> Callable[[Path, Path], Path]:
    def build(raw: Path, folder: Path) -> Path:
        from sentence_transformers.base.modules import Dense, Normalize

        torch.manual_seed(1)
        modules = {"map": Dense(32, 24), "map back": Dense(24, 32), "unit length": Normalize()}
        return publish(raw, folder, pooling, more=[modules[name] for name in more], **settings)

    return build


def _plain(raw: Path, folder: Path) -> Path:
    return raw.rename(folder)


def _changed(file: str, **changes: Any) -> Callable[[Path, Path], Path]:
    def build(raw: Path, folder: Path) -> Path:
        edit(file, **changes)(_with("mean")(raw, folder))
        (folder / "own.py").write_text("class Model: ...\n", encoding="utf-8")
        return folder

    return build


LAYOUTS = (
    Layout("bge-en, mxbai-embed, arctic-embed", "bert", _with("cls", "unit length")),
    Layout("all-MiniLM, e5, gte-base", "bert", _with("mean", "unit length")),
    Layout("multilingual-e5, bge-m3", "roberta", _with("mean", "unit length", prompts=PROMPTS)),
    Layout("all-mpnet, multi-qa-mpnet", "mpnet", _with("mean")),
    Layout("gte-modernbert, granite-embedding-r2", "modernbert", _with("cls")),
    Layout("Qwen3-Embedding, harrier, e5-mistral", "qwen2", _with("lasttoken", "unit length", prompts=PROMPTS)),
    Layout(
        "EmbeddingGemma", "gemma", _with("mean", "map", "map back", "unit length", prompts=PROMPTS),
        (("use_bidirectional_attention", True),),
    ),
    Layout("sentence-t5, gtr-t5", "t5", _with("mean", "map", "unit length")),
    Layout("stella, distiluse: a linear map", "bert", _with("mean", "map")),
    Layout("several poolings", "bert", _with(["cls", "mean"])),
    Layout("weighted mean (SGPT)", "qwen2", _with("weightedmean")),
    Layout("a model without these files", "bert", _plain),
    Layout("a causal model without these files", "qwen2", _plain),
    Layout(
        "code of its own: jina-embeddings-v3, LFM2.5-Embedding", "bert",
        _changed("config.json", auto_map={"AutoModel": "own.Model"}),
    ),
    Layout("quantized weights", "bert", _changed("config.json", quantization_config={"bits": 4})),
    Layout("an adapter that is not merged", "bert", _changed("adapter_config.json", peft_type="LORA")),
)  # fmt: skip


def row(layout: Layout, folder: Path) -> str:
    """A line of the table; fails where a vector is not that of sentence-transformers."""
    raw = write_transformer(folder / "raw", layout.kind, **dict(layout.config))
    model = layout.build(raw, folder / "model")
    try:
        encoders = encoders_of(model)
    except UserError as error:
        reason = str(error).partition("refused: ")[2].replace(str(model), "FOLDER").partition("; choose")[0]
        problem, _, how = reason.partition("; read ")
        how = ", until `shared.trusted_code` names it" if how else ""
        return f"| {layout.examples} | {layout.kind} | refused: {problem}{how} | | | | |\n"
    layers, encoder = sentence_transformers_layout(str(model)), encoders.passage_encoder
    pooling = layers.pooling or (encoder.pooling,) if encoder.pooling else layers.pooling or ("lasttoken",)
    steps = [
        " and ".join(str(one).replace("lasttoken", "last token") for one in pooling),
        *(m.kind for m in layers.modules if m.kind == "Dense"),
    ]
    steps += ["unit length"] if encoder.normalize else []
    before = vectors_of_both(encoders)
    if (model / "modules.json").exists():
        for read, side in zip(before, ("encode_query", "encode_document"), strict=True):
            assert worst_cosine(read, published_vectors(model, side)) > 0.99999
    trained, exported = _trained(encoders), folder / "exported"
    encoder.save_weights(exported)
    write_layout(exported, encoder, cut=True)
    assert worst_cosine(vectors_of_both(encoders)[1], published_vectors(exported)) > 0.99999
    packed = first_position(encoder.backbone, cpu_attention) is not None
    cells = layout.examples, layout.kind, ", ".join(steps), "yes" if encoder.prompts else "–"
    return f"| {' | '.join((*cells, 'packed' if packed else 'padded', trained, 'yes'))} |\n"


def _trained(encoders: Any) -> str:
    """Trains a step; `yes` if vectors changed."""
    encoder, before = encoders.passage_encoder, vectors_of_both(encoders)[1]
    encoders.train()
    tokens = Tokens.of(encoder.tokenizer, TEXTS, encoder.max_length, encoder.prompt)
    vectors = embed(encoder, tokens, np.arange(len(TEXTS)))
    torch.nn.functional.cross_entropy(vectors @ vectors.T, torch.arange(len(TEXTS)).flip(0)).backward()
    torch.optim.SGD(encoders.parameters(), lr=0.1).step()
    encoders.eval()
    return "yes" if worst_cosine(vectors_of_both(encoders)[1], before) < 0.99999 else "no"


def table(folder: Path) -> str:
    return HEAD + "".join(row(layout, folder / str(number)) for number, layout in enumerate(LAYOUTS))


def test_the_table_in_the_docs_is_what_is_done(tmp_path: Path) -> None:
    shown = DOCUMENT.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown == table(tmp_path), f"python {Path(__file__).name} writes the table again"


if __name__ == "__main__":
    before, _, rest = DOCUMENT.read_text("utf-8").partition(BEGIN)
    with tempfile.TemporaryDirectory() as folder:
        DOCUMENT.write_text(f"{before}{BEGIN}{table(Path(folder))}{END}{rest.partition(END)[2]}", encoding="utf-8")
