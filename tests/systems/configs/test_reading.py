"""One config file: its keys and their lines, and what is wrong with it."""

from pathlib import Path

import pytest

from espnet3.parallel.errors import ConfigError
from espnet3.systems.base.blocks import check_blocks
from espnet3.systems.configs.reading import check_interpolations, read_config


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: [1, 2\n", 3, "this is not YAML"),
        ("a:\n\tb: 2\n", 2, "this is not YAML: the line begins with a tab: indent it with spaces"),
        ("a: 1\nb: 2\na: 3\n", 3, "this is not YAML: found duplicate key a"),
        ("a: 1\nb: {c: '${d'}\n", 2, r"b\.c: .*write the value"),
        ("a: 1\ndefaults:\n  - base\n", 2, "defaults: a list of files, .* is not read here"),
        ("a: 1\nb: ${load_line:none.txt}\n", 2, r"b: .*none\.txt cannot be read \(No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    """Wrong YAML, a key twice, a broken interpolation and a missing list each have file and line."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"c\.yaml, line {line}: {said}"):
        read_config(path)


@pytest.mark.parametrize(("text", "kind"), [("", "nothing"), ("- 1\n", "a list"), ("word\n", "a str")])
def test_a_file_must_hold_a_mapping(tmp_path: Path, text: str, kind: str) -> None:
    """An empty file, a list and a word are refused, with what they are."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(TypeError, match=f"must hold a mapping, not {kind}"):
        read_config(path)


def test_what_only_the_file_knows_is_filled_in(tmp_path: Path) -> None:
    """Its own name, paths from its folder and lines of a text file; other interpolations stay as they are."""
    conf = tmp_path / "corpus/asr/conf/tuning"
    conf.mkdir(parents=True)
    (conf.parent / "tokens.txt").write_text("a\nb c\n")
    path = conf / "tuned.yaml"
    path.write_text(
        "name: ${set_corpus_and_system:}\ntag: ${self_name:}_1\npage: ${config_path:../readme.md}\n"
        "tokens: ${load_line:../tokens.txt}\nx: ${tag}\n"
    )
    config, _ = read_config(path)
    assert config.tag == "tuned_1"
    assert config.name == "corpus_asr"
    assert config.page == str((conf.parent / "readme.md").resolve())
    assert list(config.tokens) == ["a", "b c"]
    assert config.x == "tuned_1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: {c: ['${nope}/x']}\n", r"line 2: b\.c\.0: .*'nope' not found; define what it refers to"),
        ("a: ${oc.env:ESPNET3_NO_SUCH}\n", r"line 1: a: .*ESPNET3_NO_SUCH"),
        ("a: ${b}\nb: ${a}\n", "line 1: a: .*"),
        ("a: 1\nparallel:\n  env: local\n  n_workers: 0\n", r"c\.yaml, line 4: parallel\.n_workers = 0: "),
        ("parallel:\n  options:\n    queue: gpu\n", r"line 3: parallel\.options\.queue = 'gpu'.*slurm"),
        ("trainer:\n  devices: 1\n  n_workers: 4\n", r"line 3: trainer\.n_workers = 4: belongs to parallel"),
        ("a: 1\nparallel: [1]\n", r"c\.yaml, line 2: parallel: The parallel config must be a mapping"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(tmp_path: Path, text: str, said: str) -> None:
    """What refers to nothing, and each mistake in `parallel` and `trainer` or mix-up of the two, has its key's line."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    check = check_interpolations if "${" in text else check_blocks
    with pytest.raises(ConfigError, match=said):
        check(*read_config(path))


def test_a_list_of_tokens_has_a_token_for_each_line(tmp_path: Path) -> None:
    """Only line feeds end a line, and a byte order mark is no token: ids do not shift."""
    tokens = ["<blank>", "a\u2028b", "\x1c", "\u0085", " ", "c"]
    (tmp_path / "tokens.txt").write_bytes(("\ufeff" + "\r\n".join(tokens) + "\n").encode())
    (tmp_path / "conf.yaml").write_text("tokens: ${load_line:tokens.txt}\nnone: ${load_line:none.txt}\n")
    (tmp_path / "none.txt").write_text("")
    config, _ = read_config(tmp_path / "conf.yaml")
    assert list(config.tokens) == tokens
    assert list(config.none) == []
