"""What was promised of `mini_an4` on our layer: its stages with both layers, and what goes beyond them."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.dropin.compare import differences
from tests.dropin.environment import ROOT, Scratch
from tests.dropin.ranks import two_ranks
from tests.dropin.recipe import INFERENCE, LIMIT, RECIPE, STATS, Check, Recipe
from tests.dropin.wheels import both_orders
from tests.waiting import wait_until

SHAPES_PAGE = ROOT / "docs/generated/espnet3-shapes.md"
CHOSEN = RECIPE / "conf" / "training.yaml"  # a link to one of several, as in ESPnet's own integration test


def prepare(scratch: Scratch) -> Check:
    """Give both trees the same data, tokens, statistics and model, made once with ESPnet's own layer."""
    check = Check("data, tokens and model")
    prepared = Recipe(scratch, scratch.folder / "prepared")
    if not (prepared.folder / "made").exists():
        shutil.rmtree(prepared.tree, ignore_errors=True)
        shutil.copytree(scratch.pristine, prepared.tree)
        _choose_training(prepared)
        prepared.run(check, prepared.command(["create_dataset", "train_tokenizer", "collect_stats", "train"]))
        if check.wrong:
            return check
        (prepared.folder / "made").touch()
    for tree in (scratch.theirs, scratch.ours):
        each = Recipe(scratch, tree)
        _choose_training(each)
        # the files name each other by full paths, and both trees read the same ones
        for name in ("data", "exp"):
            shutil.copytree(prepared.folder / name, each.folder / name, symlinks=True)
    return check


def _choose_training(recipe: Recipe) -> None:
    link = recipe.tree / CHOSEN
    link.unlink(missing_ok=True)
    link.symlink_to("training_asr_streaming.yaml")


def stages(recipe: Recipe, who: str) -> Iterator[Check]:
    """Run the stages with one and with two workers, then the repository's own comparison of the two."""
    for how, words in (("one worker", "serial"), ("two workers", "parallel")):
        check = Check(f"collect_stats, infer, measure, {how}, {who}")
        recipe.run(check, recipe.command(["collect_stats"], f"training_asr_streaming_{words}"))
        recipe.run(check, recipe.command(["infer", "measure"], inference=f"inference_{words}"))
        yield check
    check = Check(f"ci/check_espnet3_parallel_workers.py, {who}")
    pairs = {
        "--inference": INFERENCE.format("serial"),
        "--inference-parallel": INFERENCE.format("parallel"),
        "--stats": STATS.format("serial"),
        "--stats-parallel": STATS.format("parallel"),
    }
    script = recipe.tree / "ci" / "check_espnet3_parallel_workers.py"
    recipe.run(check, [recipe.python, str(script), *(word for pair in pairs.items() for word in pair)])
    yield check


def same_outputs(theirs: Recipe, ours: Recipe) -> Check:
    """Compare with theirs of two workers: their sums of one differ from those in the last bits, and ours do not."""
    check = Check("outputs of one worker and of two with our layer, byte by byte those of two with its own")
    for kind in (STATS, INFERENCE):
        for how in ("serial", "parallel"):
            one, other = theirs.folder / kind.format("parallel"), ours.folder / kind.format(how)
            check.wrong += [f"{kind.format(how)}/{what}" for what in differences(one, other)]
    return check


def detached(theirs: Recipe, ours: Recipe) -> Check:
    """Run `infer` as two jobs without a driver, by two lines in its configuration."""
    check = Check("infer detached, two jobs, then measure")
    _write(ours, "detached", "\nrunner:\n  async_mode: true\n  async_specs_dir: ${exp_dir}/specs\n")
    ours.run(check, ours.command(["infer"], inference="inference_detached"))
    folder = ours.folder / INFERENCE.format("detached")
    for run in sorted(path.parent for path in folder.glob("*/run.json")):
        for verb in ("wait", "merge"):
            ours.run(check, [str(Path(ours.python).parent / "espnet3-parallel"), verb, str(run)])
    ours.run(check, ours.command(["measure"], inference="inference_detached"))
    check.wrong += differences(theirs.folder / INFERENCE.format("serial"), folder)
    return check


def killed(theirs: Recipe, ours: Recipe) -> Check:
    """SIGKILL `infer` between its first and its last test set, and give the same command again."""
    check = Check("infer, two workers, SIGKILL at half, the same command again")
    _write(ours, "killed", "")
    words = ours.command(["infer", "measure"], inference="inference_killed")
    folder = ours.folder / INFERENCE.format("killed")
    with subprocess.Popen(
        words,
        cwd=ours.folder,
        env=ours.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        wait_until(lambda: list(folder.glob("*/text.scp")) or process.poll() is not None, LIMIT)
        if process.poll() is not None:
            check.wrong.append(f"infer ended with {process.returncode} before it could be killed")
        else:
            os.killpg(process.pid, signal.SIGKILL)
    ours.run(check, words)
    check.wrong += differences(theirs.folder / INFERENCE.format("serial"), folder)
    return check


def changed(ours: Recipe) -> Check:
    check = Check("infer with another beam size in the same folder: refused, the difference named")
    path = ours.folder / "conf" / "inference_killed.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("beam_size: 1", "beam_size: 2"), encoding="utf-8")
    said = ours.run(check, ours.command(["infer"], inference="inference_killed"), fails=True)
    if "beam_size" not in said or "ChangedRunError" not in said:
        check.wrong.append("the refusal does not name beam_size")
    return check


def trains(ours: Recipe) -> Check:
    check = Check("collect_stats and train with our layer, the trainer untouched")
    shutil.rmtree(ours.folder / "exp" / "training")
    shutil.rmtree(ours.folder / "exp" / "stats")
    ours.run(check, ours.command(["collect_stats", "train"]))
    if not list((ours.folder / "exp" / "training").glob("*.ckpt")):
        check.wrong.append("there is no checkpoint")
    return check


def unmodified(scratch: Scratch) -> Check:
    """Compare ESPnet's own files in the tree that has our layer with those of its source distribution."""
    check = Check("ESPnet's code, recipes and tests in the tree with our layer: not a byte changed")
    names = [
        path.relative_to(scratch.pristine)
        for path in scratch.pristine.rglob("*")
        if path.is_file() and path.relative_to(scratch.pristine) != CHOSEN
    ]
    check.wrong += [
        f"{name} differs"
        for name in names
        if (scratch.ours / name).read_bytes() != (scratch.pristine / name).read_bytes()
    ]
    return check


def shapes(recipe: Recipe, who: str, column: str) -> Check:
    check = Check(f"the shapes of public recipes, {who}")
    with TemporaryDirectory() as folder:
        said = recipe.run(check, [recipe.python, str(ROOT / "tests" / "dropin" / "shapes.py"), folder])
    found = dict(line.split(" | ", 1) for line in said.splitlines() if " | " in line)
    for name, answers in shapes_table().items():
        if found.get(name) != answers[column]:
            check.wrong.append(f"{name}: {found.get(name)}, and not {answers[column]}")
    return check


def shapes_table() -> dict[str, dict[str, str]]:
    """Return the answers of both layers by the names of the shapes, as `docs/generated/espnet3-shapes.md` says."""
    cells = [line.split(" | ") for line in SHAPES_PAGE.read_text(encoding="utf-8").splitlines()]
    rows = [each for each in cells if len(each) == 4 and each[2].startswith("`")]
    return {row[0].strip("| "): {"theirs": row[2].strip("`"), "ours": row[3].strip("` |")} for row in rows}


def _write(ours: Recipe, name: str, more: str) -> None:
    conf = ours.folder / "conf"
    text = (conf / "inference_parallel.yaml").read_text(encoding="utf-8")
    (conf / f"inference_{name}.yaml").write_text(text + more, encoding="utf-8")


def all_of(scratch: Scratch) -> Iterator[Check]:
    """Do all of it, in prepared trees; a check that fails does not keep the later ones from running."""
    theirs, ours = Recipe(scratch, scratch.theirs), Recipe(scratch, scratch.ours)
    yield from stages(theirs, "its own layer")
    yield from stages(ours, "our layer")
    yield same_outputs(theirs, ours)
    yield detached(theirs, ours)
    yield killed(theirs, ours)
    yield changed(ours)
    yield trains(ours)
    yield two_ranks(ours)
    yield shapes(theirs, "its own layer", "theirs")
    yield shapes(ours, "our layer", "ours")
    yield unmodified(scratch)
    yield from both_orders(scratch, theirs)
