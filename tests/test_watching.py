"""Episodes that are shown: the ones that an evaluation counts, and the files that they are written to."""

import dataclasses

import gymnasium as gym
import jax
import numpy as np
import pytest
from PIL import Image

from lsac import streams
from lsac.agents import sac
from lsac.collect import snapshot
from lsac.collect.pool import Pool, evaluation_groups
from lsac.envs.sources import of_experiment
from lsac.errors import InputError
from lsac.runs.experiment import Experiment, make_agent
from lsac.train import watching
from lsac.train.evaluate_run import Evaluated
from lsac.train.watching import Film, Filmed, Player, drawn, require_drawable

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


@pytest.mark.parametrize(
    ("fps", "pictures", "kept", "shown"),
    [(125, 7, 3, 20), (100, 4, 2, 20), (67, 4, 2, 30), (50, 3, 3, 20), (30, 3, 3, 30), (20, 3, 3, 50)],
)
def test_a_gif_is_about_as_fast_as_its_environment(fps, pictures, kept, shown, tmp_path):
    with Film(tmp_path / "film.gif", fps, print) as film:
        for i in range(pictures):
            film.add(np.full((6, 6, 3), 30 * i, np.uint8))
    with Image.open(tmp_path / "film.gif") as gif:
        assert gif.n_frames == film.frames == kept
        durations = [gif.seek(i) or gif.info["duration"] for i in range(kept)]
    assert durations == [shown] * kept
    assert film.fps == 1000 / shown


def test_an_environment_without_a_render_mode_is_named():
    for mode, option in (("rgb_array", "--video x.mp4"), ("human", "--render")):
        with pytest.raises(InputError) as refused:
            drawn(dataclasses.replace(EXPERIMENT, env="lsac/TimeLimited-v0", env_args=()), mode, option)
        assert str(refused.value) == f"{option}: lsac/TimeLimited-v0 cannot be drawn (it has no render_mode)"
    env = gym.make("lsac/TimeLimited-v0")
    with pytest.raises(InputError, match=r"^--render: x cannot be drawn \(it has no render_mode\)$"):
        require_drawable(env, "x", "--render")


def test_a_video_below_a_file_is_refused(loaded, tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "load_policies", lambda path, which: loaded)
    monkeypatch.setattr(watching, "drawn", lambda *asked: loaded.source.make())
    (tmp_path / "file").touch()
    video = tmp_path / "file/deep/film.mp4"
    with pytest.raises(InputError) as refused:
        watching.record(tmp_path, video, Filmed("last", None, 1, None, True, 1), print)
    assert str(refused.value) == f"--video {video}: cannot be written (Not a directory)"
