"""`espnet3 doctor --same-answer`: one runner in this process, on workers and detached, compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espnet3.cli.importable import runner_and_provider
from espnet3.cli.output import Tell
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import counted
from espnet3.parallel.records import ItemFailure
from espnet3.parallel.runner.hooks import writes_files
from espnet3.parallel.testing.answers import first_difference
from espnet3.parallel.testing.trials import unused_batches

_WORKERS = (1, 2, 3)
_SIZES = (1, 4)


def try_answers(whole: Any, wanted: Mapping[str, str], n_items: int, tell: Tell) -> None:
    """Run a runner in several ways; tell equal results, or the first difference and its reason."""
    try:
        runner_class, provider = runner_and_provider(whole, wanted.get("runner"), wanted.get("provider"))
        detached = not writes_files(runner_class)
        if not detached:
            tell(None, "its writer hooks: the results of forward are compared, before files are made of them")
            runner_class = _without_hooks(runner_class)
        with unused_batches():
            runner = runner_class(provider, progress=False, on_error="record")
        _compare(runner, n_items, detached, tell)
    except ConfigError as error:
        tell(False, f"the same answer everywhere: {error}")
    except Exception as error:  # the user's code, and what the runner says of it
        tell(False, f"the same answer everywhere: {type(error).__name__}: {error}")


def _compare(runner: Any, n_items: int, detached: bool, tell: Tell) -> None:
    batches = type(runner).batch_forward is not BaseRunner.batch_forward
    sizes = (None, *_SIZES) if batches else (None,)
    results, difference = first_difference(runner, list(range(n_items)), _WORKERS, sizes, detached)
    failures = [result for result in results if isinstance(result, ItemFailure)]
    if difference is not None:
        tell(False, f"not the same answer everywhere: {difference}")
        return
    if failures:
        first = f"item {failures[0].index!r}: {failures[0].error_type}: {failures[0].message}"
        failed = f"{counted(len(failures), 'item')} of {n_items} failed, everywhere in the same way"
        tell(len(failures) < n_items, f"{failed}; the first is {first}")
    ways = ["in this process, twice and backwards", "on 2 and 3 workers"]
    ways += [f"in batches of {' and '.join(map(str, _SIZES))}"] if batches else []
    ways += ["as detached jobs"] if detached else []
    if len(failures) < n_items:
        tell(True, f"{counted(n_items, 'item')}: the same answer {', '.join(ways)}")


def _without_hooks(runner: Any) -> type[BaseRunner]:
    """Return a runner of the same items, whose results are returned and not written."""
    body = {"forward": staticmethod(runner.forward), "__module__": runner.__module__}
    if runner.batch_forward is not BaseRunner.batch_forward:
        body["batch_forward"] = staticmethod(runner.batch_forward)
    return type(runner.__name__, (BaseRunner,), {**body, "__qualname__": runner.__qualname__})
