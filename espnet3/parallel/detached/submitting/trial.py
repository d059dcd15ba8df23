"""A process like a job's, started before anything is queued: could a job import the runner, and make the provider?

It takes a quarter of a second or more, so what else a submission has to do goes on meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from types import TracebackType

from espnet3.parallel.backends import Kind, row
from espnet3.parallel.detached.spec import CHECKED, JobSpec
from espnet3.parallel.detached.surroundings import job_environment
from espnet3.parallel.errors import ConfigError

_SECONDS = 600.0  # importing a user's code from a busy network disk may take minutes


class Trial:
    """The process; leaving the block ends it.

    Over SSH the jobs' interpreter may be one that only the other hosts have; then it is this process's.

    Args:
        spec: What a job would be told.
        env: The backend.

    Attributes:
        failed: Whether it found that a job could not start.
    """

    def __init__(self, spec: JobSpec, env: str) -> None:
        self.failed = False
        self._spec = spec
        self._passed = False
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed at the end of the block
        elsewhere = row(env).kind in (Kind.SSH, Kind.KUBERNETES)
        python = sys.executable if elsewhere else spec.surroundings.python
        with tempfile.TemporaryFile() as told:
            told.write(json.dumps(spec.to_json()).encode())
            told.seek(0)
            try:
                self._process = subprocess.Popen(
                    [python, "-m", "espnet3.parallel.worker", "--check"],
                    stdin=told,
                    stdout=subprocess.DEVNULL,
                    stderr=self._said,
                    cwd=spec.run if os.path.isdir(spec.run) else "/",
                    env=job_environment(),
                )
            except OSError as error:
                self._said.close()
                raise ConfigError(
                    f"the jobs' interpreter {spec.surroundings.python!r} cannot be started: {error}"
                ) from error

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()

    def passed(self) -> None:
        """Wait for its end."""
        if self._passed:
            return
        self.failed = True
        try:
            status = self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"importing {self._spec.runner.file} in a detached job took more than {_SECONDS:g} s: what is not a "
                "definition in it belongs under `if __name__ == '__main__':`"
            ) from error
        if status == 0:
            self.failed, self._passed = False, True
            return
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").splitlines()
        found = next((line for line in reversed(said) if line.startswith(CHECKED)), None)
        if found is not None:
            raise ConfigError(json.loads(found.removeprefix(CHECKED)))
        tail = "\n".join(said[-15:])
        raise ConfigError(f"a detached job cannot start with {self._spec.surroundings.python}:\n{tail}")
