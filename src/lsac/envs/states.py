"""The whole state of a simulator as data, so that a resumed run continues in the middle of an episode, bit for bit.

Gymnasium's MuJoCo and classic-control tasks are supported, and the wrappers of Gymnasium listed below. Any other
environment, those that come with this package included, is supported if it implements

    get_state() -> dict of NumPy arrays and JSON values      set_state(that dict) -> None

for everything that a later `step` or `reset` depends on, except its random generator, which is stored separately. The
state of anything else (an unknown environment or wrapper, a value that is not JSON) is None, and such a run resumes
with new episodes.
"""

import json
from collections import deque
from typing import Any, NamedTuple, cast

import gymnasium as gym
import mujoco
import numpy as np
import safetensors
import safetensors.numpy
from gymnasium import wrappers as gw

from lsac.envs import physics
from lsac.envs.pixels import Rendered
from lsac.errors import CheckpointError

STATELESS = (
    *(gw.RescaleAction, gw.ClipAction, gw.TransformAction, gw.ClipReward, gw.TransformReward),
    *(gw.FlattenObservation, gw.ReshapeObservation, gw.RescaleObservation, gw.DtypeObservation),
    *(gw.FilterObservation, gw.TransformObservation),
    gw.PassiveEnvChecker,  # it only checks, and may be absent when a run is resumed
)
"""Supported wrappers without a state. Functions that are given to some of them must not have one either."""
STATEFUL: dict[type, tuple[str, ...]] = {
    gw.TimeLimit: ("_elapsed_steps",),
    gw.OrderEnforcing: ("_has_reset",),
    gw.TimeAwareObservation: ("timesteps",),
    gw.FrameStackObservation: ("obs_queue",),
    gw.DelayObservation: ("observation_queue",),
    gw.StickyAction: ("last_action", "is_sticky_actions", "num_repeats", "repeats_taken"),
    gw.NormalizeReward: ("return_rms.mean", "return_rms.var", "return_rms.count", "discounted_reward"),
    gw.RecordEpisodeStatistics: (
        *("episode_count", "episode_returns", "episode_lengths"),
        *("time_queue", "return_queue", "length_queue"),
    ),
}
"""Supported wrappers with a state, and the attributes that hold it."""
KNOWN = ("gymnasium.envs.mujoco.", "gymnasium.envs.classic_control.", "lsac.envs.probes")
"""Modules whose environments keep their state in numbers, arrays, the random generator and MuJoCo's structures."""


class SimulatorState(NamedTuple):
    metadata: dict[str, Any]
    """JSON: numbers, counters, the random generator"""
    arrays: np.ndarray
    """[n] bytes of a safetensors file with all arrays"""


def take(env: gym.Env) -> SimulatorState | None:
    """The state of an environment and its wrappers; None if it cannot be captured."""
    layers, layer = _layers(env)
    if any(type(wrapper) not in {*STATELESS, *STATEFUL} for wrapper in layers):
        return None
    arrays: dict[str, np.ndarray] = {}
    wrappers = [_packed(getattr(owner, name), f"wrapper.{i}", arrays) for i, (owner, name) in enumerate(_held(layers))]
    metadata: dict[str, Any] = {"wrappers": wrappers, "random": _random_state(layer)}
    if hasattr(layer, "get_state") and hasattr(layer, "set_state"):
        values, metadata["own"] = layer.get_state(), True
    elif (type(layer).__module__ + ".").startswith(KNOWN) or type(layer).__module__ in KNOWN:
        values, metadata["own"] = _simple(vars(layer)), False
        if hasattr(layer, "data") and isinstance(layer.data, mujoco.MjData):
            found = physics.captured(cast(Any, layer).model, layer.data)
            arrays |= {f"mujoco.{name}": value for name, value in found.items()}
    else:
        return None
    metadata["values"] = {
        name: value for name, value in values.items() if not isinstance(value, np.ndarray | np.generic)
    }
    for name, value in values.items():
        if isinstance(value, np.ndarray | np.generic):
            arrays[f"{'array' if isinstance(value, np.ndarray) else 'number'}.{name}"] = np.array(value, order="C")
    metadata["flat"] = [name for name, value in arrays.items() if value.ndim == 0]
    try:
        packed = safetensors.numpy.save({name: np.atleast_1d(value) for name, value in arrays.items()})
        carried = json.dumps(json.loads(json.dumps(metadata))) == json.dumps(metadata) and not _changed_by_json(
            metadata["values"]
        )
    except (TypeError, ValueError, KeyError, safetensors.SafetensorError):
        carried = False
    if not carried:  # a user's get_state may return anything; new episodes after a resume are better than no checkpoint
        return None
    return SimulatorState(metadata, np.frombuffer(packed, np.uint8))


def put(env: gym.Env, state: SimulatorState) -> None:
    """Puts an environment into a captured state; it must be created in the same way as the captured one."""
    metadata = state.metadata
    try:
        arrays = safetensors.numpy.load(state.arrays.tobytes())
        for name in metadata["flat"]:
            arrays[name] = arrays[name].reshape(())
        layers, layer = _layers(env)
        for (owner, name), value in zip(_held(layers), metadata["wrappers"], strict=True):
            setattr(owner, name, _unpacked(value, getattr(owner, name), arrays))
        for wrapper in layers:
            if isinstance(wrapper, gw.PassiveEnvChecker):  # its first step would need the data of a reset
                wrapper.checked_reset = wrapper.checked_step = wrapper.checked_data_reuse = True
        values = dict(metadata["values"])
        values |= {name.split(".", 1)[1]: x for name, x in arrays.items() if name.startswith("array.")}
        values |= {name.split(".", 1)[1]: x[()] for name, x in arrays.items() if name.startswith("number.")}
        if metadata["own"]:
            cast(Any, layer).set_state(values)
        else:
            _put_known(layer, values, {n.split(".", 1)[1]: x for n, x in arrays.items() if n.startswith("mujoco.")})
        _put_random(layer, metadata["random"])
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"the state of a simulator does not fit this environment ({error})") from None


def _changed_by_json(value: Any) -> bool:
    """Whether JSON would return something else: a list for a tuple, a string for a key that is not one."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    other_keys = isinstance(value, dict) and not all(isinstance(key, str) for key in value)
    return isinstance(value, tuple) or other_keys or any(map(_changed_by_json, inner))


def _layers(env: gym.Env) -> tuple[list[gym.Wrapper], gym.Env]:
    """The wrappers of an environment, outermost first, and the innermost environment. Drawing it needs no state."""
    wrappers = []
    while isinstance(env, gym.Wrapper):
        if not isinstance(env, Rendered):
            wrappers.append(env)
        env = env.env
    return wrappers, env


def _held(layers: list[gym.Wrapper]) -> list[tuple[Any, str]]:
    """Every attribute that holds the state of a wrapper: its owner and its name."""
    found: list[tuple[Any, str]] = []
    for wrapper in layers:
        for attribute in STATEFUL.get(type(wrapper), ()):
            inner, _, name = attribute.rpartition(".")
            found.append((getattr(wrapper, inner) if inner else wrapper, name))
    return found


def _packed(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON; its arrays and NumPy numbers are added to `arrays`."""
    if isinstance(value, deque):
        return {"queue": [_packed(item, f"{name}.{i}", arrays) for i, item in enumerate(value)]}
    if isinstance(value, np.ndarray | np.generic):
        arrays[name] = np.array(value, order="C")
        return {"number" if isinstance(value, np.generic) else "array": name}
    return value  # if it is not JSON, the state is not captured


def _unpacked(value: Any, current: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The inverse of `_packed`, for an attribute whose present value is `current`."""
    if not isinstance(value, dict):
        if value is not None and type(value) not in (bool, int, float):
            raise ValueError(f"a wrapper holds {type(value).__name__}")
        return value
    if "queue" in value:
        if not isinstance(current, deque) or (current.maxlen or len(value["queue"])) < len(value["queue"]):
            raise ValueError("a queue of a wrapper is too long")
        return deque((_unpacked(item, None, arrays) for item in value["queue"]), current.maxlen)
    return arrays[value["array"]] if "array" in value else arrays[value["number"]][()]


def _simple(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes that are numbers or numeric arrays, except the seed, which is stored with the random generator."""
    kinds = (bool, int, float, np.generic)
    return {
        name: value
        for name, value in attributes.items()
        if name != "_np_random_seed"
        and (isinstance(value, kinds) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf"))
    }


def _put_known(env: gym.Env, values: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    allowed = _simple(vars(env)).keys()
    for name, value in values.items():
        if name in allowed or not hasattr(env, name):  # some attributes are created by the first reset
            setattr(env, name, value)
    if not arrays:
        return
    simulator = cast(Any, env)
    physics.restore(simulator.model, simulator.data, arrays)


def _random_state(env: gym.Env) -> dict[str, Any] | None:
    generator = env._np_random
    if generator is None:
        return None
    return {"seed": env._np_random_seed, "state": generator.bit_generator.state}


def _put_random(env: gym.Env, metadata: dict[str, Any] | None) -> None:
    if metadata is None:
        env._np_random = None
        return
    generator = np.random.Generator(np.random.PCG64())
    generator.bit_generator.state = metadata["state"]
    env._np_random, env._np_random_seed = generator, metadata["seed"]
