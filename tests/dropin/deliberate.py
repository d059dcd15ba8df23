"""The tests of ESPnet that pass with its own layer and not with ours, each with the reason."""

_PLAN = "replaces the private `_plan_shards`: how indices are cut is not a method of a runner here"
_SHARDS = (
    "expects as many `split.N` as workers, of three items two on two workers and three on three: here the cut is the "
    "same for any number of workers, so that sums made shard by shard are the same to the last bit"
)

_BATCH = "test.espnet3.parallel.test_base_runner_batch::"

_RUNNER = "test.espnet3.parallel.test_inference_runner::"

REASONS: dict[str, str] = {
    f"{_RUNNER}test_parallel_shards_offline_with_base_runner": _SHARDS,
    f"{_RUNNER}test_parallel_shards_streaming_with_base_runner": _SHARDS,
    f"{_BATCH}test_local_config_uses_workers_and_dask_dispatch": (
        "replaces the private `_run_parallel_dask` and `_get_completed_shard_dirs`"
    ),
    f"{_BATCH}test_parallel_config_can_replace_stale_lock": (
        "calls the private `_get_lock_path` and `_filter_pending_shards`: there are no locks of shards here"
    ),
    f"{_BATCH}test_resume_raises_for_locked_shard": (
        "calls the private `_get_lock_path`; a folder with such a lock is refused here too, in other words"
    ),
    f"{_BATCH}test_resume_raises_when_shard_count_changes": _PLAN,
    f"{_BATCH}test_resume_raises_when_shard_plan_changes": _PLAN,
    f"{_BATCH}test_resume_reuses_manifest_shard_plan": _PLAN,
    "test.espnet3.parallel.test_inference_provider::test_build_worker_setup_fn_rebuilds_env_and_captures_params": (
        "counts a build of the env in the provider's constructor: here the driver builds no env that it does not use, "
        "so a model is not loaded once more than there are workers"
    ),
}
