"""Tiny random re-rankers in the layouts of published ones."""

import json
import string
from pathlib import Path
from typing import Any

import torch
from conftest import WORDS, write_tokenizer
from safetensors.torch import load_file, save_file

KINDS = ("bert", "xlm-roberta", "modernbert", "qwen3", "yes-no")
CAUSAL = ("qwen3", "yes-no")
TEMPLATE = """{%- set by = namespace(query="", document="", system="judge") -%}
{%- for message in messages -%}
{%- if message.role == "query" %}{% set by.query = message.content %}{% endif -%}
{%- if message.role == "document" %}{% set by.document = message.content %}{% endif -%}
{%- if message.role == "system" %}{% set by.system = message.content %}{% endif -%}
{%- endfor -%}
the {{ by.system }} letter {{ by.query }} garden {{ by.document }} winter old"""
YES, NO = "old", "river"
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def write_reranker(folder: Path, kind: str = "bert", activation: str = "", **config: Any) -> Path:
    """A random re-ranker of two layers, with weights so large that its scores depend on the texts.

    `yes-no` is a causal model in the layout of sentence-transformers; the others are folders of transformers, with a
    head of one label, `qwen3` on a causal model.
    `activation`: as older folders name it.
    """
    import transformers

    write_tokenizer(folder)
    words = len((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())
    configs = {
        "bert": transformers.BertConfig,
        "xlm-roberta": transformers.XLMRobertaConfig,
        "modernbert": transformers.ModernBertConfig,
        **dict.fromkeys(CAUSAL, transformers.Qwen3Config),
    }
    special: dict[str, dict[str, Any]] = {
        "modernbert": {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
        **{key: {"bos_token_id": 2, "eos_token_id": 3, "head_dim": 8, "num_key_value_heads": 2} for key in CAUSAL},
    }
    sizes = {"vocab_size": words, "max_position_embeddings": 64, "pad_token_id": 0, "num_labels": 1}
    config_of = configs[kind](**{**SIZES, **sizes, **special.get(kind, {}), **config})
    loader = transformers.AutoModelForCausalLM if kind == "yes-no" else transformers.AutoModelForSequenceClassification
    torch.manual_seed(0)
    model = loader.from_config(config_of)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    if activation:
        change(folder / "config.json", sbert_ce_default_activation_function=activation)
    if kind == "yes-no":
        (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
        _write_modules(folder)
    return folder


def _write_modules(folder: Path) -> None:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import LogitScore, Transformer

    transformer = Transformer(str(folder), transformer_task="text-generation")
    answers = LogitScore(*transformer.tokenizer.convert_tokens_to_ids([YES, NO]))
    prompts = {"prompts": {"judge": "what is heavy"}, "default_prompt_name": "judge"}
    CrossEncoder(modules=[transformer, answers], **prompts).save_pretrained(str(folder), create_model_card=False)


def change(file: Path, **values: Any) -> None:
    """Sets keys of a JSON file, which may be missing."""
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    file.write_text(json.dumps(content | values), encoding="utf-8")


LATE_LAYOUTS = ("sentence-transformers", "pylate", "stanford")


def write_late_interaction(folder: Path, layout: str, **settings: Any) -> Path:
    """A random late-interaction model in a published layout: queries of 20 tokens, passages of 40, vectors of 16.

    `settings`: of the file that names lengths and markers.
    """
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    letters = [*string.ascii_lowercase, *string.digits]
    special = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *string.punctuation, *WORDS, *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64)
    if layout == "pylate":
        tokenizer.add_tokens(["[Q] ", "[D] "])
    if layout == "sentence-transformers":
        tokenizer.add_special_tokens({"additional_special_tokens": ["[unused0]", "[unused1]"]})
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    encoder = BertModel(BertConfig(vocab_size=len(pieces) + 2, max_position_embeddings=64, **SIZES), False)
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    encoder.save_pretrained(folder)
    linear = {"linear.weight": 0.2 * torch.randn(16, SIZES["hidden_size"])}
    {"sentence-transformers": _write_sentence_transformers, "pylate": _write_pylate, "stanford": _write_stanford}[
        layout
    ](folder, linear, settings)
    return folder


def _write_sentence_transformers(folder: Path, linear: dict[str, torch.Tensor], settings: dict[str, Any]) -> None:
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    expansion = {"strategy": "fixed", "length": 20, "attend": True}
    transformer = Transformer(str(folder), **{"query_expansion": expansion, "document_length": 40, **settings})
    module_config = {"module_input_name": "token_embeddings"}
    weight = linear["linear.weight"]
    dense = Dense(
        *reversed(weight.shape),
        bias=False,
        activation_function=torch.nn.Identity(),
        init_weight=weight,
        **module_config,
    )
    parts = [transformer, dense, MultiVectorMask(skiplist_words=[",", ".", "the"]), Normalize(**module_config)]
    prompts = {"query": "[unused0] ", "document": "[unused1] "}
    MultiVectorEncoder(modules=parts, prompts=prompts).save_pretrained(str(folder), create_model_card=False)


def _write_pylate(folder: Path, linear: dict[str, torch.Tensor], settings: dict[str, Any]) -> None:
    """The files of PyLate 1: https://lightonai.github.io/pylate, `ColBERT.save`."""
    kinds = ("sentence_transformers.models.Transformer", "pylate.models.Dense.Dense")
    paths = ("", "1_Dense")
    modules = [{"idx": i, "name": str(i), "path": paths[i], "type": kind} for i, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    change(folder / "sentence_bert_config.json", max_seq_length=39, do_lower_case=False)
    (folder / paths[1]).mkdir()
    identity = "torch.nn.modules.linear.Identity"
    sizes = {"in_features": SIZES["hidden_size"], "out_features": 16}
    change(folder / paths[1] / "config.json", **sizes, bias=False, activation_function=identity)
    save_file(linear, folder / paths[1] / "model.safetensors")
    pylate_config = {
        "model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 20,
        "document_length": 40, "attend_to_expansion_tokens": False, "do_query_expansion": True,
        "skiplist_words": list(string.punctuation), "prompts": {}, "similarity_fn_name": "MaxSim",
    }  # fmt: skip
    change(folder / "config_sentence_transformers.json", **pylate_config | settings)


def _write_stanford(folder: Path, linear: dict[str, torch.Tensor], settings: dict[str, Any]) -> None:
    """The files of colbert-ir/colbertv2.0."""
    weights = {f"bert.{name}": weight for name, weight in load_file(folder / "model.safetensors").items()}
    save_file(weights | linear, folder / "model.safetensors", metadata={"format": "pt"})
    change(folder / "config.json", architectures=["HF_ColBERT"])
    artifact_config = {
        "query_maxlen": 20, "doc_maxlen": 40, "query_token_id": "[unused0]", "doc_token_id": "[unused1]", "dim": 16,
        "mask_punctuation": True, "attend_to_mask_tokens": False, "similarity": "cosine",
    }  # fmt: skip
    change(folder / "artifact.metadata", **artifact_config | settings)
