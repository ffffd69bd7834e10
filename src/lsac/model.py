"""The Python interface, shaped like Stable-Baselines3's.

from lsac import SAC
model = SAC("Pendulum-v1", seed=0).learn(20_000, progress_bar=True)
action, _ = model.predict(obs, deterministic=True)
"""

import dataclasses
import difflib
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self, get_type_hints

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from lsac import streams
from lsac.envs import gymnasium as adapter
from lsac.errors import CheckpointError, InputError
from lsac.presets import preset as find_preset
from lsac.runs import datafile
from lsac.runs.experiment import Experiment, check, from_json, shown, to_json, typed
from lsac.runs.folder import RunFolder
from lsac.train.display import Display
from lsac.train.logger import Progress
from lsac.train.policies import agents_of
from lsac.train.run import Training, annealed, evaluation_source_of, make_agent, require_memory, source_of
from lsac.train.stopping import Stop
from lsac.types import Agent, Array, Key

Callback = Callable[[Progress], bool | None]
"""Called with every line of metrics; returning False ends the training."""


class Model:
    """An agent with its environment. Options are those of `lsac train`, by their Python names."""

    algorithm = ""

    def __init__(self, env: str | gym.Env, *, seed: int = 0, preset: str = "default", **options: Any):
        if not isinstance(env, (str, gym.Env)):
            raise InputError(f"env: {shown(env)} is neither the id of an environment nor an environment")
        self._env = env
        name = env if isinstance(env, str) else env.spec.id if env.spec else type(env.unwrapped).__name__
        self._can_be_copied, self._made_in_python = (True, False) if isinstance(env, str) else _made(env)
        defaults = find_preset(self.algorithm, preset, name)
        self.experiment = _with_options(defaults, {"seed": seed, **options})
        check(self.experiment)
        if not self._can_be_copied and self.experiment.seeds * self.experiment.num_envs > 1:
            raise InputError(
                f"environment {name}: an object without a spec, or in a wrapper that does not record its arguments, "
                "serves one seed and one num_envs only"
            )
        self._simulator = adapter.Simulator(adapter.build(adapter.find(env)) if isinstance(env, str) else env)
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
        """Trains every seed for that many steps, from the parameters the model has; `out` keeps the run as a folder.

        Every call is a run of its own: it begins with an empty replay, with `learning_starts` random steps and with the
        same random numbers. Evaluations need simulators of their own, so they take place where the environment is an
        id or can be copied.
        """
        experiment = dataclasses.replace(self.experiment, steps=total_timesteps)
        check(experiment)
        if self.num_timesteps:
            experiment = annealed(experiment, self.num_timesteps)  # what was learned before is part of the way down
        require_memory(self.algorithm, experiment, self._simulator.spec)  # refused before a folder is made
        inherits = self._state is not None
        notes = {"inherits": inherits, "made_in_python": self._made_in_python}
        folder = RunFolder.create(Path(out), self.algorithm, experiment, **notes) if out is not None else None
        stop = Stop()
        with ExitStack() as stack:
            if folder is not None:
                stack.callback(folder.release)
            display = stack.enter_context(Display()) if progress_bar else None

            def watch(progress: Progress) -> None:
                if display:
                    display.watch(progress)
                if callback and callback(progress) is False:
                    stop.request()

            wanted = folder is not None or callback is not None or progress_bar
            training = Training(
                self.algorithm,
                experiment,
                source_of(self._env),
                self._simulator.spec,
                folder,
                watch,
                display.say if display else lambda text: None,
                evaluation_source=evaluation_source_of(self._env) if wanted and self._can_be_copied else None,
            )
            stack.callback(training.close)
            if inherits:
                training.loop.inherit(self._state, self._generated_at)
            training.loop.run(stop)
            self._state = jax.device_get(training.loop.learner.state)
            self._generated_at = training.loop.learner.generated_at
            self.num_timesteps += training.loop.step
        return self

    def predict(
        self,
        obs: Any,
        state: None = None,
        episode_start: None = None,
        deterministic: bool = False,
        row: int = 0,
    ) -> tuple[np.ndarray, None]:
        """The action for one observation, or for a batch of them, in the environment's own units.

        `row` picks one of several seeds. `state`, `episode_start` and the second value of the result are there for
        code written for Stable-Baselines3.
        """
        if not 0 <= row < self.experiment.seeds:
            raise InputError(f"row {row}: must be from 0 to {self.experiment.seeds - 1}, one for every seed")
        single, batch = self._batch(obs)
        self._calls += 1
        key = jax.random.fold_in(streams.root(self.experiment.seed + row, streams.EVALUATE), self._calls)
        policy = jax.tree.map(lambda leaf: jnp.asarray(leaf[row]), self._agent.policy(self._current_state()))
        action = self._actors[deterministic](policy, batch, jax.random.split(key, len(batch)))
        scaled = np.stack([self._simulator.scaled(a) for a in np.asarray(action)])
        return (scaled[0] if single else scaled), None

    def save(self, path: str | Path) -> Path:
        """Writes parameters, optimisers and settings as one safetensors file; replay and generated data stay behind."""
        path = _with_suffix(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"config": to_json(self.algorithm, self.experiment), "timesteps": self.num_timesteps}
        record |= {"generated_at": self._generated_at, "made_in_python": self._made_in_python}
        datafile.write(path, datafile.named(self._agent.compact(self._current_state())), record)
        return path

    @classmethod
    def load(cls, path: str | Path, env: str | gym.Env | None = None) -> Self:
        """Reads what `save` wrote, or the newest checkpoint in the folder of a run.

        An environment that was made in Python has to be handed over again.
        """
        if (Path(path) / "config.json").is_file():
            return cls._load_run(Path(path), env)
        path = _with_suffix(path)
        arrays, record = datafile.read(path)
        if "config" not in record:
            raise CheckpointError(f"{path}: is not a saved model; a run is continued with 'lsac resume'")
        algorithm, experiment = from_json(record["config"], str(path))
        if algorithm != cls.algorithm:
            raise CheckpointError(f"{path}: holds a model of {algorithm}, not of {cls.algorithm}")
        timesteps, generated_at = (_steps(record, name, path) for name in ("timesteps", "generated_at"))
        # before anything is made for as many seeds as the file claims to have
        if not arrays or any(array.shape[:1] != (experiment.seeds,) for array in arrays.values()):
            raise CheckpointError(f"{path}: does not hold arrays for {experiment.seeds} seeds")
        if env is None and record.get("made_in_python"):
            raise InputError(f"{path}: its environment was made in Python; hand it over: load(path, env=…)")
        model = cls._with_experiment(experiment, env)
        like = model._agent.compact(jax.eval_shape(jax.vmap(model._agent.init), model._init_keys()))
        model._state = datafile.unnamed(arrays, like, path)
        model.num_timesteps, model._generated_at = timesteps, generated_at
        return model

    @classmethod
    def _load_run(cls, path: Path, env: str | gym.Env | None) -> Self:
        folder, algorithm, experiment = RunFolder.open(path, to_run=env is None)
        if algorithm != cls.algorithm:
            raise CheckpointError(f"{path}: is a run of {algorithm}, not of {cls.algorithm}")
        checkpoint = folder.checkpoints.load(with_rows=False)
        checkpoint.require(algorithm, experiment.env)
        step, generated_at = (_steps(checkpoint.record, name, checkpoint.path) for name in ("step", "generated_at"))
        model = cls._with_experiment(experiment, env)
        model._state = agents_of(checkpoint, model._agent, experiment.seeds)
        model.num_timesteps, model._generated_at = step, generated_at
        return model

    @classmethod
    def _with_experiment(cls, experiment: Experiment, env: str | gym.Env | None) -> Self:
        model = cls(experiment.env if env is None else env)
        model.experiment = experiment
        model._set_agent()
        return model

    def _set_agent(self) -> None:
        self._agent = agent = make_agent(self.algorithm, self.experiment, self._simulator.spec)
        self._calls = 0
        self._actors = {
            deterministic: jax.jit(jax.vmap(partial(_act, agent, not deterministic), in_axes=(None, 0, 0)))
            for deterministic in (True, False)
        }

    def _batch(self, obs: Any) -> tuple[bool, np.ndarray]:
        """Whether this is one observation, and the observations as [B, O]."""
        space = self._simulator.obs_space
        inner = next(iter(space.spaces)) if isinstance(space, gym.spaces.Dict) else None
        value = obs if inner is None else obs[inner]
        shape = (space if inner is None else space[inner]).shape or ()  # type: ignore[index]
        extra = np.ndim(value) - len(shape)
        if extra not in (0, 1) or np.shape(value)[extra:] != shape:
            raise InputError(f"obs: has shape {np.shape(value)}, but {shape} or a batch of it is expected")
        if extra == 0:
            return True, self._simulator.flat(obs)[None]
        rows = obs if inner is None else [{k: v[i] for k, v in obs.items()} for i in range(len(value))]
        return False, np.stack([self._simulator.flat(row) for row in rows])

    def _init_keys(self) -> jax.Array:
        return jnp.stack([streams.root(seed, streams.INIT) for seed in self.experiment.seed_list])

    def _current_state(self) -> Any:
        """The state [S, …] of all seeds; initialised on first use."""
        if self._state is None:
            self._state = jax.device_get(jax.jit(jax.vmap(self._agent.init))(self._init_keys()))
        return self._state


def _act(agent: Agent, explore: bool, policy: Any, obs: Array, key: Key) -> Array:
    return agent.act(policy, obs, key, explore)


def _steps(record: datafile.Record, name: str, path: Path) -> int:
    value = record.get(name)
    if type(value) is not int or value < 0:
        raise CheckpointError(f"{path}: field {name} is {shown(value)}, not a number of steps")
    return value


def _made(env: gym.Env) -> tuple[bool, bool]:
    """Whether an environment can be copied, and whether it was made in a way that its id does not tell."""
    spec = env.spec
    if spec is None:
        return False, True
    copied = all(wrapper.kwargs is not None for wrapper in spec.additional_wrappers)
    plain = dataclasses.replace(spec, kwargs={k: v for k, v in spec.kwargs.items() if k != "render_mode"})
    return copied, plain != gym.registry.get(spec.id)


def _with_options(base: Experiment, options: dict[str, Any]) -> Experiment:
    """An experiment with some of its options, or its agent's, changed by name."""
    fields = {f.name for f in dataclasses.fields(base)} - {"agent", "env", "steps"}
    inner = {f.name for f in dataclasses.fields(base.agent)}
    for name in options:
        if name not in fields | inner:
            close = difflib.get_close_matches(name, fields | inner, n=1)
            raise InputError(f"{name}: no such option" + (f"; did you mean {close[0]}?" if close else ""))
    hints = get_type_hints(type(base)) | get_type_hints(type(base.agent))
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in options.items()}
    options = {k: typed(v, hints[k], k) for k, v in plain.items()}
    agent = dataclasses.replace(base.agent, **{k: v for k, v in options.items() if k in inner})
    return dataclasses.replace(base, agent=agent, **{k: v for k, v in options.items() if k in fields})


def _with_suffix(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".safetensors" else path.with_name(path.name + ".safetensors")


class LSAC(Model):
    """Langevin Soft Actor-Critic; options in `lsac train lsac --help`."""

    algorithm = "lsac"


class SAC(Model):
    """Soft Actor-Critic; options in `lsac train sac --help`."""

    algorithm = "sac"


class TD3(Model):
    """Twin Delayed DDPG; options in `lsac train td3 --help`."""

    algorithm = "td3"


class DSACT(Model):
    """Distributional Soft Actor-Critic with three refinements; options in `lsac train dsact --help`."""

    algorithm = "dsact"


class PPO(Model):
    """Proximal Policy Optimization; options in `lsac train ppo --help`."""

    algorithm = "ppo"


class TRPO(Model):
    """Trust Region Policy Optimization; options in `lsac train trpo --help`."""

    algorithm = "trpo"


class REDQ(Model):
    """Randomised Ensembled Double Q-learning; options in `lsac train redq --help`."""

    algorithm = "redq"


class QSM(Model):
    """Q-score matching; options in `lsac train qsm --help`."""

    algorithm = "qsm"


class DIPO(Model):
    """Diffusion policy fitted to improved actions; options in `lsac train dipo --help`."""

    algorithm = "dipo"
