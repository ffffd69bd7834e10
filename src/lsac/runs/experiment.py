"""The description of a run: an immutable dataclass, checked once, written to config.json and read back from it."""

import contextlib
import dataclasses
import difflib
import math
import platform
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any, Generic, Literal, TypeVar

import jax
import tyro

from lsac.agents import AGENTS, IMAGES, Algorithm, learns_from
from lsac.agents.normalised import normalised
from lsac.agents.stacked import stacked
from lsac.errors import InputError
from lsac.options import (
    AddedLater,
    Arguments,
    AtLeast,
    Between,
    Count,
    CountOrZero,
    DrawnFromReplay,
    References,
    Share,
    WithoutPrefix,
    check_options,
    flag,
    marked,
    printable,
    read_options,
    shown,
)
from lsac.types import Agent, EnvSpec
from lsac.version import __version__

FORMAT = 1
"""Format of config.json; increased whenever an older version could misread a newer file."""

ENV_ID = r"(?=.{1,200}$)[\w./-]+(:[\w./-]+)?"
"""The id of an environment, with at most one module before it."""

LARGEST_IMAGE = 1024
"""Side in pixels; memory for larger ones would be missing long before there is an agent."""

FINITE_POSITIVE = Between(0, math.inf, without_low=True, without_high=True)

C = TypeVar("C")


@dataclass(frozen=True)
class Experiment(Generic[C]):
    agent: Annotated[C, tyro.conf.arg(name=""), WithoutPrefix()]
    env: str
    """Gymnasium id of the environment; module:ID imports the module that registers it"""
    steps: Count = 1_000_000
    """environment steps per seed, rounded up to whole chunks"""
    seeds: Count = 1
    """number of seeds trained in parallel in one compiled program: SEED, SEED+1, …"""
    seed: CountOrZero = 0
    """the first seed"""
    num_envs: Count = 1
    """simulators per seed"""
    action_repeat: Annotated[Count, AddedLater(before=1)] = 1
    """environment steps with the same action, whose rewards are summed: together one decision, and one transition in
    the replay; all steps of a run are counted in the environment's own steps"""
    pixels: Annotated[int, Between(0, LARGEST_IMAGE), AddedLater(before=0)] = 0
    """side in pixels of the images that the agent sees in place of the environment's observations; 0 means the
    observations themselves"""
    frame_stack: Annotated[Count, AddedLater(before=1)] = 1
    """successive frames that are stacked to one image"""
    utd: Annotated[float, FINITE_POSITIVE] = 1.0
    """updates per decision, which is one environment step unless --action-repeat is more; 0.05 is one update in 20"""
    chunk: Count = 32
    """decisions per seed between two exchanges of data and policy; the acting policy is one to two chunks old,
    except for on-policy agents, which always act with the newest policy"""
    gamma: Share = 0.99
    """discount per decision"""
    time_limits_terminate: Annotated[bool, AddedLater(before=False)] = False
    """treat time limits as terminations, as some published code does"""
    learning_starts: CountOrZero = 5_000
    """environment steps with uniformly random actions before the first update"""
    normalise_observations: Annotated[bool, AddedLater(before=False)] = False
    """normalise observations by their running mean and std, inside the agent"""
    scale_rewards: Annotated[bool, AddedLater(before=False)] = False
    """divide rewards by a running scale of the discounted return, inside the agent, so that values stay near ±5"""
    replay_capacity: Count = 1_000_000
    """capacity of the replay buffer, in transitions per seed"""
    replay_on: Annotated[Literal["device", "host"], AddedLater(before="device")] = "device"
    """where frames of images are kept: host means the main memory, where more of them fit than on a GPU; the frames of
    every batch are then sent ahead to the device"""
    eval_every: CountOrZero = 5_000
    """environment steps between evaluations; 0 turns them off"""
    eval_episodes: Count = 10
    """episodes per seed in each evaluation"""
    log_every: Count = 1_000
    """environment steps between lines of metrics"""
    checkpoint_every: CountOrZero = 50_000
    """environment steps between checkpoints; 0 saves only at the end or at a stop"""
    workers: CountOrZero = 0
    """processes that step the simulators, at most one per two simulators of a seed; 0 chooses by measurement"""
    env_timeout: Annotated[float, FINITE_POSITIVE] = 60.0
    """seconds after which a simulator that does not respond ends the run"""
    env_args: Annotated[tuple[str, ...], Arguments(), AddedLater(before=())] = ()
    """arguments of the environment, each as name=value; a value is JSON, or else a string"""
    wrappers: Annotated[
        tuple[str, ...], tyro.conf.arg(aliases=("--wrapper",)), References(), AddedLater(before=())
    ] = ()
    """wrappers of the environment, the innermost first, each as module:name of a Gymnasium wrapper or of a function
    that returns its argument wrapped"""

    steps_before: Annotated[int, AtLeast(0), AddedLater(before=0), tyro.conf.Suppress] = 0
    """environment steps of each seed in earlier runs of the same model; no option"""

    @property
    def algorithm(self) -> str:
        """The name of the agent's algorithm in `AGENTS`."""
        return next(name for name, module in AGENTS.items() if module.Config is type(self.agent))

    @property
    def on_policy(self) -> bool:
        """Whether the agent learns only from the newest chunk and acts with the newest policy."""
        return getattr(self.agent, "on_policy", False)

    @property
    def updates_per_chunk(self) -> int:
        return 1 if self.on_policy else round(self.chunk * self.utd)

    @property
    def chunk_steps(self) -> int:
        """Environment steps per seed in a chunk. A repeat that the end of an episode cuts short counts in full."""
        return self.chunk * self.action_repeat

    @property
    def total_steps(self) -> int:
        """Environment steps per seed: `steps`, rounded up to whole chunks."""
        return math.ceil(self.steps / self.chunk_steps) * self.chunk_steps

    def planned_updates(self, start: int = 0) -> int:
        """The number of updates that a run makes from step `start`, which ends a chunk, to its end."""
        first = max(start, self.learning_starts)
        chunks = self.total_steps // self.chunk_steps - math.ceil(first / self.chunk_steps)
        return max(0, chunks) * self.updates_per_chunk

    @property
    def capacity(self) -> int:
        """Capacity of the replay to allocate: whole chunks, and no more than the run collects."""
        if self.on_policy:
            return self.chunk
        return min(math.ceil(self.replay_capacity / self.chunk) * self.chunk, self.total_steps // self.action_repeat)

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seed, self.seed + self.seeds))


def check(experiment: Experiment) -> None:
    """Raises an error for options that are not allowed."""
    check_options(experiment)
    e = experiment
    if not re.fullmatch(ENV_ID, e.env):
        raise InputError(f"--env {printable(e.env)}: is not the id of an environment")
    if e.seed + e.seeds > 2**31:
        raise InputError(f"--seed {e.seed}: must stay below 2147483648")
    if e.chunk % e.num_envs:
        raise InputError(f"--chunk {e.chunk}: must be a multiple of --num-envs {e.num_envs}")
    if e.on_policy:
        for name, only in (("utd", 1.0), ("learning_starts", 0)):
            if getattr(e, name) != only:
                raise InputError(f"{flag(name)} {getattr(e, name)}: must be {only:g}, this agent learns on-policy")
    updates = e.chunk * e.utd
    if not 1 <= round(min(updates, 2.0**31)) < 2**31 or abs(updates - round(updates)) > 1e-9:
        raise InputError(f"--utd {e.utd}: times --chunk {e.chunk} must be a whole number of updates, at least 1")
    for name in marked(type(e.agent), DrawnFromReplay):
        count = getattr(e.agent, name)
        if count > e.replay_capacity:
            raise InputError(f"{flag(name)} {count}: is larger than --replay-capacity {e.replay_capacity}")
    if hasattr(e.agent, "check"):
        e.agent.check(e)


def warnings(experiment: Experiment, start: int = 0) -> list[str]:
    """What a user should know before a run starts at step `start`: that it makes no update, or takes very long."""
    e, found = experiment, []
    if start < e.total_steps and not e.planned_updates(start):
        found.append(
            f"warning: no update will be made: --steps {e.steps} is not more than --learning-starts "
            f"{e.learning_starts}; try --learning-starts {e.steps // 10 // e.chunk_steps * e.chunk_steps}"
        )
    if getattr(e.agent, "needs_gpu", False) and jax.default_backend() == "cpu":
        found.append(
            f"warning: these settings of {e.algorithm} are meant for a GPU and take very long on a CPU; "
            "--preset quickstart is smaller"
        )
    return found


def for_run(experiment: Experiment) -> Experiment:
    """Sets the agent's options that depend on the length of the training, earlier runs of the model included."""
    e = experiment
    if not hasattr(e.agent, "for_run"):
        return e
    return _with_agent(e, e.agent.for_run(_updates(e, e.steps_before + e.steps)))


def longer(experiment: Experiment, steps: int) -> Experiment:
    """The experiment extended to `steps` steps, with the agent's options that depend on the length."""
    e = dataclasses.replace(experiment, steps=steps)
    if not hasattr(e.agent, "for_longer_run"):
        return e
    return _with_agent(e, e.agent.for_longer_run(_updates(e, steps) - _updates(e, experiment.steps)))


def _updates(experiment: Experiment, steps: int) -> int:
    return math.ceil(steps / experiment.chunk_steps) * experiment.updates_per_chunk


def _with_agent(experiment: Experiment, agent: Any) -> Experiment:
    return experiment if agent is experiment.agent else dataclasses.replace(experiment, agent=agent)


def make_agent(experiment: Experiment, spec: EnvSpec) -> Agent:
    """Creates the agent of an experiment."""
    e = for_run(experiment)
    _require_suitable(e, spec)
    try:
        agent = AGENTS[e.algorithm].make(e.agent, spec)
    except InputError as error:
        if e.pixels and str(error).startswith("images of "):
            raise InputError(f"--pixels {e.pixels}: {error}") from None
        raise
    if e.replay_on == "host" and agent.refresh is not None:
        raise InputError("--replay-on host: generated data (--synthetic) need the frames on the device")
    agent = normalised(agent, spec, observations=e.normalise_observations, rewards=e.scale_rewards, num_envs=e.num_envs)
    return stacked(agent, spec)


def _require_suitable(experiment: Experiment, spec: EnvSpec) -> None:
    """Rejects an agent of images for an environment without, and the reverse."""
    e = experiment
    if spec.frame is None:
        if not learns_from(e.algorithm, "vectors"):
            raise InputError(
                f"{e.algorithm} learns from images, but the observations of {e.env} have none: set --pixels 84"
            )
        if e.frame_stack > 1:
            raise InputError(f"--frame-stack {e.frame_stack}: the observations of {e.env} have no images to stack")
        if e.replay_on == "host":
            raise InputError(f"--replay-on host: is for frames of images, which the observations of {e.env} lack")
        return
    if not learns_from(e.algorithm, "images"):
        advice = "set --pixels 0, or train" if e.pixels else "train"
        raise InputError(
            f"{e.algorithm} takes no images, which the observations of {e.env} have: {advice} {', '.join(IMAGES)}"
        )
    if e.normalise_observations:
        raise InputError("--normalise-observations: is for vectors, but these observations have images; leave it out")
    least = (e.frame_stack + 1) * e.num_envs + 1
    if e.capacity < least:
        raise InputError(f"--replay-capacity {e.replay_capacity}: must hold {least} steps, so that images are complete")
    shown = 2 * e.num_envs * e.action_repeat
    if max(e.learning_starts, e.chunk_steps) < shown:
        raise InputError(
            f"--learning-starts {e.learning_starts}: must be at least {shown}, so that every simulator has shown two "
            "successive images"
        )


def find_algorithm(name: str) -> Algorithm:
    if name not in AGENTS:
        close = difflib.get_close_matches(name, AGENTS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"algorithm {name}: must be one of {', '.join(AGENTS)}{hint}")
    return AGENTS[name]


def to_json(experiment: Experiment) -> dict[str, Any]:
    """The content of config.json: the resolved experiment, versions, device and command."""
    return {
        "format": FORMAT,
        "algorithm": experiment.algorithm,
        "experiment": dataclasses.asdict(experiment),
        "versions": versions(),
        "device": jax.devices()[0].device_kind,
        "command": [] if not sys.argv[0].endswith(("lsac", "__main__.py")) else ["lsac", *sys.argv[1:]],
    }


def from_json(data: Any, where: str, to_run: bool = True) -> Experiment:
    """Reads config.json; rejects invalid content and, with `to_run`, an environment or wrapper whose module is
    not imported."""
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
    experiment: Experiment = read_options(Experiment, fields | {"agent": agent}, where)
    _require_imported(experiment.env, where, to_run)
    try:
        check(experiment)
    except InputError as error:
        raise InputError(f"{where}: {printable(str(error))}") from None
    if to_run and experiment.wrappers:
        from lsac.envs.wrapping import require_safe_wrapper  # imports MuJoCo, which the help of a command need not

        for wrapper in experiment.wrappers:
            require_safe_wrapper(wrapper, where)
    return experiment


def _require_imported(env: str, where: str, to_run: bool) -> None:
    """Rejects `module:Env` unless the module is imported already: Gymnasium would import it because a file names it."""
    if not re.fullmatch(ENV_ID, env):
        raise InputError(f"{where}, env: {shown(env)} is not the id of an environment")
    module, colon, _ = env.partition(":")
    if to_run and colon and module not in sys.modules:
        raise InputError(f"{where}, env: {env} names a module, which a file must not import: pass --module {module}")


def versions() -> dict[str, str]:
    """Versions of all packages that can affect results."""
    packages = ("jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "mujoco", "safetensors")
    found = {"lsac": __version__, "python": platform.python_version()} | {p: metadata.version(p) for p in packages}
    for extra in ("dm_control", "gymnasium-robotics"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[extra] = metadata.version(extra)
    return found
