"""Published re-rankers as their publishers meant them: a trained transformer with its own head, read by
sentence-transformers' CrossEncoder.

Two layouts are read: a sequence classification with one label (ms-marco MiniLM, bge-reranker, gte, mxbai), and a causal
model whose score is the log-odds of its answers yes and no, with the template in its folder (Qwen3-Reranker).
sentence-transformers writes the texts, with prompt and template, and computes the scores; here the folder is checked,
and the pair's vector is taken. What is saved is a folder of sentence-transformers again.
"""

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnn_encoder.errors import UserError, one_line
from gnn_encoder.models.backbone import (
    check_files,
    load_pretrained,
    readable_tokens,
    reads_ahead,
    resolve_backbone,
)
from gnn_encoder.models.sentence_layout import EMPTY, MODULES, SETTINGS, TRANSFORMER, TRANSFORMER_CONFIGS

SCORE_OF_LOGITS = "LogitScore"
"""The module of sentence-transformers that makes a score of a causal model's logits."""
KNOWN = {
    TRANSFORMER_CONFIGS[0]: {
        "max_seq_length", "do_lower_case", "unpad_inputs", "transformer_task", "modality_config", "module_output_name",
        "processing_kwargs",
    },
    SETTINGS: {
        "__version__", "model_type", "prompts", "default_prompt_name", "activation_fn", "keep_in_fp32_modules",
        "similarity_fn_name",
    },
}  # fmt: skip
"""Keys of the files of sentence-transformers that it reads without code or weights from elsewhere."""
TASKS = ("sequence-classification", "text-generation")
ACTIVATIONS = ("Sigmoid", "Identity")
"""Both keep the order of the logits."""
UNUSED = re.compile(r"(^|\.)(pooler\.|position_ids$)|^(cls\.|lm_head\.)")
"""Weights of a pretraining that a published head does not read."""
FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
"""Files of a hub's model that are downloaded: neither code nor pickled weights."""


class PublishedReranker(nn.Module):
    """A published re-ranker; its scores are the logits before the published activation.

    `backbone` is sentence-transformers' CrossEncoder: all weights, the head's too, train at one rate.
    """

    def __init__(self, cross_encoder: Any) -> None:
        super().__init__()
        self.backbone = cross_encoder
        transformer = cross_encoder.transformers_model
        if cross_encoder.max_seq_length > (most := readable_tokens(transformer, cross_encoder.max_seq_length)):
            cross_encoder.max_seq_length = most
        # The last layer computes in fp32: in bf16 many scores of a query would be tied.
        last = [part for part in transformer.modules() if isinstance(part, nn.Linear) and part.out_features == 1]
        last = last or [transformer.get_output_embeddings()]
        named = {id(part): name for name, part in cross_encoder.named_modules()}
        cross_encoder.set_keep_in_fp32_modules([named[id(last[-1])]])
        self.tokenizer, self.max_length = cross_encoder.tokenizer, int(cross_encoder.max_seq_length)
        self.width: int = transformer.config.hidden_size  # the length of a pair's vector
        self._causal = not reads_ahead(transformer.base_model)
        self._takes_positions = "position_ids" in inspect.signature(transformer.forward).parameters
        if not self._causal:
            self.tokenizer.padding_side = "right"  # absolute positions count from the left
        features = self._features([("a", "a")])
        self._names = [name for name, value in features.items() if isinstance(value, Tensor)]
        self._constants = {name: value for name, value in features.items() if name not in self._names}
        alone = self.tokenizer(["a"])["input_ids"][0]
        self.added_tokens = features["input_ids"].shape[1] - 2 * len(alone)
        """Tokens of a pair that neither of its texts has alone: those of a template and a prompt."""

    def _features(self, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
        prompt = self.backbone.prompts.get(self.backbone.default_prompt_name)
        features: dict[str, Any] = self.backbone.preprocess(list(pairs), prompt=prompt)
        return features

    def arrays(self, pairs: Sequence[tuple[str, str]]) -> tuple[np.ndarray, ...]:
        """The arguments of `forward` for pairs of texts, int64 [b, l]: ids, mask and maybe token types."""
        features = self._features(pairs)
        return tuple(features[name].numpy() for name in self._names)

    def forward(self, *arrays: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [b] (logits) and vectors [b, d], fp32, of pairs as `arrays` gives them.

        The vector is that of the last layer, of the first token, or of the last token in a causal model.
        """
        features = {**dict(zip(self._names, arrays, strict=True)), **self._constants}
        mask = features["attention_mask"]
        if self._causal and self._takes_positions:  # independent of padding on the left
            features["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        with _outputs(self.backbone.transformers_model.base_model) as outputs:
            scores = self.backbone(features)["scores"][:, 0]
        read = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(1) if self._causal else mask.argmax(1)
        return scores.float(), outputs[0][torch.arange(len(read), device=mask.device), read].float()

    def save(self, folder: Path) -> None:
        """Write a folder that sentence-transformers reads."""
        self.backbone.save_pretrained(str(folder), create_model_card=False)

    @classmethod
    def load(cls, folder: str | Path) -> "PublishedReranker":
        """Read what `save` wrote."""
        from sentence_transformers import CrossEncoder
        from transformers.utils import logging

        logging.set_verbosity_error()  # no word about a prompt, and no bar per load
        logging.disable_progress_bar()
        options = {"dtype": torch.float32, "use_safetensors": True}
        return cls(CrossEncoder(str(folder), device="cpu", local_files_only=True, model_kwargs=options))

    @classmethod
    def published(cls, name: str) -> "PublishedReranker":
        """Read a published re-ranker, by its folder, hub name or `s3://` address.

        Raises:
            UserError: its files are damaged, name code of its own, lack weights or have others, or ask for what is not
                done: several labels, another activation, or other modules.
        """
        folder = _local(name)
        check_files(str(folder))
        _check_weights(name, folder, _checked_task(name, folder))
        try:
            model = cls.load(folder)
        except Exception as error:  # a template without a query, a tokenizer without yes: as many as there are models
            raise _refused(name, f"sentence-transformers does not read it ({one_line(error)[:200]})") from None
        published = model.backbone
        if len(published) > 1 and published[1].true_token_id in (
            published[1].false_token_id,
            _unknown(model.tokenizer),
        ):
            raise _refused(name, "its tokenizer has no tokens yes and no, and its files name no others")
        if len(published) > 1 and not (folder / MODULES).is_file() and model._constants["modality"] != "message":
            raise _refused(name, "it has no chat template that asks for an answer yes or no")
        return model


@contextmanager
def _outputs(part: nn.Module) -> Iterator[list[Tensor]]:
    """In the block, the list gets the first output of each call of a module."""
    outputs: list[Tensor] = []
    hook = part.register_forward_hook(lambda _module, _inputs, output: outputs.append(output[0]))
    try:
        yield outputs
    finally:
        hook.remove()


def _unknown(tokenizer: Any) -> int:
    return -1 if tokenizer.unk_token_id is None else int(tokenizer.unk_token_id)


def _refused(name: str, reason: str) -> UserError:
    return UserError(f"re-ranker {name!r} is refused: {reason}; choose another one")


def _local(name: str) -> Path:
    """The folder of a re-ranker; files of a hub are downloaded, without code and pickled weights."""
    resolved = resolve_backbone(name)
    if not Path(resolved).is_dir():
        from huggingface_hub import snapshot_download

        try:
            resolved = snapshot_download(resolved, allow_patterns=[*FILES])
        except Exception as error:  # as many errors as there are troubles with a network
            raise UserError(f"cannot load re-ranker {name!r}: {one_line(error)[:160]}; give a folder") from None
    return Path(resolved)


def _content(name: str, file: Path) -> Any:
    """The parsed content of a JSON file; empty if the file is missing."""
    try:
        return json.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise _refused(name, f"{file.name}: {one_line(error)}") from None


def _checked_task(name: str, folder: Path) -> str:
    """The task of a folder's transformer; raises UserError for files that ask for what is not done."""
    config = _content(name, folder / "config.json")
    modules = _content(name, folder / MODULES)
    file = next((file for file in TRANSFORMER_CONFIGS if (folder / file).is_file()), TRANSFORMER_CONFIGS[0])
    contents = {SETTINGS: _content(name, folder / SETTINGS), TRANSFORMER_CONFIGS[0]: _content(name, folder / file)}
    for which, content in contents.items():
        for key, value in content.items():
            if key not in KNOWN[which] and value not in EMPTY:
                raise _refused(name, f"{SETTINGS if which == SETTINGS else file} sets {key} to {str(value)[:60]!r}")
    causal = any(str(kind).endswith("ForCausalLM") for kind in config.get("architectures") or ())
    task = TASKS[causal]
    if modules:
        kinds = [str(module.get("type")).rpartition(".") for module in modules]
        named = [last for _, _, last in kinds]
        if named[1:] not in ([], [SCORE_OF_LOGITS]) or named[0] != TRANSFORMER:
            raise _refused(name, f"{MODULES} has {', '.join(named)}, and not {TRANSFORMER}, {SCORE_OF_LOGITS}")
        if not all(first.startswith("sentence_transformers.") for first, _, _ in kinds) or modules[0].get("path"):
            raise _refused(name, f"{MODULES} has modules of another package or folder")
        if contents[SETTINGS].get("model_type") != "CrossEncoder":
            raise _refused(name, f"{SETTINGS} does not name the model_type CrossEncoder")
        task = contents[TRANSFORMER_CONFIGS[0]].get("transformer_task", task)
        if (task, len(named)) not in zip(TASKS, (1, 2), strict=True):
            raise _refused(name, f"its {TRANSFORMER} has the task {task}, with {len(named)} modules")
    older = config.get("sentence_transformers") or {}
    activations = (
        contents[SETTINGS].get("activation_fn"),
        older.get("activation_fn"),
        config.get("sbert_ce_default_activation_function"),
    )
    activation = next(filter(None, activations), f"torch.{ACTIVATIONS[0]}")
    if not activation.startswith("torch.") or activation.rpartition(".")[2] not in ACTIVATIONS:
        raise _refused(name, f"its activation is {activation}, and not {' or '.join(ACTIVATIONS)}")
    return str(task)


def _check_weights(name: str, folder: Path, task: str) -> None:
    """Raises UserError if a weight, such as the head's, would start at random, or if one would not be read."""
    import transformers

    causal, head = transformers.AutoModelForCausalLM, transformers.AutoModelForSequenceClassification
    options = {"use_safetensors": True, "output_loading_info": True}
    model, report = load_pretrained(head if task == TASKS[0] else causal, str(folder), **options)
    unread = [weight for weight in report["unexpected_keys"] if not UNUSED.search(weight)]
    for weights, what in (
        (report["missing_keys"], "its files lack the weights"),
        (unread, "no part reads its weights"),
    ):
        if weights:
            first, *more = sorted(weights)
            raise _refused(name, f"{what} {first}" + (f" and {len(more)} more" if more else ""))
    if task == TASKS[0] and (labels := model.config.num_labels) != 1:
        raise _refused(name, f"its head has {labels} labels, and a re-ranker has one")
    if model.config.is_encoder_decoder:
        raise _refused(name, f"{model.config.model_type} has an encoder and a decoder")
