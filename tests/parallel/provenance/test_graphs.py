"""Over drawn packages: which edits of the user's code are noticed, and which are none."""

import ast

import pytest

from espnet3.parallel.provenance.record import changed_parts
from tests.habits import rows
from tests.parallel.provenance.graphs import RELATIVE, WAYS, Graph
from tests.parallel.provenance.package import Package

SEEDS = range(40)
BY_DEFAULT = range(10)


def write(package: Package, graph: Graph) -> None:
    package.write("tables", "TABLE = {}\n")
    for name in graph.imports:
        package.write(name, graph.source(name, 1))


def test_every_way_to_reach_a_module_is_drawn() -> None:
    """The seeds draw each way of importing, the relative ones too, from a module that the program reaches."""
    drawn = {
        way
        for graph in map(Graph.draw, SEEDS)
        for name, others in graph.imports.items()
        if name in graph.reached(packages=True)
        for _, way in others
    }
    assert drawn == {*WAYS, *RELATIVE}


@pytest.mark.parametrize("seed", rows(SEEDS, BY_DEFAULT))
def test_an_edit_of_any_module_that_is_reached_is_noticed(package: Package, seed: int) -> None:
    """An edit is noticed exactly where the program reaches the module, and file and function are named."""
    graph = Graph.draw(seed)
    write(package, graph)
    before = package.code(graph.config)
    reached, loaded = graph.reached(), graph.reached(packages=True)
    after_a_run = package.code(graph.config, run=True)
    assert changed_parts(before, after_a_run) == []
    for name in graph.imports:
        package.write(name, graph.source(name, 2))
        lines = changed_parts(before, package.code(graph.config))
        if name in reached:
            assert f"{package.folder / name}.py: work has changed" in lines, (name, lines)
            assert {line.partition(":")[0] for line in lines} == {f"{package.folder / name}.py"}
        elif name not in loaded:  # a package's own module is loaded, and counts where it is not loaded yet
            assert lines == [], name
        package.write(name, graph.source(name, 1))


@pytest.mark.parametrize("seed", rows(SEEDS, BY_DEFAULT))
def test_comments_docstrings_and_layout_are_no_edits(package: Package, seed: int) -> None:
    """No module is another one for a comment, a docstring or another layout."""
    graph = Graph.draw(seed)
    write(package, graph)
    before = package.code(graph.config)
    for name in graph.imports:
        text = ast.unparse(ast.parse(graph.source(name, 1))).replace(
            "def work():\n", 'def work(\n):  # a comment\n    """A docstring.\n\n    Of two lines."""\n\n'
        )
        assert text != graph.source(name, 1)
        package.write(name, f'"""Of the module."""\n\n# a comment\n{text}\n\n')
    assert changed_parts(before, package.code(graph.config)) == []
