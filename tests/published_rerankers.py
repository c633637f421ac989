"""Tiny random re-rankers in the layouts of published ones."""

import json
from pathlib import Path
from typing import Any

import torch
from conftest import write_tokenizer

KINDS = ("bert", "xlm-roberta", "modernbert", "yes-no")
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

    `yes-no` is a causal model in the layout of sentence-transformers; the others are folders of transformers.
    `activation`: as older folders name it.
    """
    import transformers

    write_tokenizer(folder)
    words = len((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())
    configs = {
        "bert": transformers.BertConfig,
        "xlm-roberta": transformers.XLMRobertaConfig,
        "modernbert": transformers.ModernBertConfig,
        "yes-no": transformers.Qwen3Config,
    }
    own: dict[str, dict[str, Any]] = {
        "modernbert": {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
        "yes-no": {"bos_token_id": 2, "eos_token_id": 3, "head_dim": 8, "num_key_value_heads": 2},
    }
    sizes = {"vocab_size": words, "max_position_embeddings": 64, "pad_token_id": 0, "num_labels": 1}
    given = configs[kind](**{**SIZES, **sizes, **own.get(kind, {}), **config})
    loader = transformers.AutoModelForCausalLM if kind == "yes-no" else transformers.AutoModelForSequenceClassification
    torch.manual_seed(0)
    model = loader.from_config(given)
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
