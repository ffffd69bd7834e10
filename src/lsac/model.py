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
from typing import Any, Self

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from lsac import datafile, streams
from lsac.display import Display
from lsac.envs import gymnasium as adapter
from lsac.errors import CheckpointError, InputError
from lsac.experiment import Experiment, check, from_json, shown, to_json
from lsac.folder import RunFolder
from lsac.journal import Progress
from lsac.presets import preset as find_preset
from lsac.stopping import Stop
from lsac.training import Training, annealed, evaluation_source_of, make_agent, require_memory, source_of
from lsac.types import Agent, Array, Key

Callback = Callable[[Progress], bool | None]
"""Called with every line of metrics; returning False ends the training."""


class Model:
    """An agent with its environment. Options are those of `lsac train`, by their Python names."""

    algorithm = ""

    def __init__(self, env: str | gym.Env, *, seed: int = 0, preset: str = "default", **options: Any):
        self._env = env
        named = isinstance(env, str) or env.spec is not None
        name = env if isinstance(env, str) else env.spec.id if env.spec else type(env.unwrapped).__name__
        defaults = find_preset(self.algorithm, preset, name)
        self.experiment = _with_options(defaults, {"seed": seed, **options})
        check(self.experiment)
        if not named and self.experiment.seeds * self.experiment.num_envs > 1:
            raise InputError(f"environment {name}: an object without a spec serves one seed and one num_envs only")
        self._can_evaluate = named
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

        Evaluations need simulators of their own, so they take place where the environment is an id or has a spec.
        """
        experiment = dataclasses.replace(self.experiment, steps=total_timesteps)
        check(experiment)
        if self.num_timesteps:
            experiment = annealed(experiment, self.num_timesteps)  # what was learned before is part of the way down
        require_memory(self.algorithm, experiment, self._simulator.spec)  # refused before a folder is made
        inherits = self._state is not None
        folder = RunFolder.create(Path(out), self.algorithm, experiment, inherits) if out is not None else None
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
                evaluation_source=evaluation_source_of(self._env) if wanted and self._can_evaluate else None,
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
        single, batch = self._batch(obs)
        self._calls += 1
        key = jax.random.fold_in(streams.root(self.experiment.seed + row, streams.EVALUATE), self._calls)
        policy = jax.tree.map(lambda leaf: jnp.asarray(leaf[row]), self._agent.policy(self._current_state()))
        action = self._actors[deterministic](policy, batch, jax.random.split(key, len(batch)))
        scaled = np.stack([self._simulator.scaled(a) for a in np.asarray(action)])
        return (scaled[0] if single else scaled), None

    def save(self, path: str | Path) -> Path:
        """Writes parameters, optimisers and settings as one safetensors file; the replay stays behind."""
        path = _with_suffix(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"config": to_json(self.algorithm, self.experiment), "timesteps": self.num_timesteps}
        record |= {"generated_at": self._generated_at}
        datafile.write(path, datafile.named(self._current_state()), record)
        return path

    @classmethod
    def load(cls, path: str | Path, env: str | gym.Env | None = None) -> Self:
        """Reads what `save` wrote. An environment that no id names has to be handed over again."""
        path = _with_suffix(path)
        arrays, record = datafile.read(path)
        if "config" not in record:
            raise CheckpointError(f"{path}: is not a saved model; a run is continued with 'lsac resume'")
        algorithm, experiment = from_json(record["config"], str(path))
        if algorithm != cls.algorithm:
            raise CheckpointError(f"{path}: holds a model of {algorithm}, not of {cls.algorithm}")
        for name in ("timesteps", "generated_at"):
            if type(record.get(name)) is not int or record[name] < 0:
                raise CheckpointError(f"{path}: field {name} is {shown(record.get(name))}, not a number of steps")
        # before anything is made for as many seeds as the file claims to have
        if not arrays or any(array.shape[:1] != (experiment.seeds,) for array in arrays.values()):
            raise CheckpointError(f"{path}: does not hold arrays for {experiment.seeds} seeds")
        model = cls(experiment.env if env is None else env)
        model.experiment = experiment
        model._set_agent()
        like = jax.eval_shape(jax.vmap(model._agent.init), model._init_keys())
        model._state = datafile.unnamed(arrays, like, path)
        model.num_timesteps, model._generated_at = record["timesteps"], record["generated_at"]
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


def _with_options(base: Experiment, options: dict[str, Any]) -> Experiment:
    """An experiment with some of its options, or its agent's, changed by name."""
    fields = {f.name for f in dataclasses.fields(base)} - {"agent", "env", "steps"}
    inner = {f.name for f in dataclasses.fields(base.agent)}
    for name in options:
        if name not in fields | inner:
            close = difflib.get_close_matches(name, fields | inner, n=1)
            raise InputError(f"{name}: no such option" + (f"; did you mean {close[0]}?" if close else ""))
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
