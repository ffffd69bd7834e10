"""Suites: the experiments of the paper as plain functions. A suite with a parameter `algorithms` compares them."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lsac.agents import IMAGES, VECTORS, learns_from
from lsac.errors import InputError
from lsac.options import printable
from lsac.presets import presets
from lsac.runs.experiment import Experiment, find_algorithm
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


def mujoco6(algorithms: Sequence[str] = VECTORS, preset: str = "default") -> list[Planned]:
    """six MuJoCo tasks, one update per environment step, a million steps (the paper's main table and curves)"""
    return [_of(name, env, preset, seeds=SEEDS) for env in MUJOCO for name in algorithms]


def dmc12(algorithms: Sequence[str] = VECTORS, preset: str = "default") -> list[Planned]:
    """twelve tasks of DeepMind Control from states, actions repeated twice, a million simulator steps"""
    return [_of(name, env, preset, seeds=SEEDS, action_repeat=2) for env in DMC for name in algorithms]


def pixels12(algorithms: Sequence[str] = IMAGES, preset: str = "default") -> list[Planned]:
    """twelve tasks of DeepMind Control from images, actions repeated twice, a million simulator steps, three seeds"""
    found = []
    for env in DMC:
        for name in algorithms:
            chosen = "pixels" if learns_from(name, "vectors") and preset == "default" else preset
            found.append(_of(name, env, chosen, seeds=3, steps=1_000_000))
    return found


def mazes(algorithms: Sequence[str] = VECTORS, preset: str = "default") -> list[Planned]:
    """two mazes with two goals each, 500 000 steps (the paper's maps of exploration); the point maze in both layouts"""
    size: dict[str, Any] = {"seeds": SEEDS, "steps": 500_000}
    point, ant = MAZES
    return [
        *(_of(name, point, preset, **size) for name in algorithms),
        *(_of(name, point, preset, f"{name}-open", env_args=("layout=open",), **size) for name in algorithms),
        *(_of(name, ant, preset, **size) for name in algorithms),
    ]


def ablations(preset: str = "default") -> list[Planned]:
    """LSAC without each of its parts, on the tasks of the paper's figures, and its number of chains"""
    found = [_lsac("lsac", MUJOCO, preset)]
    found += [_lsac("standard-critic", MUJOCO, preset, distributional=False)]
    some = ("HalfCheetah-v4", "Ant-v4", "Swimmer-v4")
    found += [_lsac("no-action-gradient", some, preset, action_gradient=False)]
    found += [_lsac("no-synthetic", some, preset, synthetic=False)]
    cheetah = MUJOCO[:1]
    found += [_lsac(f"chains-{count}", cheetah, preset, chains=count) for count in (1, 20, 50)]  # 10 is lsac itself
    found += [_lsac("adam", cheetah, preset, sampler="adam", critic_lr=3e-4, critic_lr_end=3e-4)]
    found += [_lsac(f"refresh-{_power(every)}", cheetah, preset, refresh_every=every) for every in (10**3, 10**5)]
    return _without_repeats(found)


def sensitivity(preset: str = "default") -> list[Planned]:
    """bias factor, step size and temperature of LSAC on HalfCheetah-v4; the generator's period on three more tasks"""
    cheetah, others = MUJOCO[:1], ("Ant-v4", "Hopper-v4", "Walker2d-v4")
    found = [_lsac("lsac", (*cheetah, *others), preset)]  # stands for each value below that is its own
    found += [_lsac(f"bias-factor-{a:g}", cheetah, preset, bias_factor=a) for a in (10.0, 1.0, 0.1, 0.01)]
    for rate in (1e-2, 1e-3, 3e-4, 1e-4):
        found += [_lsac(f"critic-lr-{rate:g}", cheetah, preset, critic_lr=rate, critic_lr_end=rate / 10)]
    for beta in (10**5, 10**6, 10**7, 10**8, 10**9):
        label = f"inverse-temperature-{_power(beta)}"
        found += [_lsac(label, cheetah, preset, inverse_temperature=float(beta))]
    for every in (10**3, 10**4, 10**5):
        found += [_lsac(f"refresh-{_power(every)}", others, preset, refresh_every=every)]
    return _without_repeats(found)


def paper20m(algorithms: Sequence[str] = ("lsac",), preset: str = "default") -> list[Planned]:
    """the data of the paper's runs: 20 simulators, one update per 20 steps, a million updates, 20 million steps"""
    regime: dict[str, Any] = {"steps": 20_000_000, "num_envs": 20, "utd": 0.05, "chunk": 640, "seeds": 2}
    intervals: dict[str, Any] = {"eval_every": 100_000, "log_every": 20_000, "checkpoint_every": 1_000_000}
    plan = []
    for env in MUJOCO:
        for name in algorithms:
            period: dict[str, Any] = {"refresh_every": 200_000} if name == "lsac" else {}  # 10 000 updates
            plan.append(_of(name, env, preset, **regime, **intervals, **period))
    return plan


def smoke(algorithms: Sequence[str] = ("lsac", "sac", "td3"), preset: str = "quickstart") -> list[Planned]:
    """small agents on Pendulum-v1, three seeds each: minutes on a laptop"""
    return [_of(name, "Pendulum-v1", preset) for name in algorithms]


def _of(algorithm: str, env: str, preset: str, label: str | None = None, **options: Any) -> Planned:
    """An experiment with a preset; with the default one if the algorithm does not have it."""
    find_algorithm(algorithm)
    chosen = preset if preset in presets(algorithm) else "default"
    return experiment(algorithm, env, label, chosen, **options)


def _lsac(label: str, tasks: Iterable[str], preset: str, **options: Any) -> list[Planned]:
    """LSAC with one thing changed. Its generated data are not adaptive: where their share falls to none, everything
    that is about them would compare a run with itself. The time between two fits is constant, as in the paper."""
    size: dict[str, Any] = {"seeds": SEEDS, "adaptive_share": False, "refresh_growth": 0.0}
    return [_of("lsac", env, preset, label, **size, **options) for env in tasks]


def _without_repeats(found: Iterable[Sequence[Planned]]) -> list[Planned]:
    """The first of those that are equal but for their labels."""
    first: dict[Experiment, Planned] = {}
    for items in found:
        for item in items:
            first.setdefault(item.experiment, item)
    return list(first.values())


def _power(number: int) -> str:
    """1e5 for 100 000."""
    return f"1e{len(str(number)) - 1}"


Suite = Callable[..., list[Planned]]
SUITES: dict[str, Suite] = {
    suite.__name__: suite for suite in (smoke, mujoco6, dmc12, pixels12, mazes, ablations, sensitivity, paper20m)
}


def suite(name: str, algorithms: Sequence[str] = (), preset: str | None = None) -> list[Planned]:
    """The experiments of a suite; if wanted, of other algorithms than it names, or with another preset."""
    if name not in SUITES:
        raise InputError(f"--suite {name}: must be one of {', '.join(SUITES)}")
    wanted: dict[str, Any] = {}
    if algorithms:
        if "algorithms" not in inspect.signature(SUITES[name]).parameters:
            raise InputError(f"--algorithms: the suite {name} is about LSAC alone; leave it out")
        wanted["algorithms"] = tuple(dict.fromkeys(algorithms))
    if preset is not None:
        wanted["preset"] = preset
    plan = SUITES[name](**wanted)
    if preset is not None and not with_preset(plan, preset):
        known = ", ".join(dict.fromkeys(key for item in plan for key in presets(item.experiment.algorithm)))
        raise InputError(f"--preset {printable(preset)}: none of the algorithms has it; they have {known}")
    return plan


def with_preset(plan: Sequence[Planned], preset: str) -> list[str]:
    """The algorithms of a plan that have a preset."""
    algorithms = dict.fromkeys(item.experiment.algorithm for item in plan)
    return [name for name in algorithms if preset in presets(name)]
