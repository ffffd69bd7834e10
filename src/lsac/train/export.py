"""Exports a policy as an ONNX file, which runs without this package: normalisation of observations, network, squashing
and the scaling of actions to the environment's range are inside."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from lsac.collect.in_numpy import Unsupported
from lsac.envs.gymnasium import Spaces
from lsac.errors import InputError
from lsac.runs.datafile import write_bytes
from lsac.train.onnx_graph import INPUT, IR_VERSION, OPSET, OUTPUT, write_graph
from lsac.types import Agent, Array

COMPARED = 512
"""Observations on which a file is compared with the policy before it gets its name."""
TOLERANCE = 1e-3
"""Largest difference that is accepted, as a share of the range of each number of an action: float32 in another order of
summation is far below it, a wrong graph far above."""
INSTALL = "pip install 'lsac[export]'"


class Exported(NamedTuple):
    path: Path
    difference: float
    """largest difference from the policy's own actions, in units of the environment"""
    compared: int
    """number of observations of that comparison"""
    inputs: int
    """size of an observation"""
    outputs: tuple[int, ...]
    """shape of an action"""

    def sentence(self) -> str:
        shape = ", ".join(map(str, ("batch", *self.outputs)))
        return (
            f"{self.path}: opset {OPSET}, {INPUT} float32 [batch, {self.inputs}] → {OUTPUT} float32 [{shape}]; largest "
            f"difference from predict over {self.compared} observations: {self.difference:.1e}"
        )


def export(
    path: Path,
    agent: Agent,
    policy: Any,
    spaces: Spaces,
    observations: np.ndarray,
    predict: Callable[[np.ndarray], np.ndarray],
    about: dict[str, str],
) -> Exported:
    """Writes the deterministic policy of one seed. The file is run on `observations` [N, O] and compared with
    `predict`, and appears only if the two agree. `about` is stored in the file."""
    if path.is_dir():
        raise InputError(f"export: {path} is a folder, should be a file, for example {path / 'policy.onnx'}")
    if path.suffix.lower() != ".onnx":
        raise InputError(f"export: {path} must end in .onnx, for example {path.with_suffix('.onnx')}")
    session, data, shape = _session(agent, policy, spaces, about)
    (actions,) = session.run([OUTPUT], {INPUT: observations})
    expected = predict(observations)
    differences = np.abs(actions - expected)
    difference = float(np.max(differences))
    if not np.all(differences <= TOLERANCE * (spaces.action.high - spaces.action.low)):  # also where one is NaN
        raise InputError(f"{path}: was not written, its actions differ from the policy's by {difference:.1e}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, [data])
    except OSError as error:
        raise InputError(f"export: {path} cannot be written ({error.strerror})") from None
    return Exported(path, difference, len(observations), observations.shape[1], shape)


def _session(agent: Agent, policy: Any, spaces: Spaces, about: dict[str, str]) -> tuple[Any, bytes, tuple[int, ...]]:
    """The file of a policy, opened in onnxruntime, its bytes, and the shape of an action."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise InputError(f"export: needs the package {error.name}; install it with: {INSTALL}") from None
    if jax.tree.leaves(agent.memory()):
        raise InputError("export: the policy has a memory, and only policies without one can be exported")
    try:
        graph, shape = write_graph(acting(agent, policy, spaces), spaces.obs_shape[0])
    except Unsupported as error:
        raise InputError(f"export: the policy cannot be written as ONNX, because it contains {error}") from None
    operators = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=operators, ir_version=IR_VERSION, producer_name="lsac")
    onnx.helper.set_model_props(model, about)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]), data, shape


def acting(agent: Agent, policy: Any, spaces: Spaces) -> Callable[[Array], Array]:
    """Observations [B, O] → deterministic actions in the environment's range, as `predict` computes them."""
    box = spaces.action
    policy = jax.tree.map(jnp.asarray, policy)
    low, high, half = (jnp.asarray(x, jnp.float32)[None] for x in (box.low, box.high, (box.high - box.low) / 2))

    def act(obs: Array) -> Array:
        action, _ = agent.act(policy, agent.memory(), obs, jax.random.key(0), False)
        return action

    def scaled(obs: Array) -> Array:
        action = jax.vmap(act)(obs).reshape(-1, *box.shape) if len(box.shape) != 1 else jax.vmap(act)(obs)
        return jnp.minimum(jnp.maximum(low + (action + 1.0) * half, low), high)

    return scaled


def visited(env: gym.Env, spaces: Spaces, predict: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """[N, O] observations of episodes of a deterministic policy."""
    found: list[np.ndarray] = []
    episode = 0
    while len(found) < COMPARED:
        obs, _ = env.reset(seed=episode)
        ended, episode = False, episode + 1
        while not ended and len(found) < COMPARED:
            found.append(spaces.flat(obs))
            obs, _, terminated, truncated, _ = env.step(predict(found[-1][None])[0])
            ended = terminated or truncated
    return np.stack(found)


def sampled(spaces: Spaces) -> np.ndarray:
    """[N, O] random observations within the environment's limits, where no further simulator can be created."""
    space = copy.deepcopy(spaces.observation)  # the user's own keeps its random numbers
    space.seed(0)
    return np.stack([spaces.flat(space.sample()) for _ in range(COMPARED)])
