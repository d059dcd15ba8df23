"""Pictures of all that people see: `make screenshots` writes them into build/screenshots, three of them into docs/ too.

The terminal views run on a pseudo-terminal of 80 and of 120 columns, a notebook in JupyterLab; the report and the
pages of the site are opened in a headless Chromium, light and dark, which must be installed. An error on a page's
console ends this.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from notebook import pictures
from recording import Recorder, svg

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "build/screenshots"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DOCS = ROOT / "docs"
PAGES = (
    "index",
    "quickstart",
    "api/base_runner",
    "errors/itemerror",
    "performance",
)  # of the site, where it is built
RUN = """
import time
from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel

class Env(EnvironmentProvider):
    def build_env_local(self):
        time.sleep(0.5)
        return {}

class Work(BaseRunner):
    @staticmethod
    def item_cost(idx):
        return idx % 7
    @staticmethod
    def forward(idx):
        time.sleep(0.002 * (idx % 7) + (0.8 if idx == 77 else 0))
        if idx % 90 == 13:
            raise ValueError(f"utterance {idx} is empty")
        return idx

if __name__ == "__main__":
    import sys
    set_parallel({"env": "local", "n_workers": 2, "detached": {"shards": 5}})
    more = {"async_mode": True, "output_dir": "jobs"} if "detached" in sys.argv else {"output_dir": "out"}
    Work(Env(), on_error="record", **more)(range(1500))
"""
# What is typed, and the seconds after which the picture is taken, unless it has ended before
VIEWS = {
    "bar": ("python run.py", 3.0),
    "watch": ("(python run.py >/dev/null 2>&1 &) ; sleep 2; timeout 6 espnet3-parallel watch out", 5.0),
    "status": ("espnet3-parallel status out", 60.0),
    # of jobs: while they are at work, and what they are when they have ended
    "watch-jobs": ("python run.py detached; sleep 2.5; timeout 6 espnet3-parallel watch jobs", 7.0),
    "status-jobs": ("espnet3-parallel wait jobs >/dev/null 2>&1; espnet3-parallel status jobs", 60.0),
    "doctor": ("espnet3-parallel doctor conf.yaml", 60.0),
}


def browser() -> str:
    """Return the command of a Chromium.

    Raises:
        SystemExit: There is none.
    """
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    raise SystemExit(f"none of {', '.join(BROWSERS)} is installed, and one of them takes the pictures")


def terminal(name: str, columns: int, folder: Path) -> Path:
    """Run a view on a terminal, and return its last picture as SVG."""
    command, seconds = VIEWS[name]
    recorder = Recorder(columns, 30)
    recorder.type(command)
    recorder.run(command, folder, at_most=seconds)
    file = TARGET / f"{name}-{columns}.svg"
    file.write_text(svg(recorder.frames[-1:], 1.0, columns, 30), encoding="utf-8")
    return file


def watched(folder: Path) -> None:
    """Write docs/watch.svg, from which the name of the folder for temporary files is left out."""
    columns, rows, typed = 80, 13, "espnet3-parallel watch out"
    shutil.rmtree(folder / "out", ignore_errors=True)
    recorder = Recorder(columns, rows)
    recorder.type(typed)
    recorder.run(VIEWS["watch"][0], folder, at_most=VIEWS["watch"][1])
    text = svg(recorder.frames[-1:], 1.0, columns, rows, [typed])
    (DOCS / "watch.svg").write_text(text.replace(str(folder), "~/runs"), encoding="utf-8")


def picture(chromium: str, page: Path, dark: bool, size: str, target: Path | None = None) -> None:
    """Take the picture of a page.

    Raises:
        SystemExit: The page has written an error to its console.
    """
    name = page.stem + ("-dark" if dark else "")
    command = [chromium, "--headless", "--disable-gpu", "--hide-scrollbars", f"--window-size={size}"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to run as root otherwise
    command += ["--blink-settings=preferredColorScheme=0"] if dark else []
    command += ["--enable-logging=stderr", f"--screenshot={target or TARGET / f'{name}.png'}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    wrong = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "rror" in line]
    if wrong:
        raise SystemExit(f"{page}: {wrong}")


def main() -> None:
    """Take all pictures."""
    chromium = browser()
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "run.py").write_text(RUN)
        (folder / "conf.yaml").write_text("parallel:\n  env: local\n  n_workers: 2\n")
        for columns in (80, 120):
            for name in VIEWS:
                if old := {"bar": "out", "watch": "out", "watch-jobs": "jobs"}.get(name):
                    shutil.rmtree(folder / old, ignore_errors=True)
                picture(chromium, terminal(name, columns, folder), False, "1100,640")
        watched(folder)
        subprocess.run([sys.executable, "run.py"], cwd=folder, check=True, capture_output=True)
        report = [
            str(Path(sys.executable).parent / "espnet3-parallel"),
            "report",
            "out",
            "-o",
            str(TARGET / "report.html"),
        ]
        subprocess.run(report, cwd=folder, check=True, capture_output=True)
        shown = TARGET / "report.html"
        shown.write_text(shown.read_text(encoding="utf-8").replace(str(folder), "~/runs"), encoding="utf-8")
        picture(chromium, shown, False, "900,1010", DOCS / "report.png")
    with tempfile.TemporaryDirectory() as made:
        pictures(chromium, Path(made), TARGET, DOCS / "notebook.png")
    pages = [TARGET / "report.html"]
    pages += [page for name in PAGES if (page := ROOT / f"build/site/{name}.html").exists()]
    for page in pages:
        for dark in (False, True):
            picture(chromium, page, dark, "1300,2600" if page.stem == "report" else "1300,1100")
    print(f"wrote {len(list(TARGET.glob('*.png')))} pictures into {TARGET}")


if __name__ == "__main__":
    main()
