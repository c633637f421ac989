"""Settings that several steps share: inference, backbones and training."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypedDict

from pydantic import Field

from gnn_encoder.settings.values import AutoYesNo, Count, Fraction, PositiveFloat, PositiveInt, StepSettings

MINILM = "minilm"
"""Name of the backbone that comes as a Python package (all-MiniLM-L6-v2). Its digest is checked."""
SMOLLM2 = "smollm2"
"""Name of the causal language model that comes as a Python package (SmolLM2-135M-Instruct). Its digest is checked."""
Precision = Literal["auto", "fp32", "bf16"]
TokenVectorType = Literal["fp16", "int8"]
VectorType = Literal["fp16", "fp32"]


def is_address(name: str) -> bool:
    """Whether an encoder's name is the address of a service (`models.address`)."""
    return name.startswith(("http://", "https://"))


class Speed(TypedDict):
    """How models run over texts, as keyword arguments of the encoding functions."""

    precision: Precision
    tokens_per_batch: int


class Inference(StepSettings):
    """Settings of every step that encodes or scores texts."""

    precision: Precision = "auto"
    """`auto`: bf16 where the hardware computes faster in it, else fp32."""
    tokens_per_batch: PositiveInt = 4096
    """Tokens in a batch, of which a GPU reads eight together. Smaller batches are padded to this number. Another number
    changes the last bits of vectors."""

    @property
    def speed(self) -> Speed:
        """Both settings as keyword arguments."""
        return {"precision": self.precision, "tokens_per_batch": self.tokens_per_batch}


class LongPassages(StepSettings):
    """How passages are read that have more tokens than an encoder reads."""

    long_passages: Literal["cut", "windows", "late"] = "cut"
    """`cut`: their first tokens are read. `windows`: the rest is read in further windows of `passage_length` tokens,
    and a dual encoder scores a passage by its best window: as it is, trained, with labels, and in fusions. `late`: so
    it does, and all windows of a document, or of a passage in data without documents, are read in one pass, as many as
    the model has positions for (`inference.late_chunking`; encoders that pool by mean). A training, the graph and the
    GNN-encoder on it, cross-encoders and re-rankers read the first tokens in any case."""
    window_overlap: Count = 32
    """Tokens that two windows of a passage share, at most half of a window."""

    @property
    def in_windows(self) -> bool:
        """Whether a passage may have several vectors."""
        return self.long_passages != "cut"

    @property
    def of_windows(self) -> dict[str, Any]:
        """Both settings, for a step that reads passages in the same way."""
        return {name: getattr(self, name) for name in LongPassages.model_fields}


def shared_tokens(overlap: int, size: int) -> int:
    """Returns how many tokens two windows of `size` tokens share: at most half of them, so that there are not too many.

    A training may read shorter passages than the encoder as it is, for which `window_overlap` was set.
    """
    return min(overlap, size // 2)


Tasks = Annotated[PositiveInt, Field(le=1024)]
"""A number of tasks that share a step's work."""


class Sharded(StepSettings):
    """A step whose work can be divided among several tasks. The step `merge` joins their outputs."""

    shards: Tasks = 1
    """Tasks that share the work: pods on a cluster, one after the other on this machine. The tasks of one text encoder
    on a CPU have together the same bits as one task. Each task loads the models and reads its inputs."""
    shard: Count = 0
    """The task's number, from 0. The pipeline sets it."""

    def share(self, count: int, block: int = 1) -> slice:
        """Returns the task's share of `count` rows, in whole blocks of `block` rows; the last block may be shorter."""
        blocks = -(-count // block)
        start, stop = (blocks * number // self.shards * block for number in (self.shard, self.shard + 1))
        return slice(min(start, count), min(stop, count))


class Merge(StepSettings):
    """Joins the outputs of a step's tasks."""


class Prompts(StepSettings):
    """What an encoder reads before a text."""

    query_prompt: str = "auto"
    """Before a query. `auto`: as the encoder's sentence-transformers files say, or as the cards of E5 and BGE, whose
    files have none. Its tokens count among those of a query. Empty: nothing."""
    passage_prompt: str = "auto"
    """Before a passage, as `query_prompt`."""


class VectorsOfTexts(Prompts):
    """How a published encoder's vectors are read."""

    pooling: Literal["auto", "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"] = "auto"
    """`auto`: as the encoder's sentence-transformers files say, else `[CLS]` (GNN-encoder 3.2), or the last token of a
    causal model. The others are named as in sentence-transformers."""
    normalize: AutoYesNo = "auto"
    """Vectors of unit length. `auto`: as the encoder's sentence-transformers files say, else no. They say so by a
    Normalize module, or by the similarity `cosine`."""
    truncate_dimension: PositiveInt | None = None
    """Components of a vector that are kept, the first ones, for encoders trained with the Matryoshka loss (Kusupati et
    al., 2022). Vectors of unit length get it again. None: as the files say, else all."""
    trusted_code: str = ""
    """SHA-256 of the code that comes with the encoder (`auto_map`), which runs only if it is named here. The error that
    refuses the encoder says it; read the code before."""


class Backbone(VectorsOfTexts):
    """The pretrained encoder that a training starts from, and how its vectors are read."""

    backbone: str = "bert-base-uncased"
    """A Hugging Face name, a local folder, `minilm`, or `smollm2`, which is read by its last token."""
    query_length: PositiveInt = 32
    """Tokens of a query, special tokens included."""
    passage_length: PositiveInt = 128
    """Tokens of title and text, special tokens included."""


class Optimization(StepSettings):
    """Settings of every training step: AdamW, by default with a linear schedule and warm-up (GNN-encoder 4.3)."""

    epochs: PositiveInt = 10
    """Passes over all examples."""
    batch_size: PositiveInt = 64
    """Queries (or pairs) in a batch."""
    learning_rate: PositiveFloat = 2e-5
    """The highest learning rate, after the warm-up."""
    warmup: Fraction = 0.1
    """Share of all training steps in which the learning rate rises to its full value."""
    schedule: Literal["linear", "constant"] = "linear"
    """The learning rate after the warm-up: `linear` falls to 0 at the end of the last epoch; `constant` stays, for a
    training that may end before its last epoch."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """Of AdamW, on weights alone: biases and layer norms have none."""
    max_gradient_norm: PositiveFloat = 1.0
    """Gradients of a larger norm are scaled down to it."""
    dropout: Fraction | Literal["backbone"] = "backbone"
    """Rate of every dropout layer in the model. `backbone`: as the backbone's config says (0.1 for BERT and BART). 0
    trains up to 1.9 times as fast on a CPU, because fused attention on a CPU has no dropout."""
    precision: Precision = "auto"
    """`auto`: bf16 autocast where the hardware computes faster in bf16, else fp32."""
    seed: Count = 0
    """Of the initial weights, the order of the examples, and dropout."""
    checkpoint_seconds: PositiveFloat = 60.0
    """Seconds between two checkpoints. They are rarer where writing them would take more than `checkpoint_share`."""
    checkpoint_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.005
    """Largest share, above 0, of the cores' time in which checkpoints are written, in a training on a CPU. With 1
    checkpoints are as frequent as writing them allows."""
    workers: Annotated[Count, Field(le=1024)] = 0
    """Processes that prepare batches, for each process that trains. 0: one thread. The number does not change the
    batches. More processes help if a GPU waits for the sampling of neighbours."""
    processes: Annotated[PositiveInt, Field(le=1024)] | Literal["auto"] = 1
    """Processes that train together, each on a GPU of its own, or on a CPU with a share of the cores. Each reads its
    share of a batch. In-batch negatives come from the whole batch, over all devices. Untested on several GPUs.
    `auto`: 1, but 2 for a re-ranker in documents on several CPU cores, which one process does not keep busy (LiM, two
    cores: 4.4 and 2.9 s a step)."""


class MeasuredTraining(Optimization):
    """Training that is evaluated on dev queries after each epoch."""

    dev_queries: Count = 200
    """Dev queries that are ranked after each epoch (re-ranked, for the cross-encoder). 0: no evaluation."""
    keep: Literal["last", "best"] = "last"
    """The epoch whose weights are kept. `best`: the first epoch with the highest MRR@10 on these dev queries (BERT-DMN
    5.2 validates by MAP)."""


class WatchedTraining(MeasuredTraining):
    """Training of a retriever."""

    dev_pool: PositiveInt = 2000
    """Passages that the dev queries rank: their positives and a seeded draw of others. Measures over all passages are
    lower."""
    gradient_cache: bool = False
    """Encode a batch in parts, twice (Gao et al., 2021). It takes the memory of one part, gives the same gradients, and
    needs a third to a half more time."""


class Distillation(StepSettings):
    """Listwise distillation: the student learns a trained cross-encoder's distribution over a query's candidates."""

    distillation_temperature: PositiveFloat = 1.0
    """T of both distributions, softmax(scores / T)."""
    distillation_candidates: Annotated[int, Field(ge=2, strict=True)] = 8
    """Scored candidates of a query in a list."""


class Published(StepSettings):
    """A published re-ranker in the place of an encoder with a new head (`models.published_reranker`)."""

    published: str = ""
    """A re-ranker's folder, hub name or `s3://` address: a head of one label, or a causal model that answers yes or no,
    in the layout of sentence-transformers' CrossEncoder; for `colbert`, late interaction in the layout of its
    MultiVectorEncoder, of PyLate or of Stanford's ColBERT. It reads as many tokens as it was published with. Empty:
    `backbone`, with a new head."""
    train_published: bool = False
    """It is trained further, all weights at `learning_rate`. By default it is used as it is."""

    @property
    def is_trained(self) -> bool:
        """Whether anything is trained."""
        return not self.published or self.train_published

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.train_published and not self.published:
            yield "train_published = true needs a re-ranker: set published"


def needs_dev(training: object) -> bool:
    """Whether a training cannot do without dev queries, because they choose the epoch."""
    keep, patience, is_trained = (
        getattr(training, name, other) for name, other in (("keep", ""), ("patience", 0), ("is_trained", True))
    )
    return keep == "best" and not patience and bool(is_trained)


class OnNodes(StepSettings):
    """A training that several machines, or pods of a cluster, can share."""

    nodes: Annotated[PositiveInt, Field(le=1024)] = 1
    """Pods of a cluster that train together, each with `processes` processes, with the same batch and result as one.
    They need `trainer` in the cluster file. On one machine use `processes` alone. A trial of `choose_graph` and an
    ablation are one pod."""


class LargeModelTraining(MeasuredTraining):
    """Training from a backbone that may be too large to train as a whole."""

    lora_rank: Count = 0
    """Rank of the adapters of all linear layers, which are trained in the place of the backbone's weights and added to
    these at the end (LoRA: Hu et al., 2021). 8 to 64 are usual, with some ten times the learning rate. Where
    `precision` is bf16, the backbone's own weights are held in bf16. 0: no adapters, all weights are trained."""
    gradient_checkpointing: bool = False
    """Keep the activations between the backbone's layers alone, and compute the others again in the backward pass: less
    memory, the same gradients, about a third more time."""


class ContrastiveTraining(WatchedTraining, LargeModelTraining):
    """Training of a dual encoder with the contrastive loss (eq. 2)."""

    negatives: Count = 1
    """Hard negatives per query, besides the other passages of the batch."""
    matryoshka: tuple[PositiveInt, ...] = ()
    """Numbers of first components of the vectors, such as [384, 128, 32]: the loss is the sum of eq. 2 over each, with
    unit length again where vectors have it (Kusupati et al., 2022, eq. 1, all weights 1). Empty: of whole vectors.
    `truncate_dimension` then keeps as many components as a system has room for."""
    share_encoders: bool = False
    """One encoder for queries and passages. The paper has two."""
    score_scale: PositiveFloat | Literal["auto"] = "auto"
    """Factor of s(q, p) in the loss. 1 is eq. 2. `auto`: 1, or 20 if vectors have unit length: their dot products are
    in [-1, 1], and the softmax would be nearly uniform."""
