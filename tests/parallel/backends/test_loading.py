"""The install line of an extra can be typed where this package came from, and an import does not lose Ctrl-C."""

import importlib.metadata
import json
import signal
from pathlib import Path

import pytest

from espnet3.parallel.backends.backend import pip_line
from tests.parallel.contract.helpers import finish, start_script

ROOT = Path(__file__).resolve().parents[3]
INDEX = "pip install 'espnet3-parallel[gpu]'"


class Installed:
    """A distribution with what pip noted of where it came from."""

    def __init__(self, noted: dict[str, object] | None) -> None:
        self.noted = noted

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.noted is None else json.dumps(self.noted)


@pytest.mark.parametrize(
    ("noted", "line"),
    [
        (None, INDEX),
        ({"url": "file:///a%20b", "dir_info": {"editable": True}}, "pip install -e '/a b[gpu]'"),
        ({"url": "file:///a", "dir_info": {}}, "pip install '/a[gpu]'"),
        ({"url": "file:///x.whl", "archive_info": {}}, "pip install 'espnet3-parallel[gpu] @ file:///x.whl'"),
        (
            {"url": "https://host/x.git", "vcs_info": {"vcs": "git"}},
            "pip install 'espnet3-parallel[gpu] @ git+https://host/x.git'",
        ),
    ],
    ids=["index", "editable", "folder", "wheel", "git"],
)
def test_an_extra_comes_from_where_the_package_came(
    noted: dict[str, object] | None, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line names the index, the folder, the file or the repository that the package was installed from."""
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(noted))
    assert pip_line("gpu") == line


def test_a_checkout_that_nobody_installed_is_named_by_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """On sys.path alone the package can still be installed from its folder."""

    def none(name: str) -> Installed:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", none)
    assert pip_line("gpu") == f"pip install -e '{ROOT}[gpu]'"


IMPORT = """
import os, signal, sys
from pathlib import Path
Path("interrupted.py").write_text("import os, signal\\n" + {inside!r} + "\\nDONE = True\\n")
sys.path.insert(0, "")
from espnet3.parallel.backends.backend import interrupts_wait
signal.signal(signal.SIGINT, {handler})
before = signal.getsignal(signal.SIGINT)
try:
    with interrupts_wait():
        import interrupted
finally:
    assert signal.getsignal(signal.SIGINT) is before
    whole = hasattr(sys.modules.get("interrupted"), "DONE")
    print("whole" if whole else "cut", flush=True)
print("went on")
"""
INTERRUPT = "os.kill(os.getpid(), signal.SIGINT)"
# what a compiled module does that looks something up
DROPPED = f"try:\n    {INTERRUPT}\nexcept BaseException:\n    pass"


@pytest.mark.parametrize(
    ("inside", "handler", "said", "code"),
    [
        (INTERRUPT, "signal.default_int_handler", "whole", -signal.SIGINT),
        (DROPPED, "signal.default_int_handler", "whole", -signal.SIGINT),
        (f"{INTERRUPT}\n{INTERRUPT}", "signal.default_int_handler", "cut", -signal.SIGINT),
        (INTERRUPT, "lambda *_: sys.exit(7)", "whole", 7),
        (INTERRUPT, "signal.SIG_IGN", "whole\nwent on", 0),
    ],
    ids=["once", "dropped by the module", "twice", "own handler", "ignored"],
)
def test_an_import_hears_ctrl_c_at_its_end(
    inside: str, handler: str, said: str, code: int, tmp_path: Path
) -> None:
    """Ctrl-C within an import comes when that is over, and is not lost; the second one does not wait."""
    ended = finish(start_script(tmp_path, IMPORT.format(inside=inside, handler=handler)))
    assert (ended.stdout.strip(), ended.returncode) == (said, code), ended.stderr
