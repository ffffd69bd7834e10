"""A group: a few simulators of one seed that are stepped together, a whole chunk at a time.

The host spends most of its time here. Nothing crosses a process boundary within a chunk: a group receives its policy
once and returns its transitions once. Results do not depend on the worker that runs a group, because all its random
numbers are derived from (seed, environment, step).
"""

import math
import traceback
from typing import Any, NamedTuple

import jax
import numpy as np

from lsac import streams
from lsac.collect import observations
from lsac.collect.actors import Actor, Actors, Choose
from lsac.collect.wire import Episode, GroupPlan, GroupState, Played
from lsac.envs import states
from lsac.envs.gymnasium import Simulator
from lsac.errors import CheckpointError, EnvironmentFault, own_traceback
from lsac.replay import ring as rb

EVALUATION_LIMIT = 100_000
"""Environment steps after which an evaluation episode that neither terminates nor is truncated is ended."""
STATE_STRIDE = 5
"""An evaluation keeps one state per this many decisions, because neighbouring states are similar."""


class Discounts(NamedTuple):
    """The discount of a transition: γ, or 0 at a termination."""

    gamma: float
    time_limits_terminate: bool = False

    def after(self, terminated: bool, truncated: bool) -> float:
        return 0.0 if terminated or (truncated and self.time_limits_terminate) else self.gamma


class Step(NamedTuple):
    """One decision of an evaluation episode."""

    obs: Any
    """a vector, or `Pixels`"""
    action: np.ndarray
    reward: float
    neg_log_prob: float = 0.0
    """−log π of the action, where it is part of the values"""


class Trace(NamedTuple):
    """A whole evaluation episode."""

    steps: list[Step]
    terminated: bool
    last_obs: Any = None
    """the observation after the last step"""


class Group:
    def __init__(
        self,
        plan: GroupPlan,
        simulators: list[Simulator],
        actors: Actors,
        discounts: Discounts,
        progress: np.ndarray,
    ):
        self.plan, self.simulators = plan, simulators
        spec = simulators[0].spaces.spec(discounts.gamma)
        self.layout = rb.layout_of(spec)
        self._actors, self._discounts = actors, discounts
        # [steps done, 1 + index of the active environment or 0], for the watchdog; items of a memmap are slow to write
        self._progress = np.asarray(progress)
        self._envs = np.asarray(plan.envs, np.int32)
        act, self._evaluate_key = (streams.root(plan.seed, purpose) for purpose in (streams.ACT, streams.EVALUATE))
        self._exploring, self._uniform = actors.explore.actor(act, self._envs), actors.uniform.actor(act, self._envs)
        self._obs = observations.blank(spec, len(simulators))
        self._memory = actors.memory(len(simulators))
        self._returns = np.zeros(len(simulators))
        self._lengths = np.zeros(len(simulators), int)
        self._sampling: Group | None = None  # the first simulators, in which the exploring policy plays for its values
        if plan.value_episodes and actors.sample is not None:
            few = plan._replace(envs=plan.envs[: plan.value_episodes], value_episodes=0)
            self._sampling = Group(few, simulators[: plan.value_episodes], actors, discounts, progress)

    def reset(self, step: int, purpose: int = streams.ACT) -> None:
        """Starts a new episode in every simulator, each from its own seed."""
        for i, env in enumerate(self.plan.envs):
            observations.put(self._obs, i, self._reset(i, step, streams.reset_seed(self.plan.seed, env, step, purpose)))
        self._memory = self._actors.memory(len(self.simulators))
        self._returns[:], self._lengths[:] = 0.0, 0
        self._require_finite({"obs": observations.vectors(self._obs)[None]}, step)

    def collect(self, policy: Any, step: int, count: int, random: bool) -> tuple[rb.Stored, list[Episode]]:
        """Makes `count` decisions in every simulator: the transitions [count, E, …], and the episodes that ended."""
        stored = self.layout.empty(count, len(self.simulators))
        columns = self.layout.views(stored)
        obs, actions, first = columns["obs"], columns["action"], columns[rb.FIRST]
        rewards, discounts, next_obs = columns["reward"], columns["discount"], columns["next_obs"]
        choose = self._chooser(policy, random)
        episodes: list[Episode] = []
        for t in range(count):
            now = step + t * self.plan.stride
            action, self._memory = choose(now // self.plan.stride, self._memory, self._obs)
            obs[t], actions[t], first[t] = observations.vectors(self._obs), action, self._lengths == 0
            if self.layout.has_frames:
                columns[rb.FRAME][t] = observations.frames(self._obs)
            for i in range(len(self.simulators)):
                following, reward, terminated, truncated, taken = self._step(i, now, action[i])
                rewards[t, i], next_obs[t, i] = reward, observations.vectors(following)
                discounts[t, i] = self._discounts.after(terminated, truncated)
                self._returns[i] += reward
                self._lengths[i] += taken
                if terminated or truncated:
                    episodes.append(Episode(now, float(self._returns[i]), int(self._lengths[i])))
                    following = self._restart(i, now)
                observations.put(self._obs, i, following)
        self._require_finite({name: columns[name] for name in ("obs", "action", "reward", "next_obs")}, step)
        self._require_finite({"obs": observations.vectors(self._obs)[None]}, step + count * self.plan.stride)
        return stored, episodes

    def _chooser(self, policy: Any, random: bool) -> Choose:
        """Chooses the actions [E, A]. A policy with a memory also updates it while actions are random."""
        if not random:
            return self._exploring.follow(policy, self._memory, self._obs)
        uniform = self._uniform.follow(policy, self._memory, self._obs)
        if not jax.tree.leaves(self._memory):
            return uniform
        explore = self._exploring.follow(policy, self._memory, self._obs)
        return lambda moment, memory, obs: (uniform(moment, memory, obs)[0], explore(moment, memory, obs)[1])

    def _restart(self, i: int, step: int) -> Any:
        """Starts the next episode of simulator i, which continues its own random stream."""
        self._returns[i], self._lengths[i] = 0.0, 0
        if jax.tree.leaves(self._memory):
            fresh = self._actors.memory(1)
            self._memory = jax.tree.map(np.array, self._memory)
            for leaf, first in zip(jax.tree.leaves(self._memory), jax.tree.leaves(fresh), strict=True):
                leaf[i] = first[0]
        return self._reset(i, step, None)

    def evaluate(self, policy: Any, step: int, deterministic: bool) -> Played:
        """One episode in every simulator.

        If values are compared with returns, their states come from episodes of the policy whose values they are: those
        of the deterministic policy, or further ones, with random streams of their own, of the exploring policy.
        """
        rule, key = self._actors.exploit if deterministic else self._actors.explore, self._evaluate_key
        actor = rule.actor(jax.random.fold_in(key, step), self._envs)  # another draw of chains at every evaluation
        apart = self._sampling is not None  # whether other episodes are judged than those that count
        traces = self.play(actor, policy, step, streams.EVALUATE, 0 if apart else self.plan.value_episodes)
        if self._sampling is not None and self._actors.sample is not None:
            key = jax.random.fold_in(streams.root(self.plan.seed, streams.VALUES), step)
            actor = self._actors.sample.actor(key, self._sampling._envs)
            judged = self._sampling.play(actor, policy, step, streams.VALUES)
        else:
            judged = traces[: self.plan.value_episodes]
        found = [state for trace in judged for state in evaluation_states(trace, self._discounts.gamma)]
        width = observations.vectors(self._obs).shape[1] + self.simulators[0].spaces.action_dim + 2
        return Played(self._returns.copy(), self._lengths.copy(), np.asarray(found, np.float32).reshape(-1, width))

    def play(self, actor: Actor, policy: Any, step: int, purpose: int, kept: int | None = None) -> list[Trace]:
        """One new episode in every simulator. With `kept`, only the steps of the first so many are returned: those with
        images take much memory."""
        self.reset(step, purpose)
        choose = actor.follow(policy, self._memory, self._obs)
        traces = [Trace([], False) for _ in self.simulators]
        running, moment = np.ones(len(self.simulators), bool), 0
        while running.any():
            action, self._memory, *rest = choose(moment, self._memory, self._obs)
            neg_log_prob = np.asarray(rest[0] if rest else np.zeros(len(running)))
            for i in np.flatnonzero(running):
                before = observations.of_one(self._obs, int(i))
                following, reward, terminated, truncated, taken = self._step(int(i), step, action[i])
                observations.put(self._obs, int(i), following)
                if kept is None or i < kept:
                    traces[i].steps.append(Step(before, action[i], reward, neg_log_prob[i]))
                self._returns[i] += reward
                self._lengths[i] += taken
                if terminated or truncated or self._lengths[i] >= EVALUATION_LIMIT:
                    running[i] = False
                    traces[i] = traces[i]._replace(
                        terminated=terminated, last_obs=observations.of_one(self._obs, int(i))
                    )
            moment += 1
            self._require_finite({"obs": observations.vectors(self._obs)[None]}, step)
        for i in np.flatnonzero(~np.isfinite(self._returns)):
            raise EnvironmentFault(f"{self._name(int(i), step)}: the return of its evaluation is {self._returns[i]}")
        return traces

    def capture(self) -> GroupState | None:
        """The state of the group; None if a simulator cannot be captured."""
        found = [states.take(simulator.env) for simulator in self.simulators]
        kept = [state for state in found if state is not None]
        if len(kept) < len(found):
            return None
        memory = [np.asarray(leaf) for leaf in jax.tree.leaves(self._memory)]
        counts = np.stack([self._returns, self._lengths.astype(float)])
        obs, frames = self._obs_parts()
        return GroupState(obs.copy(), counts, memory, kept, None if frames is None else frames.copy())

    def _obs_parts(self) -> tuple[np.ndarray, np.ndarray | None]:
        return observations.vectors(self._obs), observations.frames(self._obs)

    def restore(self, state: GroupState) -> None:
        """Continues from a captured state. It comes from a file, so it may be anything and is checked."""
        try:
            self._restore(state)
        except (AttributeError, TypeError) as error:
            raise CheckpointError(f"the captured state of a group of simulators is malformed ({error})") from None

    def _restore(self, state: GroupState) -> None:
        leaves, tree = jax.tree.flatten(self._memory)
        obs, frames = self._obs_parts()
        shown = [] if frames is None else [frames]
        leaves = [np.asarray(leaf) for leaf in leaves]
        expected = [f"{x.dtype}{x.shape}" for x in (obs, np.empty((2, len(self.simulators))), *shown, *leaves)]
        captured_frames = [] if state.frames is None else [state.frames]
        found = [f"{x.dtype}{x.shape}" for x in (state.obs, state.counts, *captured_frames, *state.memory)]
        if found != expected:
            raise CheckpointError(f"the captured arrays of a group of simulators are {found}, not {expected}")
        obs[:] = state.obs
        if frames is not None:
            frames[:] = state.frames
        self._returns[:], self._lengths[:] = state.counts
        self._memory = jax.tree.unflatten(tree, state.memory)
        for simulator, captured in zip(self.simulators, state.simulators, strict=True):
            states.put(simulator.env, captured)

    def close(self) -> None:
        for simulator in self.simulators:
            simulator.close()

    def _step(self, i: int, step: int, action: np.ndarray) -> tuple[Any, float, bool, bool, int]:
        self._progress[1] = i + 1
        try:
            result = self.simulators[i].step(action)
        except Exception as error:
            raise self._fault(i, step, f"step({np.array2string(action, precision=3)})", error) from error
        self._progress[0] += 1
        self._progress[1] = 0
        return result

    def _reset(self, i: int, step: int, seed: int | None) -> Any:
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
        what = traceback.format_exception_only(error)[-1].strip()
        fault = EnvironmentFault(f"{self._name(i, step)}: {call} raised {what}")
        fault.detail = own_traceback(error)
        return fault

    def _require_finite(self, values: dict[str, np.ndarray], step: int) -> None:
        """Rejects NaN and ±inf in arrays [T, E, …] and names the first one; once per chunk, to keep it cheap."""
        bad = [(*np.argwhere(~np.isfinite(x))[0], name) for name, x in values.items() if not np.isfinite(x).all()]
        if bad:
            t, i, *_, name = min(bad, key=lambda place: (place[0], place[1]))
            number = values[name][t, i]
            number = number[~np.isfinite(number)].flat[0] if number.ndim else number
            where = self._name(int(i), step + int(t) * self.plan.stride)
            raise EnvironmentFault(f"{where}: the {'observation' if 'obs' in name else name} contains {number}")

    def _name(self, i: int, step: int) -> str:
        return f"environment {self.plan.envs[i]} of seed {self.plan.seed}, step {step}"


def evaluation_states(trace: Trace, gamma: float) -> list[np.ndarray]:
    """Some states of one episode, each with its action and two discounted sums: of the rewards that followed, and of
    −log π of the later actions. The action itself has no entropy bonus in Q(s, a), so its own −log π is left out.

    If the episode was truncated, only states for which the unobserved rest weighs less than 1 % are kept.
    """
    steps, found = trace.steps, []
    unseen = 0 if trace.terminated else math.ceil(math.log(0.01) / math.log(gamma)) if 0 < gamma < 1 else len(steps)
    rewards = later = following = 0.0
    for t in range(len(steps) - 1, -1, -1):
        obs, action, reward, neg_log_prob = steps[t]
        rewards, later = reward + gamma * rewards, gamma * following
        following = neg_log_prob + later
        if t % STATE_STRIDE == 0 and len(steps) - t >= unseen:
            found.append(np.concatenate([obs.reshape(-1), action, [rewards, later]]))
    return found
