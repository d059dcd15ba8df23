"""The page for people who come from ESPnet2: what it prints is what the command prints."""

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from espnet3_parallel.configs import plan
from espnet3_parallel.migrate.verb import migrate

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from-espnet2.md"


def blocks(language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def test_the_command_prints_the_block_on_the_page(tmp_path, monkeypatch) -> None:
    """The command on the page, over the files on the page, prints the YAML on the page, and `plan` accepts it."""
    monkeypatch.chdir(tmp_path)
    files = {}
    for text in blocks("sh"):
        if found := re.match(r"# (\S+)\n", text):
            files[found[1]] = text
    assert set(files) == {"cmd.sh", "conf/slurm.conf"}
    (command,) = blocks("console")
    (printed,) = blocks("yaml")
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    done = CliRunner().invoke(migrate, shlex.split(command.removeprefix("$ espnet3-parallel migrate ")))
    assert done.exit_code == 0, done.output
    assert done.stdout == printed
    Path("parallel.yaml").write_text(printed, encoding="utf-8")
    planned = CliRunner().invoke(plan, ["parallel.yaml"])
    assert planned.exit_code == 0 and "#SBATCH -p cpu" in planned.stdout
