"""Trains four seeds on four virtual devices and on one, and prints what `test_devices.py` compares, as JSON.

A process of its own, because the number of devices is fixed when JAX starts.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import gymnasium as gym
import jax
import numpy as np
import small

from lsac.cli import doctor
from lsac.envs.sources import given
from lsac.runs.experiment import Experiment
from lsac.runs.folder import RunFolder
from lsac.train import run as running
from lsac.train.devices import Devices
from lsac.train.logger import Observer

DEVICES = SEEDS = 4
STAGES = {"sac": ((4, 32), (1, 48), (4, 64)), "lsac": ((1, 32), (4, 64))}
"""The devices of each algorithm's run and the steps up to which they train it; LSAC also generates its data again."""
REFRESH_EVERY = 24
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter", "collective-broadcast")
SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": f"--xla_cpu_use_fusion_emitters=false --xla_force_host_platform_device_count={DEVICES}",
}


def trained(experiment, path=None, resume=False):
    """A run's learner at its end, what the run has said, and where its arrays were at its start."""
    environments, said, at_start = given(lambda: gym.make("Pendulum-v1", max_episode_steps=10)), [], {}
    folder = None
    if path is not None:
        folder = RunFolder(path) if resume else RunFolder.create(path, experiment)
    observer = Observer(say=said.append, began=lambda loop: at_start.update(arrays(loop.learner)))
    result = running.run(experiment, environments, folder=folder, resume=resume, observer=observer)
    return result.learner, said, at_start


def arrays(learner):
    replay = learner.replay
    shared = places((replay.size, replay.head))
    return {"state": places(learner.state), "replay": places(replay._stored), "shared": shared}


def places(tree):
    """How many devices hold an array, and how many seeds each of them holds; all arrays that differ in this."""
    shards = [[shard.data.shape for shard in array.addressable_shards] for array in jax.tree.leaves(tree)]
    return sorted({(len(found), *(shape[0] if shape else 0 for shape in set(found))) for found in shards})


def programs(learner):
    """The programs of a run that were compiled beforehand, as text."""
    of_refresh = ("_begin", "_advance", "_finish", "_generate") if learner.refresher.schedule.every else ()
    return [learner._learn.as_text(), *(getattr(learner.refresher, name).as_text() for name in of_refresh)]


def largest():
    """A program that would gather the arrays of all seeds, were the compiler to divide it among the devices."""
    chosen = Devices(SEEDS).over_seeds(lambda x: jax.lax.top_k(x, 2))
    return chosen.lower(jax.ShapeDtypeStruct((SEEDS, 8), np.float32)).compile().as_text()


def numbers(learner):
    """All numbers of a learner, by seed: [S, n] of each array; without the moments of the generator's optimiser, which
    are those of gradients near 0, whose signs a rounding error can change."""
    kept = learner.kept()
    inner = getattr(kept, "generator", None)
    if inner is not None:
        kept = kept._replace(generator=inner._replace(optimiser=None))
    arrays = [np.asarray(x) for x in jax.tree.leaves((kept, learner.transitions(), learner.policies))]
    return [x.reshape(SEEDS, -1).astype(float) for x in arrays if x.dtype in (np.float32, np.int32)]


def distance(xs, ys):
    """The largest difference of an array of a seed, relative to its norm."""
    norms = ((np.linalg.norm(x - y, axis=1), np.linalg.norm(x, axis=1)) for x, y in zip(xs, ys, strict=True))
    return float(max(np.max(difference / np.maximum(norm, 1e-6)) for difference, norm in norms))


def compared(algorithm, root):
    """A run that moves between four devices and one, against another that stays on one."""
    result, moved = {}, None
    for stage, (devices, steps) in enumerate(STAGES[algorithm]):
        with machine(devices):
            moved, said, at_start = trained(_experiment(algorithm, steps), root / "moving", resume=stage > 0)
        found = {"devices": devices, "said": said, "at start": at_start, "at end": arrays(moved)}
        result[f"stage {stage}"] = found
    with machine(1):
        stayed, *_ = trained(_experiment(algorithm, steps))
    before = jax.tree.leaves(moved.state)
    result |= {
        "difference": distance(numbers(stayed), numbers(moved)),
        "difference of seeds": distance([stayed.policies], [np.roll(moved.policies, 1, axis=0)]),
        "partitioned": all(f"num_partitions={DEVICES}" in text for text in programs(moved)),
        "collectives": [word for word in COLLECTIVES for text in [*programs(moved), largest()] if word in text],
        "refreshed at": moved.refresher.refreshed_at,
    }
    moved.learn(moved.replay.layout.empty(SEEDS, small.OFF_POLICY["chunk"]))
    return result | {"donated": all(array.is_deleted() for array in before)}


@contextmanager
def machine(devices):
    """As on a machine with one device, or with all of them."""
    with jax.default_device(jax.devices()[0] if devices == 1 else None):
        yield


def _experiment(algorithm, steps):
    evaluated = {"eval_every": 32, "eval_episodes": 1} if algorithm == "sac" else {"eval_every": 0}
    options = small.OFF_POLICY | evaluated | {"steps": steps, "seeds": SEEDS, "replay_capacity": 32}
    return Experiment(small.config(algorithm, refresh_every=REFRESH_EVERY), "Pendulum-v1", **options)


@contextmanager
def one_device():
    """As on a machine with one device."""
    with jax.default_device(jax.devices()[0]):
        yield


def computed():
    """All results, from a process of its own."""
    command, here = [sys.executable, __file__], Path(__file__).parent
    child = subprocess.run(command, env=os.environ | SETTINGS, cwd=here, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def main():
    running.inspector = lambda source, repeat: lambda sample: {"dynamics_error": np.linspace(0.0, 1.5, SEEDS)}
    used = {seeds: len(Devices(seeds).used) for seeds in (1, 3, 4, 6, 7, 8, 10)}
    with tempfile.TemporaryDirectory() as root:
        found = {name: compared(name, Path(root) / name) for name in STAGES}
    json.dump(found | {"used": used, "doctor": doctor.spread()}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
