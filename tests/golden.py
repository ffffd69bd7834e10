"""Numbers of every agent that a change of the code's structure must not change.

`python tests/golden.py` prints them as JSON; `tests/golden.json` holds what they were. They are computed in a process
of their own whose compiler settings are fixed, so that they do not depend on who asks.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import small

from lsac.agents import AGENTS
from lsac.replay import ring as rb
from lsac.types import EnvSpec

FILE = Path(__file__).with_name("golden.json")
SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_cpu_max_isa=AVX2 --xla_cpu_multi_thread_eigen=false",
}
SPEC = EnvSpec(obs_dim=3, action_dim=1)  # those of Pendulum-v1
COUNT, SIMULATORS = 32, 2
RUN = (
    *("--seeds", "2", "--seed", "3", "--num-envs", "2", "--workers", "1", "--hidden", "8", "--steps", "96"),
    *("--log-every", "32", "--eval-every", "96", "--eval-episodes", "1", "--checkpoint-every", "0"),
)
OFF_POLICY = ("--chunk", "8", "--learning-starts", "16", "--batch-size", "16", "--replay-capacity", "64")
ON_POLICY = ("--chunk", "32", "--epochs", "2", "--minibatches", "2")
EXTRA = {
    "dipo": ("--denoising-steps", "5", "--action-steps", "5", "--pair-capacity", "2048"),
    "redq": ("--critic-updates", "3"),
    "lsac": (
        *("--chains", "2", "--synthetic-capacity", "32", "--refresh-every", "48", "--generator.width", "8"),
        *("--generator.dim-t", "8", "--generator.blocks", "1", "--generator.train-steps", "20"),
        *("--generator.batch-size", "16", "--generator.sampler-steps", "3"),
    ),
}


def replay_of(on_policy: bool) -> rb.Replay:
    """Random transitions in the first half of a ring, one in eight terminal; an on-policy agent's ring is full."""
    rng, layout = np.random.default_rng(0), rb.Layout(*SPEC)
    rows = rng.normal(size=(COUNT, layout.width)).astype(np.float32)
    where = layout.fields()
    rows[:, where["action"]] = rng.uniform(-1, 1, size=(COUNT, SPEC.action_dim))
    rows[:, where["discount"]] = np.where(np.arange(COUNT) % 8 == 7, 0.0, 0.99)[:, None]
    ring = np.zeros((COUNT if on_policy else 2 * COUNT, layout.width), np.float32)
    ring[:COUNT] = rows
    count = jnp.int32(COUNT)
    return rb.Replay(jnp.asarray(ring), count, count % len(ring), layout, SIMULATORS)


def norm(tree) -> float:
    return float(optax.tree.norm(tree))


def after_three_updates(algorithm: str) -> dict[str, float]:
    agent = AGENTS[algorithm].make(small.config(algorithm), SPEC)
    replay, state = replay_of(small.on_policy(algorithm)), agent.init(jax.random.key(0))
    update = jax.jit(agent.update)
    for i in range(3):
        state, metrics = update(state, replay, jax.random.key(i))
    obs, key = jnp.array([0.5, -1.0, 2.0]), jax.random.key(7)
    critics = agent.critics(state)
    value = agent.value(critics, obs, jnp.array([0.3]))
    return {
        **{name: float(number) for name, number in metrics.items()},
        **{f"value {name}": float(number) for name, number in value.items()},
        "policy": norm(agent.policy(state)),
        "critics": norm(critics),
        "exploring action": float(agent.act(agent.policy(state), obs, key, True)[0]),
        "another exploring action": float(agent.act(agent.policy(state), -obs, jax.random.key(8), True)[0]),
        "another action": float(agent.act(agent.policy(state), -obs, key, False)[0]),
        "action": float(agent.act(agent.policy(state), obs, key, False)[0]),
    }


def after_a_run(algorithm: str, folder: Path) -> dict[str, float]:
    """The last line of metrics of each kind of the second seed, and the norm of its best policy."""
    from commands import lsac, metrics

    options = (*RUN, *(ON_POLICY if small.on_policy(algorithm) else OFF_POLICY), *EXTRA.get(algorithm, ()))
    result = lsac("train", algorithm, "--env", "Pendulum-v1", *options, "--out", folder)
    assert result.code == 0, result.err
    last: dict[str, float] = {}
    for line in metrics(folder):
        if line["seed"] == 4:
            last |= {name: number for name, number in line.items() if not name.startswith(("time/", "seconds"))}
    (newest,) = (folder / "checkpoints").glob("step-*.safetensors")
    from safetensors.numpy import load_file

    arrays = load_file(newest)
    last["best policy"] = float(np.linalg.norm(arrays[".best"][1]))
    return last


def computed() -> dict[str, dict[str, dict[str, float]]]:
    """All numbers, from a process of its own."""
    child = subprocess.run(
        [sys.executable, __file__], env=os.environ | SETTINGS, cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        os.environ["LSAC_CACHE"] = str(Path(root) / "cache")
        numbers = {
            name: {"updates": after_three_updates(name), "run": after_a_run(name, Path(root) / name)} for name in AGENTS
        }
    json.dump(numbers, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
