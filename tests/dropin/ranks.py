"""Training on two ranks and `infer` in one command: both ranks run every stage, and one of them infers."""

import json
import re
from pathlib import Path

from tests.dropin.compare import differences
from tests.dropin.recipe import Check, Recipe

_TRAINED = "exp/training_ranks"
_DONE = re.compile(r"\[DONE\] stage: infer\b")


def two_ranks(ours: Recipe) -> Check:
    """Train on two processes, infer in the same command, and compare with what one process infers by that model."""
    check = Check("train on two ranks (DDP), then infer, in one command: inferred once, as by one process")
    conf = ours.folder / "conf"
    training = (conf / "training_asr_streaming.yaml").read_text(encoding="utf-8")
    trainer = "  accelerator: cpu\n  devices: 2\n  strategy: ddp_find_unused_parameters_true"
    (conf / "training_ranks.yaml").write_text(
        training.replace("  strategy: auto", trainer) + "\nnum_device: 2\n", encoding="utf-8"
    )
    for name in ("once", "again"):
        text = (conf / "inference_serial.yaml").read_text(encoding="utf-8")
        # too few utterances for two ranks to validate
        text = text.replace("epoch0_step1_valid.loss.ckpt", "last.ckpt")
        (conf / f"inference_{name}.yaml").write_text(text, encoding="utf-8")
    said = ours.run(check, ours.command(["train", "infer"], "training_ranks", "inference_once"))
    if check.wrong:
        return check
    ranks = len(_DONE.findall(said))
    if ranks != 2:
        check.wrong.append(f"{ranks} ranks came to the end of infer, and not 2")
    ours.run(check, ours.command(["infer"], "training_ranks", "inference_again"))
    once, again = (ours.folder / _TRAINED / f"inference_{name}" for name in ("once", "again"))
    check.wrong += differences(again, once)
    for events in sorted(once.glob("*/events.jsonl")):
        check.wrong += [f"{events.parent.name}: {what}" for what in _more_than_once(events)]
    return check


def _more_than_once(events: Path) -> list[str]:
    """Return what a run's events say beside that it was started and computed, each once."""
    found = [json.loads(line)["event"] for line in events.read_text(encoding="utf-8").splitlines()]
    return [
        f"{found.count(what)} times {what}"
        for what in ("started", "resumed", "computed")
        if found.count(what) != (what != "resumed")
    ]
