"""What eight bits would change: the first ten hits with int8 products, and the speed of encoding.

Agreement is simulated in fp32, exactly but for the order of sums: weights are rounded to 255 steps for each output
channel, inputs for each token. The layers of a BERT are rounded in groups. Each row says for how many queries the first
ten hits equal those of fp32; bf16 is the row to compare with. The speed is of torch's int8 layers, whose inputs are
rounded by one range for a batch.

    python benchmarks/int8.py --dataset DATASET_ARTIFACT [--passages 1200] [--length 128] [--rounds 3]
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from common import dataset, in_turns, options, show
from torch import Tensor, nn
from torch.ao.nn.quantized.dynamic import Linear as Int8Linear
from torch.ao.quantization import PlaceholderObserver, QConfig, default_per_channel_weight_observer

from gnn_encoder.inference.encoding import encode_tokens
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.dual_encoder import TextEncoder

GROUPS = {
    "all": ("query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"),
    "feed-forward": ("intermediate.dense", "output.dense"),
    "its first product": ("intermediate.dense",),
    "its second product": ("output.dense",),
    "queries, keys, values": ("query", "key", "value"),
    "the attention's output": ("attention.output.dense",),
}
"""Products → ends of their names in a BERT's layer, of which the attention's output is no feed-forward product."""


class Rounded(nn.Module):
    """A linear layer with weights and, with `inputs`, inputs that int8 can hold."""

    def __init__(self, linear: nn.Linear, inputs: bool) -> None:
        super().__init__()
        self.weight, self.bias = rounded(linear.weight.detach()), linear.bias.detach()
        self.inputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        """The layer's product."""
        return nn.functional.linear(rounded(x) if self.inputs else x, self.weight, self.bias)


def rounded(x: Tensor) -> Tensor:
    """Values rounded to 255 steps between the largest absolute value of a row and its negative."""
    step = x.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
    return (x / step).round() * step


def with_layers(encoder: TextEncoder, ends: tuple[str, ...], new: Callable[[nn.Linear], nn.Module]) -> TextEncoder:
    """The encoder, in which layers whose names end in `ends` are replaced."""
    for name, layer in list(encoder.backbone.encoder.named_modules()):
        attention = name.endswith("attention.output.dense") and "attention.output.dense" not in ends
        if isinstance(layer, nn.Linear) and name.endswith(ends) and not attention:
            parent, last = name.rsplit(".", 1)
            setattr(encoder.backbone.encoder.get_submodule(parent), last, new(layer))
    return encoder


def int8_layer(linear: nn.Linear) -> nn.Module:
    """torch's layer with int8 products, by oneDNN."""
    inputs = PlaceholderObserver.with_args(
        dtype=torch.quint8, quant_min=0, quant_max=255, is_dynamic=True, reduce_range=False
    )
    linear.qconfig = QConfig(activation=inputs, weight=default_per_channel_weight_observer)  # type: ignore[assignment]
    layer: nn.Module = Int8Linear.from_float(linear)
    return layer


def first_hits(passages: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The rows [n, 10] of the largest products."""
    return np.argsort(-(queries @ passages.T), axis=1, kind="stable")[:, :10]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print both tables."""
    o = options(__doc__, arguments, passages=1200, length=128, rounds=3, backbone="minilm", dataset=None)
    warnings.simplefilter("ignore")  # torch.ao is deprecated
    torch.backends.quantized.engine = "onednn"
    with dataset(o.dataset, o.passages) as data:
        rows = data.query_rows("dev")
        questions, labels = data.query_texts(rows), data.split_qrels("dev").positive()
        others = np.setdiff1d(np.arange(len(data.passages)), labels.passage)
        drawn = np.r_[np.unique(labels.passage), np.random.default_rng(0).permutation(others)]
        kept = np.sort(drawn[: o.passages])
        texts = data.passages.take(kept).full_texts()

    def new() -> TextEncoder:
        return TextEncoder.from_backbone(o.backbone, "mean", "yes", o.length).eval()

    plain = new()
    tokens, queries = Tokens.of(plain.tokenizer, texts, o.length), Tokens.of(plain.tokenizer, questions, o.length)

    def vectors(encoder: TextEncoder, of: Tokens, precision: str = "fp32") -> np.ndarray:
        out = np.empty((len(of), encoder.width), np.float32)
        encode_tokens(encoder, of, out, precision=precision)
        return out

    exact = vectors(plain, tokens)
    hits = first_hits(exact, vectors(plain, queries))
    rounding = {f"int8: {name}": with_layers(new(), ends, lambda x: Rounded(x, True)) for name, ends in GROUPS.items()}
    rounding["int8 weights alone"] = with_layers(new(), GROUPS["all"], lambda x: Rounded(x, False))
    table = []
    for name, encoder, precision in [("bf16", plain, "bf16"), *((n, e, "fp32") for n, e in rounding.items())]:
        encoded = vectors(encoder, tokens, precision)
        tens = first_hits(encoded, vectors(encoder, queries, precision))
        shares = [(tens == hits).all(1), (np.sort(tens) == np.sort(hits)).all(1), tens[:, 0] == hits[:, 0]]
        cosine = (encoded * exact).sum(1)
        table.append(
            (name, *(f"{share.mean():.1%}" for share in shares), f"{cosine.mean():.5f}", f"{cosine.min():.5f}")
        )
    headings = ("products", "same ten in order", "same ten", "same first", "mean cosine", "least cosine")
    show(f"{len(texts):,} passages, {len(rows):,} dev queries, against fp32", headings, table)

    small = with_layers(new(), GROUPS["all"], int8_layer)
    seconds, _ = in_turns(
        {
            "fp32": lambda: vectors(plain, tokens),
            "bf16": lambda: vectors(plain, tokens, "bf16"),
            "int8, all else fp32": lambda: vectors(small, tokens),
        },
        o.rounds,
    )
    rates = [(name, f"{len(texts) / taken:.1f}", f"{seconds['bf16'] / taken:.2f}") for name, taken in seconds.items()]
    show("Encoding", ("products", "passages/s (median)", "of bf16's rate"), rates)


if __name__ == "__main__":
    main()
