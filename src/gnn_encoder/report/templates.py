"""How templates are found and filled. A module of its own: who imports it depends on no template but those it names."""

import json

from jinja2 import Environment, PackageLoader, StrictUndefined


def page_environment(room: str = "report") -> Environment:
    """Where a room's templates are found, and how they are read: everything escaped, nothing undefined."""
    environment = Environment(
        loader=PackageLoader("gnn_encoder", room),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["compact_json"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment
