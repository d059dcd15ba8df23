"""Pictures of all that people see: `make screenshots` writes them into build/screenshots, three of them into docs/ too.

The terminal views run on a pseudo-terminal of 80 and of 120 columns, a notebook in JupyterLab; README, the report and
pages of the site are opened in a headless Chromium, which must be installed: wide and narrow, light and dark. An
error on a page's console ends this, and so does a page that is wider than its window.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from markdown import markdown
from notebook import pictures
from playwright.sync_api import Browser, sync_playwright
from recording import Recorder, svg

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "build/screenshots"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DOCS = ROOT / "docs"
# Of the site, where it is built
PAGES = (
    "index",
    "quickstart",
    "api/base_runner",
    "errors/itemerror",
    "performance",
    "configuration",
    "generated/cli",
)
SIZES = {"": (1280, 1100), "-narrow": (390, 1400)}  # in pixels; a report and README are as high as they are
# As GitHub shows a README: tables, code and pictures are never wider than the text
README = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<base href="{base}/"><title>README</title>
<style>body {{ max-width: 830px; margin: 16px auto; padding: 0 16px; font: 16px/1.5 sans-serif }}
table, pre {{ display: block; overflow: auto }} pre {{ background: #f6f8fa; padding: 16px; font-size: 85% }}
img {{ max-width: 100% }} td, th {{ border: 1px solid #d1d9e0; padding: 6px 13px }}</style>{body}"""
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


@contextmanager
def chromium() -> Iterator[Browser]:
    """Open a Chromium.

    Raises:
        SystemExit: There is none.
    """
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise SystemExit(f"none of {', '.join(BROWSERS)} is installed, and one of them takes the pictures")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])


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


def picture(
    browser: Browser, page: Path, size: tuple[int, int], target: Path, dark: bool = False, whole: bool = False
) -> None:
    """Take the picture of a page.

    Raises:
        SystemExit: The page has written an error to its console, or is wider than its window.
    """
    wrong = []
    with browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
    ) as context:
        shown = context.new_page()
        shown.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        shown.goto(page.as_uri())
        shown.screenshot(path=target, full_page=whole)
        if (
            page.suffix == ".html"
            and (wide := shown.evaluate("document.documentElement.scrollWidth")) > size[0]
        ):
            wrong.append(f"{wide} pixels wide in a window of {size[0]}")
    if wrong:
        raise SystemExit(f"{page}: {wrong}")


def main() -> None:
    """Take all pictures."""
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    with chromium() as browser, tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "run.py").write_text(RUN)
        (folder / "conf.yaml").write_text("parallel:\n  env: local\n  n_workers: 2\n")
        for columns in (80, 120):
            for name in VIEWS:
                if old := {"bar": "out", "watch": "out", "watch-jobs": "jobs"}.get(name):
                    shutil.rmtree(folder / old, ignore_errors=True)
                shown = terminal(name, columns, folder)
                picture(browser, shown, (1100, 640), shown.with_suffix(".png"))
        watched(folder)
        subprocess.run([sys.executable, "run.py"], cwd=folder, check=True, capture_output=True)
        report, readme = TARGET / "report.html", TARGET / "readme.html"
        command = [Path(sys.executable).parent / "espnet3-parallel", "report", "out", "-o", report]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        report.write_text(report.read_text(encoding="utf-8").replace(str(folder), "~/runs"), encoding="utf-8")
        picture(browser, report, (900, 1010), DOCS / "report.png")
        body = markdown(
            (ROOT / "README.md").read_text(encoding="utf-8"), extensions=["tables", "fenced_code"]
        )
        readme.write_text(README.format(base=ROOT.as_uri(), body=body), encoding="utf-8")
        (folder / "notebook").mkdir()  # its run folder is another one
        pictures(browser, folder / "notebook", TARGET, DOCS / "notebook.png")
        built = [page for name in PAGES if (page := ROOT / f"build/site/{name}.html").exists()]
        for page in (readme, report, *built):
            for kind, size in SIZES.items():
                for dark in (False, True):
                    name = f"{page.stem}{kind}{'-dark' if dark else ''}.png"
                    picture(browser, page, size, TARGET / name, dark, whole=page in (readme, report))
    print(f"wrote {len(list(TARGET.glob('*.png')))} pictures into {TARGET}")


if __name__ == "__main__":
    main()
