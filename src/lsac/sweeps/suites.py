"""Suites: the experiments of the paper as plain functions. A suite with a parameter `algorithms` compares them."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lsac.agents import AGENTS
from lsac.errors import InputError
from lsac.sweeps.plan import Planned, experiment

MUJOCO = ("HalfCheetah-v4", "Ant-v4", "Swimmer-v4", "Walker2d-v4", "Hopper-v4", "Humanoid-v4")
DMC = tuple(
    f"dm_control/{name}-v0"
    for name in (
        *("cheetah-run", "finger-turn_easy", "finger-turn_hard", "reacher-easy", "reacher-hard", "walker-walk"),
        *("walker-run", "fish-swim", "cartpole-balance_sparse", "cartpole-swingup_sparse", "hopper-hop"),
        "quadruped-run",
    )
)
MAZES = ("lsac/PointMaze-TwoGoals-v0", "lsac/AntMaze-TwoGoals-v0")
SEEDS = 10
"""As in the paper."""


def mujoco6(algorithms: Sequence[str] = tuple(AGENTS)) -> list[Planned]:
    """six MuJoCo tasks, one update per environment step, a million steps (the paper's main table and curves)"""
    return [experiment(name, env, seeds=SEEDS) for env in MUJOCO for name in algorithms]


def dmc12(algorithms: Sequence[str] = tuple(AGENTS)) -> list[Planned]:
    """twelve tasks of DeepMind Control from states, actions repeated twice, a million simulator steps"""
    return [experiment(name, env, seeds=SEEDS, action_repeat=2) for env in DMC for name in algorithms]


def mazes(algorithms: Sequence[str] = tuple(AGENTS)) -> list[Planned]:
    """two mazes with two goals each, 500 000 steps (the paper's maps of exploration)"""
    return [experiment(name, env, seeds=SEEDS, steps=500_000) for env in MAZES for name in algorithms]


def ablations() -> list[Planned]:
    """LSAC without each of its parts, on the tasks of the paper's figures, and its number of chains"""
    found = [_lsac("lsac", MUJOCO)]
    found += [_lsac("standard-critic", MUJOCO, distributional=False)]
    some = ("HalfCheetah-v4", "Ant-v4", "Swimmer-v4")
    found += [_lsac("no-action-gradient", some, action_gradient=False)]
    found += [_lsac("no-synthetic", some, synthetic=False)]
    cheetah = MUJOCO[:1]
    found += [_lsac(f"chains-{count}", cheetah, chains=count) for count in (1, 20, 50)]  # 10 is lsac itself
    found += [_lsac("adam", cheetah, preset="adam")]
    found += [_lsac(f"refresh-{_power(every)}", cheetah, refresh_every=every) for every in (10**3, 10**5)]
    return [item for items in found for item in items]


def sensitivity() -> list[Planned]:
    """bias factor, step size and temperature of LSAC on HalfCheetah-v4; the generator's period on three more tasks"""
    cheetah = MUJOCO[:1]
    found = [_lsac(f"bias-factor-{a:g}", cheetah, bias_factor=a) for a in (10.0, 1.0, 0.1, 0.01)]
    for rate in (1e-2, 1e-3, 3e-4, 1e-4):
        found += [_lsac(f"critic-lr-{rate:g}", cheetah, critic_lr=rate, critic_lr_end=rate / 10)]
    for beta in (10**5, 10**6, 10**7, 10**8, 10**9):
        found += [_lsac(f"inverse-temperature-{_power(beta)}", cheetah, inverse_temperature=float(beta))]
    others = ("Ant-v4", "Hopper-v4", "Walker2d-v4")
    for every in (10**3, 10**4, 10**5):
        found += [_lsac(f"refresh-{_power(every)}", others, refresh_every=every)]
    return [item for items in found for item in items]


def paper20m(algorithms: Sequence[str] = ("lsac",)) -> list[Planned]:
    """the data of the paper's runs: 20 simulators, one update per 20 steps, a million updates, 20 million steps"""
    regime: dict[str, Any] = {"steps": 20_000_000, "num_envs": 20, "utd": 0.05, "chunk": 640, "seeds": 2}
    intervals: dict[str, Any] = {"eval_every": 100_000, "log_every": 20_000, "checkpoint_every": 1_000_000}
    plan = []
    for env in MUJOCO:
        for name in algorithms:
            period: dict[str, Any] = {"refresh_every": 200_000} if name == "lsac" else {}  # 10 000 updates
            plan.append(experiment(name, env, **regime, **intervals, **period))
    return plan


def smoke(algorithms: Sequence[str] = ("lsac", "sac", "td3")) -> list[Planned]:
    """small agents on Pendulum-v1, three seeds each: minutes on a laptop"""
    return [experiment(name, "Pendulum-v1", preset="quickstart") for name in algorithms]


def _lsac(label: str, tasks: Iterable[str], preset: str = "default", **options: object) -> list[Planned]:
    return [experiment("lsac", env, label, preset, seeds=SEEDS, **options) for env in tasks]


def _power(number: int) -> str:
    """1e5 for 100 000."""
    return f"1e{len(str(number)) - 1}"


Suite = Callable[..., list[Planned]]
SUITES: dict[str, Suite] = {
    suite.__name__: suite for suite in (smoke, mujoco6, dmc12, mazes, ablations, sensitivity, paper20m)
}


def suite(name: str, algorithms: Sequence[str] = ()) -> list[Planned]:
    """The experiments of a suite, of other algorithms than it names if wanted."""
    if name not in SUITES:
        raise InputError(f"--suite {name}: must be one of {', '.join(SUITES)}")
    if not algorithms:
        return SUITES[name]()
    if not inspect.signature(SUITES[name]).parameters:
        raise InputError(f"--algorithms: the suite {name} is about LSAC alone; leave it out")
    return SUITES[name](tuple(dict.fromkeys(algorithms)))
