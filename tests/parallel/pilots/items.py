"""What items do in the tests of this folder: light to import, as each new worker does."""

import io
import logging
import os
import sys
import threading
import time
from pathlib import Path

from espnet3.parallel import BaseRunner, EnvironmentProvider
from espnet3.parallel.pilots.log_records import MOST

# --- items that take long ------------------------------------------------------------------------

LONG = 0.6  # seconds: an item that is worth a worker of its own
PATIENCE = 60.0  # seconds after which an item is taken for one that waits for ever


def begun(item, folder, wanted):
    """Note that an item has begun, and wait until so many have: one that stands behind this one never will."""
    (Path(folder) / str(item)).touch()
    end = time.monotonic() + PATIENCE
    while len(list(Path(folder).iterdir())) < wanted:
        assert time.monotonic() < end, f"item {item} waits for others to begin"
        time.sleep(0.01)


def in_rounds(item, folder, workers):
    """Items of equal length: each round ends when as many have begun as there are workers."""
    begun(item, folder, (item // workers + 1) * workers)
    time.sleep(LONG)
    return item


class Slow(int):
    """A number that is sent as on a busy machine: late."""

    def __reduce__(self):
        time.sleep(LONG / 4)
        return int, (int(self),)


def first_waits(item, folder, workers, items):
    """The first items, one fewer than there are workers, last until all others have begun; the next is long, too."""
    if item < workers - 1:
        begun(item, folder, items)
    else:
        begun(item, folder, 0)
        time.sleep(LONG if item < workers + 1 else 0)
    return Slow(item)


class Env(EnvironmentProvider):
    def build_env_local(self):
        return self.config


class First(BaseRunner):
    """Items of which the first waits."""

    @staticmethod
    def forward(item, folder, workers, items):
        return int(first_waits(item, folder, workers, items))


class Misjudged(First):
    """With costs that are wrong: the short ones are said to cost nothing."""

    @staticmethod
    def item_cost(item):
        return 1.0 if item == 0 else 0.0


class Files(First):
    """With a file for each shard."""

    @staticmethod
    def open_writers(shard_dir, **env):
        return None

    @staticmethod
    def write_record(writers, result, state, **env):
        pass


# --- items that log ------------------------------------------------------------------------------

LOGGER = "user.recipe"
BATCH = 4


class Provider(EnvironmentProvider):
    """Logs that it loads; fails where it is told to."""

    def build_env_local(self):
        logging.getLogger(LOGGER).warning("loading")
        if self.config == "broken":
            raise OSError("no such model")
        if self.config == "configures":
            logging.basicConfig(filename=os.environ["OWN_LOG"], level=logging.DEBUG)
        return {}


class Speak(BaseRunner):
    """Item 3 speaks at each level, and once about an error."""

    @staticmethod
    def forward(idx):
        if idx == 3:
            log = logging.getLogger(LOGGER)
            logging.debug("such a call gives the root logger a handler")  # noqa: LOG015  what is tested
            log.debug("debug")
            log.info("info", extra={"speaker": "f01"})
            try:
                raise LookupError("gone")
            except LookupError:
                log.exception("error of %s", idx)
            logging.getLogger("user.quiet").warning("not wanted")
        return idx

    @staticmethod
    def batch_forward(indices):
        if 3 in indices:
            logging.getLogger(LOGGER).warning("a batch")
        return list(indices)


def logs_much(item, folder):
    """The second item logs a megabyte once it may go on, and says when it is done."""
    if item:
        while not (Path(folder) / "go").exists():
            time.sleep(0.01)
        for _ in range(MOST):
            logging.getLogger(LOGGER).warning("x" * 10_000)
        (Path(folder) / "done").touch()
    return item


def floods(x):
    """Log far more than a driver takes."""
    for n in range(20 * MOST):
        logging.getLogger(LOGGER).warning("number %d", n)
    return x


def speaks_from_a_thread(x):
    """Log from a thread of its own."""
    thread = threading.Thread(target=logging.getLogger(LOGGER).warning, args=("from a thread",))
    thread.start()
    thread.join()
    return x


def dies(x):
    if x == 2:
        logging.getLogger(LOGGER).warning("about to end")
        said = threading.Event()
        said.wait(1.0)  # as any crash that does not come in the same millisecond
        os._exit(1)
    return x


def forks(x):
    pid = os.fork()
    if not pid:
        sys.stderr = io.StringIO()  # where a process without handlers logs
        logging.getLogger(LOGGER).warning("from the child")
        os._exit(0 if sys.stderr.getvalue() == "from the child\n" else 1)
    assert os.waitpid(pid, 0)[1] == 0
    logging.getLogger(LOGGER).warning("from the parent")
    return x


# --- others --------------------------------------------------------------------------------------


def process_of(_: int) -> int:
    return os.getpid()
