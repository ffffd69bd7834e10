"""State-action pairs of the policy whose values the critics estimate, each with the return that followed it."""

from typing import Any, NamedTuple

import jax
import numpy as np

from lsac import streams
from lsac.analyses.of_run import Analysed
from lsac.collect.actors import Rule, make_actors
from lsac.collect.groups import Discounts, Group, Trace
from lsac.collect.wire import GroupPlan
from lsac.envs.gymnasium import Simulator
from lsac.errors import InputError
from lsac.train import fidelity

TOGETHER = 4
"""Episodes that are played side by side."""
PAIRS, FIRST = 1_000, 350
"""Pairs per seed, at least, and the steps of an episode that are kept: those of Chen et al. 2021."""


class Pairs(NamedTuple):
    obs: np.ndarray
    """[N, O]"""
    action: np.ndarray
    """[N, A]"""
    returns: np.ndarray
    """[N] discounted, with the entropy bonus of later actions where values are soft"""
    unseen: np.ndarray
    """[N] the weight γⁿ of what would have followed the end of a truncated episode; 0 after a termination"""
    episodes: int


class Stage:
    """Plays episodes of one seed, some of them `together`, each with its own random numbers."""

    def __init__(self, run: Analysed, index: int, from_replay: bool = False, together: int = TOGETHER):
        self._run, self._index, self._together = run, index, together
        self.actors = make_actors(run.agent, run.spec.action_dim)
        self._policy = jax.tree.map(np.asarray, run.agent.policy(run.state(index)))
        seed = run.experiment.seed_list[index]
        self._key = jax.random.fold_in(streams.root(seed, streams.VALUES), run.step)
        self._simulators = _simulators(run, index, from_replay, together)
        self._played = 0

    def episodes(self, rule: Rule, purpose: int) -> list[Trace]:
        """The next episodes; `purpose` is the stream of their resets."""
        e, envs = self._run.experiment, list(range(self._played, self._played + self._together))
        self._played += self._together
        plan = GroupPlan(e.seed_list[self._index], self._index, envs, self._together)
        group = Group(plan, self._simulators, self.actors, Discounts(e.gamma), np.zeros(2, np.int64))
        return group.play(rule.actor(self._key, np.asarray(envs, np.int32)), self._policy, self._run.step, purpose)

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *error: object) -> None:
        for simulator in self._simulators:
            simulator.close()


def play(run: Analysed, index: int, pairs: int = PAIRS, first: int = FIRST, from_replay: bool = False) -> Pairs:
    """Episodes of one seed, from resets of the environment or, with `from_replay`, from states of its replay."""
    values, gamma = run.agent.values, run.experiment.gamma
    if values is None:
        raise InputError(f"{run.path}: {run.experiment.algorithm} has no critics whose values could be compared")
    alpha = float(values.entropy.alpha(run.state(index))) if values.entropy else 0.0
    kept: list[Pairs] = []
    with Stage(run, index, from_replay) as stage:
        rule = stage.actors.exploit if values.deterministic else stage.actors.sample
        assert rule is not None
        while sum(len(x.returns) for x in kept) < pairs:
            kept += [judged(trace, gamma, alpha, first) for trace in stage.episodes(rule, streams.VALUES)]
    obs, action, returns, unseen = (np.concatenate(column) for column in zip(*(x[:4] for x in kept), strict=True))
    return Pairs(obs, action, returns, unseen, len(kept))


def judged(trace: Trace, gamma: float, alpha: float, first: int) -> Pairs:
    """The first pairs of an episode: R_t = r_t + γ (R_{t+1} − α log π_{t+1}), and R = r at the last step."""
    steps = trace.steps
    returns = np.zeros(len(steps))
    following = 0.0
    for t in reversed(range(len(steps))):
        returns[t] = steps[t].reward + gamma * following
        following = returns[t] + alpha * float(steps[t].neg_log_prob)
    left = np.arange(len(steps), 0, -1)
    unseen = np.zeros(len(steps)) if trace.terminated else float(gamma) ** left
    obs, action = (np.stack([step[i] for step in steps[:first]]) for i in (0, 1))
    return Pairs(obs.reshape(len(obs), -1), action, returns[:first], unseen[:first], 1)


def _simulators(run: Analysed, index: int, from_replay: bool, together: int) -> list[Simulator]:
    source = run.environments.evaluation
    assert source is not None
    repeat = run.experiment.action_repeat
    if not from_replay:
        return [Simulator(source.make(), repeat) for _ in range(together)]
    if run.simulator() is None:
        raise InputError(
            f"--starts replay: the state of {run.experiment.env} cannot be restored from an observation; only "
            f"{', '.join(fidelity.HIDDEN_POSITIONS)} without arguments and wrappers can start in states of the replay"
        )
    observations = run.rows(index)[:, : run.spec.obs_dim]
    return [FromReplay(source.make(), repeat, observations) for _ in range(together)]


class FromReplay(Simulator):
    """Episodes that start in states of the replay, drawn with the seed of the reset."""

    def __init__(self, env: Any, action_repeat: int, observations: np.ndarray):
        super().__init__(env, action_repeat)
        self._observations = observations[fidelity.determined(env, observations)]
        if not len(self._observations):
            raise InputError("--starts replay: no observation in the replay determines the state of the simulator")

    def reset(self, seed: int | None = None) -> np.ndarray:
        super().reset(seed)
        chosen = np.random.default_rng(seed).integers(len(self._observations))
        fidelity.restore(self.env, self._observations[chosen].astype(np.float64))
        simulator: Any = self.env.unwrapped
        return self.spaces.flat(simulator._get_obs())
