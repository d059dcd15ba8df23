"""The tests of ESPnet that pass with its own layer and not with ours, each with the reason."""

from __future__ import annotations

_PLAN = "replaces the private `_plan_shards`: how indices are cut is not a method of a runner here"
_LOCK = "looks for the private lock file: a folder is held by a lease that ends with its holder"
_SHARDS = "counts one `split.N` for each worker: ours cuts finer, so that work flows to whoever is free"

_BATCH = "test.espnet3.parallel.test_base_runner_batch::"

REASONS: dict[str, str] = {
    f"{_BATCH}test_batch_size_rejects_non_positive": (
        "expects the error when the runner is called: here it comes when the runner is made"
    ),
    f"{_BATCH}test_local_config_uses_workers_and_dask_dispatch": "replaces the private `_run_parallel_dask`",
    f"{_BATCH}test_parallel_config_can_replace_stale_lock": _LOCK,
    f"{_BATCH}test_resume_raises_for_locked_shard": _LOCK,
    f"{_BATCH}test_resume_raises_when_shard_count_changes": (
        "expects that another number of workers is refused: here a run goes on with any number"
    ),
    f"{_BATCH}test_resume_raises_when_shard_plan_changes": _PLAN,
    f"{_BATCH}test_resume_reuses_manifest_shard_plan": _PLAN,
    f"{_BATCH}test_run_parallel_dask_dispatches_multiple_shards": _SHARDS,
    "test.espnet3.parallel.test_inference_provider::test_build_worker_setup_fn_rebuilds_env_and_captures_params": (
        "counts a build in the provider's constructor: here the driver builds no env that it does not use"
    ),
    "test.espnet3.parallel.test_inference_runner::test_parallel_shards_offline_with_base_runner": _SHARDS,
    "test.espnet3.parallel.test_parallel::test_base_runner_uses_local_cluster_workers": _SHARDS,
}
