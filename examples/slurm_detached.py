"""A run on Slurm without a driver: submit, log out, come back; the same command goes on with what is missing.

python slurm_detached.py --queue cpu --account lab    # submits, or submits what is missing, and says how far it is
espnet3-parallel status runs/primes                            # from any machine that sees the folder
"""

from __future__ import annotations

import argparse

from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel


class Limits(EnvironmentProvider):
    """How far to look."""

    def build_env_local(self) -> dict[str, int]:
        """Return the length of a stretch of numbers."""
        return {"length": self.config["length"]}


class Primes(BaseRunner):
    """Counts primes."""

    @staticmethod
    def forward(idx: int, length: int) -> int:
        """Return how many primes the stretch with this number has."""
        numbers = range(max(2, idx * length), (idx + 1) * length)
        return sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in numbers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--env", default="slurm", help="local runs the same as jobs of this machine")
    parser.add_argument("--queue")
    parser.add_argument("--account")
    parser.add_argument("--wait", action="store_true", help="wait for the jobs and print the sum")
    args = parser.parse_args()

    options = {"queue": args.queue, "account": args.account, "cores": 1, "memory": "1GB", "walltime": "1h"}
    if args.env == "local":
        options = {}
    given = {name: value for name, value in options.items() if value is not None}
    set_parallel({"env": args.env, "n_workers": 4, "options": given})
    runner = Primes(Limits({"length": 1000}), output_dir="runs/primes", async_mode=True, on_error="record")
    run = runner(range(40))
    if args.wait:
        run.wait()
        print(sum(run.merge()), "primes")
    status = run.status()
    print(f"{status.ok} of {status.items} items done")
