"""Callbacks of `learn`: functions of a `Progress`, and callback objects of Stable-Baselines3.

The objects are recognised by their methods; Stable-Baselines3 is never imported.
"""

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

from lsac.errors import InputError
from lsac.options import shown
from lsac.train.logger import Progress
from lsac.train.stopping import Stop

Function = Callable[[Progress], bool | None]
"""Called with every line of metrics; returning False ends the training."""


class Sb3Callback(Protocol):
    """The methods of Stable-Baselines3's `BaseCallback` that are called here."""

    def init_callback(self, model: Any) -> None: ...
    def on_training_start(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None: ...
    def on_rollout_start(self) -> None: ...
    def on_step(self) -> bool: ...
    def on_rollout_end(self) -> None: ...
    def on_training_end(self) -> None: ...


Callback = Function | Sb3Callback

REFUSED = {
    "ProgressBarCallback": "use learn(…, progress_bar=True)",
    "LogEveryNTimesteps": "use the option log_every",
    "StopTrainingOnMaxEpisodes": "use a function that counts episodes and returns False",
}
"""Callbacks of Stable-Baselines3 that read what does not exist here, and what to use instead."""
INNER = ("callback", "callbacks", "callback_on_new_best")
"""Attributes in which such an object holds further ones."""


class Locals(dict[str, Any]):
    """The local variables of Stable-Baselines3's training loop, which do not exist here."""

    def __missing__(self, name: str) -> Any:
        raise InputError(
            f"callback: reads locals[{name!r}], which exists only in Stable-Baselines3; "
            "a function callback gets the metrics of training: def callback(progress)"
        )


class Callbacks:
    """The callbacks of one call of `learn`. An error in one of them stops the run and is raised at its end, so that
    nothing learned is lost."""

    def __init__(self, given: Any, model: Any, steps_per_call: int):
        self._model, self._steps_per_call = model, steps_per_call
        self.stop = Stop()
        self.error: Exception | None = None
        together = [*_flat(given)]
        self._objects: list[Sb3Callback] = [x for x in together if _is_object(x)]
        self._functions: list[Function] = [x for x in together if not _is_object(x)]
        for function in self._functions:
            _require_function(function)
        for callback in self._objects:
            _require_supported(callback)
        self._seen = 0

    def begin(self, step: int) -> None:
        """Called with the step of the run before anything is compiled."""
        self._seen = step
        for callback in self._objects:
            with warnings.catch_warnings():  # EvalCallback warns that the types of the two environments differ
                warnings.filterwarnings("ignore", message="Training and eval env are not of the same type")
                callback.init_callback(self._model)
            callback.on_training_start(Locals(), {})

    def watch(self, progress: Progress) -> None:
        for function in self._functions:
            self._guard(partial(function, progress))

    def after_chunk(self, step: int) -> None:
        """Calls the objects once for every step of their environments, as Stable-Baselines3 does."""
        calls, self._seen = (step - self._seen) // self._steps_per_call, step
        for callback in self._objects:
            self._guard(partial(_rollout, callback, calls))

    def end(self) -> None:
        for callback in self._objects:
            self._guard(callback.on_training_end)

    def _guard(self, call: Callable[[], bool | None]) -> None:
        """Calls, unless there was an error before; False stops the run."""
        if self.error is not None:
            return
        try:
            if call() is False:
                self.stop.request()
        except Exception as error:
            self.error = error
            self.stop.request()


def _rollout(callback: Sb3Callback, calls: int) -> bool:
    callback.on_rollout_start()
    go_on = all(callback.on_step() is not False for _ in range(calls))
    callback.on_rollout_end()
    return go_on


def _flat(given: Any) -> Iterator[Any]:
    if isinstance(given, (list, tuple)):
        for item in given:
            yield from _flat(item)
    elif given is not None:
        yield given


def _is_object(callback: Any) -> bool:
    return hasattr(callback, "on_step") and hasattr(callback, "init_callback")


def _require_function(callback: Any) -> None:
    if not callable(callback):
        raise InputError(
            f"callback: {shown(callback)} is neither a function of one argument nor a callback of Stable-Baselines3"
        )
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        raise InputError(
            f"callback: {shown(callback)} cannot be called with one argument; it must be a function of a Progress"
        ) from None
    except ValueError:  # some built-in functions have no signature
        return


def _require_supported(callback: Any) -> None:
    name = type(callback).__name__
    if type(callback).__module__.startswith("stable_baselines3.") and name in REFUSED:
        raise InputError(f"callback: {name} of Stable-Baselines3 does not work here; {REFUSED[name]}")
    if getattr(callback, "save_replay_buffer", False):
        raise InputError(
            f"callback: {name} cannot save the replay buffer; use a function that calls model.save(path, replay=True)"
        )
    for attribute in INNER:
        inner = getattr(callback, attribute, None)
        for item in inner if isinstance(inner, Iterable) else [inner]:
            if _is_object(item):
                _require_supported(item)
