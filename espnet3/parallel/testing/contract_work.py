"""Runners and providers of the backend contract: workers import them by name."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.env_provider import EnvironmentProvider

LOGGER = "espnet3_contract"


class Provider(EnvironmentProvider):
    """An env that records which process built it, and how often."""

    built = 0

    def build_env_local(self) -> dict[str, Any]:
        """Return the env."""
        Provider.built += 1
        return {"factor": 3, "pid": os.getpid(), "built": Provider.built}


class BrokenProvider(EnvironmentProvider):
    """An env that cannot be built."""

    def build_env_local(self) -> dict[str, Any]:
        """Raise."""
        raise FileNotFoundError("no model at that place")


class Scale(BaseRunner):
    """A value, a text and a list for each index; deterministic."""

    @staticmethod
    def forward(idx: int, factor: int) -> dict[str, Any]:
        """Return values of the index and the env."""
        return {"index": idx, "value": idx * factor, "text": f"item {idx} é", "list": [idx / 7] * 3}


class Batched(Scale):
    """The same, by batches."""

    @staticmethod
    def batch_forward(indices: Sequence[int], factor: int) -> list[dict[str, Any]]:
        """Return one result for each index."""
        return [Scale.forward(idx, factor) for idx in indices]


class Where(BaseRunner):
    """The process that ran the item, and its env."""

    @staticmethod
    def forward(idx: int, pid: int, built: int) -> tuple[int, int, int]:
        """Return this process, the one that built the env, and how many it had built."""
        time.sleep(0.02)  # long enough for every worker to get some
        return os.getpid(), pid, built


class Fails(BaseRunner):
    """One index raises."""

    @staticmethod
    def forward(idx: int) -> int:
        """Raise for index 5."""
        if idx == 5:
            raise LookupError("index 5 has no audio")
        return idx


class Draws(BaseRunner):
    """Random numbers: the same anywhere with `seed`."""

    @staticmethod
    def forward(idx: int) -> float:
        """Return a random number."""
        import random

        return random.random()  # noqa: S311  # no secret


class Crashes(BaseRunner):
    """One index ends its process."""

    @staticmethod
    def forward(idx: int) -> int:
        """End the process for index 7."""
        if idx == 7:
            os._exit(3)
        return idx


class Logs(BaseRunner):
    """One index logs a message, by a logger as a user has it."""

    @staticmethod
    def forward(idx: int) -> int:
        """Log for index 7."""
        if idx == 7:
            logging.getLogger(LOGGER).info("seven of %d", 20)
        return idx


def square(x: int) -> int:
    """Return the square."""
    return x * x


def add(x: int, factor: int) -> int:
    """Return the sum with an entry of the env."""
    return x + factor


def refuse(x: int) -> int:
    """Raise for 3."""
    if x == 3:
        raise LookupError("three")
    return x


def env() -> dict[str, Any]:
    """Return an env for `parallel_map`."""
    return {"factor": 10}
