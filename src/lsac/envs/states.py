"""The whole state of a simulator as data, so that a resumed run continues in the middle of an episode, bit for bit.

Gymnasium's MuJoCo and classic-control tasks are supported. Any other environment is supported if it implements

    get_state() -> dict of NumPy arrays and JSON values      set_state(that dict) -> None

for everything that a later `step` or `reset` depends on, except its random generator, which is stored separately. The
state of anything else (an unknown environment or wrapper, a value that is not JSON) is None, and such a run resumes
with new episodes.
"""

import json
from typing import Any, NamedTuple, cast

import gymnasium as gym
import mujoco
import numpy as np
import safetensors
import safetensors.numpy
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from lsac.errors import CheckpointError

WRAPPERS: dict[type, str | None] = {
    TimeLimit: "_elapsed_steps",
    OrderEnforcing: "_has_reset",
    PassiveEnvChecker: None,  # it only checks, and may be absent when a run is resumed
}
"""Supported wrappers, and the attribute that holds their state, if they have one."""
KNOWN = ("gymnasium.envs.mujoco.", "gymnasium.envs.classic_control.", "lsac.envs.probes")
"""Modules whose environments keep their state in numbers, arrays, the random generator and MuJoCo's structures."""
PICTURES = ("tex_", "mesh_", "skin_", "hfield_")
"""Prefixes of large arrays of a MuJoCo model that no task changes."""


class SimulatorState(NamedTuple):
    metadata: dict[str, Any]
    """JSON: numbers, counters, the random generator"""
    arrays: np.ndarray
    """[n] bytes of a safetensors file with all arrays"""


def take(env: gym.Env) -> SimulatorState | None:
    """The state of an environment and its wrappers; None if it cannot be captured."""
    layers, layer = _layers(env)
    if any(type(wrapper) not in WRAPPERS for wrapper in layers):
        return None
    wrappers = [getattr(wrapper, attribute) for wrapper in layers if (attribute := WRAPPERS[type(wrapper)])]
    metadata: dict[str, Any] = {"wrappers": wrappers, "random": _random_state(layer)}
    arrays: dict[str, np.ndarray] = {}
    if hasattr(layer, "get_state") and hasattr(layer, "set_state"):
        values, metadata["own"] = layer.get_state(), True
    elif (type(layer).__module__ + ".").startswith(KNOWN) or type(layer).__module__ in KNOWN:
        values, metadata["own"] = _simple(vars(layer)), False
        if hasattr(layer, "data") and isinstance(layer.data, mujoco.MjData):
            arrays |= {f"mujoco.{name}": value for name, value in _mujoco_arrays(layer).items()}
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
        stateful = [(wrapper, attribute) for wrapper in layers if (attribute := WRAPPERS[type(wrapper)])]
        for (wrapper, attribute), value in zip(stateful, metadata["wrappers"], strict=True):
            setattr(wrapper, attribute, value)
        for wrapper in layers:
            if isinstance(wrapper, PassiveEnvChecker):  # its first step would need the data of a reset
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
    """The wrappers of an environment, outermost first, and the innermost environment."""
    wrappers = []
    while isinstance(env, gym.Wrapper):
        wrappers.append(env)
        env = env.env
    return wrappers, env


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
    mujoco.mj_setState(simulator.model, simulator.data, arrays["integration"], mujoco.mjtState.mjSTATE_INTEGRATION)
    for name, value in arrays.items():
        part, _, field = name.partition(".")
        if field:
            target = getattr({"model": simulator.model, "data": simulator.data}[part], field)
            if target.shape != value.shape or target.dtype != value.dtype or target.dtype.kind != "f":
                raise ValueError(f"{name} is {value.dtype}{list(value.shape)}")
            target[...] = value


def _mujoco_arrays(env: Any) -> dict[str, np.ndarray]:
    """All float arrays: the integration state is not enough, because rewards read positions derived in the last step.

    Integer arrays hold indices, which a step recomputes or never changes, and which a file must not be able to set.
    """
    size = mujoco.mj_stateSize(env.model, mujoco.mjtState.mjSTATE_INTEGRATION)
    integration = np.empty(size)
    mujoco.mj_getState(env.model, env.data, integration, mujoco.mjtState.mjSTATE_INTEGRATION)
    found = {"integration": integration}
    unused = mujoco.MjData(env.model)  # its arrays of contacts and constraints are empty: a step recomputes them
    for part, like in (("model", env.model), ("data", unused)):
        structure = getattr(env, part)
        for name in dir(structure):
            if name.startswith(("_", *PICTURES)):
                continue
            value, empty = getattr(structure, name, None), getattr(like, name, None)
            if isinstance(value, np.ndarray) and value.dtype.kind == "f" and empty is not None and empty.size:
                found[f"{part}.{name}"] = value
    return found


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
