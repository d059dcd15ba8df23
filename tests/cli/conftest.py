"""A configuration in the folder of a test."""

import pytest


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """Write a configuration into the folder of the test, and go there."""
    monkeypatch.chdir(tmp_path)

    def write(env, options, n_workers=16):
        (tmp_path / "conf.yaml").write_text(
            f"parallel:\n  env: {env}\n  n_workers: {n_workers}\n  options: {{{options}}}\n"
        )
        return "conf.yaml"

    return write
