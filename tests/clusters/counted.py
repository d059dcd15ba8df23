"""A run whose items leave marks, so that a test can strike in the middle and count afterwards."""

import threading
from collections import Counter

from tests.clusters.work import Env, Slow
from tests.waiting import wait_until


class Counted:
    """A run of `n` items of `seconds` each, and a look at the marks they left."""

    def __init__(self, folder, n, seconds):
        self.folder = folder / "marks"
        self.folder.mkdir()
        self.n = n
        facts = {"folder": str(self.folder), "seconds": seconds, "hold": n // 2}
        self.runner = Slow(Env(facts), progress=False)

    def begun(self):
        return Counter(int(path.name.split("-")[1]) for path in self.folder.glob("began-*"))

    def ended(self):
        return Counter(int(path.name.split("-")[1]) for path in self.folder.glob("ended-*"))

    def workers(self):
        return {path.name.split("-")[2] for path in self.folder.glob("began-*")}

    def meanwhile(self, fault, after, workers=0):
        """Run all items; call `fault` once `after` of them have ended. Return the results.

        The second half of the items waits for the fault, and until so many `workers` have had an item.
        """
        assert after < self.n // 2
        failed = []
        hold = self.folder / "hold"
        hold.touch()

        def strike():
            try:
                wait_until(lambda: len(self.ended()) >= after, every=0.05)
                fault()
                wait_until(lambda: len(self.workers()) >= workers, every=0.05)
            except BaseException as error:
                failed.append(error)
                raise
            finally:
                hold.unlink()

        thread = threading.Thread(target=strike)
        thread.start()
        results = self.runner(range(self.n))
        thread.join()
        assert not failed
        return results

    def check(self, results, killed=0):
        """Assert that every result is there, in order, and that no finished item ran again.

        Of each worker that was killed one item may have: it had ended, and its result was still in the process.
        """
        assert [value for value, _, _ in results] == [idx * idx for idx in range(self.n)]
        assert set(self.ended()) == set(range(self.n))
        again = {idx: times for idx, times in self.ended().items() if times > 1}
        assert sum(again.values()) - len(again) <= killed, again
