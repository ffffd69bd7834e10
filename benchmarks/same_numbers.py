"""Whether the default LSAC of this checkout computes the same numbers as that of an older commit, bit by bit.

    python benchmarks/same_numbers.py --old COMMIT [--tasks HalfCheetah Hopper Ant]

Old and new code make five updates, half of each batch generated, and one short fit of the generator, from the same
random transitions of the sizes of a task and with the same random keys, at the default's full sizes on the CPU.
"""

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from speed import ROOT, call, checked_out

SIZES = {"HalfCheetah": (17, 6), "Hopper": (11, 3), "Walker2d": (17, 6), "Ant": (27, 8), "Swimmer": (8, 2)}
"""Dimensions of observations and actions."""
GENERATED = 10_000
FIT = {"train_steps": 32, "batch_size": 256, "sample_batch": 1_000}


def compute(task: str, out: Path) -> None:
    """Writes what the imported version of the code computes. Uses only names that old and new code have."""
    import jax
    import jax.numpy as jnp

    from lsac.agents.lsac import agent as lsac
    from lsac.agents.lsac.config import Config
    from lsac.replay import ring as rb
    from lsac.types import EnvSpec

    obs_dim, action_dim = SIZES[task]
    spec, config = EnvSpec(obs_shape=(obs_dim,), action_dim=action_dim, gamma=0.99), Config()
    generator = dataclasses.replace(config.generator, **FIT)
    agent = lsac.make(dataclasses.replace(config, synthetic_capacity=GENERATED, generator=generator), spec)
    layout, rng = rb.layout_of(spec), np.random.default_rng(1)
    rows, fields = rng.normal(size=(2_000 + GENERATED, layout.width)).astype(np.float32), layout.fields()
    rows[:, fields["action"]] = rng.uniform(-1, 1, (len(rows), action_dim))
    rows[:, fields["discount"]] = np.where(np.arange(len(rows)) % 97 == 0, 0.0, 0.99)[:, None]
    replay = rb.holding(layout, layout.empty(2_000) | {rb.PACKED: rows[:2_000]}, 2_000)

    state = jax.jit(agent.init)(jax.random.key(3))._replace(generated=jnp.asarray(rows[2_000:]))
    half = {"filled": jnp.asarray(True)} if hasattr(state, "filled") else {"share": jnp.float32(0.5)}
    state, update = state._replace(**half), jax.jit(agent.update)
    for i in range(5):
        state, _ = update(state, replay, jax.random.key(10 + i))
    parts = ("actor", "target_actor", "chains", "log_alpha", "moved", "actor_opt", "alpha_opt")
    found: dict[str, Any] = {f"update: {name}": getattr(state, name) for name in parts}

    refresh = agent.refresh
    kept, advance = refresh.compact(state), jax.jit(refresh.advance)
    work = jax.jit(refresh.begin)(kept, replay, jax.random.key(7))
    for piece in range(refresh.pieces):
        work = advance(work, replay, jnp.asarray(piece, jnp.int32))
    fitted, _, _ = jax.jit(refresh.finish)(kept, work)
    found["fit: generated"] = jax.jit(refresh.generate)(fitted, jax.random.key(8))[0].generated
    np.savez(
        out, **{f"{name} {i}": np.asarray(x) for name, y in found.items() for i, x in enumerate(jax.tree.leaves(y))}
    )


def difference(old: Path, new: Path) -> str:
    """How many arrays two files have and, if some are not the same, in which they differ."""
    with np.load(old) as before, np.load(new) as after:
        names = sorted({*before.files, *after.files})
        changed = [
            name
            for name in names
            if name not in before or name not in after or before[name].tobytes() != after[name].tobytes()
        ]
    return f"{len(names)} arrays, " + (f"differ: {', '.join(changed)}" if changed else "all the same")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares the numbers of the default LSAC with those of an older one.")
    parser.add_argument("--old", required=True, metavar="COMMIT", help="the older commit, of this repository")
    parser.add_argument("--tasks", nargs="+", choices=SIZES, default=["HalfCheetah", "Hopper", "Ant"], help="sizes")
    given = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        sources = {"old": checked_out(given.old, Path(folder)), "new": ROOT / "src"}
        for task in given.tasks:
            files = {name: Path(folder, f"{task} {name}.npz") for name in sources}
            for name, source in sources.items():
                program = (
                    f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r}); from same_numbers import compute"
                )
                call(["-c", f"{program}; compute({task!r}, {str(files[name])!r})"], source)
            found = difference(files["old"], files["new"])
            failed |= "differ" in found
            print(f"{task}: {found}", flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
