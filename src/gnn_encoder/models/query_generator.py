"""The query generator: a language model, passage → query (SS-BERT 3.2).

A Hugging Face seq2seq model is used unchanged. A causal language model continues "passage, separator" with the query.
A plain encoder becomes an encoder–decoder pair: both halves start from the encoder's weights, cross-attention and
output head from random weights (the embeddings are the output matrix).
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gnn_encoder.errors import UserError, one_line
from gnn_encoder.models.backbone import load_pretrained, load_tokenizer, load_weights, unused_positions

LAYOUT = "query_generator.json"
IGNORED = -100
"""Label of padding positions."""


class QueryGenerator(nn.Module):
    """A seq2seq or causal (`causal`) model with its tokenizer and training lengths.

    `passage_length` and `query_length` include special tokens and are cut to the model's number of positions.
    `separator` is the text between the passage and the query of a causal model; `prompt` are its token ids. With an
    `instruction`, a causal model's chat template is around the passage: `opening` are the token ids before the passage,
    and `prompt` those between it and the query.

    Raises:
        UserError: an instruction for a model without a chat template; an instruction or a separator that takes all
            positions.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        passage_length: int,
        query_length: int,
        separator: str = "",
        instruction: str = "",
    ) -> None:
        super().__init__()
        self.model, self.tokenizer, self.separator, self.instruction = model, tokenizer, separator, instruction
        self.causal = not model.config.is_encoder_decoder
        self.opening: list[int] = []
        self.prompt: list[int] = []
        if instruction and (not self.causal or not tokenizer.chat_template):
            raise UserError(
                "train_query_generator.instruction needs a causal model with a chat template: leave it empty"
            )
        if self.causal:  # all parts share the positions
            before, after = _around_passage(tokenizer, instruction) if instruction else ("", separator)
            self.opening, self.prompt = (
                tokenizer(text, add_special_tokens=False)["input_ids"] if text else [] for text in (before, after)
            )
            positions = _positions(model, "", passage_length + query_length + self.added) - self.added
            if positions < 2:
                setting = "instruction" if instruction else "separator"
                raise UserError(
                    f"train_query_generator.{setting} takes {self.added} tokens, and leaves none to a text: shorten it"
                )
            self.query_length = min(query_length, max(1, (positions + self.added) // 2), positions - 1)
            self.passage_length = min(passage_length, positions - self.query_length)
        else:
            self.passage_length = min(passage_length, _positions(model, "encoder", passage_length))
            self.query_length = min(query_length, _positions(model, "decoder", query_length))
        pads = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        self.pad: int = next(token for token in pads if token is not None)

    @property
    def added(self) -> int:
        """Tokens before the query that are no passage."""
        return len(self.opening) + len(self.prompt)

    @classmethod
    def from_pretrained(
        cls, name: str, passage_length: int, query_length: int, separator: str = "", instruction: str = ""
    ) -> "QueryGenerator":
        """Loads a seq2seq model, a causal model or an encoder; raises `UserError` if that fails."""
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
        from transformers.models.auto import modeling_auto as known

        tokenizer, config = load_tokenizer(name), load_pretrained(AutoConfig, name)
        if config.is_encoder_decoder:
            model = load_weights(AutoModelForSeq2SeqLM, name)
        elif (
            config.model_type in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
            and config.model_type not in known.MODEL_FOR_MASKED_LM_MAPPING_NAMES
        ):
            if tokenizer.eos_token_id is None:
                raise UserError(f"generator {name!r} has a tokenizer without an end token: choose another")
            model = load_weights(AutoModelForCausalLM, name)
        else:
            model = _pair(name, tokenizer)
        return cls(model.float(), tokenizer, passage_length, query_length, separator, instruction)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        """−log P(query | passage) of each pair in nats, fp32 [b]: cross-entropy summed over the pair's label tokens.

        Args:
            input_ids, attention_mask: passages [b, l]; a causal model's are padded on the left and end with `prompt`.
            labels: query tokens [b, t], with `IGNORED` as padding on the right.
        """
        real = labels != IGNORED
        if self.causal:
            begun = torch.cat([input_ids, labels.where(real, self.pad)[:, :-1]], dim=1)  # [b, l + t - 1]
            mask = torch.cat([attention_mask, real[:, :-1].to(attention_mask.dtype)], dim=1)
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            options = {"position_ids": positions, "use_cache": False, "logits_to_keep": labels.shape[1]}
            logits = self.model(input_ids=begun, attention_mask=mask, **options).logits
        else:
            begun = self.model.prepare_decoder_input_ids_from_labels(labels=labels)
            logits = self.model(input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=begun).logits
        # Padding is not converted to fp32: with a vocabulary of 50,000 that would be the largest cost.
        losses = nn.functional.cross_entropy(logits[real].float(), labels[real], reduction="none")
        return losses.new_zeros(len(labels)).index_add(0, real.nonzero()[:, 0], losses)

    def save(self, folder: Path) -> None:
        """Write config, tokenizer, safetensors, the lengths and the separator."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        layout = {name: getattr(self, name) for name in ("passage_length", "query_length", "separator", "instruction")}
        (folder / LAYOUT).write_text(json.dumps(layout), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "QueryGenerator":
        """Read what `save` wrote."""
        layout = json.loads((Path(folder) / LAYOUT).read_text("utf-8"))
        return cls.from_pretrained(str(folder), **layout)


def _around_passage(tokenizer: Any, instruction: str) -> tuple[str, str]:
    """What a chat template writes before and after the passage of a request."""
    mark = "\N{WHITE SQUARE}" * 3
    messages = [{"role": "user", "content": f"{instruction}\n\n{mark}"}]
    try:
        before, marked, after = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        ).partition(mark)
    except Exception as error:  # as many errors as a template can raise
        raise UserError(f"the generator's chat template: {one_line(error)[:160]}") from None
    if not marked:
        raise UserError("the generator's chat template leaves out what a user writes: leave instruction empty")
    return before, after


def _pair(name: str, tokenizer: Any) -> Any:
    """An encoder as both halves of an `EncoderDecoderModel`; queries begin with [CLS] and end with [SEP]."""
    from transformers import AutoModel, AutoModelForCausalLM, EncoderDecoderModel

    if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None or tokenizer.pad_token_id is None:
        raise UserError(f"generator {name!r} is neither seq2seq, nor causal, nor an encoder with [CLS] and [SEP]")
    encoder = load_weights(AutoModel, name)
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
    most = getattr(config, "max_position_embeddings", None)
    return int(most) - unused_positions(model) if most else default
