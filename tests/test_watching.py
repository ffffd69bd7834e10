"""Episodes that are shown: the ones that an evaluation counts, and the files that they are written to."""

import jax
import numpy as np
import pytest

from lsac import streams
from lsac.agents import sac
from lsac.collect import snapshot
from lsac.collect.pool import Pool, evaluation_groups
from lsac.envs.sources import of_experiment
from lsac.runs.experiment import Experiment, make_agent
from lsac.train.evaluate_run import Evaluated
from lsac.train.watching import Player

EXPERIMENT = Experiment(
    sac.Config(hidden=(64, 64)), "HalfCheetah-v4", seeds=2, seed=4, env_args=("max_episode_steps=300",)
)


@pytest.fixture(scope="module")
def loaded():
    """Two random policies."""
    environments = of_experiment(EXPERIMENT)
    spec = environments.spec(EXPERIMENT.gamma)
    agent = make_agent(EXPERIMENT, spec)
    states = [jax.jit(agent.init)(streams.root(seed, streams.INIT)) for seed in EXPERIMENT.seed_list]
    policies = np.stack([snapshot.flatten(jax.tree.map(lambda x: 3 * x, agent.policy(state))) for state in states])
    return Evaluated(EXPERIMENT, environments, spec, policies, [0, 0])


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_episodes_that_are_shown_are_those_that_are_counted(deterministic, loaded):
    """To the last bit, in a simulator in which small differences grow."""
    here = loaded.source._replace(recipe=None)  # a thread of this process
    pool = Pool(EXPERIMENT, loaded.spec, here, evaluation_groups(EXPERIMENT.seed_list, 3), 1)
    pool.evaluate(loaded.policies, 0, deterministic)
    counted = pool.evaluated()[1].returns
    pool.close()
    env = loaded.source.make()
    player = Player(loaded, 5, env, 3, deterministic)
    shown = [player.episode(number).reward for number in range(4)]
    env.close()
    np.testing.assert_array_equal(shown[:3], counted)
    assert shown[3] not in shown[:3], "more episodes can be shown than are counted"
