"""What runs on workers: imported there by name, so that nothing here needs pytest."""

import os
import time
from pathlib import Path

from espnet3.parallel import BaseRunner, EnvironmentProvider, InferenceProvider


def log(folder, text, name="log"):
    with open(Path(folder) / name, "a") as file:
        file.write(f"{text}\n")


def pid(_):
    return os.getpid()


def plus(x, y=1):
    return x + y


def noted(x, folder, y=0):
    log(folder, x)
    return x + y


def noted_and_stopped(x, folder):
    """Note that the item has run, and let a StopIteration out as a forgotten `next()` does."""
    log(folder, x)
    raise StopIteration(x)


def until_open(x, pipe):
    """Item 0 waits until the driver opens a named pipe; the others are done at once."""
    if x == 0:
        Path(pipe).read_text()
    return x


def make_pipe(folder):
    os.mkfifo(Path(folder) / "pipe")
    return Path(folder) / "pipe"


def open_pipe(folder):
    open(Path(folder) / "pipe", "w").close()


def never_ready():
    time.sleep(100)


class TwoPartError(Exception):
    """An error with a constructor of its own, as most libraries have."""

    def __init__(self, code, reason):
        super().__init__(f"{code}: {reason}")
        self.code = code


class Add:
    def __init__(self, y):
        self.y = y

    def __call__(self, x):
        return x + self.y

    def method(self, x):
        return x + self.y


class AddEnv:
    """Callable, with a parameter that the env gives."""

    def __call__(self, x, y):
        return x + y


def raises_once(mark, y=0):
    """Raise the first time; then return what the env gives."""
    if not Path(mark).exists():
        Path(mark).touch()
        raise OSError("not yet")
    return y


class Indexed:
    """A dataset as torch has them: a length and items by number, and no iterator."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, at):
        if not 0 <= at < self.n:
            raise IndexError(at)
        return 10 * at


class Provider(EnvironmentProvider):
    def build_env_local(self):
        if "folder" in self.config:
            log(self.config["folder"], os.getpid(), "built")
        return {"factor": self.config["factor"], "unused": None}


class Times(BaseRunner):
    @staticmethod
    def forward(idx, factor):
        return idx * factor


class TimesInBatches(Times):
    @staticmethod
    def batch_forward(indices, factor):
        return [idx * factor for idx in indices]


class Echo(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx


class Whole(EnvironmentProvider):
    def build_env_local(self):
        return {}


class Speech(InferenceProvider):
    @staticmethod
    def build_dataset(config):
        return list(range(config["size"]))

    @staticmethod
    def build_model(config):
        return Add(config["offset"])


class Infer(BaseRunner):
    @staticmethod
    def forward(idx, dataset, model, beam):
        return model(dataset[idx]) + beam
