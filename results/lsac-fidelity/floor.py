"""The table of the moment floor: python results/lsac-fidelity/floor.py Humanoid-v4 HalfCheetah-v4"""

import sys

import gymnasium as gym
import jax
import numpy as np

from lsac.agents.lsac import agent as lsac
from lsac.envs.gymnasium import Simulator
from lsac.replay import ring as rb
from lsac.types import EnvSpec

COUNT, UPDATES, ROUNDS = 6_000, 100, 5
SETTINGS = {"grad_norm": {}, "plain_norm": {"clip": "plain_norm"}, "moment-eps 1e-16": {"moment_eps": 1e-16}}


def random_transitions(env: str) -> tuple[EnvSpec, rb.Replay]:
    simulator, rng = Simulator(gym.make(env)), np.random.default_rng(0)
    spec = simulator.spaces.spec(0.99)
    layout, obs, rows = rb.layout_of(spec), simulator.reset(0), []
    for _ in range(COUNT):
        action = rng.uniform(-1, 1, spec.action_dim).astype(np.float32)
        next_obs, reward, terminated, truncated = simulator.step(action)
        rows.append(np.concatenate([obs, action, [reward], [0.0 if terminated else 0.99], next_obs]))
        obs = simulator.reset() if terminated or truncated else next_obs
    ring = layout.empty(COUNT)
    ring[rb.PACKED][:], ring[rb.FIRST][:] = np.array(rows, np.float32), False
    return spec, rb.holding(layout, ring, COUNT, 1)


for env in sys.argv[1:]:
    spec, replay = random_transitions(env)
    for name, options in SETTINGS.items():
        config = lsac.Config(chains=1, synthetic=False, **options)
        agent = lsac.make(config, spec)
        state = agent.init(jax.random.key(0))
        some = jax.jit(lambda s, keys, a=agent, r=replay: jax.lax.scan(lambda s, k: a.update(s, r, k), s, keys))
        for i in range(ROUNDS):
            state, metrics = some(state, jax.random.split(jax.random.key(i), UPDATES))
        m, v = ([np.asarray(layer.weight) for layer in x.mlp.layers] for x in state.chains.sampler.memory)
        zeta = [np.abs(a / np.sqrt(b + config.moment_eps)) for a, b in zip(m, v, strict=True)]
        layers = [zeta[0].mean(), zeta[0][..., spec.obs_dim :].mean(), zeta[1].mean(), zeta[2].mean()]
        below = [np.mean(np.concatenate([x.ravel() for x in v]) < 1e-8), np.mean(v[0][..., spec.obs_dim :] < 1e-8)]
        print(env, name, np.round([*layers, *below, metrics["critic_grad_norm"].mean()], 3))
