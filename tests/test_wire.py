"""Messages between the trainer and its workers: all that is sent comes back, and what arrives can never be code."""

import functools
import json
import random
import threading
from multiprocessing import Pipe

import mutations
import numpy as np
import pytest
from mutations import same
from test_hostile import AUDIT

from lsac.collect import wire
from lsac.envs.recipes import Recipe
from lsac.envs.states import SimulatorState
from lsac.errors import CheckpointError, EnvironmentFault, InputError

METADATA = {
    **{"wrappers": [3, True], "own": False, "flat": [], "random": {"seed": 2**100, "state": [1, 2]}},
    # names that the encoding itself uses, and numbers that JSON has no word for
    "values": {"array": 0, "type": "Reset", "fields": [], "dict": {"dict": None}, "x": [float("inf"), -0.5]},
}
SIMULATOR = SimulatorState(METADATA, np.frombuffer(b"some bytes", np.uint8))
GROUP = wire.GroupState(
    obs=np.arange(6, dtype=np.float32).reshape(2, 3),
    counts=np.array([[1.5, -np.inf], [3.0, 0.0]]),
    memory=[np.arange(4.0).reshape(2, 2).T, np.zeros((2, 0), np.int32)],
    simulators=[SIMULATOR, SIMULATOR._replace(arrays=np.zeros(0, np.uint8))],
)
PLAN = wire.GroupPlan(seed=7, seed_index=1, envs=[4, 5], stride=6, value_episodes=2)
EPISODE = wire.Episode(step=2, reward=-0.1, length=200)
PLAYED = wire.Played(np.array([1.0, np.nan]), np.array([200, 3]), np.ones((0, 6), np.float32))
STORED = {"vectors": np.ones((2, 3, 9), np.float32), "first": np.array([[True, False, True]] * 2)}
TABLE = wire.TableFile("/dev/shm/lsac-x/policies", [2, 50])
RECIPE = Recipe("{}", "", ["gymnasium.wrappers:ClipAction"])
MESSAGES = {
    "GroupPlan": PLAN,
    "Episode": EPISODE,
    "GroupState": GROUP,
    "SimulatorState": SIMULATOR,
    "TableFile": TABLE,
    "Recipe": RECIPE,
    "Setup": wire.Setup({"experiment": {"hidden": [8]}}, RECIPE, ["/a"], [PLAN, PLAN], 2, TABLE, TABLE, 1234, None),
    "Reset": wire.Reset(2**40),
    "Collect": wire.Collect(step=8, decisions=4, random=True),
    "Evaluate": wire.Evaluate(step=8, deterministic=False),
    "Capture": wire.Capture(),
    "Restore": wire.Restore([GROUP, GROUP]),
    "Done": wire.Done(),
    "Collected": wire.Collected([STORED, STORED], [[EPISODE], []]),
    "Played": PLAYED,
    "Evaluated": wire.Evaluated([PLAYED, PLAYED]),
    "Captured": wire.Captured([GROUP, None]),
    "Failed": wire.Failed("bug", "α\n", "Traceback …"),
}


def test_there_is_an_example_of_every_type():
    assert MESSAGES.keys() == wire.TYPES.keys()
    assert all(type(message) is wire.TYPES[name] for name, message in MESSAGES.items())


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_comes_back_from_json_and_arrays(name):
    data, arrays = wire.pack(MESSAGES[name])
    assert all(isinstance(array, np.ndarray) for array in arrays)
    assert same(wire.unpack(json.loads(json.dumps(data)), arrays), MESSAGES[name])


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_comes_back_through_a_pipe(name):
    """Two in a row, so that one that took too much or too little would spoil the next."""
    one, other = Pipe()
    with one, other:
        for message in (MESSAGES[name], wire.Reset(3)):
            wire.send(one, message)
        assert same(wire.receive(other), MESSAGES[name])
        assert wire.receive(other) == wire.Reset(3)


def test_arrays_larger_than_a_pipe_holds_come_back():
    one, other = Pipe()
    message = wire.Collected([{"vectors": np.random.default_rng(0).normal(size=(500, 4, 100))}], [[]])
    with one, other:
        sender = threading.Thread(target=wire.send, args=(one, message))
        sender.start()
        assert same(wire.receive(other), message)
        sender.join()


@pytest.mark.parametrize("value", [None, [], [None, [1, 2.5]], {"dict": {"type": 1}}, "text"], ids=str)
def test_plain_values_come_back(value):
    data, arrays = wire.pack(value)
    assert arrays == []
    assert same(wire.unpack(json.loads(json.dumps(data)), arrays), value)


# what arrives from a stranger

ARRAYS = [np.zeros(3)]
HOSTILE = {
    "unknown type": {"type": "Popen", "fields": [["true"]]},
    "type of Python": {"type": "eval", "fields": ["1"]},
    "type of a module": {"type": "os.system", "fields": ["true"]},
    "attribute of the module": {"type": "np", "fields": []},
    "base of all": {"type": "object", "fields": []},
    "type is a list": {"type": [], "fields": []},
    "type is a number": {"type": 7, "fields": []},
    "type is null": {"type": None, "fields": []},
    "type in a list": [{"type": "Done", "fields": []}, {"type": "Popen", "fields": []}],
    "type in a field": {"type": "Captured", "fields": [[{"type": "Popen", "fields": []}]]},
    "type in a table": {"dict": {"x": {"type": "Popen", "fields": []}}},
    "no fields": {"type": "Reset"},
    "too few fields": {"type": "Collect", "fields": [1]},
    "too many fields": {"type": "Done", "fields": [1]},
    "fields are a number": {"type": "Reset", "fields": 7},
    "fields are null": {"type": "Reset", "fields": None},
    "no such array": {"array": 1},
    "array before the first": {"array": -2},
    "array of a text": {"array": "0"},
    "array of a float": {"array": 0.0},
    "array of a list": {"array": [0]},
    "array of a huge number": {"array": 10**300},
    "empty table": {},
    "table of another kind": {"module": "os"},
    "dict is a number": {"dict": 7},
    "dict is a list": {"dict": [["a", 1]]},
    "dict is a text": {"dict": "ab"},
    "deep list": functools.reduce(lambda inner, _: [inner], range(5_000), []),
    "deep table": functools.reduce(lambda inner, _: {"dict": {"x": inner}}, range(5_000), {"dict": {}}),
    "deep message": functools.reduce(lambda inner, _: {"type": "Reset", "fields": [inner]}, range(5_000), 0),
}
EXPECTED = (KeyError, TypeError, ValueError, IndexError)


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_message_is_rejected_and_runs_nothing(kind):
    with AUDIT.silence(), pytest.raises(EXPECTED):
        wire.unpack(HOSTILE[kind], ARRAYS)


def test_an_unknown_type_is_rejected_by_its_name():
    with pytest.raises(KeyError, match=r"^'Popen'$"):
        wire.unpack({"type": "Popen", "fields": []}, [])


def test_a_thousand_spoiled_messages_raise_nothing_else_and_run_nothing():
    rng, packed = random.Random(0), {name: wire.pack(message) for name, message in MESSAGES.items()}
    packed = {name: (data, arrays) for name, (data, arrays) in packed.items() if mutations.places(data)}
    rejected = 0
    with AUDIT.silence():
        for _ in range(1_000):
            data, arrays = packed[rng.choice(sorted(packed))]
            try:
                wire.unpack(mutations.spoil(rng, data), arrays)
            except EXPECTED:
                rejected += 1
    assert rejected > 100


# failures


@pytest.mark.parametrize("kind", [EnvironmentFault, CheckpointError, InputError])
def test_an_error_of_a_worker_is_raised_again(kind):
    with pytest.raises(kind, match=r"^what went wrong$") as found:
        wire.raise_failure(round_trip(wire.failed(kind("what went wrong"))))
    assert type(found.value) is kind


def test_any_other_error_of_a_worker_shows_where_it_was():
    with pytest.raises(ZeroDivisionError) as raised:
        divide_by_zero()
    error = wire.failed(raised.value)
    with pytest.raises(RuntimeError, match=r"(?s)^a simulator's worker failed:\nTraceback.*in divide_by_zero"):
        wire.raise_failure(round_trip(error))


def test_what_is_no_failure_raises_nothing():
    wire.raise_failure(wire.Done())


def divide_by_zero():
    return 1 // 0


def round_trip(message):
    return wire.unpack(*wire.pack(message))
