"""A run whose items leave marks, so that a test can strike in the middle and count afterwards."""

import threading
import time
from collections import Counter

from tests.clusters.work import Env, Slow


class Counted:
    """A run of `n` items of `seconds` each, and a look at the marks they left."""

    def __init__(self, folder, n, seconds):
        self.folder = folder / "marks"
        self.folder.mkdir()
        self.n = n
        self.runner = Slow(Env({"folder": str(self.folder), "seconds": seconds}), progress=False)

    def begun(self):
        """Return how often each item has begun."""
        return Counter(int(path.name.split("-")[1]) for path in self.folder.glob("began-*"))

    def ended(self):
        """Return how often each item has ended."""
        return Counter(int(path.name.split("-")[1]) for path in self.folder.glob("ended-*"))

    def meanwhile(self, fault, after):
        """Run all items; call `fault` once `after` of them have ended. Return the results."""
        failed = []

        def strike():
            while len(self.ended()) < after:
                time.sleep(0.05)
            try:
                fault()
            except BaseException as error:
                failed.append(error)
                raise

        thread = threading.Thread(target=strike)
        thread.start()
        results = self.runner(range(self.n))
        thread.join()
        assert not failed
        return results

    def check(self, results):
        """Assert that every result is there, in order, and that no finished item ran again."""
        assert [value for value, _, _ in results] == [idx * idx for idx in range(self.n)]
        assert set(self.ended()) == set(range(self.n))
        assert max(self.ended().values()) == 1
