"""Long items of a service that hangs or fails now and then: a time limit, retries, and a folder to go on from.

`answer` stands for a call of a language model. Started again after Ctrl-C or a kill, this goes on with what is missing.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

from espnet3.parallel import ItemFailure, run, set_parallel


def answer(question: str, patience: float) -> str:
    """Ask the service; now and then it answers with an error, and to one question it never answers."""
    if random.random() < 0.2:
        raise ConnectionError("the service is busy")
    if question.startswith("Why"):
        time.sleep(patience)
    time.sleep(0.05)
    return question.upper()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--questions", type=Path, help="a JSON list; without it, some of its own")
    parser.add_argument("--seconds", type=float, default=2.0, help="that one answer may take")
    args = parser.parse_args()
    questions = [f"What is {k}?" for k in range(20)] + ["Why is there something?"]
    if args.questions:
        questions = json.loads(args.questions.read_text(encoding="utf-8"))

    set_parallel({"env": "local", "n_workers": 4})
    answers = run(
        answer,
        questions,
        env={"patience": 3600.0},
        output_dir="runs/answers",
        on_error="record",
        max_retries=5,  # of an item that raised, or whose worker was killed with it
        item_timeout=args.seconds,
        retry_failed=True,  # a second call asks again what failed in the first one
    )
    for question, one in zip(questions, answers, strict=True):
        print(question, "->", f"({one.cause}) {one.message}" if isinstance(one, ItemFailure) else one)
