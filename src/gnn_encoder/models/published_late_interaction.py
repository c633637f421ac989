"""Published late-interaction models: the layouts of sentence-transformers, PyLate and Stanford's ColBERT.

sentence-transformers' MultiVectorEncoder reads all three. What it read becomes a `LateInteraction`, and the vectors of
some texts are compared with its own, so that a folder that asks for something else is refused.
"""

import re
from typing import Any

import numpy as np
import torch

from gnn_encoder.models.backbone import HEADS, POOLER
from gnn_encoder.models.backbone_files import check_files
from gnn_encoder.models.late_interaction import LateInteraction, LateInteractionLayout
from gnn_encoder.models.published_files import (
    OF_MODEL,
    OF_TRANSFORMER,
    PublishedFiles,
    by_sentence_transformers,
    check_keys,
    check_weights,
    content,
    local_files,
    refused,
)
from gnn_encoder.models.sentence_layout import MODULES, SETTINGS

STANFORD, LINEAR = "HF_ColBERT", "linear.weight"
"""The class that Stanford's config names, and its linear map, which is among the encoder's weights."""
PACKAGES = ("sentence_transformers.", "pylate.models.Dense.")
KINDS = ["Transformer", "Dense", "MultiVectorMask", "Normalize"]
OF_PYLATE = {
    "query_prefix", "document_prefix", "query_length", "document_length", "do_query_expansion",
    "attend_to_expansion_tokens", "skiplist_words",
}  # fmt: skip
"""Keys that PyLate writes into `config_sentence_transformers.json`."""
OF_QUERIES = {"query_length", "document_length", "query_expansion"}
"""Keys of the Transformer module of late interaction alone."""
CLOSE = 1e-4
"""Largest difference of a token's vector of unit length, in fp32."""
TEXTS = (
    "z",
    "What is the capital of Iceland?",
    "The old bridge (built in 1887) was closed for repairs; traffic now crosses 3 km upstream.",
    " ".join(f"Section {number} of the report describes sample {number * 7}, and its results." for number in range(90)),
)


def published_late_interaction(name: str) -> LateInteraction:
    """Reads a published model, by its folder, hub name or `s3://` address, with its lengths, markers and linear map.

    Raises:
        UserError: its files are damaged, name code of their own, lack weights or have others, or ask for what is not
            done; or its vectors differ from those of sentence-transformers.
    """
    import transformers
    from sentence_transformers import MultiVectorEncoder

    folder = local_files(name)
    check_files(str(folder))
    files, config = PublishedFiles.of(name, folder, PACKAGES), content(name, folder / "config.json")
    stanford = STANFORD in (config.get("architectures") or ())
    kinds = [kind for kind, _ in files.modules]
    if not stanford and kinds not in (KINDS, [*KINDS[:2], *KINDS[:1:-1]], KINDS[:2]):
        raise refused(name, f"{MODULES} has {', '.join(kinds) or 'no modules'}, and not {', '.join(KINDS)}")
    check_keys(name, files.file, files.transformer, OF_TRANSFORMER | OF_QUERIES)
    check_keys(name, SETTINGS, files.settings, OF_MODEL | OF_PYLATE)
    if not stanford and not (folder / files.modules[1][1] / "model.safetensors").is_file():
        raise refused(name, f"its {files.modules[1][1]} has no model.safetensors")
    unused = re.compile(f"{HEADS.pattern}|^{LINEAR}$" if stanford else HEADS.pattern)
    check_weights(name, folder, transformers.AutoModel, unused, POOLER)
    published = by_sentence_transformers(name, MultiVectorEncoder, folder)
    model = _converted(name, published)
    _compare(name, model, published)
    return model


def _converted(name: str, published: Any) -> LateInteraction:
    parts = {type(part).__name__: part for part in published}
    transformer, dense, mask = (parts.get(kind) for kind in KINDS[:3])
    if len(parts) != len(published) or len(parts) != len(KINDS) or transformer is None or dense is None or mask is None:
        raise refused(name, f"sentence-transformers makes {', '.join(parts)} of it")
    if dense.linear.bias is not None or type(dense.activation_function).__name__ != "Identity":
        raise refused(name, "its linear map has a bias or an activation")
    if mask.skiplist_tasks != ["document"] or mask.keep_only_token_ids:
        raise refused(name, "it leaves out other tokens than those of passages")
    if published.similarity_fn_name != "maxsim":
        raise refused(name, f"{SETTINGS} compares by {published.similarity_fn_name}")
    expansion, tokenizer = transformer.query_expansion, published.tokenizer
    if expansion and (expansion["strategy"] != "fixed" or expansion["token"] not in (None, tokenizer.mask_token)):
        raise refused(name, f"it expands queries by {expansion}, and not to a fixed length by [MASK]")
    longest = published.max_seq_length
    layout = LateInteractionLayout(
        width=dense.linear.out_features,
        query_length=expansion["length"] if expansion else transformer.query_length or longest,
        passage_length=transformer.document_length or longest,
        expand_queries=bool(expansion),
        attend_to_masks=bool(expansion and expansion["attend"]),
        markers=(_marker(name, published, "query"), _marker(name, published, "document")),
        skipped=tuple(sorted(() if mask._skiplist_ids is None else mask._skiplist_ids.tolist())),
    )
    backbone = transformer.model.float()
    if hasattr(backbone, "pooler"):
        backbone.pooler = None  # its weights are random
    model = LateInteraction(backbone, tokenizer, layout)
    model.projection.load_state_dict({"weight": dense.linear.weight.detach().float()})
    model.projection_is_new = False
    return model


def _marker(name: str, published: Any, side: str) -> int:
    prompt = published.prompts.get(side) or ""
    ids = published.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise refused(name, f"its prompt {prompt!r} is not one token, as the markers of ColBERT are")
    return int(ids[0])


def _compare(name: str, model: LateInteraction, published: Any) -> None:
    """Refuses a model whose vectors are not those that sentence-transformers gives each text alone."""
    model.eval()
    sides = (
        (published.encode_query, model.query_arrays, model.layout.query_length),
        (published.encode_document, model.passage_arrays, model.layout.passage_length),
    )
    for encode, arrays, length in sides:
        for text in TEXTS:
            (expected,) = encode([text], convert_to_numpy=True, show_progress_bar=False)
            tokens = model.tokenizer([text], truncation=True, max_length=length - 1)
            ids, mask, used = arrays(*(np.array(tokens[key]) for key in ("input_ids", "attention_mask")))
            with torch.inference_mode():
                vectors = model(torch.from_numpy(ids), torch.from_numpy(mask))[0].numpy()[used[0]]
            if vectors.shape != expected.shape or not np.abs(vectors - expected).max(initial=0) < CLOSE:
                raise refused(name, f"its vectors of {text[:40]!r} are not those of sentence-transformers")
