"""The code blocks of the five user documents, as they were printed.

The documents have lost the indentation of their YAML; it is put back here. What a document leaves
to its reader (`load_model`, `inputs`, ...) is filled in by the tests. `test_documents` pins this file by a
checksum: a change here is a change of what is promised.
"""

# --- "Parallel Processing in ESPnet3 (espnet3.parallel)", 2025-07-17 ---------------------------------

BASIC_MAP = """\
from omegaconf import OmegaConf
from espnet3.parallel import set_parallel, parallel_map

config = OmegaConf.create({
    "env": "local",
    "n_workers": 4,
    "options": {}
})
set_parallel(config)

def square(x): return x * x

results = parallel_map(square, range(10))
print(results)
"""

SETUP_FN = """\
from espnet3.parallel import get_client, wrap_func_with_worker_env

def setup_fn():
    model = load_model()
    dataset = load_dataset()
    return {"model": model, "dataset": dataset}

def infer(idx, model, dataset):
    sample = dataset[idx]
    return model.predict(sample)

with get_client(setup_fn=setup_fn) as client:
    results = client.map(inference_fn, inputs)

"""

STREAMING = """\
from espnet3.parallel import parallel_for

def compute(x):
    return x * 2

for result in parallel_for(compute, range(100)):
    print("Got result:", result)

# You can also run with setup function
with get_client(setup_fn=setup_fn) as client:
    for result in parallel_for(compute, range(100)):
        print("Got result:", result)

"""

# `"memory": 16GB` is no Python; the quotes are ours. OmegaConf takes no sets: a plain dict.
SLURM_DICT = {
    "env": "slurm",
    "n_workers": 4,
    "options": {
        "queue": "gpu",
        "cores": 1,
        "processes": 1,
        "memory": "16GB",
        "walltime": "30:00",  # Wait time to run setup_fn
        "job_extra_directives": {
            "--gres=gpu:1",
            "--ntasks-per-node=1",
            "--cpus-per-task=4",
            "--output=logs/%j-%x.log",
        },
    },
}

# --- "Multi-GPU" ------------------------------------------------------------------------------------

RUNNER = """\
provider = MyProvider(cfg)
runner = MyRunner(provider)
runner(range(len(dataset)))
"""

# --- the `parallel` blocks of "ESPnet3 Parallel Configuration", "Cluster and parallel", "Multi-GPU" ---

PARALLEL_BLOCKS = {
    "configuration: basic shape": """\
parallel:
  env: local
  n_workers: 4
  options: {}
""",
    "configuration: local CPU": """\
parallel:
  env: local
  n_workers: 4
  options:
    threads_per_worker: 1
""",
    "configuration: local GPU": """\
parallel:
  env: local_gpu
  n_workers: 2
  options: {}
""",
    "configuration: SLURM": """\
parallel:
  env: slurm
  n_workers: 4
  options:
    queue: gpu
    account: my-lab
    cores: 8
    processes: 1
    memory: 32GB
    walltime: "04:00:00"
    interface: ib0
    log_directory: logs/dask
    job_script_prologue:
      - "module load cuda"
      - "source .pixi/envs/default/bin/activate"
    job_extra_directives:
      - "--gres=gpu:1"
""",
    "cluster: local": """\
parallel:
  env: local
  n_workers: 8
""",
    "cluster: local GPU": """\
parallel:
  env: local_gpu
  n_workers: 4
""",
    "cluster: SLURM": """\
parallel:
  env: slurm
  n_workers: 16
  options:
    queue: batch
    cores: 4
    memory: 32GB
""",
    "multi-GPU: typical": """\
parallel:
  env: local_gpu
  n_workers: 4
""",
    "multi-GPU: one worker per GPU": """\
parallel:
  env: local_gpu
  n_workers: 2
""",
    "multi-GPU: CPU only": """\
parallel:
  env: local
  n_workers: 8
  options:
    threads_per_worker: 1
""",
    "multi-GPU: local GPU": """\
parallel:
  env: local_gpu
  n_workers: 4
""",
    "multi-GPU: HPC": """\
parallel:
  env: slurm
  n_workers: 16
  options:
    queue: gpu
    cores: 4
    memory: 32GB
    walltime: "04:00:00"
""",
}

TRAINER_BLOCKS = {
    "multi-GPU: most common": """\
num_device: 4
num_nodes: 1
trainer:
  accelerator: gpu
  devices: ${num_device}
  num_nodes: ${num_nodes}
  strategy: ddp
""",
    "multi-GPU: one node": """\
trainer:
  accelerator: gpu
  devices: 4
  strategy: ddp
""",
    "multi-GPU: two nodes": """\
trainer:
  accelerator: gpu
  devices: 8
  num_nodes: 2
  strategy: ddp
""",
}
