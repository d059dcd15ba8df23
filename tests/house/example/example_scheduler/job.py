"""How the options of a job are written in the header of the Example scheduler."""

import dask
from dask_jobqueue.core import Job, JobQueueCluster

# every job class of dask-jobqueue has a section of defaults; these are those of its class for tests, and a shebang
SECTION = {**dask.config.get("jobqueue.local"), "shebang": "#!/bin/sh"}
dask.config.update_defaults({"jobqueue": {"example": SECTION}})


class ExampleJob(Job):
    """A job of the Example scheduler."""

    submit_command = "exsub"
    cancel_command = "exdel"
    config_name = "example"
    job_id_regexp = r"job (?P<job_id>\d+)"

    def __init__(self, scheduler=None, name=None, walltime=None, lane=None, config_name=None, **kwargs):
        super().__init__(scheduler=scheduler, name=name, config_name=config_name, **kwargs)
        lines = [f"--name={self.job_name}", f"--slots={self.worker_cores}"]
        lines += [f"--lane={lane}"] if lane is not None else []
        lines += [f"--time={walltime}"] if walltime is not None else []
        lines += [f"--log={self.log_directory}/%J.txt"] if self.log_directory is not None else []
        self.job_header = "\n".join(f"#EX {line}" for line in [*lines, *self.job_extra_directives])


class ExampleCluster(JobQueueCluster):
    """A cluster of such jobs."""

    job_cls = ExampleJob
