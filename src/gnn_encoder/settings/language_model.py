"""How a language model is asked."""

from typing import Annotated, Any

from pydantic import Field

from gnn_encoder.settings.shared import Precision
from gnn_encoder.settings.values import Count, PositiveFloat, PositiveInt, StepSettings

Price = Annotated[float, Field(ge=0.0)]


class Asking(StepSettings):
    """How a language model answers prompts, and what that may cost."""

    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 0.0
    """Of sampling. 0: the likeliest token each time."""
    answer_tokens: PositiveInt = 256
    """Most tokens of an answer."""
    prompt_tokens: PositiveInt = 4096
    """Most tokens of a prompt that a local model reads. A longer prompt is not answered."""
    seed: Count = 0
    """Of sampling. Services heed it as far as they can."""
    calls_at_once: Annotated[PositiveInt, Field(le=256)] = 8
    """Calls of a service that are under way at a time."""
    call_seconds: PositiveFloat = 300.0
    """Seconds until a call of a service is given up, its repeats included."""
    max_calls: Count = 0
    """Most calls of a language model. 0: as many as there are prompts."""
    price_in: Price = 0.0
    """Price of a million tokens of prompts, in any currency: the cost is printed before the first call. 0: unknown."""
    price_out: Price = 0.0
    """The same of answers."""
    precision: Precision = "auto"
    """Of a local model. `auto`: bf16 where the hardware computes faster in it, else fp32."""
    answer_batch: PositiveInt = 4096
    """Tokens of prompts that a local model reads together."""

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings on which an answer depends."""
        return self.model_dump(include={"temperature", "answer_tokens", "seed"})
