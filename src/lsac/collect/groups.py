"""A lane: a few simulators of one seed that act and step together, for a whole chunk at a time.

A lane is where the host spends its time, so nothing crosses a process boundary inside a chunk: the policy comes in
once, the rows go out once. Which worker runs a lane never changes a number, because everything random in it is
derived from (seed, environment, step).
"""

import math
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from lsac import streams
from lsac.envs import states
from lsac.envs.gymnasium import Simulator
from lsac.errors import CheckpointError, EnvironmentFault
from lsac.replay.ring import Layout
from lsac.types import Agent, Key


class LanePlan(NamedTuple):
    """Which simulators a lane holds. `stride` is how many its seed has in all, so that steps can be counted."""

    seed: int
    row: int  # of the seed in the table of policies
    envs: list[int]
    stride: int


class Episode(NamedTuple):
    """A finished training episode: the step of its seed at which it ended, its return and its length."""

    step: int
    reward: float
    length: int


class Actors(NamedTuple):
    """The compiled ways to choose the actions of a lane, [E, A]."""

    explore: Callable[..., Any]
    exploit: Callable[..., Any]
    uniform: Callable[..., Any]


def make_actors(agent: Agent, action_dim: int) -> Actors:
    def keys(key: Key, moment: Any, envs: Any) -> Any:
        return jax.vmap(lambda env: jax.random.fold_in(jax.random.fold_in(key, moment), env))(envs)

    def act(explore: bool, policy: Any, obs: Any, key: Key, moment: Any, envs: Any) -> Any:
        return jax.vmap(lambda o, k: agent.act(policy, o, k, explore))(obs, keys(key, moment, envs))

    def uniform(key: Key, moment: Any, envs: Any) -> Any:
        draw = jax.vmap(lambda k: jax.random.uniform(k, (action_dim,), minval=-1.0, maxval=1.0))
        return draw(keys(key, moment, envs))

    return Actors(
        explore=jax.jit(lambda *args: act(True, *args)),
        exploit=jax.jit(lambda *args: act(False, *args)),
        uniform=jax.jit(uniform),
    )


class Lane:
    def __init__(
        self,
        plan: LanePlan,
        simulators: list[Simulator],
        actors: Actors,
        gamma: float,
        progress: np.ndarray,
        time_limits_terminate: bool = False,
    ):
        self.plan, self.simulators = plan, simulators
        self.layout = Layout(*simulators[0].spec)
        self._actors, self._gamma, self._cut = actors, gamma, time_limits_terminate
        self._progress = progress  # [steps done, 1 + environment at work or 0]: what the watchdog looks at
        self._envs = np.asarray(plan.envs, np.int32)
        self._act_key = streams.root(plan.seed, streams.ACT)
        self._evaluate_key = streams.root(plan.seed, streams.EVALUATE)
        self._obs = np.zeros((len(simulators), self.layout.obs_dim), np.float32)
        self._returns = np.zeros(len(simulators))
        self._lengths = np.zeros(len(simulators), int)

    def reset(self, step: int, purpose: int = streams.ACT) -> None:
        """Starts a new episode in every simulator, each from its own seed."""
        for i, env in enumerate(self.plan.envs):
            self._obs[i] = self._reset(i, step, streams.reset_seed(self.plan.seed, env, step, purpose))
        self._returns[:], self._lengths[:] = 0.0, 0
        self._check(self._obs[None], step)

    def collect(self, policy: Any, step: int, count: int, random: bool) -> tuple[np.ndarray, list[Episode]]:
        """`count` steps of every simulator: rows [count, E, width], and the episodes that ended in them."""
        where = self.layout.fields()
        rows = np.empty((count, len(self.simulators), self.layout.width), np.float32)
        episodes: list[Episode] = []
        for t in range(count):
            now = step + t * self.plan.stride
            moment = np.int32(now // self.plan.stride)
            if random:
                action = np.asarray(self._actors.uniform(self._act_key, moment, self._envs))
            else:
                action = np.asarray(self._actors.explore(policy, self._obs, self._act_key, moment, self._envs))
            rows[t, :, where["obs"]] = self._obs
            rows[t, :, where["action"]] = action
            for i in range(len(self.simulators)):
                next_obs, reward, terminated, truncated = self._step(i, now, action[i])
                rows[t, i, where["reward"]] = reward
                rows[t, i, where["discount"]] = 0.0 if terminated or (truncated and self._cut) else self._gamma
                rows[t, i, where["next_obs"]] = next_obs
                self._returns[i] += reward
                self._lengths[i] += 1
                if terminated or truncated:
                    episodes.append(Episode(now, float(self._returns[i]), int(self._lengths[i])))
                    self._returns[i], self._lengths[i] = 0.0, 0
                    next_obs = self._reset(i, now, None)
                self._obs[i] = next_obs
        self._check(rows, step)
        self._check(self._obs[None], step + count * self.plan.stride)
        return rows, episodes

    def evaluate(self, policy: Any, step: int, deterministic: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One episode in every simulator: returns [E], lengths [E], and visits [n, O + A + 1] to judge critics by.

        A visit is an observation, the action taken and the discounted return that followed. Where a time limit cut
        the episode, only visits whose unseen rest weighs less than a hundredth are kept.
        """
        self.reset(step, streams.EVALUATE)
        traces: list[list[tuple[np.ndarray, np.ndarray, float]]] = [[] for _ in self.simulators]
        visits: list[np.ndarray] = []
        choose = self._actors.exploit if deterministic else self._actors.explore
        running = np.ones(len(self.simulators), bool)
        moment = 0
        while running.any():
            action = np.asarray(choose(policy, self._obs, self._evaluate_key, np.int32(moment), self._envs))
            for i in np.flatnonzero(running):
                before = self._obs[i].copy()
                self._obs[i], reward, terminated, truncated = self._step(int(i), step, action[i])
                traces[i].append((before, action[i], reward))
                self._returns[i] += reward
                self._lengths[i] += 1
                if terminated or truncated or moment + 1 >= EVALUATION_LIMIT:
                    running[i] = False
                    visits += _visits(traces[i], self._gamma, terminated)
            moment += 1
            self._check(self._obs[None], step)
        for i in np.flatnonzero(~np.isfinite(self._returns)):
            raise EnvironmentFault(f"{self._name(int(i), step)}: the return of its evaluation is {self._returns[i]}")
        width = self.layout.obs_dim + self.layout.action_dim + 1
        return self._returns.copy(), self._lengths.copy(), np.asarray(visits, np.float32).reshape(-1, width)

    def capture(self) -> tuple[list[dict[str, Any]], list[np.ndarray]] | None:
        """Everything that the next `collect` depends on: JSON per simulator, and arrays; None if it cannot be had."""
        found = [states.take(simulator.env) for simulator in self.simulators]
        if any(state is None for state in found):
            return None
        kept = [state for state in found if state is not None]
        counts = np.stack([self._returns, self._lengths.astype(float)])
        return [state.told for state in kept], [self._obs.copy(), counts, *(state.arrays for state in kept)]

    def restore(self, told: list[dict[str, Any]], arrays: list[np.ndarray]) -> None:
        """Goes on where `capture` was called."""
        expected = (self._obs.shape, (2, len(self.simulators)))
        if (arrays[0].shape, arrays[1].shape) != expected:
            raise CheckpointError(f"captured observations and counts are {arrays[0].shape} and {arrays[1].shape}")
        self._obs[:] = arrays[0]
        self._returns[:], self._lengths[:] = arrays[1]
        for simulator, text, array in zip(self.simulators, told, arrays[2:], strict=True):
            states.put(simulator.env, states.SimulatorState(text, array))

    def close(self) -> None:
        for simulator in self.simulators:
            simulator.close()

    def _step(self, i: int, step: int, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        self._progress[1] = i + 1
        try:
            result = self.simulators[i].step(action)
        except Exception as error:
            raise self._fault(i, step, f"step({np.array2string(action, precision=3)})", error) from error
        self._progress[0] += 1
        self._progress[1] = 0
        return result

    def _reset(self, i: int, step: int, seed: int | None) -> np.ndarray:
        self._progress[1] = i + 1
        try:
            obs = self.simulators[i].reset(seed)
        except Exception as error:
            raise self._fault(i, step, f"reset(seed={seed})", error) from error
        self._progress[1] = 0
        return obs

    def _fault(self, i: int, step: int, call: str, error: Exception) -> EnvironmentFault:
        if isinstance(error, EnvironmentFault):
            return EnvironmentFault(f"{self._name(i, step)}: {error}")
        detail = traceback.format_exception_only(error)[-1].strip()
        return EnvironmentFault(f"{self._name(i, step)}: {call} raised {detail}")

    def _check(self, values: np.ndarray, step: int) -> None:
        """Refuses NaN and ±inf in [T, E, …], naming the first one; once per chunk, where it costs nothing."""
        if np.isfinite(values).all():
            return
        t, i, column = np.argwhere(~np.isfinite(values))[0]
        names = {name for name, w in self.layout.fields().items() if w.start <= column < w.stop}
        whole = values.shape[-1] == self.layout.width
        field = next(iter(names & {"action", "reward"}), "observation") if whole else "observation"
        name = self._name(int(i), step + int(t) * self.plan.stride)
        raise EnvironmentFault(f"{name}: the {field} contains {values[t, i, column]}")

    def _name(self, i: int, step: int) -> str:
        return f"environment {self.plan.envs[i]} of seed {self.plan.seed}, step {step}"


EVALUATION_LIMIT = 100_000
"""Steps after which an evaluation episode that neither ends nor is cut counts as over."""

VISIT_STRIDE = 20
"""Every so many steps of an evaluation a visit is kept: neighbours say the same."""


def _visits(trace: list[tuple[np.ndarray, np.ndarray, float]], gamma: float, terminated: bool) -> list[np.ndarray]:
    """Visits of one episode with the return that followed each."""
    unseen = 0 if terminated else math.ceil(math.log(0.01) / math.log(gamma)) if 0 < gamma < 1 else len(trace)
    following, visits = 0.0, []
    for t in range(len(trace) - 1, -1, -1):
        obs, action, reward = trace[t]
        following = reward + gamma * following
        if t % VISIT_STRIDE == 0 and len(trace) - t >= unseen:
            visits.append(np.concatenate([obs, action, [following]]))
    return visits
