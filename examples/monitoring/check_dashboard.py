"""Checks dashboard.json with Grafana's own library: reads it by its types, and writes it again without loss.

pip install grafana-foundation-sdk && python examples/monitoring/check_dashboard.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def unknown(given: Any, made: Any, place: str = "") -> Iterator[str]:
    """Yield what Grafana's types lost or changed."""
    if isinstance(given, dict) and isinstance(made, dict):
        for name, value in given.items():
            yield from unknown(value, made.get(name), f"{place}/{name}")
    elif isinstance(given, list) and isinstance(made, list) and len(given) == len(made):
        for number, pair in enumerate(zip(given, made, strict=True)):
            yield from unknown(*pair, f"{place}/{number}")
    elif given != made:
        yield f"{place}: expected {made!r}, found {given!r}"


register_default_plugins()
dashboard = json.loads(Path(__file__).with_name("dashboard.json").read_text())
wrong = list(unknown(dashboard, json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))))
sys.exit("\n".join(wrong) or None)
