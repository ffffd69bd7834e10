"""Stable-Baselines3's own functions and callbacks on models and environments of lsac: `make sb3` installs it apart."""

import gymnasium as gym
import numpy as np
import pytest
from test_learn import TINY

from lsac import SAC
from lsac.errors import InputError

reason = "Stable-Baselines3 is not installed; `make sb3` installs it in a folder of its own and runs these tests"
callbacks = pytest.importorskip("stable_baselines3.common.callbacks", reason=reason)
from stable_baselines3.common.env_checker import check_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.monitor import Monitor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv  # noqa: E402

OPTIONS = TINY | {"log_every": 32}


def pendulum():
    return gym.make("Pendulum-v1")


@pytest.fixture(scope="module")
def model():
    return SAC("Pendulum-v1", seed=3, **OPTIONS).learn(64)


def test_evaluate_policy_takes_a_model(model):
    env = Monitor(pendulum())
    env.reset(seed=0)
    mean, std = evaluate_policy(model, env, n_eval_episodes=2)
    assert -2000 < mean < 0 <= std
    returns, lengths = evaluate_policy(
        model, DummyVecEnv([pendulum] * 2), n_eval_episodes=4, return_episode_rewards=True, warn=False
    )
    assert (len(returns), lengths) == (4, [200] * 4)


@pytest.mark.parametrize("name", sorted(name for name in gym.registry if name.startswith("lsac/")))
def test_check_env_accepts_our_environments(name):
    check_env(gym.make(name).unwrapped)


def test_eval_callback_evaluates_saves_the_best_and_stops_at_a_threshold(tmp_path):
    stop = callbacks.StopTrainingOnRewardThreshold(reward_threshold=-1e9)
    evaluation = callbacks.EvalCallback(
        Monitor(pendulum()),
        callback_on_new_best=stop,
        eval_freq=40,
        n_eval_episodes=1,
        best_model_save_path=str(tmp_path),
        verbose=0,
    )
    model = SAC("Pendulum-v1", seed=3, **OPTIONS).learn(256, callback=evaluation)
    assert model.num_timesteps == 40, "every return exceeds the threshold"
    assert np.isfinite(evaluation.best_mean_reward)
    best = SAC.load(tmp_path / "best_model")
    assert best.num_timesteps == 40
    obs = np.array([0.6, -0.8, 1.5], np.float32)
    assert best.predict(obs, deterministic=True)[0] == model.predict(obs, deterministic=True)[0]


def test_checkpoint_callback_saves_models_that_can_be_loaded(tmp_path):
    callback = callbacks.CheckpointCallback(save_freq=64, save_path=str(tmp_path), name_prefix="pendulum")
    every, seen = callbacks.EveryNTimesteps(32, callbacks.ConvertCallback(lambda *_: seen.append(1) or True)), []
    SAC("Pendulum-v1", seed=3, **OPTIONS).learn(128, callback=callbacks.CallbackList([callback, every]))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"pendulum_{n}_steps.safetensors" for n in (128, 64)]
    assert SAC.load(tmp_path / "pendulum_64_steps.zip").num_timesteps == 64
    assert len(seen) == 4


def test_callbacks_that_cannot_work_are_refused(model):
    for callback in (callbacks.LogEveryNTimesteps(8), callbacks.StopTrainingOnMaxEpisodes(3)):
        with pytest.raises(InputError, match=r"^callback: \w+ of Stable-Baselines3 does not work here; use"):
            model.learn(8, callback=[callback])
    with pytest.raises(
        InputError, match=r"CheckpointCallback cannot save the replay buffer; .*save\(path, replay=True\)"
    ):
        model.learn(8, callback=callbacks.CheckpointCallback(8, "nowhere", save_replay_buffer=True))


def test_a_vector_environment_is_refused():
    with pytest.raises(InputError, match="num_envs=2"):
        SAC(DummyVecEnv([pendulum] * 2))
