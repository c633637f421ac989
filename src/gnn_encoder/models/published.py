"""Encoders in the layout of sentence-transformers: its modules after the transformer, its files, and its vectors.

sentence-transformers takes a second to import, so it is imported where a folder has more than a transformer, one
pooling by `[CLS]` or mean, and unit length. Those three are computed in `models.dual_encoder`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gnn_encoder.models.backbone import reads_lower_case
from gnn_encoder.models.backbone_files import (
    check_files,
    refused,
    resolve_backbone,
    sentence_transformers_layout,
    transformer_of,
)
from gnn_encoder.models.packed import Row, first_position, pack, packed_attention, reads_packed
from gnn_encoder.models.sentence_layout import (
    LEGACY_POOLINGS,
    MODULES,
    NORMALIZE,
    POOLING,
    QUERY,
    SETTINGS,
    TRANSFORMER,
    TRANSFORMER_CONFIGS,
    VECTOR,
    TextLayout,
)

if TYPE_CHECKING:
    from gnn_encoder.models.dual_encoder import TextEncoder

ALIKE = 0.9999
"""Smallest cosine, in fp32, of a vector and the one that sentence-transformers gives."""
TEXTS = (
    "z",
    "What is the capital of Iceland?",
    "HOW Do Heat Pumps Work in WINTER",
    "The old bridge, built in 1887, was closed for repairs after the flood; traffic now crosses 3 km upstream.",
    "東京の冬は乾燥していて晴れの日が多い。",
    "Как быстро растёт берёза?",
    "كيف تعمل الألواح الشمسية؟",
    "Übergrößenträger müssen naïve façades meiden – 12,5 %",
    "def add(a, b):\n    return a + b\t# <tag> & \"quotes\"",
    " ".join(f"Section {number} of the report describes sample {number * 7} and its results." for number in range(80)),
)  # fmt: skip
"""Texts of several lengths, scripts and cases, of which the vectors are compared."""


class Head(nn.Module):
    """The modules of sentence-transformers after the transformer, which make one vector of a text's token vectors."""

    def __init__(self, parts: list[Any]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.width: int = next(part.get_embedding_dimension() for part in reversed(parts) if _has_width(part))
        self.includes_prompt = all(getattr(part, "include_prompt", True) for part in parts)
        """Whether the tokens of a prompt are pooled, too."""

    @classmethod
    def of(cls, name: str, layout: TextLayout, hidden: int) -> "Head | None":
        """Reads the modules of a backbone, whose tokens' vectors have `hidden` components; None if none is needed.

        Raises UserError if a module cannot be read or does not fit the one before.
        """
        if layout.plain:
            return None
        from sentence_transformers.base.modules import Dense, Normalize
        from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling

        kinds: dict[str, Any] = {one.__name__: one for one in (Dense, Normalize, Dropout, LayerNorm)}
        folder, parts, width = resolve_backbone(name), [], hidden
        for module in layout.modules:
            if module.kind != POOLING:
                try:
                    parts.append(kinds[module.kind].load(folder, subfolder=module.path))
                except Exception as error:  # as many errors as a damaged folder can cause
                    raise refused(name, f"its {module.path}: {' '.join(str(error).split())[:160]}") from None
            else:
                parts.append(Pooling(width, layout.pooling, module.config.get("include_prompt", True)))
            width = parts[-1].get_embedding_dimension() if _has_width(parts[-1]) else width
        head = cls(parts or [Pooling(hidden, layout.pooling)]).eval().float()
        try:
            with torch.inference_mode():
                head({"token_embeddings": torch.ones(1, 2, hidden), "attention_mask": torch.ones(1, 2)})
        except (RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())[:120]
            raise refused(name, f"the modules in {MODULES} do not fit each other: {reason}") from None
        return head

    def forward(self, features: dict[str, Any]) -> Tensor:
        """Vectors fp32 [b, d] of features as sentence-transformers names them: `token_embeddings` and a mask."""
        with torch.autocast(features["token_embeddings"].device.type, enabled=False):
            for part in self.parts:
                features = part(features)
        vectors: Tensor = features[VECTOR]
        return vectors.float()

    def packed(self, row: Row, hidden: Tensor, **features: Any) -> Tensor:
        """As `forward`, for the texts of a row."""
        tokens = hidden[None, : int(row.bounds[-1])].float()
        return self.forward({"token_embeddings": tokens, "cu_seq_lens_q": row.bounds.long(), **features})


def _has_width(part: Any) -> bool:
    return hasattr(part, "get_embedding_dimension")


def write_layout(folder: Path, encoder: "TextEncoder", cut: bool = False) -> None:
    """Writes the files with which sentence-transformers reads the encoder that is saved in a folder.

    cut: a vector with fewer components than the modules give is cut by a linear map, so that it gets unit length after
    that. Without, sentence-transformers cuts it last.
    """
    parts = [*encoder.head.parts] if encoder.head else []
    if cut and encoder.dimension and encoder.dimension < encoder.full_width:
        from sentence_transformers.base.modules import Dense

        first = torch.eye(encoder.full_width)[: encoder.dimension].clone()
        parts.append(Dense(*reversed(first.shape), bias=False, activation_function=nn.Identity(), init_weight=first))
    kinds = [TRANSFORMER, *([] if encoder.head else [POOLING]), *(type(part).__name__ for part in parts)]
    kinds += [NORMALIZE] if encoder.normalize else []
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    for module in modules[1:]:
        (folder / str(module["path"])).mkdir(exist_ok=True)
    first_part = 1 if encoder.head else 2
    for module, part in zip(modules[first_part:], parts, strict=False):
        part.save(str(folder / str(module["path"])))
    files: dict[str, Any] = {
        MODULES: modules,
        TRANSFORMER_CONFIGS[0]: {
            "max_seq_length": encoder.max_length,
            "do_lower_case": reads_lower_case(encoder.tokenizer),
        },
        SETTINGS: {
            "similarity_fn_name": "cosine" if encoder.normalize else "dot",
            "prompts": encoder.prompts,
            **({"truncate_dim": encoder.dimension} if encoder.dimension and not cut else {}),
        },
    }
    if not encoder.head:
        modes = {key: mode == encoder.pooling for key, mode in LEGACY_POOLINGS.items()}
        files[f"1_{POOLING}/config.json"] = {"word_embedding_dimension": encoder.full_width, **modes}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


def check_vectors(name: str, encoders: Mapping[str, "TextEncoder"]) -> None:
    """Compares the vectors of `TEXTS`, padded and packed, with those that sentence-transformers gives each alone.

    Args:
        name: a backbone in the layout of sentence-transformers.
        encoders: the encoder of `query` and that of `document`.

    Raises:
        UserError: a vector differs, or sentence-transformers does not read the backbone.
    """
    from sentence_transformers import SentenceTransformer

    layout = sentence_transformers_layout(name)
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    try:
        model = SentenceTransformer(
            resolve_backbone(name), device="cpu", local_files_only=True, model_kwargs=options,
            trust_remote_code=check_files(transformer_of(name, layout)),
        )  # fmt: skip
        for side, encoder in encoders.items():
            model.max_seq_length = encoder.max_length
            encode = model.encode_query if side == QUERY else model.encode_document
            prompt = None if encoder.prompt == layout.prompts.get(side, "") else encoder.prompt
            expected = np.stack([
                encode(text, prompt=prompt, truncate_dim=encoder.dimension, show_progress_bar=False) for text in TEXTS
            ])  # fmt: skip
            for way, vectors in _vectors(encoder).items():
                _compare(name, f"{way} {side} vectors", vectors, expected)
    except (RuntimeError, ValueError, KeyError, IndexError, AttributeError, OSError, ImportError) as error:
        reason = " ".join(str(error).split())[:160]
        raise refused(name, f"sentence-transformers does not read it ({type(error).__name__}: {reason})") from None


def _compare(name: str, texts: str, vectors: np.ndarray, expected: np.ndarray) -> None:
    if vectors.shape != expected.shape:
        widths = f"{vectors.shape[1]} instead of {expected.shape[1]} components"
        raise refused(name, f"its {texts} have {widths}, as sentence-transformers gives")
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    cosine = (vectors * expected).sum(1) / np.maximum(norms, 1e-12)
    if not (cosine >= ALIKE).all():
        worst = int(np.nanargmin(cosine))
        raise refused(
            name,
            f"its {texts} differ from those of sentence-transformers (cosine {cosine[worst]:.4f} for "
            f"{TEXTS[worst][:40]!r})",
        )


@torch.inference_mode()
def _vectors(encoder: "TextEncoder") -> dict[str, np.ndarray]:
    encoder.eval()
    texts = [encoder.prompt + text for text in TEXTS]
    lists = encoder.tokenizer(texts, truncation=True, max_length=encoder.max_length)["input_ids"]
    mask = (np.arange(max(map(len, lists))) < np.array([len(ids) for ids in lists])[:, None]).astype(np.int64)
    ids = np.full(mask.shape, encoder.tokenizer.pad_token_id or 0, np.int64)
    ids[mask.astype(bool)] = np.concatenate(lists)
    ways = {"padded": encoder(torch.from_numpy(ids), torch.from_numpy(mask))}
    attention = packed_attention(torch.device("cpu"), torch.float32)
    if attention and (start := first_position(encoder.backbone, attention)) is not None:
        tokens, positions, bounds, longest, *_ = pack(start, ids, mask)
        rows = torch.from_numpy(tokens), torch.from_numpy(positions), torch.from_numpy(bounds)
        row = Row(attention, *rows, longest)
        with reads_packed(encoder.backbone):
            ways["packed"] = encoder.packed(row)
    return {way: vectors.numpy() for way, vectors in ways.items()}
