"""What items print and log while a bar is shown: whole lines above it."""

import pytest

from tests.habits import rows
from tests.parallel.runner.terminal import on_a_terminal

SPEAKS = """
    import logging, sys
    from espnet3 import parallel

    def speaks(idx):
        if idx % 50 == 0:
            print("printed", idx)
            print("in", "parts", end=" ")
            print(idx)
            print("error", idx, file=sys.stderr)
            logging.getLogger("mine").info("logged %d", idx)
        return idx

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    print(len(parallel.run(speaks, range(500), n_workers=WORKERS)), "done")
"""


@pytest.mark.parametrize("workers", rows([1, 2], [2]))
def test_lines_of_items_stand_above_the_bar(tmp_path, workers):
    """What items print and log stands on the screen in whole lines, by worker, and the bar below all of it."""
    with on_a_terminal(tmp_path, SPEAKS.replace("WORKERS", str(workers))) as terminal:
        terminal.finish()
        screen = terminal.screen()
    for item in range(0, 500, 50):
        for text in (f"printed {item}", f"in parts {item}", f"error {item}", f"logged {item}"):
            (line,) = [each for each in screen if each == text or each.endswith(f"] {text}")]
            assert line.startswith("[worker ") == (workers == 2)
    bars = [at for at, line in enumerate(screen) if "it/s" in line or "%|" in line]
    last = [at for at, line in enumerate(screen) if line.startswith("speaks: 500 items")]
    assert [at + 1 for at in bars] == last, "\n".join(screen)
    assert screen[last[0] + 1 :][-2:] == ["500 done", ""]
