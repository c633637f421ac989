"""The query generator: a sequence-to-sequence model, passage → query (SS-BERT 3.2).

A Hugging Face seq2seq model is used unchanged. A plain encoder becomes an encoder–decoder pair: both halves start from
the encoder's weights, cross-attention and output head from random weights (the embeddings are the output matrix).
"""

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gnn_encoder.errors import UserError
from gnn_encoder.models.backbone import load_pretrained, load_tokenizer

LAYOUT = "query_generator.json"
IGNORED = -100
"""Label of padding positions."""


class QueryGenerator(nn.Module):
    """A seq2seq model with its tokenizer and training lengths.

    `passage_length` and `query_length` include special tokens and are cut to the model's number of positions.
    """

    def __init__(self, model: Any, tokenizer: Any, passage_length: int, query_length: int) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.passage_length = min(passage_length, _positions(model, "encoder", passage_length))
        self.query_length = min(query_length, _positions(model, "decoder", query_length))

    @classmethod
    def from_pretrained(cls, name: str, passage_length: int, query_length: int) -> "QueryGenerator":
        """Loads a seq2seq model or an encoder; raises `UserError` if loading fails or the model is of another kind."""
        from transformers import AutoConfig, AutoModelForSeq2SeqLM

        tokenizer = load_tokenizer(name)
        if load_pretrained(AutoConfig, name).is_encoder_decoder:
            model = load_pretrained(AutoModelForSeq2SeqLM, name, use_safetensors=True)
        else:
            model = _pair(name, tokenizer)
        return cls(model.float(), tokenizer, passage_length, query_length)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy (nats) summed over the label tokens: −Σ log P(tok_t | tok_<t, passage)."""
        begun = self.model.prepare_decoder_input_ids_from_labels(labels=labels)
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=begun).logits
        real = labels != IGNORED
        # Padding is not converted to fp32: with a vocabulary of 50,000 that would be the largest cost.
        return nn.functional.cross_entropy(logits[real].float(), labels[real], reduction="sum")

    def save(self, folder: Path) -> None:
        """Write config, tokenizer, safetensors and the lengths."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        layout = {"passage_length": self.passage_length, "query_length": self.query_length}
        (folder / LAYOUT).write_text(json.dumps(layout), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "QueryGenerator":
        """Read what `save` wrote."""
        layout = json.loads((Path(folder) / LAYOUT).read_text("utf-8"))
        return cls.from_pretrained(str(folder), **layout)


def _pair(name: str, tokenizer: Any) -> Any:
    """An encoder as both halves of an `EncoderDecoderModel`; queries begin with [CLS] and end with [SEP]."""
    from transformers import AutoModel, AutoModelForCausalLM, EncoderDecoderModel

    if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None or tokenizer.pad_token_id is None:
        raise UserError(f"generator {name!r} is neither a seq2seq nor an encoder with [CLS] and [SEP]: choose another")
    encoder = load_pretrained(AutoModel, name, use_safetensors=True)
    options = {"is_decoder": True, "add_cross_attention": True}
    decoder = load_pretrained(AutoModelForCausalLM, name, use_safetensors=True, **options)
    model = EncoderDecoderModel(encoder=encoder, decoder=decoder)
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id = tokenizer.cls_token_id
        config.bos_token_id = tokenizer.cls_token_id
        config.eos_token_id = tokenizer.sep_token_id
        config.pad_token_id = tokenizer.pad_token_id
    return model


def _positions(model: Any, half: str, default: int) -> int:
    config = getattr(model.config, half, model.config)
    return int(getattr(config, "max_position_embeddings", None) or default)
