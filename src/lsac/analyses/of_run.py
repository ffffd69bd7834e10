"""What analyses read of a run: its agents, and the transitions in its newest checkpoint."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lsac.agents.normalised import LARGEST_RETURN
from lsac.envs.repeat import repeated
from lsac.envs.sources import Environments, of_experiment
from lsac.errors import InputError
from lsac.nn.normalisation import normalised, reward_scale
from lsac.replay import ring as rb
from lsac.runs.checkpoint import Checkpoint
from lsac.runs.experiment import Experiment, make_agent
from lsac.runs.folder import RunFolder
from lsac.train import fidelity
from lsac.train.evaluate_run import agents_of
from lsac.train.run import cache_compilations
from lsac.types import Agent, EnvSpec


class Analysed(NamedTuple):
    """A run with the agents of its newest checkpoint."""

    path: Path
    experiment: Experiment
    environments: Environments
    spec: EnvSpec
    agent: Agent
    checkpoint: Checkpoint
    states: Any
    """[S, …] compact states of the agents"""

    @property
    def step(self) -> int:
        return int(self.checkpoint.record["step"])

    @property
    def name(self) -> str:
        return f"{self.experiment.algorithm} on {self.experiment.env}"

    def state(self, index: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[index], self.states)

    def inner(self, index: int) -> Any:
        """The state of the algorithm itself, without the statistics of observations and rewards."""
        state, e = self.state(index), self.experiment
        return state.agent if e.normalise_observations or e.scale_rewards else state

    def reward_scale(self, index: int) -> float:
        """What the rewards of a seed are divided by."""
        if not self.experiment.scale_rewards:
            return 1.0
        return float(reward_scale(self.state(index).returns, LARGEST_RETURN))

    def seen(self, index: int, obs: np.ndarray) -> Any:
        """Observations [N, O] as the networks of a seed see them."""
        if not self.experiment.normalise_observations:
            return obs
        return normalised(self.state(index).moments, jnp.asarray(obs), rb.OBS_CLIP)

    def rows(self, index: int) -> np.ndarray:
        """[N, width] transitions of a seed in the checkpoint, oldest first."""
        stored = self.checkpoint.stored.get(rb.PACKED)
        if stored is None or not stored.shape[1]:
            raise InputError(f"{self.path}: its checkpoint holds no transitions")
        return np.asarray(stored[index])

    def simulator(self) -> Any:
        """A simulator that can be put into the state of an observation; None if there is none."""
        found = self.environments
        changed = found.args or found.wrappers or found.training.recipe is None
        if changed or not fidelity.knows(found.name):
            return None
        return repeated(found.training.make(), self.experiment.action_repeat)


def load(path: Path, transitions: bool, images: bool = False) -> Analysed:
    """Reads the newest checkpoint of a run, with its replay if the `transitions` are needed. Rejects a run that learned
    from images, unless the analysis can read `images`."""
    cache_compilations()
    folder, e = RunFolder.open(path)
    environments = of_experiment(e)
    spec = environments.spec(e.gamma, e.frame_stack)
    if spec.frame is not None and not images:
        raise InputError(f"analyse: {path} learned from images, but this analysis reads vectors only")
    agent = make_agent(e, spec)
    checkpoint = folder.checkpoints.load() if transitions else folder.checkpoints.load_agents()
    checkpoint.require(e.algorithm, e.env)
    return Analysed(path, e, environments, spec, agent, checkpoint, agents_of(checkpoint, agent, e.seeds))


def require_algorithm(path: Path, analysis: str, algorithm: str) -> Experiment:
    """The experiment of a run; rejects one of another algorithm."""
    _, e = RunFolder.open(path, to_run=False)
    if e.algorithm != algorithm:
        raise InputError(f"analyse {analysis}: {path} is a run of {e.algorithm}; this analysis is of {algorithm} only")
    return e


def require_lsac(path: Path, analysis: str, synthetic: bool) -> None:
    """Rejects a run of another algorithm and, if generated transitions are needed, one without them."""
    e = require_algorithm(path, analysis, "lsac")
    if synthetic and not e.agent.synthetic:
        raise InputError(f"analyse {analysis}: {path} was trained without generated transitions (--no-synthetic)")


def require_fitted(run: Analysed, analysis: str) -> int:
    """The step at which the generator was fitted last; rejects a run that has not fitted it yet."""
    at = int(run.checkpoint.record.get("generated_at") or 0)
    if not at:
        raise InputError(f"analyse {analysis}: the generator of {run.path} has not been fitted yet (step {run.step:,})")
    return at


def chosen_seed(run: Analysed, seed: int | None) -> int:
    """The index of a seed; the first if none is given."""
    seeds = run.experiment.seed_list
    if seed is not None and seed not in seeds:
        raise InputError(f"--seed {seed}: must be one of {', '.join(map(str, seeds))}")
    return 0 if seed is None else seeds.index(seed)
