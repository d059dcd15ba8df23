"""A column of a DataFrame: a function over its values on two workers, with failures in their place."""

from __future__ import annotations

import pandas as pd

from espnet3.parallel import ItemFailure, run, set_parallel


def seconds(text: str) -> float:
    """Return a time of day, "1:02:03.5", in seconds."""
    hours, minutes, rest = text.split(":")
    return 3600 * int(hours) + 60 * int(minutes) + float(rest)


if __name__ == "__main__":
    table = pd.DataFrame({"utterance": ["utt1", "utt2", "utt3"], "begin": ["0:00:01.5", "soon", "1:02:03"]})
    set_parallel({"env": "local", "n_workers": 2})

    results = run(seconds, table["begin"].tolist(), on_error="record")
    failed = [isinstance(one, ItemFailure) for one in results]
    table["seconds"] = [None if bad else one for one, bad in zip(results, failed, strict=True)]
    table["error"] = [one.message if bad else "" for one, bad in zip(results, failed, strict=True)]
    print(table.to_string(index=False))
