"""Ranges in which options are tuned: one table per algorithm, which --range changes."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from lsac.errors import InputError
from lsac.options import flag
from lsac.runs.experiment import Experiment, check
from lsac.runs.keywords import with_options

NOT_TUNED = ("seed", "seeds", "steps", "eval_every", "eval_episodes", "log_every", "checkpoint_every", "workers")
"""Options of a run that say how a trial is judged, or that change no result."""


class Range(NamedTuple):
    """From low to high, both included; with `log`, small numbers are as likely as large ones."""

    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}" + (":log" if self.log else "")


class Choice(NamedTuple):
    values: tuple[str | float, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.values))


Space = dict[str, Range | Choice]
"""Ranges by the names of options: `critic_lr`, `generator.width`."""

_RATES: Space = {"actor_lr": Range(3e-5, 3e-3, log=True), "critic_lr": Range(3e-5, 3e-3, log=True)}
_OFF_POLICY: Space = {**_RATES, "tau": Range(1e-3, 5e-2, log=True), "gamma": Range(0.95, 0.999)}
_ON_POLICY: Space = {"critic_lr": Range(3e-5, 3e-3, log=True), "lam": Range(0.8, 1.0), "gamma": Range(0.95, 0.999)}
_ALPHA: Space = {"alpha_lr": Range(3e-5, 3e-3, log=True)}

SPACES: dict[str, Space] = {
    "lsac": {
        **_OFF_POLICY,
        **{"inverse_temperature": Range(1e5, 1e9, log=True), "bias_factor": Range(0.01, 10.0, log=True)},
    },
    "sac": {**_OFF_POLICY, **_ALPHA},
    "td3": {**_OFF_POLICY, "exploration_noise": Range(0.05, 0.3), "target_noise": Range(0.05, 0.4)},
    "dsact": {**_OFF_POLICY, **_ALPHA},
    "redq": {**_OFF_POLICY, **_ALPHA},
    "dipo": {**_OFF_POLICY, "action_lr": Range(1e-3, 0.1, log=True)},
    "drqv2": {"lr": Range(3e-5, 1e-3, log=True), "tau": Range(1e-3, 5e-2, log=True), "n_step": Range(1, 5)},
    "sac_ae": {**_RATES, **_ALPHA, "tau": Range(1e-3, 5e-2, log=True)},
    "dreamer": {**_RATES, "model_lr": Range(1e-4, 3e-3, log=True), "lam": Range(0.8, 1.0)},
    "qsm": {**_OFF_POLICY, "score_scale": Range(1.0, 100.0, log=True)},
    "ppo": {
        **{"actor_lr": Range(3e-5, 3e-3, log=True)},
        **_ON_POLICY,
        **{"clip_ratio": Range(0.1, 0.4), "entropy_weight": Range(0.0, 0.03)},
    },
    "trpo": {**_ON_POLICY, "max_kl": Range(1e-3, 0.1, log=True)},
}
"""What is tuned if --range says nothing."""

FORM = "must be name=low..high, name=low..high:log or name=a,b,c, for example critic-lr=1e-5..1e-2:log"


def space_of(base: Experiment, given: Sequence[str]) -> Space:
    """The ranges of an algorithm, or only those that the user gives, if any."""
    space = dict(read_range(word) for word in given) if given else SPACES.get(base.algorithm, {})
    if not space:
        raise InputError(f"--range: {base.algorithm} has no ranges of its own; {FORM.removeprefix('must be ')}")
    for name, values in space.items():
        where = f"--range {name.replace('_', '-')}={values}"
        if name in NOT_TUNED:
            raise InputError(f"{where}: {flag(name)} is the same in all trials, set it without --range")
        ends = values.values if isinstance(values, Choice) else (values.low, values.high)
        for end in ends:
            try:
                check(with_parameters(base, {name: _like(end, current(base, name))}))
            except InputError as error:
                raise InputError(f"{where}: {error}") from None
    return dict(space)


def read_range(word: str) -> tuple[str, Range | Choice]:
    """The name and the range in name=low..high[:log] or name=a,b,c."""
    name, equals, text = word.partition("=")
    name = name.removeprefix("--").replace("-", "_")
    number = r"[+-]?[\d.]+(?:e[+-]?\d+)?"
    if not equals or not re.fullmatch(r"[a-z_.]+", name):
        raise InputError(f"--range {word}: {FORM}")
    if match := re.fullmatch(rf"({number}?)\.\.({number})(:log)?", text):
        try:
            found = Range(float(match[1]), float(match[2]), bool(match[3]))
        except ValueError:
            raise InputError(f"--range {word}: {FORM}") from None
        if not found.low < found.high or (found.log and found.low <= 0):
            raise InputError(f"--range {word}: must go from a lower number to a higher, with :log from one above 0")
        return name, found
    values = tuple(_number(value) for value in text.split(","))
    if ".." in text or len(values) < 2 or "" in values:
        raise InputError(f"--range {word}: {FORM}")
    return name, Choice(values)


def _number(text: str) -> str | float:
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        return text


def current(base: Experiment, name: str) -> Any:
    """The value of an option in an experiment."""
    value: Any = base if hasattr(base, name) else base.agent
    for part in name.split("."):
        if not dataclasses.is_dataclass(value) or part not in {field.name for field in dataclasses.fields(value)}:
            raise InputError(f"{flag(name)} is no option of {base.algorithm}")
        value = getattr(value, part)
    return value


def _like(value: Any, example: Any) -> Any:
    """A number of the kind that an option has."""
    if type(example) is bool and value in ("True", "False"):
        return value == "True"
    return float(value) if type(example) is float and not isinstance(value, str) else value


def with_parameters(base: Experiment, parameters: dict[str, Any]) -> Experiment:
    """An experiment with some options replaced."""
    return with_options(base, {name.replace(".", "__"): value for name, value in parameters.items()})


def readable(space: Space, parameters: dict[str, Any]) -> dict[str, Any]:
    """What Optuna proposes, in numbers of four digits, which are what is trained, stored and pasted."""
    found = {}
    for name, value in parameters.items():
        within = space[name]
        if type(value) is float and isinstance(within, Range):
            value = min(max(float(f"{value:.4g}"), within.low), within.high)
        found[name] = value
    return found


def distributions(base: Experiment, space: Space) -> dict[str, Any]:
    """The ranges as Optuna has them; an option that is a whole number stays one."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, Any] = {}
    for name, values in space.items():
        if isinstance(values, Choice):
            found[name] = CategoricalDistribution([_like(value, current(base, name)) for value in values.values])
        elif type(current(base, name)) is int:
            found[name] = IntDistribution(int(values.low), int(values.high), log=values.log)
        else:
            found[name] = FloatDistribution(values.low, values.high, log=values.log)
    return found
