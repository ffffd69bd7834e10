"""The Python interface, modelled on Stable-Baselines3.

from lsac import SAC
model = SAC("Pendulum-v1", seed=0).learn(20_000, progress_bar=True)
action, _ = model.predict(obs, deterministic=True)
"""

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self, get_type_hints

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from lsac import streams
from lsac.agents import AGENTS, summary
from lsac.envs.recipes import read_arguments
from lsac.envs.sources import Make, given
from lsac.envs.wrapping import Wrap
from lsac.errors import CheckpointError, InputError
from lsac.options import shown, typed
from lsac.presets import preset as find_preset
from lsac.runs import datafile
from lsac.runs.experiment import Experiment, check, for_run, from_json, make_agent, to_json
from lsac.runs.folder import RunFolder
from lsac.train.display import Display
from lsac.train.evaluate_run import agents_of
from lsac.train.logger import Progress
from lsac.train.run import Observer, Start, new_folder, run
from lsac.train.stopping import Stop
from lsac.types import EnvSpec

Callback = Callable[[Progress], bool | None]
"""Called with every line of metrics; returning False ends the training."""


class Model:
    """An agent with its environment. It accepts the options of `lsac train` as keyword arguments (`batch_size=…`)."""

    algorithm = ""

    def __init__(
        self,
        env: str | gym.Env | Make,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[str | Wrap] = (),
        eval_env: str | gym.Env | Make | None = None,
        seed: int = 0,
        preset: str = "default",
        **options: Any,
    ):
        """`env` is an id, an environment, or a function that creates one; see `lsac.envs.sources.given`."""
        self._environments = given(env, env_kwargs=env_kwargs, wrappers=wrappers, eval_env=eval_env)
        found = self._environments
        defaults = find_preset(self.algorithm, preset, found.name)
        defaults = dataclasses.replace(defaults, env_args=found.args, wrappers=found.wrappers)
        self.experiment = _with_options(defaults, {"seed": seed, **options})
        check(self.experiment)
        if found.why_single and self.experiment.seeds * self.experiment.num_envs > 1:
            raise InputError(found.why_single)
        self._set_agent()
        self._state: Any = None
        self._generated_at = 0
        self.num_timesteps = 0

    def learn(
        self,
        total_timesteps: int,
        callback: Callback | None = None,
        progress_bar: bool = False,
        out: str | Path | None = None,
    ) -> Self:
        """Trains every seed for `total_timesteps` steps, starting from the current parameters.

        With `out`, the run is stored in that folder. Each call starts a new run: the replay buffer starts empty, the
        first `learning_starts` steps are random, and the random streams start again. Evaluations need separate
        simulators, so they take place only if the environment is an id or can be copied.
        """
        experiment = dataclasses.replace(self.experiment, steps=total_timesteps)
        check(experiment)
        if self.num_timesteps:
            experiment = for_run(experiment, self.num_timesteps)  # earlier calls count towards the length
        wanted = out is not None or callback is not None or progress_bar
        environments = self._environments if wanted else self._environments._replace(evaluation=None)
        folder = None
        if out is not None:
            notes = {"inherits": self._state is not None, "made_in_python": not self._environments.recreatable}
            folder = new_folder(Path(out), experiment, environments, **notes)
        start = Start(self._state, self._generated_at) if self._state is not None else None
        stop = Stop()
        with Display() if progress_bar else nullcontext() as display:

            def watch(progress: Progress) -> None:
                if display:
                    display.watch(progress)
                if callback and callback(progress) is False:
                    stop.request()

            observer = Observer(watch, display.say) if display else Observer(watch)
            result = run(experiment, environments, folder=folder, start=start, observer=observer, stop=stop)
        self._state = jax.device_get(result.learner.kept())
        self._generated_at = result.learner.refresher.generated_at
        self.num_timesteps += result.step
        return self

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        seed_index: int = 0,
    ) -> tuple[np.ndarray, Any]:
        """Returns the action for one observation or a batch of them, in the units of the environment's action space.

        `seed_index` selects the policy of one seed. As in Stable-Baselines3, the second value returned is the memory
        of a recurrent policy, to be passed as `state` to the next call (None at the start of an episode), and
        `episode_start` marks the observations that start an episode. Policies without a memory return None.
        """
        if not 0 <= seed_index < self.experiment.seeds:
            raise InputError(
                f"seed_index {seed_index}: must be from 0 to {self.experiment.seeds - 1}, one for every seed"
            )
        single, batch = self._batch(obs)
        self._calls += 1
        key = jax.random.fold_in(streams.root(self.experiment.seed + seed_index, streams.EVALUATE), self._calls)
        policy = jax.tree.map(lambda leaf: jnp.asarray(leaf[seed_index]), self._agent.policy(self._current_state()))
        memory = self._memory(len(batch), state, episode_start)
        action, memory = self._actors[deterministic](policy, memory, batch, jax.random.split(key, len(batch)))
        scaled = np.stack([self._environments.space.scaled(a) for a in np.asarray(action)])
        return (scaled[0] if single else scaled), memory if jax.tree.leaves(memory) else None

    def _memory(self, count: int, state: Any, episode_start: Any) -> Any:
        """The memories [B, …] of a batch: `state`, or initial memories where an episode starts."""
        fresh = jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x)[None], count, axis=0), self._agent.memory())
        if state is None or episode_start is None:
            return fresh if state is None else state
        starts = np.broadcast_to(np.asarray(episode_start, bool), (count,))
        choose = jax.vmap(lambda start, new, old: jax.tree.map(lambda a, b: jnp.where(start, a, b), new, old))
        return choose(starts, fresh, state)

    def save(self, path: str | Path) -> Path:
        """Writes parameters, optimiser states and settings to one safetensors file; no replay, no generated data."""
        path = _with_suffix(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"config": to_json(self.experiment), "timesteps": self.num_timesteps}
        record |= {"generated_at": self._generated_at, "made_in_python": not self._environments.recreatable}
        datafile.write(path, datafile.named(self._current_state()), record)
        return path

    @classmethod
    def load(cls, path: str | Path, env: str | gym.Env | None = None) -> Self:
        """Loads a file that `save` wrote, or the newest checkpoint of a run from its folder.

        If the environment was passed as an object, pass it again as `env`.
        """
        if (Path(path) / "config.json").is_file():
            return cls._load_run(Path(path), env)
        path = _with_suffix(path)
        arrays, record = datafile.read(path)
        if "config" not in record:
            raise CheckpointError(f"{path}: is not a saved model; a run is continued with 'lsac resume'")
        experiment = from_json(record["config"], str(path))
        if experiment.algorithm != cls.algorithm:
            raise CheckpointError(f"{path}: holds a model of {experiment.algorithm}, not of {cls.algorithm}")
        timesteps, generated_at = (_steps(record, name, path) for name in ("timesteps", "generated_at"))
        # checked before anything is allocated for the number of seeds that the file claims
        if not arrays or any(array.shape[:1] != (experiment.seeds,) for array in arrays.values()):
            raise CheckpointError(f"{path}: does not hold arrays for {experiment.seeds} seeds")
        if env is None and record.get("made_in_python"):
            raise InputError(f"{path}: its environment was made in Python; pass it: load(path, env=…)")
        model = cls._with_experiment(experiment, env)
        like = jax.eval_shape(lambda keys: model._compact(jax.vmap(model._agent.init)(keys)), model._init_keys())
        model._state = datafile.unnamed(arrays, like, path, record["format"])
        model.num_timesteps, model._generated_at = timesteps, generated_at
        return model

    @classmethod
    def _load_run(cls, path: Path, env: str | gym.Env | None) -> Self:
        folder, experiment = RunFolder.open(path, to_run=env is None)
        if experiment.algorithm != cls.algorithm:
            raise CheckpointError(f"{path}: is a run of {experiment.algorithm}, not of {cls.algorithm}")
        checkpoint = folder.checkpoints.load_agents()
        checkpoint.require(experiment.algorithm, experiment.env)
        step, generated_at = (_steps(checkpoint.record, name, checkpoint.path) for name in ("step", "generated_at"))
        model = cls._with_experiment(experiment, env)
        model._state = agents_of(checkpoint, model._agent, experiment.seeds)
        model.num_timesteps, model._generated_at = step, generated_at
        return model

    @classmethod
    def _with_experiment(cls, experiment: Experiment, env: str | gym.Env | None) -> Self:
        if env is None:
            kwargs = read_arguments(experiment.env_args)
            model = cls(experiment.env, env_kwargs=kwargs, wrappers=experiment.wrappers)
        else:
            model = cls(env)
        model.experiment = experiment
        model._set_agent()
        return model

    def _set_agent(self) -> None:
        self._agent = make_agent(self.experiment, self._spec(self.experiment))
        self._calls = 0
        act: Any = self._agent.act
        self._actors = {
            True: jax.jit(jax.vmap(lambda *args: act(*args, False), in_axes=(None, 0, 0, 0))),
            False: jax.jit(jax.vmap(lambda *args: act(*args, True), in_axes=(None, 0, 0, 0))),
        }

    def _spec(self, experiment: Experiment) -> EnvSpec:
        return self._environments.spec(experiment.gamma)

    def _compact(self, state: Any) -> Any:
        """A state without the data that can be generated again."""
        return self._agent.refresh.compact(state) if self._agent.refresh else state

    def _batch(self, obs: Any) -> tuple[bool, np.ndarray]:
        """Whether `obs` is a single observation, and the observations as [B, O]."""
        space, value = self._environments.space.observation, obs
        if isinstance(space, gym.spaces.Dict):  # its first entry shows whether it is a batch
            name, space = next(iter(space.spaces.items()))
            value = obs[name]
        shape = space.shape or ()
        extra = np.ndim(value) - len(shape)
        if extra not in (0, 1) or np.shape(value)[extra:] != shape:
            raise InputError(f"obs: has shape {np.shape(value)}, but {shape} or a batch of it is expected")
        if extra == 0:
            return True, self._environments.space.flat(obs)[None]
        rows = [{k: v[i] for k, v in obs.items()} for i in range(len(value))] if value is not obs else obs
        return False, np.stack([self._environments.space.flat(row) for row in rows])

    def _init_keys(self) -> jax.Array:
        return jnp.stack([streams.root(seed, streams.INIT) for seed in self.experiment.seed_list])

    def _current_state(self) -> Any:
        """The state [S, …] of all seeds; initialised on first use."""
        if self._state is None:
            init = jax.jit(jax.vmap(lambda key: self._compact(self._agent.init(key))))
            self._state = jax.device_get(init(self._init_keys()))
        return self._state


def _steps(record: datafile.Record, name: str, path: Path) -> int:
    value = record.get(name)
    if type(value) is not int or value < 0:
        raise CheckpointError(f"{path}: field {name} is {shown(value)}, not a number of steps")
    return value


def _with_options(base: Experiment, options: dict[str, Any]) -> Experiment:
    """An experiment with some options of its own or of its agent replaced."""
    fields = {f.name for f in dataclasses.fields(base)} - {"agent", "env", "env_args", "wrappers", "steps"}
    inner = {f.name for f in dataclasses.fields(base.agent)}
    for name in options:
        if name not in fields | inner:
            close = difflib.get_close_matches(name, fields | inner, n=1)
            raise InputError(f"{name}: no such option" + (f"; did you mean {close[0]}?" if close else ""))
    hints = get_type_hints(type(base)) | get_type_hints(type(base.agent))
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in options.items()}
    options = {k: _typed_option(v, getattr(base.agent, k, None), hints[k], k) for k, v in plain.items()}
    agent = dataclasses.replace(base.agent, **{k: v for k, v in options.items() if k in inner})
    return dataclasses.replace(base, agent=agent, **{k: v for k, v in options.items() if k in fields})


def _typed_option(value: Any, current: Any, hint: Any, name: str) -> Any:
    """A value of the option's type; a dict changes some fields of an option that is a dataclass."""
    if isinstance(value, dict) and dataclasses.is_dataclass(current):
        value = vars(current) | value
    return typed(value, hint, name)


def _with_suffix(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".safetensors" else path.with_name(path.name + ".safetensors")


def model_class(algorithm: str) -> type[Model]:
    """The class of an algorithm: `SAC` for sac, and so on."""
    doc = f"{summary(algorithm)}\n\nOptions: `lsac train {algorithm} --help`."
    return type(algorithm.upper(), (Model,), {"algorithm": algorithm, "__doc__": doc, "__module__": "lsac"})


CLASSES: dict[str, type[Model]] = {name.upper(): model_class(name) for name in AGENTS}
"""Every algorithm's class, by its name."""
