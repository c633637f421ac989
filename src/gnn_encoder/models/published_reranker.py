"""Published re-rankers as their publishers meant them: a trained transformer with its own head, read by
sentence-transformers' CrossEncoder.

Two layouts are read: a sequence classification with one label (ms-marco MiniLM, bge-reranker, gte, mxbai), and a causal
model whose score is the log-odds of its answers yes and no, with the template in its folder (Qwen3-Reranker).
sentence-transformers writes the texts, with prompt and template, and computes the scores; here the folder is checked,
and the pair's vector is taken. What is saved is a folder of sentence-transformers again.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnn_encoder.models.backbone import readable_tokens, reads_ahead
from gnn_encoder.models.backbone_files import check_files
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
    unread,
)
from gnn_encoder.models.sentence_layout import MODULES, SETTINGS, TRANSFORMER

SCORE_OF_LOGITS = "LogitScore"
"""The module of sentence-transformers that makes a score of a causal model's logits."""
LATE = ("HF_ColBERT", "ColBERT", "MultiVectorEncoder")
"""What Stanford's ColBERT names its class, and PyLate and sentence-transformers the type of their models."""
TASKS = ("sequence-classification", "text-generation")
ACTIVATIONS = ("Sigmoid", "Identity")
"""Both keep the order of the logits."""


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
        """Read what `save` wrote; what its files ask for is checked again, because others may have written them."""
        from sentence_transformers import CrossEncoder

        check_files(str(folder))
        _checked_task(str(folder), Path(folder))

        return cls(by_sentence_transformers(str(folder), CrossEncoder, Path(folder)))

    @classmethod
    def published(cls, name: str) -> "PublishedReranker":
        """Read a published re-ranker, by its folder, hub name or `s3://` address.

        Raises:
            UserError: its files are damaged, name code of its own, lack weights or have others, or ask for what is not
                done: several labels, another activation, or other modules.
        """
        import transformers

        folder = local_files(name)
        check_files(str(folder))
        heads = transformers.AutoModelForSequenceClassification, transformers.AutoModelForCausalLM
        task = _checked_task(name, folder)
        config = check_weights(name, folder, heads[TASKS.index(task)])
        if task == TASKS[0] and config.num_labels != 1:
            raise refused(name, f"its head has {config.num_labels} labels, and a re-ranker has one")
        if config.is_encoder_decoder:
            raise refused(name, f"{config.model_type} has an encoder and a decoder")
        try:
            model = cls.load(folder)
        except ValueError as error:  # a template without a query, or a tokenizer without yes
            raise unread(name, error) from None
        if task == TASKS[1]:
            answers, unknown = model.backbone[1], model.tokenizer.unk_token_id
            if answers.true_token_id in (answers.false_token_id, -1 if unknown is None else unknown):
                raise refused(name, "its tokenizer has no tokens yes and no, and its files name no others")
            if not (folder / MODULES).is_file() and model._constants["modality"] != "message":
                raise refused(name, "it has no chat template that asks for an answer yes or no")
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


def _checked_task(name: str, folder: Path) -> str:
    """The task of a folder's transformer; raises UserError for files that ask for what is not done."""
    config = content(name, folder / "config.json")
    if content(name, folder / SETTINGS).get("model_type") in LATE or LATE[0] in (config.get("architectures") or ()):
        raise refused(name, "it is late interaction, which the system colbert:FOLDER reads")
    files = PublishedFiles.of(name, folder)
    check_keys(name, files.file, files.transformer, OF_TRANSFORMER)
    check_keys(name, SETTINGS, files.settings, {*OF_MODEL, "activation_fn", "keep_in_fp32_modules"})
    task = TASKS[any(str(kind).endswith("ForCausalLM") for kind in config.get("architectures") or ())]
    if kinds := [kind for kind, _ in files.modules]:
        if kinds[0] != TRANSFORMER or kinds[1:] not in ([], [SCORE_OF_LOGITS]):
            raise refused(name, f"{MODULES} has {', '.join(kinds)}, and not {TRANSFORMER}, {SCORE_OF_LOGITS}")
        if files.settings.get("model_type") != "CrossEncoder":
            raise refused(name, f"{SETTINGS} does not name the model_type CrossEncoder")
        task = str(files.transformer.get("transformer_task", task))
        if (task, len(kinds)) not in zip(TASKS, (1, 2), strict=True):
            raise refused(name, f"its {TRANSFORMER} has the task {task}, with {len(kinds)} modules")
    activations = (
        files.settings.get("activation_fn"),
        (config.get("sentence_transformers") or {}).get("activation_fn"),
        config.get("sbert_ce_default_activation_function"),
    )
    activation = str(next(filter(None, activations), f"torch.{ACTIVATIONS[0]}"))
    if not activation.startswith("torch.") or activation.rpartition(".")[2] not in ACTIVATIONS:
        raise refused(name, f"its activation is {activation}, and not {' or '.join(ACTIVATIONS)}")
    return task
