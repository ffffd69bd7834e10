"""Compares generated transitions with real ones: marginals, correlations, and their agreement with the simulator.

Rows are transitions packed as in the replay. Dimensions that are constant in the real data are not compared.
"""

from typing import Any, NamedTuple, cast

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from lsac.envs.repeat import ActionRepeat, repeated
from lsac.errors import InputError
from lsac.replay import ring
from lsac.replay.ring import Layout
from lsac.types import EnvSpec

Rows = NDArray[np.floating]

HIDDEN_POSITIONS = {"HalfCheetah": 1, "Hopper": 1, "Walker2d": 1, "Ant": 2, "Swimmer": 2, "Humanoid": 2}
"""Number of leading coordinates of qpos that an observation, qpos | qvel | …, omits."""
CLIPPED_VELOCITIES = {"Hopper": 10.0, "Walker2d": 10.0}
"""Bound to which an observation clips velocities."""


def knows(env_id: str) -> bool:
    """Whether the simulator of this environment can be set to the state of an observation."""
    return env_id.split("-")[0] in HIDDEN_POSITIONS


def marginals(real: Rows, generated: Rows) -> dict[str, float]:
    """Maximum and mean over dimensions of the differences of means and stds, in real stds, and of the KS distances."""
    real, generated, std = _varying(real, generated)
    pairs = zip(real.T, generated.T, strict=True)
    gaps = {
        "mean": np.abs(real.mean(0) - generated.mean(0)) / std,
        "std": np.abs(std - generated.std(0)) / std,
        "ks": np.array([kolmogorov_smirnov(x, y) for x, y in pairs]),
    }
    largest = {f"{name}_max": float(gap.max()) for name, gap in gaps.items()}
    return largest | {f"{name}_avg": float(gap.mean()) for name, gap in gaps.items()}


def kolmogorov_smirnov(x: Rows, y: Rows) -> float:
    """The largest distance between two empirical distribution functions."""
    at = np.concatenate([x, y])
    first, second = (np.searchsorted(np.sort(values), at, side="right") / len(values) for values in (x, y))
    return float(np.max(np.abs(first - second)))


def correlation_gap(real: Rows, generated: Rows) -> float:
    """Largest absolute difference between the two matrices of pairwise correlations."""
    real, generated, _ = _varying(real, generated)
    if np.any(generated.std(0) == 0.0):
        return 1.0
    return float(np.max(np.abs(np.corrcoef(real.T) - np.corrcoef(generated.T))))


def _varying(real: Rows, generated: Rows) -> tuple[Rows, Rows, Rows]:
    real, generated = np.asarray(real, np.float64), np.asarray(generated, np.float64)
    std = real.std(0)
    keep = std > 1e-6 * (1.0 + np.abs(real.mean(0)))
    return real[:, keep], generated[:, keep], std[keep]


def layout_of(env: gymnasium.Env) -> Layout:
    obs, action = cast(Any, (env.observation_space, env.action_space))
    return ring.layout_of(EnvSpec(obs_shape=obs.shape, action_dim=action.shape[0], gamma=1.0))


class Unit(NamedTuple):
    """The units of errors: the std of s' − s in each dimension, and the std of r.

    The unit is infinite for a dimension that changes only by rounding, which is thereby excluded."""

    change: NDArray[np.float64]
    reward: float


def unit(layout: Layout, rows: Rows) -> Unit:
    where, rows = layout.fields(), np.asarray(rows, np.float64)
    change = (rows[:, where["next_obs"]] - rows[:, where["obs"]]).std(0)
    rounding = 1e-6 * (1.0 + np.abs(rows[:, where["obs"]]).max(0))
    return Unit(np.where(change > rounding, change, np.inf), max(float(rows[:, where["reward"]].std()), 1e-8))


def dynamics_error(env: gymnasium.Env, rows: Rows, scale: Unit | None = None) -> dict[str, float]:
    """Sets the simulator to s, applies a, and compares the outcome with s' and r.

    Errors are in units of `scale` (by default that of `rows`): the root mean square over rows and dimensions, and the
    root of the median over rows of the mean square, which is robust to a few impossible states. An error of 1 is about
    as large as that of the prediction "nothing changes". Rows with clipped velocities are skipped; if no other is left,
    the error is infinite, as for a row that the simulator answers with NaN.
    """
    task = env.spec.id if env.spec else type(env.unwrapped).__name__
    if not knows(task):
        raise InputError(f'env is "{task}", should be one of {", ".join(HIDDEN_POSITIONS)}')
    simulator = cast(Any, env.unwrapped)
    # without the other wrappers: they need a reset, and a time limit would count across rows
    stepped = repeated(simulator, env.repeat if isinstance(env, ActionRepeat) else 1)
    layout = layout_of(env)
    scale = scale or unit(layout, rows)
    rows = np.asarray(rows, np.float64)
    rows = rows[determined(env, rows)]
    if not len(rows):
        return dict.fromkeys(("next_obs_rmse", "reward_rmse", "next_obs_median", "reward_median"), float("inf"))
    parts = {field: rows[:, where] for field, where in layout.fields().items()}
    low, high = simulator.action_space.low, simulator.action_space.high
    action = (low + (parts["action"] + 1.0) / 2.0 * (high - low)).astype(np.float32)

    outcomes = []
    for obs, control in zip(parts["obs"], action, strict=True):
        restore(env, obs)
        outcomes.append(stepped.step(control)[:2])

    next_obs = np.array([outcome[0] for outcome in outcomes])
    reward = np.array([[outcome[1]] for outcome in outcomes])
    changing = max(1, np.isfinite(scale.change).sum())
    errors = {
        "next_obs": np.sum(((parts["next_obs"] - next_obs) / scale.change) ** 2, axis=1) / changing,
        "reward": np.mean(((parts["reward"] - reward) / scale.reward) ** 2, axis=1),
    }
    errors = {field: np.where(np.isfinite(error), error, np.inf) for field, error in errors.items()}
    rmse = {f"{field}_rmse": float(np.sqrt(error.mean())) for field, error in errors.items()}
    return rmse | {f"{field}_median": float(np.sqrt(np.median(error))) for field, error in errors.items()}


def determined(env: gymnasium.Env, rows: Rows) -> NDArray[np.bool_]:
    """Which observations [N, O, at least] determine the simulator's state: those whose velocities are not clipped."""
    name, model = _name(env), cast(Any, env.unwrapped).model
    split = model.nq - HIDDEN_POSITIONS[name]
    velocity = np.abs(rows[:, split : split + model.nv])
    found: NDArray[np.bool_] = np.all(velocity < CLIPPED_VELOCITIES.get(name, np.inf), axis=1)
    return found


def restore(env: gymnasium.Env, obs: Rows) -> None:
    """Puts the simulator into the state of an observation, at the origin of the coordinates that it omits."""
    simulator = cast(Any, env.unwrapped)
    model, hidden = simulator.model, np.zeros(HIDDEN_POSITIONS[_name(env)])
    split = model.nq - hidden.size
    mujoco.mj_resetData(model, simulator.data)  # otherwise the contact solver would start from the previous state
    simulator.set_state(np.concatenate([hidden, obs[:split]]), obs[split : split + model.nv])


def _name(env: gymnasium.Env) -> str:
    return (env.spec.id if env.spec else type(env.unwrapped).__name__).split("-")[0]


def inspect(env: gymnasium.Env, real: Rows, generated: Rows) -> dict[str, NDArray[np.float64]]:
    """For every seed of [S, N, width] rows: the median dynamics and reward error of generated rows, and the dynamics
    error of as many real rows with permuted outcomes, all in units of the changes in all real rows."""
    layout, results = layout_of(env), []
    for happened, made in zip(real, generated, strict=True):
        scale = unit(layout, happened)
        error = dynamics_error(env, made, scale)
        control = dynamics_error(env, shuffled(layout, happened[: len(made)]), scale)
        results.append((error["next_obs_median"], error["reward_median"], control["next_obs_median"]))
    names = ("dynamics_error", "reward_error", "dynamics_error_shuffled")
    return dict(zip(names, np.array(results).T, strict=True))


def shuffled(layout: Layout, rows: Rows, seed: int = 0) -> Rows:
    """The same rows with (r, s') permuted: the marginals are right, the dynamics are not."""
    where, rows = layout.fields(), np.array(rows)
    order = np.random.default_rng(seed).permutation(len(rows))
    for field in ("reward", "next_obs"):
        rows[:, where[field]] = rows[order, where[field]]
    return rows
