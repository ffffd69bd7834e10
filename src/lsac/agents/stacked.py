"""Frame stacking for any agent that learns from images: `--frame-stack`.

Simulators return one frame at a time. The agent sees the newest frames of the episode as one image, as `take` of the
replay puts them together; the policy's memory holds the image of the step before.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from lsac.types import Agent, Array, EnvSpec, Key, Pixels


class Memory(NamedTuple):
    image: Array  # [H, W, channels · frames] uint8, of the step before
    begun: Array  # whether there was a step before
    inner: Any


def stacked(agent: Agent, spec: EnvSpec) -> Agent:
    """Wraps an agent of images of `spec.frame_stack` frames so that `act` takes observations of one frame."""
    if spec.frame is None or spec.frame_stack == 1:
        return agent
    channels = spec.frame[2]

    def act(policy: Any, memory: Memory, obs: Pixels, key: Key, explore: bool) -> tuple[Array, Memory]:
        later = jnp.concatenate([memory.image[..., channels:], obs.image], axis=-1)
        image = jnp.where(memory.begun, later, jnp.tile(obs.image, (1, 1, spec.frame_stack)))
        action, inner = agent.act(policy, memory.inner, Pixels(image, obs.vector), key, explore)
        return action, Memory(image, jnp.ones((), bool), inner)

    def memory() -> Memory:
        return Memory(jnp.zeros(spec.image_shape, jnp.uint8), jnp.zeros((), bool), agent.memory())

    return agent._replace(act=act, memory=memory)
