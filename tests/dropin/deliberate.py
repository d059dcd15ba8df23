"""The tests of ESPnet that pass with its own layer and not with ours, each with the reason."""

from __future__ import annotations

REASONS: dict[str, str] = {}
