"""Frames in the main memory: the device gets those that the updates of a chunk read, and no others."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lsac.errors import InputError, MemoryRefused
from lsac.presets import preset
from lsac.replay import ring as rb
from lsac.runs.experiment import make_agent
from lsac.train import device_memory, devices
from lsac.train.host_frames import HostFrames, nbytes_ahead, supplied
from lsac.train.learner import Learner, Sizes
from lsac.train.run import bytes_per_seed, require_memory
from lsac.types import Agent, EnvSpec, memoryless

SPEC = EnvSpec(obs_shape=(2,), action_dim=1, gamma=0.9, frame=(3, 2, 1), frame_stack=2)
LAYOUT = rb.layout_of(SPEC)
CAPACITY, CHUNK, UPDATES, STRIDE, SEEDS = 24, 8, 3, 2, [5, 6]
BATCH, LENGTH = 4, 3


def checksums(state, replay, key):
    """An update that learns nothing; its metrics tell exactly which frames it has read, and in which order."""
    of_steps, of_batch, of_windows = jax.random.split(key, 3)
    steps = rb.n_step(replay, rb.indices(replay, of_steps, (BATCH,)), 3)
    batch, windows = rb.sample(replay, of_batch, BATCH), rb.sequences(replay, of_windows, 2, LENGTH).steps
    images = [steps.obs, steps.next_obs, batch.obs, batch.next_obs, windows.obs]

    def checksum(image):
        places = jnp.arange(image.size, dtype=jnp.float32) % 7
        return jnp.sum(image.reshape(-1).astype(jnp.float32) * places)

    metrics = {str(i): checksum(seen.image) for i, seen in enumerate(images)}
    return {"weight": state["weight"] + 1}, metrics | {"reward": jnp.sum(steps.reward)}


READER = Agent(
    init=lambda key: {"weight": jax.random.key_data(key).astype(jnp.float32)},
    policy=lambda state: state,
    act=memoryless(lambda policy, obs, key, explore: jnp.zeros(1)),
    update=checksums,
)


def chunk(number):
    """A chunk of both seeds with random frames, rewards and beginnings of episodes."""
    rng, shape = np.random.default_rng(number), (len(SEEDS), CHUNK)
    stored = {name: np.zeros((*shape, *c.shape), c.dtype) for name, c in LAYOUT.arrays().items()}
    stored[rb.PACKED][:] = rng.integers(0, 3, stored[rb.PACKED].shape)
    stored[rb.FIRST][:] = rng.random(shape) < 0.3
    stored[rb.FRAME][:] = rng.integers(0, 256, stored[rb.FRAME].shape)
    return stored


def learner(on_host):
    return Learner(READER, SPEC, SEEDS, Sizes(CAPACITY, CHUNK, UPDATES, STRIDE, on_host))


def test_updates_read_the_same_frames_wherever_they_are_kept():
    both = learner(False), learner(True)
    for each in both:
        each.compile(refresh=False)
        each.store(chunk(0))
    seen = set()
    for number in range(1, 8):  # the ring of three chunks wraps around twice
        on_device, on_host = (jax.device_get(each.learn(chunk(number))) for each in both)
        for name, values in on_device.items():
            np.testing.assert_array_equal(on_host[name], values, err_msg=f"{name} of chunk {number}")
        seen.add(tuple(on_device["0"]))
    assert len(seen) == 7
    assert rb.FRAME not in rb.stored_of_seeds(both[1].replay)


def test_a_restored_ring_goes_on_with_the_same_frames():
    first, again = learner(True), learner(True)
    for number in range(5):
        first.learn(chunk(number))
    saved = jax.tree.map(np.array, first.transitions())
    assert saved[rb.FRAME].shape[:2] == (len(SEEDS), CAPACITY)
    np.testing.assert_array_equal(saved[rb.FRAME], np.concatenate([chunk(n)[rb.FRAME] for n in (2, 3, 4)], axis=1))
    again.restore(jax.tree.map(np.array, first.kept()), saved, 5 * CHUNK, 5 * UPDATES, generated_at=0)
    one, other = (jax.device_get(each.learn(chunk(5))) for each in (first, again))
    for name, values in one.items():
        np.testing.assert_array_equal(other[name], values, err_msg=name)
    np.testing.assert_array_equal(first.transitions()[rb.FRAME], again.transitions()[rb.FRAME])


def test_frames_that_were_sent_stay_as_they_were():
    frames = HostFrames(READER, LAYOUT, len(SEEDS), CAPACITY, STRIDE, UPDATES)
    keys = jax.random.split(jax.random.key(0), len(SEEDS))
    frames.add(chunk(0), 0)
    sent = frames.ahead(keys, 0)
    copies = [np.array(x) for x in sent]
    for number in range(1, 4):
        frames.add(chunk(number), number * CHUNK)
        frames.ahead(keys, number * UPDATES)
    for x, copy in zip(sent, copies, strict=True):
        np.testing.assert_array_equal(x, copy)


def test_an_update_that_reads_other_frames_than_were_sent_is_an_error():
    replay = supplied(rb.make(LAYOUT, CAPACITY, frames=False), [jnp.zeros((BATCH, 2, *SPEC.frame), jnp.uint8)])
    with pytest.raises(AssertionError, match="other frames than were sent ahead"):
        rb.sample(replay, jax.random.key(0), BATCH + 1)


def test_sizes_are_those_of_the_arrays():
    frames = HostFrames(READER, LAYOUT, 1, CAPACITY, STRIDE, UPDATES)
    frames.add({name: x[:1] for name, x in chunk(0).items()}, 0)
    sent = frames.ahead(jax.random.split(jax.random.key(0), 1), 0)
    assert [(x.shape, x.dtype) for x in sent] == [(x.shape, x.dtype) for x in frames.shapes()]
    frame = 3 * 2
    # images of two frames: four of n_step and sample, one of windows, three updates
    expected = UPDATES * 2 * frame * (4 * BATCH + 2 * LENGTH)
    assert nbytes_ahead(READER, LAYOUT, UPDATES) == sum(x.nbytes for x in sent) == expected


# options and memory

PIXELS = EnvSpec(obs_shape=(0,), action_dim=2, gamma=0.99, frame=(84, 84, 3), frame_stack=3)


def experiment(**options):
    found = preset("drqv2", "default", "lsac/SeenColour-v0")
    return replace(found, **{"replay_on": "host", "steps": 40_000} | options)


def test_memory_of_the_device_and_of_the_machine_are_checked_apart(monkeypatch):
    found = bytes_per_seed(experiment(), PIXELS)
    whole = bytes_per_seed(experiment(replay_on="device"), PIXELS)
    frame = 84 * 84 * 3
    assert found.frames == 20_000 * frame  # a decision is two steps
    batches = 16 * 256 * 6 * frame  # updates of a chunk, transitions, and frames of their two images
    assert found.replay == whole.replay - found.frames + 2 * batches
    assert whole.frames == 0

    monkeypatch.setattr(device_memory, "on_cpu", lambda devices: False)
    sentence = require_memory(experiment(seeds=2), PIXELS)
    assert "; frames of 2 × 20,000 transitions take 807.5 MiB of " in sentence
    assert sentence.endswith(", on this machine")
    monkeypatch.setattr(device_memory, "available", lambda device: 2 * 2**30)
    with pytest.raises(MemoryRefused, match=r"^frames of .* are free on this machine: lower --replay-capacity"):
        require_memory(experiment(steps=400_000), PIXELS)


def test_on_a_cpu_there_is_one_memory():
    assert devices.visible()[0].platform == "cpu"
    sentence = require_memory(experiment(), PIXELS)
    assert "; frames" not in sentence
    found = bytes_per_seed(experiment(), PIXELS)
    assert device_memory.size(found.replay + found.frames) in sentence


def test_frames_in_the_main_memory_need_frames_and_no_generator():
    vectors = EnvSpec(obs_shape=(3,), action_dim=1, gamma=0.99)
    with pytest.raises(InputError, match=r"^--replay-on host: is for frames of images, which the observations of "):
        make_agent(replace(preset("sac", "default", "Pendulum-v1"), replay_on="host"), vectors)
    lsac = preset("lsac", "pixels_quickstart", "lsac/SeenColour-v0")
    generating = replace(lsac, agent=replace(lsac.agent, synthetic=True), replay_on="host")
    with pytest.raises(InputError, match=r"^--replay-on host: generated data \(--synthetic\) need the frames on "):
        make_agent(generating, PIXELS)
