"""Numbers of every agent that a change of the code's structure must not change.

`tests/golden.json` holds what they were; `python tests/golden.py --write [NAME ...]` writes it again. A process of its
own computes them with fixed compiler settings, so that they do not depend on the settings of the caller. Agents that
learn from images only are left out: they share the loop with the others, and take three times as long as all of them.
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
from safetensors.numpy import load_file

from lsac.agents import AGENTS, VECTORS
from lsac.replay import ring as rb
from lsac.types import EnvSpec

FILE = Path(__file__).with_name("golden.json")
SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_cpu_max_isa=AVX2 --xla_cpu_multi_thread_eigen=false",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",  # policies act in NumPy
    "OPENBLAS_CORETYPE": "Haswell",
}
SPEC = EnvSpec(obs_shape=(3,), action_dim=1, gamma=0.99)  # those of Pendulum-v1
COUNT, SIMULATORS = 32, 2
CG_STEPS = 2
"""More conjugate-gradient steps of TRPO would amplify rounding errors beyond the tolerance."""
RUN = {
    **{"seed": 3, "num_envs": 2, "steps": 96, "log_every": 32, "eval_every": 0, "checkpoint_every": 0},
    "refresh_every": 48,  # of an agent that generates transitions: twice in so short a run
    "cg_steps": CG_STEPS,
}


def replay_of(algorithm: str) -> rb.Replay:
    """Random transitions in the first half of a ring, one in eight terminal; an on-policy agent's ring is full."""
    rng, layout, on_policy = np.random.default_rng(0), rb.layout_of(SPEC), small.on_policy(algorithm)
    rows = rng.normal(size=(COUNT, layout.width)).astype(np.float32)
    where = layout.fields()
    rows[:, where["action"]] = rng.uniform(-1, 1, size=(COUNT, SPEC.action_dim))
    rows[:, where["discount"]] = np.where(np.arange(COUNT) % 8 == 7, 0.0, 0.99)[:, None]
    ring = layout.empty(COUNT if on_policy else 2 * COUNT)
    ring[rb.PACKED][:COUNT], ring[rb.FIRST][:] = rows, True
    return rb.holding(layout, ring, COUNT, SIMULATORS)


def norm(tree) -> float:
    return float(optax.tree.norm(tree))


def after_three_updates(algorithm: str) -> dict[str, float]:
    agent = AGENTS[algorithm].make(small.config(algorithm, cg_steps=CG_STEPS), SPEC)
    replay, state = replay_of(algorithm), jax.jit(agent.init)(jax.random.key(0))
    update, act = jax.jit(agent.update), jax.jit(agent.act, static_argnums=4)
    for i in range(3):
        state, metrics = update(state, replay, jax.random.key(i))
    policy = agent.policy(state)
    found = {name: float(number) for name, number in metrics.items()} | {"policy": norm(policy)}
    if agent.values is not None:
        critics, obs = agent.values.critics(state), jnp.array([0.5, -1.0, 2.0])
        value = agent.values.value(critics, obs, jnp.array([0.3]))
        found |= {f"value {name}": float(number) for name, number in value.items()} | {"critics": norm(critics)}

    def action(sign: float, key: int, explore: bool) -> float:
        obs = sign * jnp.array([0.5, -1.0, 2.0])
        return float(act(policy, agent.memory(), obs, jax.random.key(key), explore)[0][0])

    return found | {
        "exploring action": action(1.0, 7, True),
        "another exploring action": action(-1.0, 8, True),
        "another action": action(-1.0, 7, False),
        "action": action(1.0, 7, False),
    }


def after_a_run(algorithm: str, folder: Path) -> dict[str, float]:
    """The last line of metrics of the second seed, and the norms of its parameters and of its actions in the replay."""
    from commands import lsac, metrics

    options = small.flags(algorithm, **RUN)
    result = lsac("train", algorithm, "--env", small.env_of(algorithm), *options, "--out", folder)
    assert result.code == 0, result.err
    last: dict[str, float] = {}
    for line in metrics(folder):
        if line["seed"] == 4:
            last |= {name: number for name, number in line.items() if not name.startswith(("time/", "seconds"))}
    (newest,) = (folder / "checkpoints").glob("step-*.safetensors")
    arrays = load_file(newest)
    weights = [x[1].ravel() for name, x in sorted(arrays.items()) if name.endswith(("weight", "bias"))]
    last["parameters"] = float(np.linalg.norm(np.concatenate(weights)))
    rows, where = arrays["rows.vectors"][1], rb.layout_of(SPEC).fields()
    last |= {name: float(np.linalg.norm(rows[:, where[name]])) for name in ("next_obs", "action", "reward")}
    return last


def computed(names: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """The numbers of some agents, from a process of its own."""
    child = subprocess.run(
        [sys.executable, __file__, *names],
        env=os.environ | SETTINGS,
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def main() -> None:
    if "--write" in sys.argv:
        wanted = sys.argv[sys.argv.index("--write") + 1 :]
        kept = json.loads(FILE.read_text()) if wanted else {}
        FILE.write_text(json.dumps(kept | computed(wanted or list(VECTORS)), indent=1) + "\n")
        return
    with tempfile.TemporaryDirectory() as root:
        os.environ["LSAC_CACHE"] = str(Path(root) / "cache")
        numbers = {
            name: {"updates": after_three_updates(name), "run": after_a_run(name, Path(root) / name)}
            for name in sys.argv[1:]
        }
    json.dump(numbers, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
