"""The whole state of a MuJoCo simulation as named arrays."""

from typing import Any

import mujoco
import numpy as np

CONSTANT = ("tex_", "mesh_", "skin_", "bvh_")
"""Prefixes of large arrays that no task changes: textures, meshes and their bounding volumes."""


def captured(model: Any, data: Any) -> dict[str, np.ndarray]:
    """All float arrays: the integration state is not enough, because rewards read positions derived in the last step,
    and some tasks write their target into the model.

    Integer arrays hold indices, which a step recomputes or never changes, and which a file must not be able to set.
    """
    integration = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(model, data, integration, mujoco.mjtState.mjSTATE_INTEGRATION)
    found = {"integration": integration}
    unused = mujoco.MjData(model)  # its arrays of contacts and constraints are empty: a step recomputes them
    for part, structure, like in (("model", model, model), ("data", data, unused)):
        for name in dir(structure):
            if name.startswith(("_", *CONSTANT)):
                continue
            value, empty = getattr(structure, name, None), getattr(like, name, None)
            if isinstance(value, np.ndarray) and value.dtype.kind == "f" and empty is not None and empty.size:
                found[f"{part}.{name}"] = value.copy()  # it is a view of the simulation
    return found


def restore(model: Any, data: Any, arrays: dict[str, np.ndarray]) -> None:
    """Puts a simulation into a captured state, which comes from a file and is checked."""
    mujoco.mj_setState(model, data, arrays["integration"], mujoco.mjtState.mjSTATE_INTEGRATION)
    for name, value in arrays.items():
        part, _, field = name.partition(".")
        if field:
            target = getattr({"model": model, "data": data}[part], field)
            if target.shape != value.shape or target.dtype != value.dtype or target.dtype.kind != "f":
                raise ValueError(f"{name} is {value.dtype}{list(value.shape)}")
            target[...] = value
