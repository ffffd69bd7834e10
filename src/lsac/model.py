"""The Python interface, modelled on Stable-Baselines3.

from lsac import SAC
model = SAC("Pendulum-v1", seed=0).learn(20_000, progress_bar=True)
action, _ = model.predict(obs, deterministic=True)
"""

import contextlib
import dataclasses
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from lsac import streams
from lsac.agents import AGENTS, summary
from lsac.collect import snapshot
from lsac.envs import sources
from lsac.envs.repeat import repeated
from lsac.errors import CheckpointError, InputError
from lsac.options import shown, typed
from lsac.presets import preset as find_preset
from lsac.runs.checkpoint import Checkpoint
from lsac.runs.experiment import Experiment, check, longer, make_agent
from lsac.runs.experiment import warnings as known_warnings
from lsac.runs.folder import RunFolder
from lsac.runs.keywords import Listed, require_known, with_options
from lsac.runs.wording import counted, in_python
from lsac.train import export
from lsac.train import trained as files
from lsac.train.acting import ALL, Predictor, Recurrence
from lsac.train.callbacks import Callback, Callbacks
from lsac.train.display import Display
from lsac.train.logger import Progress
from lsac.train.loop import Loop
from lsac.train.run import Observer, Start, new_folder, require_memory, run
from lsac.train.stopping import Interrupts
from lsac.train.trained import Trained
from lsac.types import EnvSpec
from lsac.version import __version__

Env = str | gym.Env | Callable[[], gym.Env]
"""The id of an environment, an environment, or a function that creates one."""
Wrapper = str | Callable[[gym.Env], gym.Env]
POLICIES = ("MlpPolicy", "MultiInputPolicy", "CnnPolicy")
"""Names that Stable-Baselines3 takes as its first argument."""


@contextlib.contextmanager
def _python_names() -> Iterator[None]:
    """Messages about bad input name options as Python does, without dashes."""
    try:
        yield
    except InputError as error:
        error.args = (in_python(re.sub(r"pass --module (\S+)", r"import \1 first", str(error))),)
        raise


class Given(NamedTuple):
    """The environments of a model, as the user passed them."""

    env: Env
    eval_env: Env | None = None
    env_kwargs: Mapping[str, Any] | None = None
    wrappers: Sequence[Wrapper] = ()
    pixels: int = 0

    def environments(self) -> sources.Environments:
        return sources.given(
            self.env,
            env_kwargs=self.env_kwargs,
            wrappers=self.wrappers,
            eval_env=self.eval_env,
            pixels=self.pixels,
        )


class Recorder:
    """`model.logger`: numbers that a callback records appear in the next line of metrics."""

    def __init__(self, model: "Model"):
        self._model = model

    def record(self, key: str, value: Any, exclude: Any = None) -> None:
        """Adds a number to the next line of metrics; outside `learn` it is ignored. `exclude` has no effect. Names of
        groups that lsac writes itself, such as eval/mean_reward, get the prefix callback/, so that the two do not mix.
        """
        loop = self._model._loop
        if loop is not None and isinstance(value, (int, float, np.number)):
            group, slash, _ = key.partition("/")
            own = slash and group not in ("eval", "rollout", "time", "train")
            loop.record(key if own else f"callback/{key}", float(value))

    def dump(self, step: int = 0) -> None:
        """Does nothing: lines are written every `log_every` steps."""


class Model:
    """An agent with its environment. It accepts the options of `lsac train` as keyword arguments (`batch_size=…`)."""

    algorithm = ""

    @_python_names()
    def __init__(
        self,
        env: Env,
        *more: Any,
        preset: str = "default",
        eval_env: Env | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[Wrapper] = (),
        **options: Any,
    ):
        """`env` is the id of an environment, an environment, or a function that creates one; `eval_env` the same for
        evaluations. `env_kwargs` are passed to the environment of an id, and `wrappers` are put around it."""
        if more or (isinstance(env, str) and env in POLICIES):
            name, example = type(self).__name__, shown(more[0]) if more and isinstance(more[0], str) else "env"
            raise InputError(f"env: {shown(env)} is not needed; write {name}({example}, hidden=(256, 256))")
        given = Given(env, eval_env, env_kwargs, wrappers)
        found = None if isinstance(env, str) else given.environments()
        defaults = find_preset(self.algorithm, preset, str(env) if found is None else found.name)
        experiment = with_options(defaults, options)
        check(experiment)
        given = given._replace(pixels=experiment.pixels)
        environments = given.environments() if found is None or given.pixels else found
        experiment = dataclasses.replace(experiment, env_args=environments.args, wrappers=environments.wrappers)
        check(experiment)
        self._set_up(experiment, given, environments, Trained())

    def _set_up(
        self, experiment: Experiment, given: Given, environments: sources.Environments, trained: Trained
    ) -> None:
        e = experiment
        if environments.why_single and e.seeds * e.num_envs > 1:
            raise InputError(f"seeds={e.seeds}, num_envs={e.num_envs}: {environments.why_single}")
        self._given, self.experiment = given, e
        self.logger = Recorder(self)
        self.env = repeated(environments.training.make(), e.action_repeat)
        self._recreatable = environments.recreatable
        self._spaces = environments.space
        self._agent = make_agent(e, self._spec())
        self._loop: Loop | None = None
        self._folder: Path | None = None
        self._trained = trained
        self._predictor = Predictor(self._agent, environments.space, e.seed, e.seeds)

    # Training

    @property
    def num_timesteps(self) -> int:
        """Environment steps of each seed so far, in all calls of `learn`."""
        loop = self._loop
        return self._trained.timesteps if loop is None else self.experiment.steps_before + loop.step

    @_python_names()
    def learn(
        self,
        total_timesteps: int,
        callback: Callback | Sequence[Callback] | None = None,
        progress_bar: bool = False,
        out: str | Path | None = None,
        reset: bool = False,
        **unknown: Any,
    ) -> Self:
        """Trains every seed for `total_timesteps` more steps.

        A second call continues the first: parameters, replay buffer, simulators, counters and random streams. If the
        state of the environment can be captured, two calls give the same result, bit for bit, as one longer call.
        With `reset`, training starts again from the beginning.

        With `out`, the run is stored in that folder. `callback` is a function of one argument, a `Progress`, that is
        called with every line of metrics and ends the training by returning False; or a callback object of
        Stable-Baselines3; or a list of these. The first Ctrl-C ends the training after the current chunk and then
        raises KeyboardInterrupt: the model keeps what it has learned, and the run in `out` is saved.
        """
        require_known(unknown, ("total_timesteps", "callback", "progress_bar", "out", "reset"))
        steps = typed(total_timesteps, int, "total_timesteps")
        if steps < 1:
            raise InputError(f"total_timesteps: {steps} must be at least 1")
        self._require_idle("learn")
        trained = Trained() if reset else self._trained
        if trained.policies is not None:
            raise InputError("learn: this model holds only policies; load the run's folder to train it further")
        environments, start = self._given.environments(), trained.start()
        if isinstance(start, Checkpoint):
            experiment = longer(self.experiment, start.record["step"] + steps)
        else:
            experiment = dataclasses.replace(self.experiment, steps=steps, steps_before=trained.timesteps)
        check(experiment)
        decisions = experiment.steps // experiment.action_repeat
        if jax.default_backend() == "cpu" and decisions > experiment.capacity:
            spec = environments.spec(experiment.gamma, experiment.frame_stack)
            require_memory(experiment, spec, replays=2)  # `_ended` makes a copy
        callbacks = Callbacks(callback, self, experiment.num_envs * experiment.action_repeat)
        step = start.record["step"] if isinstance(start, Checkpoint) else 0
        callbacks.begin(step)
        _warn(experiment, environments, step)
        task = _Task(None, False, start) if out is None else self._task(Path(out), experiment, environments, start)
        self._train(experiment, environments, task, callbacks, progress_bar)
        return self

    def _require_idle(self, name: str) -> None:
        if self._loop is not None:
            raise InputError(f"{name}: cannot be called in a callback of learn")

    def _task(
        self, path: Path, experiment: Experiment, environments: sources.Environments, start: Start | Checkpoint | None
    ) -> "_Task":
        """Creates the folder of a run, or opens that of the run that this model continues."""
        if not (path / "config.json").is_file():
            notes = {"inherits": start is not None, "made_in_python": not environments.recreatable}
            return _Task(new_folder(path, experiment, environments, **notes), False, start)
        folder, found = RunFolder.open(path, to_train=True, to_run=False)
        saved, made = folder.checkpoints.step(), ", env=…" if folder.made_in_python() else ""
        reached = start.record["step"] if isinstance(start, Checkpoint) else 0
        own = reached > 0 and self._folder == path.resolve() and found == self.experiment
        if own and saved == reached:
            return _Task(folder, True, None)
        folder.release()
        if own:
            raise InputError(
                f"out: {path} holds this run up to step {saved:,}, but the model is at step {reached:,}; "
                "choose another folder"
            )
        resume = f"{type(self).__name__}.resume({str(path)!r}{made})"
        raise InputError(f"out: {path} already holds a run; {resume} continues it")

    def _train(
        self,
        experiment: Experiment,
        environments: sources.Environments,
        task: "_Task",
        callbacks: Callbacks,
        progress_bar: bool,
    ) -> None:
        e, stop = experiment, callbacks.stop
        with contextlib.ExitStack() as stack:
            stack.callback(task.release)
            display = stack.enter_context(Display()) if progress_bar else None
            interrupts = stack.enter_context(Interrupts(stop))

            def watch(progress: Progress) -> None:
                if display:
                    display.watch(progress)
                callbacks.watch(progress)

            def began(loop: Loop) -> None:
                self.experiment, self._loop = e, loop
                self._folder = task.folder.path.resolve() if task.folder else None

            say = display.say if display else _say
            fitting = display.fitting if display else Observer().fitting
            observer = Observer(watch, say, fitting, callbacks.after_chunk, began, self._ended)
            result = run(
                e, environments, folder=task.folder, resume=task.resume, start=task.start, observer=observer, stop=stop
            )
            callbacks.end()
            say(f"{counted(result.learner.updates, 'update')} in this run; predict uses seed {self.best_seed}")
        if callbacks.error is not None:
            raise callbacks.error
        if interrupts.received:
            raise KeyboardInterrupt

    def _ended(self, loop: Loop) -> None:
        """Keeps what was learned, also after an error; parameters that are not finite are not worth keeping."""
        try:
            if np.asarray(loop.learner.finite).all():
                now = self._now()
                self._trained = now._replace(state=jax.tree.map(np.array, now.state))
                checkpoint = loop.checkpoint(safe=loop.ended)
                self._trained = files.trained_of(checkpoint, self._agent, self.experiment, complete=True)
        except MemoryError:
            warnings.warn("the replay buffer does not fit into memory and is not kept", stacklevel=2)
        except RuntimeError:  # a second Ctrl-C may come while the learner exchanges its arrays, which are then gone
            if loop.ended:
                raise
            warnings.warn("what was learned in this call is lost", stacklevel=2)
        finally:
            self._loop = None

    @classmethod
    @_python_names()
    def resume(
        cls,
        folder: str | Path,
        env: Env | None = None,
        *,
        steps: int | None = None,
        callback: Callback | Sequence[Callback] | None = None,
        progress_bar: bool = False,
        eval_env: Env | None = None,
    ) -> Self:
        """Continues a stopped run in its folder to its end, as `lsac resume` does, and returns the model.

        `steps` is a new total, to extend the run. If the environment was passed as an object, pass it again as `env`.
        A later `learn(…, out=folder)` continues the same run.
        """
        opened, experiment = RunFolder.open(Path(folder), to_train=True, to_run=env is None)
        try:
            step = opened.checkpoints.step()
            if steps is not None:
                total = typed(steps, int, "steps")
                if total < max(step, experiment.steps):
                    raise InputError(f"steps: {total} is less than the {max(step, experiment.steps)} of the run")
                experiment = longer(experiment, total)
            opened.checkpoints.require_resumable()
            if opened.checkpoints.newest() is None:
                opened.require_unsaved(experiment)
            model = cls._of(experiment, env, eval_env, str(folder))
            if model.experiment.env != experiment.env:
                raise InputError(f"env: is {model.experiment.env}, but the run is of {experiment.env}")
            experiment = model.experiment
            if step < experiment.steps or opened.checkpoints.newest() == opened.checkpoints.stopped:
                environments = model._given.environments()
                callbacks = Callbacks(callback, model, experiment.num_envs * experiment.action_repeat)
                callbacks.begin(step)
                _warn(experiment, environments, step)
                model._train(experiment, environments, _Task(opened, True, None), callbacks, progress_bar)
            else:
                checkpoint = opened.checkpoints.load()
                model._trained = files.trained_of(checkpoint, model._agent, experiment, complete=True)
                model._folder = opened.path.resolve()
        finally:
            opened.release()
        return model

    # Acting

    @property
    def best_seed(self) -> int:
        """The seed whose policy `predict` uses: the one with the highest return in the newest evaluation, or the first
        seed if there was no evaluation."""
        returns = self._trained.returns if self._loop is None else self._loop.returns
        return self.experiment.seed_list[0 if returns is None else int(np.argmax(returns))]

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        seed: int | str | None = None,
    ) -> tuple[np.ndarray, Any]:
        """Returns the action for one observation or a batch of them, in the units of the environment's action space.

        `seed` selects the policy: that of one seed, by default `best_seed`, or "all", which returns the actions of all
        seeds along a new first axis. As in Stable-Baselines3, the second value returned is the memory of a recurrent
        policy, to be passed as `state` to the next call (None at the start of an episode), and `episode_start` marks
        the observations that start an episode. Policies without a memory return None.
        """
        index = self._seed_index(self.best_seed if seed is None else seed)
        return self._predictor.act(self._policy(index), obs, Recurrence(state, episode_start), deterministic, index)

    def _policy(self, index: int) -> Any:
        """The present policy of one seed or of all, on the processor."""
        owner, version = (self._trained, 0) if self._loop is None else (self._loop, self._loop.learner.added)
        return self._predictor.policy(index, owner, version, self._read_policies)

    def _read_policies(self) -> Any:
        """The policies [S, …] of all seeds."""
        now = self._now()
        if now.policies is None:
            return self._agent.policy(now.state)
        _, restore = snapshot.unflatten(self._agent)
        return jax.tree.map(lambda *leaves: np.stack(leaves), *map(restore, now.policies))

    def _seed_index(self, seed: int | str) -> int:
        seeds = self.experiment.seed_list
        if isinstance(seed, str) and seed == "all":
            return ALL
        if isinstance(seed, str) or seed not in seeds:
            raise InputError(f'seed: {shown(seed)} must be one of {", ".join(map(str, seeds))}, or "all"')
        return seeds.index(seed)

    # Saving and loading

    @_python_names()
    def export(self, path: str | Path, seed: int | None = None) -> export.Exported:
        """Writes the deterministic policy of one seed, by default `best_seed`, as an ONNX file, which runs without
        lsac and JAX. Normalisation of observations and the scaling of actions to the environment's range are inside.

        The file is first run in onnxruntime and compared with `predict`; the result says how far the two differ.
        """
        chosen = self.best_seed if seed is None else seed
        index = self._seed_index(chosen)
        if index == ALL:
            raise InputError('seed: "all" cannot be exported, a file holds the policy of one seed')
        policy, e, spaces = self._policy(index), self.experiment, self._spaces

        def predict(obs: Any, memory: Any) -> tuple[np.ndarray, Any]:
            return self._predictor.act(policy, obs, Recurrence(memory, None), True, index)

        source = self._given.environments().evaluation
        if source is None:
            compared = export.sampled(spaces, predict, e.frame_stack)
        else:
            env = source.make()
            compared = export.visited(repeated(env, e.action_repeat), spaces, predict, e.frame_stack)
            source.release(env)
        spec = spaces.spec(e.gamma, e.frame_stack)
        if spec.frame is not None:  # the file sees all frames of an image at once, and remembers none
            spec = dataclasses.replace(spec, frame=spec.image_shape, frame_stack=1)
        about = {"algorithm": self.algorithm, "env": e.env, "seed": str(chosen)}
        about |= {name: str(getattr(e, name)) for name in ("pixels", "frame_stack", "action_repeat")}
        steps = self._trained.steps
        about |= {"step": str(self.num_timesteps if steps is None else steps[index]), "lsac": __version__}
        return export.export(Path(path), make_agent(e, spec), policy, spec, spaces, compared, about)

    def save(self, path: str | Path, replay: bool = False) -> Path:
        """Writes parameters, optimiser states and settings to one safetensors file.

        With `replay`, the file also holds the replay buffer, the simulators and the counters: a loaded model then
        continues to learn where this one is.
        """
        path = _with_suffix(path)
        files.save(path, self._now(complete=replay), self.experiment, self._recreatable, replay)
        return path

    @classmethod
    @_python_names()
    def load(
        cls,
        path: str | Path,
        env: Env | None = None,
        *,
        policy: str = "last",
        seed: int | None = None,
        eval_env: Env | None = None,
        **unknown: Any,
    ) -> Self:
        """Loads a file that `save` wrote, or a run from its folder.

        Of a run, `policy` selects the agents of the newest checkpoint ("last") or the policies of each seed's best
        evaluation ("best"), which can predict but not learn. `seed` selects one seed. If the environment was passed as
        an object, pass it again as `env`. The replay buffer is loaded only from files that were saved with it; to
        continue a run with its replay buffer use `resume`.
        """
        require_known(unknown, ("path", "env", "policy", "seed", "eval_env"))
        if policy not in ("last", "best"):
            raise InputError(f'policy: {shown(policy)} must be "last" or "best"')
        path = Path(path)
        if path.is_dir() and path.suffix != ".safetensors":
            folder, experiment = RunFolder.open(path, to_run=env is None)
            model = cls._of(experiment, env, eval_env, str(path))
            if policy == "best":
                trained = files.best_of_run(folder, experiment, model._spec())
            else:
                checkpoint = folder.checkpoints.load_agents()
                checkpoint.require(experiment.algorithm, experiment.env)
                trained = files.trained_of(checkpoint, model._agent, experiment, complete=False)
        else:
            if policy == "best":
                raise InputError(f'policy: "best" needs the folder of a run, and {path} is not one')
            file = files.read(_with_suffix(path), to_run=env is None)
            experiment = file.experiment
            if env is None and file.made_in_python:
                raise InputError(f"{path}: its environment was made in Python; pass it: load(path, env=…)")
            model = cls._of(experiment, env, eval_env, str(file.path))
            trained = file.trained(model._spec())
        if seed is not None:
            if seed not in experiment.seed_list:
                raise InputError(f"seed: {shown(seed)} must be one of {', '.join(map(str, experiment.seed_list))}")
            trained = trained.of_seed(experiment.seed_list.index(seed))
            e = dataclasses.replace(model.experiment, seed=int(seed), seeds=1)
            model._set_up(e, model._given, model._given.environments(), Trained())
        same = _described(model.experiment) == _described(experiment)
        model._trained = trained if same else trained.elsewhere(model.experiment.env)
        return model

    @classmethod
    def _of(cls, experiment: Experiment, env: Env | None, eval_env: Env | None, where: str) -> Self:
        """An untrained model with the settings of a file."""
        if experiment.algorithm != cls.algorithm:
            raise CheckpointError(f"{where}: is of {experiment.algorithm}, not of {cls.algorithm}")
        e, given = experiment, Given(env, eval_env, pixels=experiment.pixels)  # type: ignore[arg-type]
        if env is None:
            given = Given(e.env, eval_env, sources.read_arguments(e.env_args), e.wrappers, e.pixels)
        environments, model = given.environments(), cls.__new__(cls)
        if env is not None:  # or the settings would describe the environment of the file
            e = dataclasses.replace(
                e, env=environments.name, env_args=environments.args, wrappers=environments.wrappers
            )
        model._set_up(e, given, environments, Trained())
        return model

    # The environment

    @property
    def observation_space(self) -> gym.Space:
        return self.env.observation_space

    @property
    def action_space(self) -> gym.Space:
        return self.env.action_space

    def get_env(self) -> gym.Env:
        """The environment: the one that was passed, or one created from its id."""
        return self.env

    def get_vec_normalize_env(self) -> None:
        """None: Stable-Baselines3's functions ask for it. Observations are normalised with normalise_observations."""

    @_python_names()
    def set_env(
        self,
        env: Env,
        eval_env: Env | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[Wrapper] = (),
    ) -> None:
        """Replaces the environment by one with the same spaces, and its arguments and wrappers. Parameters and replay
        buffer are kept; the next `learn` starts new episodes, and evaluations before it no longer count."""
        self._require_idle("set_env")
        given = Given(env, eval_env, env_kwargs, wrappers, self.experiment.pixels)
        environments = given.environments()
        for kind in ("observation", "action"):
            old, new = getattr(self._spaces, kind), getattr(environments.space, kind)
            if old != new:
                raise InputError(f"env: its {kind} space is {new}, but the model has {old}")
        experiment = dataclasses.replace(
            self.experiment, env=environments.name, env_args=environments.args, wrappers=environments.wrappers
        )
        self._set_up(experiment, given, environments, self._trained.elsewhere(environments.name))

    def __repr__(self) -> str:
        e = self.experiment
        return (
            f"{type(self).__name__}(env={e.env!r}, seeds={e.seed_list}, num_timesteps={self.num_timesteps}, "
            f"best_seed={self.best_seed})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and copy keep: everything but compiled functions."""
        trained = self._trained if self._loop is None else self._now(complete=True)
        return {"given": self._given, "experiment": self.experiment, "trained": trained}

    def __setstate__(self, state: dict[str, Any]) -> None:
        given = state["given"]
        self._set_up(state["experiment"], given, given.environments(), state["trained"])

    def _spec(self) -> EnvSpec:
        return self._spaces.spec(self.experiment.gamma, self.experiment.frame_stack)

    def _now(self, complete: bool = False) -> Trained:
        """What the model has learned by now: during `learn`, also in a callback; with `complete`, the replay too."""
        if self._loop is not None:
            loop = self._loop
            if complete:
                return files.trained_of(loop.checkpoint(safe=True), self._agent, self.experiment, complete=True)
            generated_at = loop.learner.refresher.generated_at
            return Trained(self.num_timesteps, loop.learner.kept(), generated_at, None, loop.returns)
        if self._trained.state is None and self._trained.policies is None:
            keys = jnp.stack([streams.root(seed, streams.INIT) for seed in self.experiment.seed_list])
            compact = self._agent.refresh.compact if self._agent.refresh else lambda state: state
            state = jax.jit(jax.vmap(lambda key: compact(self._agent.init(key))))(keys)
            return self._trained._replace(state=jax.device_get(state))
        return self._trained


class _Task(NamedTuple):
    """Where a run is stored and what it starts from."""

    folder: RunFolder | None
    resume: bool
    start: Start | Checkpoint | None

    def release(self) -> None:
        if self.folder is not None:
            self.folder.release()


def _say(text: str) -> None:
    """Without a display, only warnings of a run are shown."""
    kind, _, message = text.partition("warning: ")
    if not kind and message:
        warnings.warn(message, stacklevel=2)


def _described(experiment: Experiment) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """How a configuration describes its environment."""
    return experiment.env, experiment.env_args, experiment.wrappers


def _warn(experiment: Experiment, environments: sources.Environments, step: int) -> None:
    """Warnings about a run that would not do what its caller probably wants."""
    e = experiment
    for text in known_warnings(e, step):
        warnings.warn(in_python(text.removeprefix("warning: ")), stacklevel=4)
    if e.eval_every and environments.evaluation is None:
        warnings.warn(
            f"learn makes no evaluations: {environments.why_single} (eval_every=0 turns this warning off)",
            stacklevel=4,
        )


def _with_suffix(path: str | Path) -> Path:
    """Stable-Baselines3's callbacks add .zip, which these files are not."""
    path = Path(path)
    if path.suffix == ".zip":
        path = path.with_suffix("")
    return path if path.suffix == ".safetensors" else path.with_name(path.name + ".safetensors")


# Classes


def model_class(algorithm: str) -> type[Model]:
    """The class of an algorithm: `SAC` for sac, and so on. Its signature and help list every option."""
    own = [
        p for p in inspect.signature(Model.__init__).parameters.values() if p.name not in ("self", "more", "options")
    ]
    listed = Listed(find_preset(algorithm, "default", ""), [parameter.name for parameter in own])
    text = "\n".join([summary(algorithm), *listed.lines])
    kind = type(algorithm.upper(), (Model,), {"algorithm": algorithm, "__doc__": text, "__module__": "lsac"})
    kind.__signature__ = inspect.Signature([*own, *listed.parameters])  # type: ignore[attr-defined]
    return kind


CLASSES: dict[str, type[Model]] = {name.upper(): model_class(name) for name in AGENTS}
"""Every algorithm's class, by its name."""
