"""The joint model: a dual encoder and the GNN over its vectors."""

import json
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import nn

from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.models.gnn import GNN, GnnConfig

WEIGHTS, CONFIG = "gnn.safetensors", "gnn.json"


class GnnEncoder(nn.Module):
    """What Masked Graph Training trains and `encode_corpus` runs."""

    def __init__(self, dual_encoder: DualEncoder, gnn: GNN) -> None:
        super().__init__()
        self.dual_encoder = dual_encoder
        self.gnn = gnn

    def save(self, folder: Path) -> None:
        """Write both encoders and the GNN."""
        self.dual_encoder.save(folder)
        save_file(self.gnn.state_dict(), folder / WEIGHTS)
        (folder / CONFIG).write_text(self.gnn.config.model_dump_json(), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "GnnEncoder":
        """Read what `save` wrote."""
        return cls(DualEncoder.load(folder), cls.load_gnn(folder))

    @staticmethod
    def load_gnn(folder: str | Path) -> GNN:
        """The GNN alone, for work on vectors that are already there."""
        folder = Path(folder)
        gnn = GNN(GnnConfig(**json.loads((folder / CONFIG).read_text("utf-8"))))
        gnn.load_state_dict(load_file(folder / WEIGHTS))
        return gnn
