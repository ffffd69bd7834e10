"""Files made by somebody who wants more than to be loaded: each is refused in a sentence, quickly, and runs nothing."""

import contextlib
import functools
import io
import json
import os
import pickle
import random
import re
import sys
import time
import tracemalloc
import zipfile
from collections import Counter
from types import SimpleNamespace

import gymnasium as gym
import mutations
import numpy as np
import pytest
import safetensors.numpy
import small
from commands import lsac
from mutations import SEEDS, STEP, WIDTH, make_config, make_run, numbers, signed, transitions
from test_model import TINY

from lsac import SAC
from lsac.collect import wire
from lsac.collect.pool import never
from lsac.envs.sources import given
from lsac.errors import CheckpointError, InputError
from lsac.runs import datafile
from lsac.runs.checkpoint import Checkpoints, Unsaved
from lsac.runs.datafile import DIGITS, FORMAT, LABEL, read, write
from lsac.runs.experiment import Experiment, from_json
from lsac.runs.folder import RunFolder
from lsac.train.resume import Saver
from lsac.train.run import Observer, assembled, run
from lsac.train.stopping import Stop

SECONDS, MEMORY = 2.0, 64 * 2**20


class Audit:
    """What Python itself reports when code is made, found or run. A hook cannot be removed, so it has a switch."""

    EVENTS = frozenset({"exec", "compile", "import", "os.system", "subprocess.Popen", "pickle.find_class"})

    def __init__(self):
        self.on, self.seen = False, []
        sys.addaudithook(self.hear)

    def hear(self, event, args):
        if self.on and (event in self.EVENTS or event.startswith("socket.")):
            self.seen.append((event, str(args[:1])))

    @contextlib.contextmanager
    def silence(self):
        """Fails if anything is heard inside."""
        self.seen, self.on = [], True
        try:
            yield
        finally:
            self.on = False
        if self.seen:
            raise AssertionError(f"heard {self.seen}")


AUDIT = Audit()


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize(
    ("act", "event"),
    [
        (lambda: pickle.loads(pickle.dumps(Evil())), "pickle.find_class"),
        (lambda: pickle.loads(pickle.dumps(Evil())), "os.system"),
        (lambda: compile("1", "x", "eval"), "compile"),
        (lambda: exec("1"), "exec"),
        (lambda: __import__("antigravity_is_not_here"), "import"),
    ],
    ids=["pickle", "system", "compile", "exec", "import"],
)
def test_the_audit_hears_what_it_listens_for(act, event):
    with pytest.raises(AssertionError, match=event), AUDIT.silence(), contextlib.suppress(ImportError):
        act()


# where a file can lie, and how it is loaded from there

SEGMENT = "rows-0000000008-0000000016.safetensors"


@pytest.fixture(scope="module")
def model():
    return SAC("Pendulum-v1", **TINY)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = model.save(tmp_path_factory.mktemp("model") / "model")
    SAC.load(path)  # makes an environment and traces a network, which needs imports the first time
    return path


PLACES = {
    "read": ("any.safetensors", read),
    "checkpoint": (f"checkpoints/{STEP}", lambda path: Checkpoints(path.parent).load()),
    "rows": (f"checkpoints/replay/{SEGMENT}", lambda path: Checkpoints(path.parents[1]).load()),
    "best": ("checkpoints/best.safetensors", lambda path: Checkpoints(path.parent).load_best()),
    "model": ("model.safetensors", SAC.load),
}


def refused(load, path):
    """The sentence with which a file is refused, after a look at what that took."""
    started = time.monotonic()
    with AUDIT.silence(), pytest.raises(InputError) as found:
        load(path)
    assert time.monotonic() - started < SECONDS
    sentence = str(found.value)
    assert sentence.startswith(f"{path}"), "it names the file"
    assert sentence.isprintable(), "one line, nothing that a terminal obeys"
    assert len(sentence) < 400 + len(str(path))
    tracemalloc.start()
    with pytest.raises(InputError):
        load(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MEMORY
    return sentence


def test_good_files_are_loaded_without_running_anything(tmp_path, saved):
    folder = make_run(tmp_path / "run")
    with AUDIT.silence():
        arrays, record = read(folder / "checkpoints" / STEP)
        mutations.load_run(folder)
        model = SAC.load(saved)
    assert arrays
    assert record["step"] == 16
    assert isinstance(model, SAC)


# content that is no file of ours


def raw(header, data=b""):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(header).to_bytes(8, "little") + header + data


def entry(shape, start, stop, kind="F32"):
    return {"dtype": kind, "shape": shape, "data_offsets": [start, stop]}


def zipped(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("weights", content)
    return file.getvalue()


def label(text, **arrays):
    """A file that is good but for its record."""
    return signed(arrays or {"weight": np.ones(3, np.float32)}, text)


def twice_in_header():
    """Two entries of one name, with the digest of the one that safetensors believes."""
    good = label(f'{{"format": {FORMAT}}}')
    size = int.from_bytes(good[:8], "little")
    header, data = good[8 : 8 + size].rstrip(), good[8 + size :]
    again = json.dumps(json.loads(header)["weight"]).encode()
    return raw(header[:-1] + b', "weight": ' + again + b"}", data)


def two_labels():
    good = label(f'{{"format": {FORMAT}}}')
    size = int.from_bytes(good[:8], "little")
    return raw(good[8 : 8 + size].replace(b'{"lsac":', b'{"lsac": "x", "lsac":'), good[8 + size :])


OUTSIDE = "is a link that leaves the folder of the run$"
UNREADABLE = "is not a readable safetensors file"
CONTENT = {
    "pickle": (lambda: pickle.dumps(Evil()), UNREADABLE),
    "zip": (lambda: zipped(b"weights"), UNREADABLE),
    "zip bomb": (lambda: zipped(bytes(50 * 2**20)), UNREADABLE),
    "empty": (lambda: b"", UNREADABLE),
    "header of 2**40": (lambda: (2**40).to_bytes(8, "little") + b"{}", "header would take 1099511627776 bytes"),
    "header of 2**62": (lambda: (2**62).to_bytes(8, "little") + b"{}", "header would take 4611686018427387904 bytes"),
    "header is a list": (lambda: raw(b"[]"), UNREADABLE),
    "header is a number": (lambda: raw(b"7"), UNREADABLE),
    "deep header": (lambda: raw(b'{"a":' + b"[" * 100_000), UNREADABLE),
    "100 000 arrays": (
        lambda: raw({f"a{i}": entry([1], i, i + 1, "U8") for i in range(100_000)}, bytes(100_000)),
        r"\(it has 100000 arrays\)$",
    ),
    "an array twice": (twice_in_header, r"\('weight' occurs twice\)$"),
    "the label twice": (two_labels, r"\('lsac' occurs twice\)$"),
    "overlap": (lambda: raw({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)), "invalid offset"),
    "out of range": (lambda: raw({"a": entry([1000], 0, 4000)}, bytes(8)), UNREADABLE),
    "negative shape": (lambda: raw({"a": entry([-1], 0, 4)}, bytes(4)), UNREADABLE),
    "negative offset": (lambda: raw({"a": entry([1], -4, 0)}, bytes(4)), UNREADABLE),
    "no numbers, huge shape": (lambda: raw({"a": entry([0, 2**62], 0, 0)}), UNREADABLE),
    "shape that overflows": (lambda: raw({"a": entry([2**32, 2**32, 2**32], 0, 4)}, bytes(4)), UNREADABLE),
    "100 axes": (lambda: raw({"a": entry([1] * 100, 0, 4)}, bytes(4)), UNREADABLE),
    "terminal codes": (lambda: raw({"a": entry([1], 0, 4, "\x1b[2J\n")}, bytes(4)), UNREADABLE),
    "foreign": (lambda: safetensors.numpy.save({"a": np.ones(3)}, {"format": "pt"}), "was not written by lsac"),
    "label of nothing": (lambda: safetensors.numpy.save({"a": np.ones(3)}, {LABEL: ""}), "is damaged"),
    "record is a list": (lambda: label("[1]"), "its record is not a table$"),
    "record is no JSON": (lambda: label("{'format': 1}"), "its record is not readable JSON"),
    "record is empty": (lambda: label(""), "its record is not readable JSON"),
    "deep record": (lambda: label('{"format": ' + "[" * 100_000), "its record is not readable JSON"),
    "huge number": (lambda: label('{"format": ' + "9" * 10_000 + "}"), "its record is not readable JSON"),
    "key twice": (lambda: label('{"format": 1, "format": 1}'), "'format' occurs twice"),
    "no format": (lambda: label("{}"), "field format is missing$"),
    "format is NaN": (lambda: label('{"format": NaN}'), "field format is nan, not of type int$"),
    "format is true": (lambda: label('{"format": true}'), "field format is True, not of type int$"),
    "format is a list": (lambda: label('{"format": [[]]}'), "field format is a list, not of type int$"),
    "newer": (
        lambda: label(f'{{"format": {FORMAT + 1}}}'),
        f"has format {FORMAT + 1}; this version reads format {FORMAT}$",
    ),
    "older": (
        lambda: label('{"format": 2}'),
        f"has format 2; this version reads format {FORMAT}$",
    ),
}


@functools.cache
def content(kind):
    return CONTENT[kind][0]()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", CONTENT)
def test_hostile_content_is_refused_wherever_it_lies(kind, place, tmp_path):
    name, load = PLACES[place]
    path = make_run(tmp_path / "run") / name
    path.write_bytes(content(kind))
    assert re.search(CONTENT[kind][1], refused(load, path))


@pytest.mark.parametrize("place", PLACES)
def test_a_file_cut_anywhere_is_refused(place, tmp_path, saved):
    name, load = PLACES[place]
    path = make_run(tmp_path / "run") / name
    data = path.read_bytes() if path.exists() else saved.read_bytes()
    with AUDIT.silence():
        for left in sorted({*range(0, 24), *range(24, len(data), len(data) // 60), len(data) - 1}):
            path.write_bytes(data[:left])
            with pytest.raises(CheckpointError, match=f"^{re.escape(str(path))}: "):
                load(path)


# things that are no files


def fifo(path, outside):
    os.mkfifo(path)


def folder(path, outside):
    path.mkdir()


def link_out(path, outside):
    outside.mkdir()
    os.link(path.with_suffix(".good"), outside / path.name)
    path.symlink_to(outside / path.name)


def link_nowhere(path, outside):
    path.symlink_to(outside)


def link_to_itself(path, outside):
    path.symlink_to(path)


def link_to_a_device(path, outside):
    path.symlink_to("/dev/zero")


THINGS = {
    "fifo": (fifo, "is not a regular file$"),
    "folder": (folder, "is not a regular file$"),
    "link out": (link_out, "is a link that leaves the folder of the run$"),
    "link nowhere": (link_nowhere, "no such file$"),
    "link to itself": (link_to_itself, r"cannot be read \("),
    "link to a device": (link_to_a_device, "is not a regular file$"),
}


@pytest.mark.timeout(20)  # a pipe that is opened never answers
@pytest.mark.parametrize("place", [*PLACES, "config"])
@pytest.mark.parametrize("thing", THINGS)
def test_only_regular_files_of_the_run_are_opened(thing, place, tmp_path, saved):
    name, load = {**PLACES, "config": ("config.json", datafile.read_json)}[place]
    path = make_run(tmp_path / "run") / name
    if not path.exists():
        path.write_bytes(saved.read_bytes() if place == "model" else (path.parent / "checkpoints" / STEP).read_bytes())
    path.rename(path.with_suffix(".good"))
    make, words = THINGS[thing]
    make(path, tmp_path / "outside")
    if thing == "link out" and place in ("read", "model"):
        assert load(path)  # whoever names one file by hand may name a link
    else:
        assert re.search(words, refused(load, path))


def test_a_link_within_the_run_is_followed(tmp_path):
    run = make_run(tmp_path / "run")
    good = mutations.load_run(run)
    for file in (run / "checkpoints" / STEP, run / "checkpoints" / "replay" / SEGMENT):
        file.rename(run / file.name)
        file.symlink_to(run / file.name)
    assert mutations.same(mutations.load_run(run), good)
    (tmp_path / "elsewhere").symlink_to(run)
    assert mutations.same(mutations.load_run(tmp_path / "elsewhere"), good), "the user's own link to a run"


@pytest.mark.parametrize("part", ["checkpoints", "checkpoints/replay"])
def test_a_folder_that_leaves_the_run_is_neither_read_nor_tidied_up(part, tmp_path):
    run = make_run(tmp_path / "run")
    outside = (run / part).rename(tmp_path / "outside")
    (run / part).symlink_to(outside)
    (outside / "diary.txt").write_text("dear diary")
    before = sorted(outside.rglob("*"))
    kept = Checkpoints(run / "checkpoints")
    assert re.search(OUTSIDE, refused(lambda path: kept.load(), run / "checkpoints"))
    if part == "checkpoints":
        with pytest.raises(CheckpointError, match="leaves the folder"):
            kept.save_best(numbers(SEEDS, 5), {"steps": [1, 2]})
    unsaved = Unsaved(100, 8)
    unsaved.reset(transitions(8))
    with pytest.raises(CheckpointError, match="leaves the folder"):
        kept.save(24, {"weight": numbers(SEEDS, 5)}, {}, unsaved, 24)
    assert sorted(outside.rglob("*")) == before


def test_nothing_is_written_through_a_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".config.json.tmp").symlink_to(victim)
    (tmp_path / "config.json").symlink_to(victim)
    datafile.write_bytes(tmp_path / "config.json", [b"{}"])
    assert victim.read_text() == "precious"
    assert (tmp_path / "config.json").read_bytes() == b"{}"
    assert not (tmp_path / "config.json").is_symlink()


# records whose digest is right and whose fields are not


def change(**fields):
    return lambda record: record.update(fields)


def segment(**fields):
    return lambda record: record["replay"][1].update(fields)


RECORDS = {
    "step is missing": (lambda record: record.pop("step"), "field step is missing$"),
    "step is a float": (change(step=16.0), "field step is 16.0, not of type int$"),
    "step is NaN": (change(step=np.nan), "field step is nan, not of type int$"),
    "step is another": (change(step=17), "field step is 17, but its name has another step$"),
    "step is huge": (change(step=10**4000), "field step is 10{199}, but its name has another step$"),
    "step is negative": (change(step=-16), "field step is -16, but its name has another step$"),
    "replay is missing": (lambda record: record.pop("replay"), "is not a checkpoint of a run$"),
    "replay is a table": (change(replay={}), "field replay is a table, not of type list$"),
    "replay of texts": (change(replay=["x"]), r"field replay\[0\] is 'x', not a table$"),
    "file is a number": (segment(file=3), r"field replay\[1\]\.file is 3, not of type str$"),
    "file is missing": (lambda record: record["replay"][1].pop("file"), r"field replay\[1\]\.file is missing$"),
    "stop is a text": (segment(stop="8"), r"field replay\[1\]\.stop is '8', not of type int$"),
    "sha256 is null": (segment(sha256=None), r"field replay\[1\]\.sha256 is None, not of type str$"),
    "file twice": (
        lambda record: record["replay"].append(record["replay"][0]),
        r"replay\[2\]\.file, .* is named twice$",
    ),
    "file of control codes": (segment(file="\x1b[2J\n"), r"replay\[1\]\.file, .* is not a valid file name$"),
    "file with a zero byte": (segment(file="a\0b"), r"replay\[1\]\.file, .* is not a valid file name$"),
    "file of a long name": (segment(file="x" * 5000), r"replay\[1\]\.file, .* is not a valid file name$"),
    "file is the folder": (segment(file=""), "is not a regular file$"),
    "file is a parent": (segment(file=".."), "is not a regular file$"),
    "file is above": (segment(file="../x.safetensors"), "x.safetensors: no such file$"),
    "file is absolute": (segment(file="/etc/passwd"), "replay/passwd: no such file$"),
    "file above, same name": (segment(file=f"../{SEGMENT}"), "is not the file that the checkpoint was written with$"),
    "file elsewhere, same name": (segment(file=f"/tmp/{SEGMENT}"), "is not the file that the checkpoint was written"),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_that_lies_is_refused(kind, tmp_path):
    path = make_run(tmp_path / "run") / "checkpoints" / STEP
    arrays, record = read(path)
    spoil, words = RECORDS[kind]
    spoil(record)
    path.write_bytes(signed(arrays, json.dumps(record)))
    sentence = refused(lambda root: Checkpoints(root).load(), path.parent)
    assert re.search(words, sentence), sentence


DIFFER = "its transitions differ in their number of seeds or in their columns$"
UNEQUAL = r"its transitions have unequal shapes \({.*}\)$"
TRANSITIONS = {
    "no axis of transitions": ({"vectors": np.zeros(SEEDS, np.float32), "first": np.zeros(SEEDS, bool)}, UNEQUAL),
    "a column is shorter": (transitions(8) | {"first": np.zeros((SEEDS, 7), bool)}, UNEQUAL),
    "a column has other seeds": (transitions(8) | {"first": np.zeros((3, 8), bool)}, UNEQUAL),
    "name of control codes": (transitions(8) | {"\x1b[2J\n": np.zeros((3, 8), bool)}, UNEQUAL),
    "axes": (transitions(8) | {"vectors": np.zeros((SEEDS, 8), np.float32)}, DIFFER),
    "type": (transitions(8) | {"vectors": np.zeros((SEEDS, 8, WIDTH))}, DIFFER),
    "type of the flag": (transitions(8) | {"first": np.zeros((SEEDS, 8), np.int32)}, DIFFER),
    "seeds": ({"vectors": np.zeros((3, 8, WIDTH), np.float32), "first": np.zeros((3, 8), bool)}, DIFFER),
    "width": (transitions(8) | {"vectors": np.zeros((SEEDS, 8, 4), np.float32)}, DIFFER),
    "a column is missing": ({"vectors": transitions(8)["vectors"]}, DIFFER),
    "a column too many": (transitions(8) | {"more": np.zeros((SEEDS, 8), bool)}, DIFFER),
    "columns of an earlier format": ({"rows": transitions(8)["vectors"]}, DIFFER),
    "nothing": ({}, "is not the file that the checkpoint was written with$"),
}


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_transitions_that_do_not_fit_together_are_refused(kind, tmp_path):
    stored, words = TRANSITIONS[kind]
    root = make_run(tmp_path / "run") / "checkpoints"
    digest = write(root / "replay" / SEGMENT, stored, {"first": 8})
    arrays, record = read(root / STEP)
    record["replay"][1]["sha256"] = digest
    write(root / STEP, arrays, record)
    sentence = refused(lambda path: Checkpoints(path).load(), root)
    assert re.search(words, sentence), sentence


BEST = {
    "axes": (numbers(SEEDS), {"steps": [1, 2]}, "array policies is .*, but float32 with 2 axes is expected$"),
    "no steps": (numbers(SEEDS, 5), {}, "field steps is missing$"),
    "steps of texts": (numbers(SEEDS, 5), {"steps": ["1", "2"]}, "field steps is not one whole number per seed$"),
    "too few steps": (numbers(SEEDS, 5), {"steps": [1]}, "field steps is not one whole number per seed$"),
}


@pytest.mark.parametrize("kind", BEST)
def test_best_policies_that_do_not_fit_are_refused(kind, tmp_path):
    policies, record, words = BEST[kind]
    path = tmp_path / "checkpoints" / "best.safetensors"
    path.parent.mkdir()
    write(path, {"policies": policies}, record)
    assert re.search(words, refused(lambda path: Checkpoints(path.parent).load_best(), path))


def test_a_name_that_is_no_step_is_no_checkpoint(tmp_path):
    """Or it would come last in the order of names, and count as the newest for ever."""
    root = make_run(tmp_path / "run") / "checkpoints"
    (root / "step-zzz.safetensors").write_bytes(b"")
    assert [path.name for path in Checkpoints(root).paths()] == [STEP]


def test_what_a_stop_left_is_checked_like_a_checkpoint(tmp_path):
    root = make_run(tmp_path / "run") / "checkpoints"
    path, (arrays, record) = root / "stopped.safetensors", read(root / STEP)
    path.write_bytes(pickle.dumps(Evil()))
    assert re.search(UNREADABLE, refused(lambda path: Checkpoints(root).load(), path))
    path.write_bytes(signed(arrays, json.dumps(record | {"step": "17"})))
    assert re.search("field step is '17', not of type int$", refused(lambda path: Checkpoints(root).load(), path))
    path.write_bytes(signed(arrays | {"rows.vectors": numbers(SEEDS, 4)}, json.dumps(record | {"step": 17})))
    assert re.search(UNEQUAL, refused(lambda path: Checkpoints(root).load(), path))
    path.write_bytes(signed(arrays | {"rows.first": numbers(SEEDS, 4)}, json.dumps(record | {"step": 17})))
    assert re.search(UNEQUAL, refused(lambda path: Checkpoints(root).load(), path))
    tail = {f"rows.{name}": array for name, array in transitions(4).items()}
    path.write_bytes(signed(arrays | tail | {"rows.more": numbers(SEEDS, 4)}, json.dumps(record | {"step": 17})))
    assert re.search(DIFFER, refused(lambda path: Checkpoints(root).load(), path))
    path.rename(tmp_path / path.name)
    path.symlink_to(tmp_path / path.name)
    assert re.search(OUTSIDE, refused(lambda path: Checkpoints(root).load(), path))


@pytest.mark.parametrize("other", [("lsac", "Pendulum-v1"), ("sac", "Hopper-v5")], ids=["algorithm", "environment"])
def test_a_checkpoint_of_something_else_is_not_continued(other, tmp_path):
    loaded = Checkpoints(make_run(tmp_path / "run") / "checkpoints").load()
    parts = SimpleNamespace(experiment=SimpleNamespace(algorithm=other[0], env=other[1]))
    words = f"belongs to sac on Pendulum-v1, not to {other[0]} on {other[1]}$"
    with AUDIT.silence(), pytest.raises(CheckpointError, match=words):
        Saver.restore(SimpleNamespace(_parts=parts), loaded)


# records of a run that resumes


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The loop of a run that was stopped while an evaluation was under way, and its checkpoint."""
    experiment = Experiment(
        small.config("sac"),
        "Pendulum-v1",
        **{"steps": 96, "seeds": 2, "num_envs": 2, "chunk": 8, "learning_starts": 16, "replay_capacity": 64},
        **{"eval_every": 32, "eval_episodes": 1, "log_every": 16, "workers": 1},
    )
    environments, stop = given(lambda: gym.make("Pendulum-v1")), Stop()
    folder = RunFolder.create(tmp_path_factory.mktemp("stopped") / "run", experiment)
    observer = Observer(lambda progress: stop.request() if progress.step == 48 else None)
    assert not run(experiment, environments, folder=folder, observer=observer, stop=stop).finished
    checkpoint = folder.checkpoints.load()
    assert (checkpoint.record["step"], checkpoint.record["evaluation"]) == (48, {"step": 32})
    # the traceback of an error parses lines of our own source, which the audit would hear
    brief = SimpleNamespace(format_exception=lambda error: [repr(error)])
    with pytest.MonkeyPatch.context() as patch, assembled(experiment, environments, folder, Observer(), Stop()) as loop:
        patch.setattr(wire, "traceback", brief)
        patch.setattr(loop._logger, "cut", lambda lines, step: None)  # opens the files of a run, which can be done once
        yield loop, checkpoint


def restored(loop, checkpoint, **fields):
    try:
        return loop._saver.restore(checkpoint._replace(record=checkpoint.record | fields))
    finally:
        loop._evaluations.finish(never)


GROUPS = {
    "a number": 7,
    "a text": "groups",
    "a table": {"dict": {}},
    "of no known kind": {"kind": "GroupState"},
    "too few groups": [],
    "numbers for groups": [1, 2],
    "messages for groups": [{"type": "Reset", "fields": [0]}] * 2,
    "a type that is not there": [{"type": "Popen", "fields": [["true"]]}] * 2,
    "a type of another module": [{"type": "os.system", "fields": ["true"]}] * 2,
    "fields without number": [{"type": "GroupState", "fields": []}] * 2,
    "numbers for arrays": [{"type": "GroupState", "fields": [1, 2, [], [3, 4]]}] * 2,
    "texts for simulators": [{"type": "GroupState", "fields": [{"array": 0}, {"array": 1}, [], ["x", "y"]]}] * 2,
    "a number for a memory": [{"type": "GroupState", "fields": [{"array": 0}, {"array": 1}, [1], ["x", "y"]]}] * 2,
    "arrays that are not there": [{"type": "GroupState", "fields": [{"array": 99}, {"array": 1}, [], []]}] * 2,
    "deep": functools.reduce(lambda inner, _: [inner], range(900), []),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_simulators_that_lie_are_refused(kind, stopped):
    loop, checkpoint = stopped
    restored(loop, checkpoint)
    with AUDIT.silence(), pytest.raises(CheckpointError) as found:
        restored(loop, checkpoint, simulators=GROUPS[kind])
    assert str(found.value).isprintable()
    assert len(str(found.value)) < 600


def test_every_spoiled_record_of_a_stopped_run_is_refused_or_resumed(stopped):
    (loop, checkpoint), rng, found = stopped, random.Random(0), Counter()
    position, kind = restored(loop, checkpoint)
    assert (position.step, position.simulators_restored, kind) == (48, True, "exact")
    with AUDIT.silence():
        for i in range(120):
            part = {"simulators": checkpoint.record["simulators"]} if i % 2 else checkpoint.record
            spoiled = mutations.spoil(rng, part)
            fields = spoiled if i % 2 else dict.fromkeys(checkpoint.record) | spoiled
            load = functools.partial(restored, loop, checkpoint, **fields)
            found[mutations.outcome(load, (), said=lambda _: True)] += 1
    assert found.keys() <= {"refused", "as written"}, found
    assert found["refused"] > 50
    position, kind = restored(loop, checkpoint)
    assert (position.step, position.simulators_restored, kind) == (48, True, "exact"), "the run is as it was"


def test_a_record_too_large_to_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(datafile, "HEADER_LIMIT", 1000)
    with pytest.raises(CheckpointError, match="too large to be read again"):
        write(tmp_path / "a.safetensors", {}, {"window": [0.1] * 1000})
    assert list(tmp_path.iterdir()) == []


# a saved model

MODELS = {
    "no timesteps": (lambda record: record.pop("timesteps"), "field timesteps is None, not a number of steps$"),
    "timesteps is a text": (change(timesteps="9"), "field timesteps is '9', not a number of steps$"),
    "config is a list": (change(config=[]), "is not the configuration of a run$"),
    "two billion seeds": (
        lambda r: r["config"]["experiment"].update(seeds=2**31 - 1),
        "does not hold arrays for 2147483647",
    ),
    "import": (lambda r: r["config"]["experiment"].update(env="this:Env-v0"), "import this first$"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_whose_record_lies_is_refused(kind, tmp_path, saved):
    arrays, record = read(saved)
    spoil, words = MODELS[kind]
    spoil(record)
    path = tmp_path / "model.safetensors"
    path.write_bytes(signed(arrays, json.dumps(record)))
    assert re.search(words, refused(SAC.load, path))


# config.json


@pytest.fixture(scope="module")
def with_replay(tmp_path_factory):
    path = SAC("Pendulum-v1", **TINY).learn(64).save(tmp_path_factory.mktemp("replay") / "model", replay=True)
    SAC.load(path)
    return path


LYING_RUNS = {
    "no table": (lambda inner: [], "field checkpoint is a list, not of type dict$"),
    "no step": (lambda inner: inner | {"step": None}, "field step is None, not a number of steps$"),
    "a step before the start": (lambda inner: inner | {"step": -8}, "field step is -8, not a number of steps$"),
    "returns": (lambda inner: inner | {"latest": [1.0, 2.0]}, "its returns are not one number per seed$"),
    "text as returns": (lambda inner: inner | {"latest": "best"}, "its returns are not one number per seed$"),
    "another environment": (
        lambda inner: inner | {"env": "Ant-v5"},
        "belongs to sac on Ant-v5, not to sac on Pendulum",
    ),
}


@pytest.mark.parametrize("kind", LYING_RUNS)
def test_a_replay_whose_record_lies_is_refused(kind, tmp_path, with_replay):
    change, words = LYING_RUNS[kind]
    arrays, record = read(with_replay)
    path = tmp_path / "model.safetensors"
    write(
        path, arrays, {k: v for k, v in record.items() if k != "format"} | {"checkpoint": change(record["checkpoint"])}
    )
    assert re.search(words, refused(SAC.load, path))


@pytest.mark.parametrize(
    "change",
    [{"updates": 7}, {"pending": 5}, {"simulators": {"type": "Setup", "fields": []}}, {"window": None}, {"best": {}}],
    ids=str,
)
def test_a_replay_whose_counters_lie_is_not_continued(change, tmp_path, with_replay):
    arrays, record = read(with_replay)
    path = tmp_path / "model.safetensors"
    inner = record["checkpoint"] | change
    write(path, arrays, {k: v for k, v in record.items() if k != "format"} | {"checkpoint": inner})
    with pytest.raises(InputError, match=r"^\S*model.safetensors: its (counters|record)"):
        SAC.load(path).learn(8)


def test_a_run_that_lies_is_not_made_a_model(tmp_path):
    run = tmp_path / "run"
    SAC("Pendulum-v1", **TINY).learn(64, out=run)
    SAC.load(run)
    config, path = json.loads((run / "config.json").read_text()), run / "checkpoints/step-0000000064.safetensors"
    arrays, record = read(path)
    path.write_bytes(signed(arrays, json.dumps(record | {"generated_at": -1})))
    assert re.search("field generated_at is -1, not a number of steps$", refused(SAC.load, run))
    path.write_bytes(signed(arrays, json.dumps(record)))
    config["experiment"]["seeds"] = 2**31 - 1
    (run / "config.json").write_text(json.dumps(config))
    assert re.search(r"array .* is .*, but .*2147483647.* is expected$", refused(SAC.load, run))


def experiment(**fields):
    return lambda data: data["experiment"].update(fields)


def agent(**fields):
    return lambda data: data["experiment"]["agent"].update(fields)


CONFIGS = {
    "format is true": (change(format=True), "format True is not 1"),
    "format is a float": (change(format=1.0), "format 1.0 is not 1"),
    "format is deep": (change(format=json.loads("[" * 300 + "]" * 300)), "format a list is not 1"),
    "algorithm is a list": (change(algorithm=["sac"]), "algorithm a list is not a name$"),
    "huge whole number": (experiment(steps=10**400), "steps: 10{199} is too large$"),
    "huge float": (experiment(gamma=10**400), "gamma: 10{199} is too large$"),
    "huge in a list": (agent(hidden=[10**400]), "hidden: 10{199} is too large$"),
    "deep value": (experiment(steps=json.loads("[" * 300 + "]" * 300)), "steps: a list is not of type int$"),
    "long text": (experiment(steps="x" * 10**5), "steps: 'x{199} is not of type int$"),
    "unknown key of control codes": (experiment(**{"\x1b[2J\n": 1}), "unknown option \ufffd\\[2J\ufffd$"),
    "cannot work": (experiment(chunk=0), "--chunk 0: must be at least 1$"),
    "overflows": (experiment(utd=1e38), "at least 1$"),
    "too large for 32 bits": (experiment(utd=1e308), r"--utd 1e\+308: must lie between -3.4e\+38 and 3.4e\+38$"),
    "activation of control codes": (agent(activation="\x1b[2J"), "--activation \ufffd"),
    "import": (experiment(env="this:Env-v0"), "env: this:Env-v0 names a module.*--module this$"),
    "import of a submodule": (experiment(env="xml.sax.expatreader:Env-v0"), "--module xml.sax.expatreader$"),
    "import with a namespace": (experiment(env="this:space/Env-v0"), "--module this$"),
    "import of nothing": (experiment(env=":Env-v0"), "env: ':Env-v0' is not the id of an environment$"),
    "no id": (experiment(env=""), "env: '' is not the id of an environment$"),
    "id of control codes": (experiment(env="\x1b[2J"), r"env: '\\x1b\[2J' is not the id of an environment$"),
    "id of many lines": (experiment(env="Pendulum-v1\n"), r"is not the id of an environment$"),
    "id of two modules": (experiment(env="json:this:Env-v0"), "env: 'json:this:Env-v0' is not the id of an environ"),
    "wrapper to import": (experiment(wrappers=["this:f"]), "wrappers: this:f names a module.*pass --module this$"),
    "wrapper of a submodule": (experiment(wrappers=["xml.sax.expatreader:f"]), "pass --module xml.sax.expatreader$"),
    "second wrapper": (experiment(wrappers=["gymnasium.wrappers:ClipReward", "this:f"]), "pass --module this$"),
    **{
        f"wrapper {name}": (experiment(wrappers=[name]), f"wrappers: {name} is neither a Gymnasium wrapper nor a func")
        for name in (
            *("os:system", "subprocess:call", "shutil:rmtree", "builtins:exec", "importlib:import_module"),
            *("numpy:fromfile", "jax:jit", "lsac.cli:main", "lsac.envs.ids:find", "gymnasium:make"),
            "test_hostile:Audit",  # a class, but no wrapper
            "test_hostile:AUDIT",
            "test_hostile:nothing",
            "gymnasium.wrappers:JaxToTorch",  # the module would import it now
        )
    },
    "wrapper of another module": (
        experiment(wrappers=["test_hostile:lsac"]),
        "is defined in another module; write com",
    ),
    "wrapper without a module": (experiment(wrappers=["system"]), "--wrappers system: must be module:name, for exam"),
    "wrapper inside another": (experiment(wrappers=["os:path.join"]), "must be module:name, for example"),
    "wrapper that is a number": (experiment(wrappers=[7]), "wrappers: 7 is not of type str$"),
    "wrappers are a text": (experiment(wrappers="os:system"), "wrappers: 'os:system' is not of type"),
    "wrapper of control codes": (experiment(wrappers=["\x1b[2J:f"]), "--wrappers \ufffd.*must be module:name"),
    "argument without a value": (experiment(env_args=["g"]), "--env-args g: must be name=value, each name once"),
    "argument without a name": (experiment(env_args=["=3"]), "--env-args =3: must be name=value, each name once"),
    "argument twice": (experiment(env_args=["g=1", "g=2"]), "--env-args g=1 g=2: must be name=value, each name once"),
    "argument that is a table": (experiment(env_args=[{"g": 1}]), "env_args: a table is not of type str$"),
    "argument of control codes": (experiment(env_args=["\x1b[2J\n"]), "--env-args \ufffd.*must be name=value"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_hostile_configuration_is_refused(kind, tmp_path):
    spoil, words = CONFIGS[kind]
    data = make_config()
    spoil(data)
    run = make_run(tmp_path / "run")
    (run / "config.json").write_text(json.dumps(data))
    assert re.search(words, refused(lambda path: RunFolder.open(path.parent), run / "config.json"))
    assert "this" not in sys.modules


TEXTS = {
    "key twice": (lambda text: text.replace('"steps":', '"steps": 7, "steps":', 1), "'steps' occurs twice"),
    "deep": (lambda text: '{"a": ' * 100_000, "is not readable JSON"),
    "huge number": (lambda text: text.replace('"seed": 0', '"seed": ' + "9" * 10_000), "is not readable JSON"),
    "large": (lambda text: text + " " * 2**20, "is too large for a configuration"),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_configuration_that_is_hostile_text_is_refused(kind, tmp_path):
    spoil, words = TEXTS[kind]
    run = make_run(tmp_path / "run")
    text = (run / "config.json").read_text()
    assert spoil(text) != text
    (run / "config.json").write_text(spoil(text))
    assert re.search(words, refused(lambda path: RunFolder.open(path.parent), run / "config.json"))


def test_an_id_of_a_module_that_is_imported_is_read():
    data = make_config()
    data["experiment"]["env"] = "json:Env-v0"
    assert from_json(data, "here").env == "json:Env-v0"


def wrap_of_this_module(env):
    return env


def test_wrappers_of_gymnasium_and_of_imported_modules_are_read():
    data = make_config()
    data["experiment"]["wrappers"] = ["gymnasium.wrappers:ClipReward", "test_hostile:wrap_of_this_module"]
    data["experiment"]["env_args"] = ["g=9.81", 'path="/etc/passwd"']
    with AUDIT.silence():
        found = from_json(data, "here")
    assert found.wrappers == ("gymnasium.wrappers:ClipReward", "test_hostile:wrap_of_this_module")
    assert found.env_args == ("g=9.81", 'path="/etc/passwd"')


@pytest.mark.parametrize("field", [{"env": "trap_for_imports:Env-v0"}, {"wrappers": ["trap_for_imports:f"]}], ids=str)
@pytest.mark.parametrize("command", ["eval", "resume"])
def test_no_command_imports_what_a_file_names(command, field, tmp_path, monkeypatch):
    (tmp_path / "trap_for_imports.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "run")
    data = make_config()
    data["experiment"].update(field)
    (run / "config.json").write_text(json.dumps(data))
    result = lsac(command, run)
    assert result.code == 2
    assert result.sentence.endswith("--module trap_for_imports")
    assert "trap_for_imports" not in sys.modules


# thousands of them


def test_every_spoiled_file_is_refused_or_loads_as_what_it_says():
    with AUDIT.silence():
        found = mutations.count_outcomes(500, seed=1)
    assert found.keys() == {"refused", "identical", "as written"}
    assert sum(found.values()) == 500
    assert found["refused"] > 300


def test_a_reader_that_trusts_its_files_is_found_out(monkeypatch):
    """Without the digest, spoiled numbers would be loaded; without the types of fields, other errors would come."""
    monkeypatch.setattr(datafile, "_digest", lambda arrays, text: text[:0].ljust(DIGITS, "0"))
    monkeypatch.setattr(datafile, "field", lambda table, name, *_: table[name])
    found = mutations.count_outcomes(200, seed=1)
    assert any(outcome.startswith("wrong: ") for outcome in found)
