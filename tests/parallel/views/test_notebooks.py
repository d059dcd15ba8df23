"""A run in a notebook, and its results as a table."""

import builtins
from pathlib import Path
from typing import Any

import pytest

from espnet3.parallel import BaseRunner, EnvironmentProvider, ItemFailure, MissingPackageError
from espnet3.parallel.records import RunSummary
from tests.parallel.contract.notebooks import notebook


class Nothing(EnvironmentProvider):
    def build_env_local(self) -> dict[str, Any]:
        return {}


class Half(BaseRunner):
    @staticmethod
    def forward(idx: Any) -> Any:
        if idx % 2:
            raise ValueError(f"<b>{idx}</b> is odd")
        return {"half": idx // 2, "note": "large"} if idx > 2 else {"half": idx // 2}


class Plain(BaseRunner):
    @staticmethod
    def forward(idx: Any) -> Any:
        return len(idx)


def results_of(folder: Path, runner: Any = Half, items: Any = range(6)) -> Any:
    return runner(Nothing(), output_dir=folder / "run", on_error="record", progress=False)(items)


def test_results_are_a_table(tmp_path: Path) -> None:
    """Mappings give columns, a failed item its error and message, and the index is that of the run."""
    table = results_of(tmp_path).to_pandas()
    assert list(table.columns) == ["half", "note", "error", "message"]
    assert list(table.index) == list(range(6)) and table.index.name == "index"
    assert table.loc[4, "half"] == 2 and table.loc[4, "note"] == "large"
    assert table.loc[3, "error"] == "ValueError" and table["error"].isna().sum() == 3


def test_results_that_are_no_mappings_are_one_column(tmp_path: Path) -> None:
    """Other results are in the column `result`, also where an index is a list; without failures there is no error."""
    table = results_of(tmp_path, Plain, ["a", ["b", "c"], (1, 2, 3)]).to_pandas()
    assert list(table.columns) == ["result"] and list(table["result"]) == [1, 2, 3]
    assert list(table.index) == ["a", "['b', 'c']", (1, 2, 3)]


def test_without_pandas_the_error_holds_the_pip_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing pandas is an error of this package, which says how to install it."""
    results, imported = results_of(tmp_path), builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pandas":
            raise ImportError("No module named 'pandas'")
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingPackageError, match=r"pip install .*\[report\]"):
        results.to_pandas()


def test_a_run_in_a_cell_ends_with_a_table_of_its_figures(tmp_path: Path) -> None:
    """In a real kernel a run displays a small table, whose text is the last line of a terminal; no efficiency yet."""
    displayed: list[dict[str, str]] = []
    cell = """
from espnet3.parallel import run, set_parallel
set_parallel({"env": "local", "n_workers": 2})
found = run(abs, range(-40, 2))
print(found[0], len(found))
"""
    with notebook(tmp_path) as do:
        assert do(cell, until="42", shown=displayed) == "40 42\n"
    (table,) = [one for one in displayed if "items per second" in one.get("text/html", "")]
    assert "<caption>abs</caption>" in table["text/html"] and ">42<" in table["text/html"]
    assert table["text/plain"].startswith("abs: 42 items, none failed") and "efficiency" not in str(table)


def test_a_notebook_shows_tables_without_markup_of_users(tmp_path: Path) -> None:
    """Results, a failure and a summary have HTML of their own, in which texts of users are texts."""
    results = results_of(tmp_path)
    failure = results[1]
    assert isinstance(failure, ItemFailure)
    for shown in (failure._repr_html_(), results._repr_html_()):
        assert "<table>" in shown and "<b>" not in shown
    assert "&lt;b&gt;1&lt;/b&gt; is odd" in failure._repr_html_() and "<details>" in failure._repr_html_()
    assert "6, 3 failed" in results._repr_html_()
    assert "efficiency" not in RunSummary(9, 0, 0, 0, 2.0, 3.0, 2)._repr_html_()
    summary = RunSummary(1000, 2, 0, 0, 10.0, 18.0, 2, workers=2, start_seconds=1.0)
    assert "1,000" in summary._repr_html_() and "efficiency" in summary._repr_html_()
