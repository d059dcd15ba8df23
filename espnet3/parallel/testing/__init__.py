"""Public helpers to test your own providers and runners, and backends of your own.

`same_answer` checks a runner, `BackendContract` a backend.
"""

from espnet3.parallel.testing.answers import equal, same_answer
from espnet3.parallel.testing.contract import BackendContract

__all__ = ["BackendContract", "equal", "same_answer"]
