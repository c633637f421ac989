"""Whether the hub of models can be reached: one question, as the hub's client asks five times for every file."""

import functools
import os
import sys

from gnn_encoder.errors import one_line

SECONDS = 10.0
"""Until a hub that does not answer counts as one that cannot be reached."""


@functools.cache
def ask_hub() -> None:
    """Lets this process and its children read models from the cache alone if the hub cannot be reached, and says so."""
    from huggingface_hub import constants, get_session

    if constants.is_offline_mode():
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception as error:  # as many errors as there are troubles with a network
        constants.HF_HUB_OFFLINE, os.environ["HF_HUB_OFFLINE"] = True, "1"
        reason = f"{constants.ENDPOINT} cannot be reached ({one_line(error)[:160]})"
        print(f"{reason}: models with a hub's name are read from the cache alone", file=sys.stderr)
