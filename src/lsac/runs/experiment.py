"""What a run is: one frozen description, checked once, written into the run's folder and read back from it."""

import dataclasses
import difflib
import math
import platform
import re
import sys
import types
import typing
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any, Generic, TypeVar

import jax
import tyro

from lsac.agents import AGENTS
from lsac.errors import InputError
from lsac.version import __version__

FORMAT = 1
"""Of config.json; raised whenever an older program could misread a newer file."""

AT_LEAST_ONE = (
    *("batch_size", "critics", "chains", "critics_per_chain"),
    *("subset", "critic_updates", "denoising_steps", "actor_decay", "delay", "target_every"),
    *("epochs", "minibatches", "cg_steps", "backtracks"),
)
"""Options of agents that count something."""

POSITIVE = ("alpha_init", "max_kl", "clip_ratio", "score_scale")
"""Options of agents, besides step sizes that nothing turns off, that must be greater than 0."""

NOT_NEGATIVE = (
    *("refresh_every", "anneal_updates", "grad_norm", "obs_clip", "damping", "action_steps", "action_clip"),
    *("exploration_noise", "target_noise", "noise_clip", "alpha_lr"),
)
"""Options of agents that 0 turns off."""

BEFORE: dict[str, Any] = {"adam_beta2": 0.999, "time_limits_terminate": False}
"""Options that came later, with what runs from before did: their files go on being read."""

C = TypeVar("C")


@dataclass(frozen=True)
class Experiment(Generic[C]):
    agent: Annotated[C, tyro.conf.arg(name="")]
    env: str
    """Gymnasium id of the environment"""
    steps: int = 1_000_000
    """environment steps of every seed, rounded up to whole chunks"""
    seeds: int = 1
    """seeds trained side by side in one compiled program: SEED, SEED+1, …"""
    seed: int = 0
    """the first seed"""
    num_envs: int = 1
    """simulators per seed"""
    utd: float = 1.0
    """updates per environment step; 0.05 is one update every 20 steps"""
    chunk: int = 32
    """environment steps of a seed between two exchanges of data and policy; the policy lags by one to two chunks, and
    not at all if the agent is on-policy"""
    gamma: float = 0.99
    """discount per step"""
    time_limits_terminate: bool = False
    """count an episode that a time limit cut as one that ended, as some published code does"""
    learning_starts: int = 5_000
    """steps with uniformly random actions before the first update"""
    replay_capacity: int = 1_000_000
    """transitions kept per seed"""
    eval_every: int = 5_000
    """environment steps between evaluations; 0 turns them off"""
    eval_episodes: int = 10
    """episodes of an evaluation"""
    log_every: int = 1_000
    """environment steps between lines of metrics"""
    checkpoint_every: int = 50_000
    """environment steps between checkpoints; 0 saves only at the end"""
    workers: int = 0
    """processes that step the simulators; 0 is as many as measure fastest, at most one per four simulators of a seed"""
    env_timeout: float = 60.0
    """seconds after which a simulator that does not answer is given up"""

    @property
    def on_policy(self) -> bool:
        """Whether the agent learns from the newest chunk only, once, and acts with what it just learned."""
        return getattr(self.agent, "on_policy", False)

    @property
    def updates_per_chunk(self) -> int:
        return 1 if self.on_policy else round(self.chunk * self.utd)

    @property
    def capacity(self) -> int:
        """Transitions to allocate: never more than the run can collect, and whole chunks."""
        if self.on_policy:
            return self.chunk
        chunks = math.ceil(min(self.replay_capacity, self.steps) / self.chunk)
        return chunks * self.chunk

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seed, self.seed + self.seeds))


def check(experiment: Experiment) -> None:
    """Refuses values that cannot work, one sentence each."""
    e = experiment
    at_least_one = ("steps", "seeds", "num_envs", "chunk", "replay_capacity", "eval_episodes", "log_every")
    for name in at_least_one:
        if getattr(e, name) < 1:
            raise InputError(f"{_flag(name)} {getattr(e, name)}: must be at least 1")
    for name in ("seed", "learning_starts", "eval_every", "checkpoint_every", "workers"):
        if getattr(e, name) < 0:
            raise InputError(f"{_flag(name)} {getattr(e, name)}: must not be negative")
    for name in ("utd", "env_timeout"):
        if not 0 < getattr(e, name) < math.inf:
            raise InputError(f"{_flag(name)} {getattr(e, name)}: must be a finite number greater than 0")
    if e.seed + e.seeds > 2**31:
        raise InputError(f"--seed {e.seed}: must stay below 2147483648")
    if not 0 <= e.gamma <= 1:
        raise InputError(f"--gamma {e.gamma}: must lie between 0 and 1")
    if e.chunk % e.num_envs:
        raise InputError(f"--chunk {e.chunk}: must be a multiple of --num-envs {e.num_envs}")
    if e.on_policy:
        for name, only in (("utd", 1.0), ("learning_starts", 0)):
            if getattr(e, name) != only:
                raise InputError(f"{_flag(name)} {getattr(e, name)}: must be {only:g}, this agent learns on-policy")
    updates = e.chunk * e.utd
    if not 1 <= round(min(updates, 2.0**31)) < 2**31 or abs(updates - round(updates)) > 1e-9:
        raise InputError(f"--utd {e.utd}: times --chunk {e.chunk} must be a whole number of updates, at least 1")
    for name in AT_LEAST_ONE:
        if getattr(e.agent, name, 1) < 1:
            raise InputError(f"{_flag(name)} {getattr(e.agent, name)}: must be at least 1")
    for name in NOT_NEGATIVE:
        if (getattr(e.agent, name, 0) or 0) < 0:
            raise InputError(f"{_flag(name)} {getattr(e.agent, name)}: must not be negative")
    minibatches = getattr(e.agent, "minibatches", 1)
    if e.chunk % minibatches:
        raise InputError(f"--minibatches {minibatches}: must divide --chunk {e.chunk}")
    subset = getattr(e.agent, "subset", 1)
    if subset > getattr(e.agent, "critics", subset):
        raise InputError(f"--subset {subset}: must be at most --critics {e.agent.critics}")
    chains = getattr(e.agent, "chains", 1)
    if getattr(e.agent, "synthetic_capacity", chains) < chains:
        raise InputError(f"--synthetic-capacity {e.agent.synthetic_capacity}: must be at least --chains {chains}")
    batch = getattr(e.agent, "batch_size", 1)
    if batch < 2 and getattr(e.agent, "synthetic", False):
        raise InputError(f"--batch-size {batch}: must be at least 2, because half of it is generated")
    needed = min(e.replay_capacity, e.steps)
    pairs = getattr(e.agent, "pair_capacity", needed)
    if pairs < needed:
        raise InputError(f"--pair-capacity {pairs}: must be at least the replay's {needed} transitions")
    if batch > e.replay_capacity:
        raise InputError(f"--batch-size {batch}: is larger than --replay-capacity {e.replay_capacity}")
    hidden = getattr(e.agent, "hidden", (1,))
    if not hidden or min(hidden) < 1:
        raise InputError(f"--hidden {' '.join(map(str, hidden))}: needs at least one layer of at least one unit")
    for field in dataclasses.fields(e.agent):
        value = getattr(e.agent, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{_flag(field.name)} {value}: must be a finite number")
        positive = (field.name.endswith("_lr") and field.name not in NOT_NEGATIVE) or field.name in POSITIVE
        if positive and not value > 0:
            raise InputError(f"{_flag(field.name)} {value}: must be greater than 0")
        if field.name == "adam_beta2" and not 0 <= value < 1:
            raise InputError(f"--adam-beta2 {value}: must be at least 0 and less than 1")
        if field.name == "lam" and not 0 <= value <= 1:
            raise InputError(f"--lam {value}: must lie between 0 and 1")
        if field.name in ("tau", "backtrack") and not 0 < value <= 1:
            raise InputError(f"{_flag(field.name)} {value}: must be greater than 0 and at most 1")
    from lsac.nn.networks import ACTIVATIONS

    activation = getattr(e.agent, "activation", "relu")
    if activation not in ACTIVATIONS:
        raise InputError(f"--activation {activation}: must be one of {', '.join(ACTIVATIONS)}")


def longer(experiment: Experiment, steps: int) -> Experiment:
    """The experiment with another number of steps; one that was to be annealed by the old end is so by the new."""
    e = dataclasses.replace(experiment, steps=steps)
    updates = getattr(e.agent, "anneal_updates", None)
    if e.on_policy and updates:
        more = math.ceil(steps / e.chunk) - math.ceil(experiment.steps / e.chunk)
        e = dataclasses.replace(e, agent=dataclasses.replace(e.agent, anneal_updates=max(1, updates + more)))
    return e


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def find_algorithm(name: str) -> types.ModuleType:
    if name not in AGENTS:
        close = difflib.get_close_matches(name, AGENTS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"algorithm {name}: must be one of {', '.join(AGENTS)}{hint}")
    return AGENTS[name]


def to_json(algorithm: str, experiment: Experiment) -> dict[str, Any]:
    """The content of config.json: the resolved experiment and what it ran on."""
    return {
        "format": FORMAT,
        "algorithm": algorithm,
        "experiment": dataclasses.asdict(experiment),
        "versions": versions(),
        "device": jax.devices()[0].device_kind,
        "command": [] if not sys.argv[0].endswith(("lsac", "__main__.py")) else ["lsac", *sys.argv[1:]],
    }


def from_json(data: Any, where: str, to_run: bool = True) -> tuple[str, Experiment]:
    """Reads config.json back, refusing what this program did not write, and what it must not run."""
    if not isinstance(data, dict) or not isinstance(data.get("experiment"), dict):
        raise InputError(f"{where}: is not the configuration of a run")
    found, algorithm = data.get("format"), data.get("algorithm")
    if type(found) is not int or found != FORMAT:
        raise InputError(f"{where}: format {shown(found)} is not {FORMAT}, the one this version reads")
    if not isinstance(algorithm, str):
        raise InputError(f"{where}: algorithm {shown(algorithm)} is not a name")
    module = find_algorithm(printable(algorithm))
    fields = dict(data["experiment"])
    agent = read_options(module.Config, fields.pop("agent", None), f"{where}, agent")
    experiment = read_options(Experiment, fields | {"agent": agent}, where)
    _refuse_import(experiment.env, where, to_run)
    try:
        check(experiment)
    except (InputError, OverflowError) as error:
        raise InputError(f"{where}: {printable(str(error))}") from None
    return algorithm, experiment


def _refuse_import(env: str, where: str, to_run: bool) -> None:
    """Gymnasium imports the module of `module:Env`. Who types that wants it; a file has no say in what is imported."""
    if not re.fullmatch(r"[\w:./-]{1,200}", env):
        raise InputError(f"{where}, env: {shown(env)} is not the id of an environment")
    module, colon, _ = env.partition(":")
    if to_run and colon and module not in sys.modules:
        raise InputError(f"{where}, env: {env} names a module, which no file can have imported: give --module {module}")


def printable(text: str) -> str:
    """Text out of a file for a sentence: short, on one line, and with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:200])


def shown(value: Any) -> str:
    """A value out of a file for a sentence."""
    if isinstance(value, (dict, list, tuple)):  # which may be nested too deep to be written
        return "a table" if isinstance(value, dict) else "a list"
    return printable(repr(value))


def read_options(cls: type, data: Any, where: str) -> Any:
    """A dataclass from a table of its fields, checked by name and type."""
    if not isinstance(data, dict):
        raise InputError(f"{where}: must be a table of options")
    hints = typing.get_type_hints(cls)
    names = {field.name for field in dataclasses.fields(cls)}
    for name in data:
        if name not in names:
            close = difflib.get_close_matches(printable(name), names, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InputError(f"{where}: unknown option {printable(name)}{hint}")
    data = {name: value for name, value in BEFORE.items() if name in names} | data
    values = {name: typed(value, hints[name], f"{where}, {name}") for name, value in data.items()}
    missing = [field.name for field in dataclasses.fields(cls) if field.name not in data]
    if missing:
        raise InputError(f"{where}: option {missing[0]} is missing")
    return cls(**values)


def typed(value: Any, hint: Any, where: str) -> Any:
    """A value of the hinted type, or a sentence; a whole number may stand for a float, a list for a tuple."""
    if isinstance(hint, TypeVar):
        return value
    if isinstance(value, int) and abs(value) >= 2**63:
        raise InputError(f"{where}: {shown(value)} is too large")
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return read_options(typing.cast(type, hint), value, where)
    if typing.get_origin(hint) is typing.Literal:
        if value in typing.get_args(hint):
            return value
        raise InputError(f"{where}: {shown(value)} is not one of {', '.join(typing.get_args(hint))}")
    for option in options:
        if option is type(None) and value is None:
            return None
        if option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if typing.get_origin(option) is tuple and isinstance(value, (list, tuple)):
            inner = typing.get_args(option)[0]
            return tuple(typed(item, inner, where) for item in value)
        if isinstance(option, type) and type(value) is option:
            return value
    raise InputError(f"{where}: {shown(value)} is not of type {getattr(hint, '__name__', hint)}")


def versions() -> dict[str, str]:
    """Of everything that can change a number."""
    packages = ("jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "mujoco", "safetensors")
    return {"lsac": __version__, "python": platform.python_version()} | {p: metadata.version(p) for p in packages}
