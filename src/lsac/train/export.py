"""Exports a policy as an ONNX file, which runs without this package: normalisation of observations, network, squashing
and the scaling of actions to the environment's range are inside."""

import copy
import math
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
from lsac.train.acting import cpu
from lsac.train.onnx_graph import IMAGE, INPUT, IR_VERSION, OPSET, OUTPUT, write_graph
from lsac.types import Agent, Array, EnvSpec, Pixels

COMPARED = 512
"""Observations on which a file is compared with the policy before it gets its name."""
TOLERANCE = 1e-3
"""Largest difference that is accepted, as a share of the range of each number of an action: float32 in another order of
summation is far below it, a wrong graph far above."""
TOGETHER = 64
"""Observations on which a file is run at once: the images of all of them would take gigabytes."""
INSTALL = "pip install 'lsac[export]'"

Predict = Callable[[Any, Any], tuple[np.ndarray, Any]]
"""one observation of the environment, the memory of the policy or None → the action, the new memory"""
Seen = dict[str, Any]
"""What a policy sees, by the names of the file's inputs: a float32 vector, a uint8 image of all its frames, or both."""


class Compared(NamedTuple):
    """What a file is compared with."""

    seen: Seen
    """[N, …]"""
    actions: np.ndarray
    """[N, …] those of the policy"""


class Exported(NamedTuple):
    path: Path
    difference: float
    """largest difference from the policy's own actions, in units of the environment"""
    compared: int
    """number of observations of that comparison"""
    inputs: dict[str, jax.ShapeDtypeStruct]
    """shape and dtype of what the policy sees, without the axis of the batch"""
    outputs: tuple[int, ...]
    """shape of an action"""

    def sentence(self) -> str:
        inputs = " and ".join(f"{name} {x.dtype} [{_batch_of(x.shape)}]" for name, x in self.inputs.items())
        return (
            f"{self.path}: opset {OPSET}, {inputs} → {OUTPUT} float32 [{_batch_of(self.outputs)}]; largest difference "
            f"from predict over {self.compared} observations: {self.difference:.1e}"
        )


def _batch_of(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, ("batch", *shape)))


def export(
    path: Path,
    agent: Agent,
    policy: Any,
    spec: EnvSpec,
    spaces: Spaces,
    compared: Compared,
    about: dict[str, str],
) -> Exported:
    """Writes the deterministic policy of one seed. The file is run on what the policy has seen, and appears only if its
    actions are those of the policy. `about` is stored in the file."""
    if path.is_dir():
        raise InputError(f"export: {path} is a folder, should be a file, for example {path / 'policy.onnx'}")
    if path.suffix.lower() != ".onnx":
        raise InputError(f"export: {path} must end in .onnx, for example {path.with_suffix('.onnx')}")
    inputs = inputs_of(spec)
    session, data, shape = _session(agent, policy, spaces, inputs, about)
    count = len(compared.actions)
    pieces = [{name: x[i : i + TOGETHER] for name, x in compared.seen.items()} for i in range(0, count, TOGETHER)]
    actions = np.concatenate([session.run([OUTPUT], piece)[0] for piece in pieces])
    differences = np.abs(actions - compared.actions)
    difference = float(np.max(differences))
    if not np.all(differences <= TOLERANCE * (spaces.action.high - spaces.action.low)):  # also where one is NaN
        raise InputError(f"{path}: was not written, its actions differ from the policy's by {difference:.1e}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, [data])
    except OSError as error:
        raise InputError(f"export: {path} cannot be written ({error.strerror})") from None
    return Exported(path, difference, count, inputs, shape)


def inputs_of(spec: EnvSpec) -> dict[str, jax.ShapeDtypeStruct]:
    """The inputs of a file: shape and dtype of what a policy sees."""
    image = {} if spec.frame is None else {IMAGE: jax.ShapeDtypeStruct(spec.image_shape, np.uint8)}
    vector = {INPUT: jax.ShapeDtypeStruct(spec.obs_shape, np.float32)} if math.prod(spec.obs_shape) else {}
    return image | vector


def _session(
    agent: Agent, policy: Any, spaces: Spaces, inputs: dict[str, jax.ShapeDtypeStruct], about: dict[str, str]
) -> tuple[Any, bytes, tuple[int, ...]]:
    """The file of a policy, opened in onnxruntime, its bytes, and the shape of an action."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise InputError(f"export: needs the package {error.name}; install it with: {INSTALL}") from None
    if jax.tree.leaves(agent.memory()):
        raise InputError("export: the policy has a memory, and only policies without one can be exported")
    try:
        with jax.default_device(cpu()):  # whose convolutions are products and slices
            graph, shape = write_graph(acting(agent, policy, spaces), inputs)
    except Unsupported as error:
        raise InputError(f"export: the policy cannot be written as ONNX, because it contains {error}") from None
    operators = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=operators, ir_version=IR_VERSION, producer_name="lsac")
    onnx.helper.set_model_props(model, about)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]), data, shape


def acting(agent: Agent, policy: Any, spaces: Spaces) -> Callable[[Seen], Array]:
    """What was seen [B, …] → deterministic actions in the environment's range, as `predict` computes them. The agent
    must see all frames of an image at once."""
    box = spaces.action
    policy = jax.tree.map(jnp.asarray, policy)
    low, high, half = (jnp.asarray(x, jnp.float32)[None] for x in (box.low, box.high, (box.high - box.low) / 2))

    def act(seen: Seen) -> Array:
        vector = seen[INPUT] if INPUT in seen else jnp.zeros(0)
        obs = Pixels(seen[IMAGE], vector) if IMAGE in seen else vector
        action, _ = agent.act(policy, agent.memory(), obs, jax.random.key(0), False)
        return action

    def scaled(seen: Seen) -> Array:
        action = jax.vmap(act)(seen).reshape(-1, *box.shape) if len(box.shape) != 1 else jax.vmap(act)(seen)
        return jnp.minimum(jnp.maximum(low + (action + 1.0) * half, low), high)

    return scaled


def visited(env: gym.Env, spaces: Spaces, predict: Predict, frame_stack: int = 1) -> Compared:
    """What a policy sees in its episodes, and what it does."""
    found: list[tuple[Seen, np.ndarray]] = []
    episode = 0
    while len(found) < COMPARED:
        obs, _ = env.reset(seed=episode)
        ended, episode, memory = False, episode + 1, None
        seen: Seen | None = None
        while not ended and len(found) < COMPARED:
            seen = shown(spaces, obs, seen, frame_stack)
            action, memory = predict(obs, memory)
            found.append((seen, action))
            obs, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
    return _joined(found)


def sampled(spaces: Spaces, predict: Predict, frame_stack: int = 1) -> Compared:
    """The same for random observations within the environment's limits, where no further simulator can be created."""
    space = copy.deepcopy(spaces.observation)  # the user's own keeps its random numbers
    space.seed(0)
    drawn = [space.sample() for _ in range(COMPARED)]
    return _joined([(shown(spaces, obs, None, frame_stack), predict(obs, None)[0]) for obs in drawn])


def shown(spaces: Spaces, obs: Any, before: Seen | None, frame_stack: int) -> Seen:
    """What a policy sees of an observation, after what it saw before in the episode."""
    read = spaces.read(obs)
    if not isinstance(read, Pixels):
        return {INPUT: read}
    earlier = np.tile(read.image, frame_stack) if before is None else before[IMAGE]
    image = np.concatenate([earlier[..., read.image.shape[-1] :], read.image], axis=-1)
    return {IMAGE: image} | ({INPUT: read.vector} if read.vector.size else {})


def _joined(found: list[tuple[Seen, np.ndarray]]) -> Compared:
    seen, actions = zip(*found, strict=True)
    return Compared({name: np.stack([row[name] for row in seen]) for name in seen[0]}, np.stack(actions))
