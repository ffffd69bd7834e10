"""Checkpoints: what is saved comes back, what is damaged is refused, and nothing that is loaded can be code."""

import ast
import json
import os
import pickle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import safetensors.numpy

import lsac
from lsac.errors import CheckpointError, InputError
from lsac.runs import compressed, datafile
from lsac.runs.checkpoint import Checkpoints, Unsaved, joined
from lsac.runs.datafile import FORMAT, named, read, unnamed, write

WIDTH = 3


class Tree(NamedTuple):
    weight: np.ndarray
    parts: dict


def tree(scale=1.0):
    counts = np.arange(3, dtype=np.int32)
    return Tree(np.arange(6, dtype=np.float32).reshape(2, 3) * np.float32(scale), {"a": counts, "b": np.float32(scale)})


# one file


def test_arrays_and_record_come_back_bit_for_bit(tmp_path):
    arrays = {
        "odd": np.array([np.nan, -0.0, np.inf, 1e-45], np.float32),
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "count": np.array(7, np.int32),
        "none": np.zeros((2, 0), np.float32),
    }
    record = {"step": 3, "text": "α", "list": [1, 2.5, None], "infinite": -np.inf}
    write(tmp_path / "a.safetensors", arrays, record)
    found, back = read(tmp_path / "a.safetensors")
    assert back == {"format": FORMAT, **record}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def test_a_pytree_comes_back(tmp_path):
    digest = write(tmp_path / "a.safetensors", named(tree()), {})
    back = unnamed(read(tmp_path / "a.safetensors")[0], tree(), tmp_path / "a.safetensors")
    assert isinstance(back, Tree)
    np.testing.assert_array_equal(back.weight, tree().weight)
    np.testing.assert_array_equal(back.parts["a"], tree().parts["a"])
    assert back.parts["b"] == 1.0
    assert digest != write(tmp_path / "b.safetensors", named(tree(2.0)), {})


def test_every_byte_counts(tmp_path):
    """One flipped bit, wherever it is, is noticed."""
    path = tmp_path / "a.safetensors"
    write(path, named(tree()), {"step": 3})
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError) as refused:
            read(path)
        assert str(path) in str(refused.value)


def bad_files():
    """Name → (content, what the sentence says)."""
    good = {"weight": np.ones(3, np.float32)}
    foreign = safetensors.numpy.save(good)
    labelled = safetensors.numpy.save(good, {"author": "somebody"})
    header = json.dumps({"weight": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    return {
        "empty": (b"", "is not a readable safetensors file"),
        "noise": (bytes(range(256)) * 4, "is not a readable safetensors file"),
        "foreign": (foreign, "was not written by lsac"),
        "labelled": (labelled, "was not written by lsac"),
        "pickle": (pickle.dumps({"weight": [1, 2, 3]}), "is not a readable safetensors file"),
        "evil pickle": (pickle.dumps(Evil()), "is not a readable safetensors file"),
        "bfloat16": (len(header).to_bytes(8, "little") + header + bytes(4), ""),
    }


class Evil:
    """What a pickle can do to whoever loads it."""

    def __reduce__(self):
        return os.mkdir, ("the-pickle-was-executed",)


@pytest.mark.parametrize("kind", bad_files())
def test_a_file_that_is_no_checkpoint_is_refused_by_name(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, words = bad_files()[kind]
    path = tmp_path / "step-0000000008.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert words in str(refused.value)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("left", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(left, tmp_path):
    path = tmp_path / "a.safetensors"
    write(path, {"rows": np.ones((50, 50), np.float32)}, {})
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * left)])
    with pytest.raises(CheckpointError, match=rf"^{path}: is not a readable safetensors file"):
        read(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=rf"^{tmp_path}/a.safetensors: no such file$"):
        read(tmp_path / "a.safetensors")


def test_damage_that_keeps_the_file_readable_is_told_from_damage_that_does_not(tmp_path):
    path = tmp_path / "a.safetensors"
    write(path, {"weight": np.zeros(1000, np.float32)}, {})
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"^{path}: is damaged \(its SHA-256 does not match\)$"):
        read(path)


def test_a_changed_record_is_damage_too(tmp_path):
    path = tmp_path / "a.safetensors"
    write(path, {"weight": np.zeros(3, np.float32)}, {"step": 100})
    path.write_bytes(path.read_bytes().replace(b"100", b"900"))
    with pytest.raises(CheckpointError, match="is damaged"):
        read(path)


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    monkeypatch.setattr(datafile, "FORMAT", FORMAT + 1)
    write(path, {"weight": np.zeros(3, np.float32)}, {})
    monkeypatch.undo()
    with pytest.raises(
        CheckpointError, match=rf"^{path}: has format {FORMAT + 1}; this version reads format {FORMAT}$"
    ):
        read(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda arrays: arrays.pop(".weight"), "array .weight is missing"),
        (lambda arrays: arrays.update(more=np.zeros(2)), "array more does not belong here"),
        (
            lambda arrays: arrays.update({".weight": np.zeros((2, 4), np.float32)}),
            "array .weight is float32[2, 4], but float32[2, 3] is expected",
        ),
        (
            lambda arrays: arrays.update({".weight": np.zeros((2, 3), np.float64)}),
            "array .weight is float64[2, 3], but float32[2, 3] is expected",
        ),
    ],
    ids=["missing", "extra", "shape", "type"],
)
def test_arrays_that_do_not_fit_are_named(change, sentence):
    arrays = named(tree())
    change(arrays)
    with pytest.raises(CheckpointError) as refused:
        unnamed(arrays, tree(), Path("x.safetensors"))
    assert str(refused.value) == f"x.safetensors: {sentence}"


def test_a_refused_file_is_bad_input():
    """So that the command line exits with 2 and shows no traceback."""
    assert issubclass(CheckpointError, InputError)
    assert CheckpointError.exit_code == 2


# a write that fails


class FullDisk:
    """A file that takes half of what is written to it."""

    def __init__(self, file):
        self._file = file

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def write(self, data):
        self._file.write(data[: len(data) // 2])
        no_space()


def no_space(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("when", ["write", "fsync", "rename"])
def test_a_write_that_fails_leaves_the_old_file(when, tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    write(path, named(tree()), {"step": 1})
    opened = Path.open
    where, name, broken = {
        "write": (Path, "open", lambda self, *args: FullDisk(opened(self, *args))),
        "fsync": (os, "fsync", no_space),
        "rename": (Path, "replace", no_space),
    }[when]
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(OSError, match="No space left"):
        write(path, named(tree(2.0)), {"step": 2})
    monkeypatch.undo()
    arrays, record = read(path)
    assert record["step"] == 1
    np.testing.assert_array_equal(arrays[".weight"], tree().weight)


# the checkpoints of a run


class FakeRun:
    """Collects transitions that are all different, and saves them the way a training loop does."""

    def __init__(self, root, capacity=1000, chunk=10):
        self.checkpoints = Checkpoints(root)
        self.chunk, self.stored = chunk, columns(np.zeros((2, 0, WIDTH), np.float32))
        self.unsaved = Unsaved(capacity + chunk, 30)

    @property
    def total(self):
        return self.stored["vectors"].shape[1]

    def collect(self, count):
        number = np.arange(self.total, self.total + count, dtype=np.float32)
        new = np.stack([np.stack([number, number + 0.5, -number], axis=-1) + seed * 10_000 for seed in range(2)])
        new = columns(new.astype(np.float32))
        self.stored = {name: np.concatenate([old, new[name]], axis=1) for name, old in self.stored.items()}
        self.unsaved.add(new)

    def save(self, stopped=False):
        """The last chunk is collected but not yet learned from, so the step is one chunk behind."""
        state = {"weight": np.full(3, self.total, np.float32)}
        self.checkpoints.save(self.total - self.chunk, state, {}, self.unsaved, self.total, stopped)

    def train(self, saves, chunks=3):
        for _ in range(saves):
            self.collect(chunks * self.chunk)
            self.save()


def test_parts_are_joined_without_their_memory_and_without_a_change_to_what_was_given():
    parts = [columns(np.full((2, n, WIDTH), n, np.float32)) for n in (3, 1, 2)]
    expected = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    unsaved = Unsaved(100, 0)
    for part in parts:
        unsaved.add(part)
    stored, start = unsaved.until(6)
    assert start == 0
    assert_stored(stored, expected)
    assert_stored(unsaved.until(6)[0], expected)  # also a second time, after a save that failed
    assert_stored(joined(parts), expected)
    assert_stored(joined(parts, empty=True), expected)
    assert parts == [{}, {}, {}]


def test_agents_are_loaded_without_frames(tmp_path, monkeypatch):
    frames = np.random.default_rng(0).integers(0, 256, (2, 20, 64, 64, 1)).astype(np.uint8)
    checkpoints, unsaved = Checkpoints(tmp_path), Unsaved(100, 0)
    unsaved.add(columns(np.zeros((2, 20, WIDTH), np.float32)) | {"frame": frames})
    checkpoints.save(20, {"weight": np.ones(3, np.float32)}, {}, unsaved, 20)
    np.testing.assert_array_equal(checkpoints.load().stored["frame"], frames)
    monkeypatch.setattr(compressed, "restore", None)
    found = checkpoints.load_agents()
    assert (found.state.keys(), found.tail, found.stored) == ({"weight"}, {}, {})


def columns(vectors):
    """Stored transitions with these packed columns, every seventh of which begins an episode."""
    return {"vectors": vectors, "first": vectors[..., 0] % 7 == 0}


def assert_stored(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)


def segments(root):
    """Numbers of the transitions in every file of transitions, by file."""
    return {path.name: read(path)[0]["vectors"][0, :, 0].tolist() for path in sorted((root / "replay").iterdir())}


def test_each_transition_is_written_once(tmp_path):
    """Into a file of thirty as soon as there are thirty; what is left over stays with the checkpoint until then."""
    run = FakeRun(tmp_path)
    for count, files, left in ((30, 1, 0), (50, 2, 20), (10, 3, 0), (20, 3, 20), (40, 5, 0)):
        before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("replay/*")}
        run.collect(count)
        run.save()
        assert len(segments(tmp_path)) == files
        shapes = {name: array.shape for name, array in run.checkpoints.load().tail.items()}
        assert shapes == {"vectors": (2, left, WIDTH), "first": (2, left)}
        assert all(path.stat().st_mtime_ns == time for path, time in before.items()), "no file is written again"
        assert_stored(run.checkpoints.load().stored, run.stored)
    on_disk = [number for numbers in segments(tmp_path).values() for number in numbers]
    assert sorted(on_disk) == list(range(150))
    sizes = [path.stat().st_size for path in (tmp_path / "replay").iterdir()]
    held = sum(array.nbytes for array in run.stored.values())
    assert held < sum(sizes) < held + 600 * len(sizes)


def test_the_newest_checkpoint_is_loaded_with_all_its_transitions(tmp_path):
    run = FakeRun(tmp_path)
    run.train(4)
    loaded = run.checkpoints.load()
    assert loaded.path == tmp_path / "step-0000000110.safetensors"
    assert loaded.record["step"] == 110
    assert_stored(loaded.stored, run.stored)
    np.testing.assert_array_equal(loaded.state["weight"], np.full(3, 120, np.float32))


def test_a_stop_leaves_no_trace_once_the_run_is_saved_again(tmp_path):
    """Stopped in the middle of a segment and continued, a run has the files of one that was never stopped."""
    runs = [FakeRun(tmp_path / name) for name in ("stopped", "left alone")]
    for run in runs:
        run.train(2)
    runs[0].collect(20)
    runs[0].save(stopped=True)
    loaded = runs[0].checkpoints.load()
    assert loaded.path.name == "stopped.safetensors"
    assert len(runs[0].checkpoints.paths()) == 2, "a stop costs no older checkpoint"
    assert_stored(loaded.stored, runs[0].stored)
    runs[1].collect(20)
    for run in runs:
        run.collect(40)
        run.save()
    files = [
        {p.relative_to(run.checkpoints.root): p.read_bytes() for p in run.checkpoints.root.rglob("*.safetensors")}
        for run in runs
    ]
    assert files[0] == files[1]
    assert not runs[0].checkpoints.stopped.exists()


def test_what_a_stop_left_does_not_count_once_the_run_went_on(tmp_path):
    """As if the run was killed after it wrote the next checkpoint and before it removed the stopped one."""
    run = FakeRun(tmp_path)
    run.train(1)
    run.save(stopped=True)
    left = run.checkpoints.stopped.read_bytes()
    run.train(1)
    run.checkpoints.stopped.write_bytes(left)
    assert run.checkpoints.load().record["step"] == 50


def test_saving_twice_at_the_same_step_changes_nothing(tmp_path):
    run = FakeRun(tmp_path)
    run.train(3)
    before = segments(tmp_path)
    run.save()
    assert segments(tmp_path) == before
    assert_stored(run.checkpoints.load().stored, run.stored)


@pytest.mark.parametrize("capacity", [20, 45, 60, 1000])
def test_two_checkpoints_stay_with_exactly_the_rows_they_need(capacity, tmp_path):
    """With a small capacity the ring wraps, and the oldest files go as soon as neither checkpoint needs a row."""
    run = FakeRun(tmp_path, capacity)
    for saves in range(1, 8):
        run.train(1)
        paths = run.checkpoints.paths()
        total = run.total
        assert [int(path.stem[5:]) for path in paths] == [total - 40, total - 10][-min(saves, 2) :]
        needed = set()
        for path in paths:
            names = [segment["file"] for segment in read(path)[1]["replay"]]
            rows = [number for name in names for number in segments(tmp_path)[name]]
            stop = int(path.stem[5:]) + run.chunk
            oldest = max(0, stop - run.chunk - capacity)
            assert rows == list(range(int(rows[0]), stop)), "no gap and no row twice"
            assert rows[0] <= oldest, "every row of the ring, and the chunk that waits, is there"
            assert rows[0] > oldest - 30, "and no file that the ring has left behind"
            needed |= set(names)
        assert segments(tmp_path).keys() == needed
    found = run.checkpoints.load().stored
    newest = slice(-found["vectors"].shape[1], None)
    assert_stored(found, {name: array[:, newest] for name, array in run.stored.items()})


def test_the_previous_checkpoint_can_still_be_loaded(tmp_path):
    run = FakeRun(tmp_path, capacity=20)
    run.train(5)
    run.checkpoints.paths()[-1].unlink()
    loaded = run.checkpoints.load()
    assert loaded.record["step"] == 110
    newest = {name: array[:, -30:] for name, array in loaded.stored.items()}
    assert_stored(newest, {name: array[:, 90:120] for name, array in run.stored.items()})


@pytest.mark.parametrize("lost", [True, False], ids=["the newest is lost", "the newest is there"])
def test_a_run_continued_from_an_older_checkpoint_does_not_mix_transitions(lost, tmp_path):
    run = FakeRun(tmp_path)
    run.train(3)
    if lost:
        run.checkpoints.paths()[-1].unlink()
    again = FakeRun(tmp_path)
    again.stored = {name: array[:, :60].copy() for name, array in run.stored.items()}
    again.train(1, chunks=5)
    assert_stored(again.checkpoints.load().stored, again.stored)


def test_an_empty_folder_of_transitions_is_not_needed(tmp_path):
    """Git, for one, does not keep it."""
    run = FakeRun(tmp_path)
    run.train(1, chunks=2)
    run.checkpoints.replay.rmdir()
    run.checkpoints.tidy()
    assert_stored(run.checkpoints.load().stored, run.stored)


def test_what_a_crash_left_half_written_is_removed(tmp_path):
    run = FakeRun(tmp_path)
    run.train(1)
    (tmp_path / ".step-0000000050.safetensors.tmp").write_bytes(b"half")
    (tmp_path / "replay" / ".rows-0000000030-0000000060.safetensors.tmp").write_bytes(b"half")
    run.train(1)
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("when", ["rows", "state"])
def test_a_save_that_fails_leaves_the_previous_checkpoint_loadable(when, tmp_path, monkeypatch):
    run = FakeRun(tmp_path)
    run.train(2)
    expected = {name: array.copy() for name, array in run.stored.items()}
    real, calls = os.fsync, []

    def fail(number):
        calls.append(number)
        if len(calls) > (0 if when == "rows" else 2):  # a file is flushed, then its folder
            no_space()
        real(number)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        run.train(1)
    monkeypatch.undo()
    loaded = run.checkpoints.load()
    assert loaded.record["step"] == 50
    assert_stored(loaded.stored, expected)
    run.save()  # and the run can go on once there is room again
    assert_stored(run.checkpoints.load().stored, run.stored)


def test_no_checkpoint_is_said(tmp_path):
    with pytest.raises(CheckpointError, match=rf"^{tmp_path}: holds no checkpoint$"):
        Checkpoints(tmp_path).load()


def test_a_missing_file_of_transitions_is_named(tmp_path):
    run = FakeRun(tmp_path)
    run.train(2)
    path = tmp_path / "replay" / "rows-0000000000-0000000030.safetensors"
    path.unlink()
    with pytest.raises(CheckpointError, match=rf"^{path}: no such file$"):
        run.checkpoints.load()


def test_transitions_of_another_run_are_refused(tmp_path):
    run, other = FakeRun(tmp_path / "a"), FakeRun(tmp_path / "b")
    run.train(1)
    other.collect(30)
    other.unsaved.reset(columns(other.stored["vectors"] + 1))
    other.save()
    name = "replay/rows-0000000000-0000000030.safetensors"
    (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    with pytest.raises(CheckpointError, match=r"is not the file that the checkpoint was written with$"):
        run.checkpoints.load()


def test_a_checkpoint_cannot_name_files_outside_its_folder(tmp_path):
    """A record that points elsewhere is read as a name in the run's own folder."""
    run = FakeRun(tmp_path / "run")
    run.train(1)
    outside = tmp_path / "secret.safetensors"
    digest = write(outside, run.stored, {"first": 0})
    state, record = read(run.checkpoints.paths()[0])
    record["replay"] = [{"file": "../../secret.safetensors", "stop": 30, "sha256": digest}]
    write(run.checkpoints.paths()[0], state, record)
    inside = tmp_path / "run" / "replay" / "secret.safetensors"
    with pytest.raises(CheckpointError, match=rf"^{inside}: no such file$"):
        run.checkpoints.load()


def test_a_checkpoint_of_an_earlier_format_gives_its_agents_but_is_not_continued(tmp_path, monkeypatch):
    run = FakeRun(tmp_path)
    monkeypatch.setattr(datafile, "FORMAT", 3)
    run.train(1)
    run.checkpoints.save_best(np.ones((2, 5), np.float32), {"steps": [3, 4]})
    monkeypatch.undo()
    assert run.checkpoints.load_agents().state["weight"].tolist() == [30.0] * 3
    assert run.checkpoints.load_best()[1]["steps"] == [3, 4]
    path = tmp_path / "step-0000000020.safetensors"
    words = r"was written by an earlier version of lsac \(format 3, now 4\): it can be evaluated and reported, but not "
    with pytest.raises(CheckpointError, match=rf"^{path}: {words}resumed$"):
        run.checkpoints.load()


def test_best_policies_come_back(tmp_path):
    kept = Checkpoints(tmp_path)
    assert kept.load_best() is None
    policies = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    kept.save_best(policies, {"steps": [3, 4]})
    found, record = kept.load_best()
    np.testing.assert_array_equal(found, policies)
    assert record["steps"] == [3, 4]
    write(tmp_path / "best.safetensors", {"other": policies}, {})
    with pytest.raises(CheckpointError, match=r"best\.safetensors: holds no policies$"):
        kept.load_best()


# nothing in the package can execute what it loads

SOURCES = sorted(Path(lsac.__file__).parent.rglob("*.py"))
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def executes(source):
    """The names in a source through which data could become code."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            found.add(node.module)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            found.add(node.func.id)
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.add("allow_pickle")
        elif isinstance(node, ast.Constant) and node.value in FORBIDDEN_MODULES:
            found.add(node.value)
    return found


def test_the_scan_sees_what_it_looks_for():
    assert executes("import pickle") == {"pickle"}
    assert executes("def f():\n    from cloudpickle import loads") == {"cloudpickle"}
    assert executes("importlib.import_module('marshal')") == {"marshal"}
    assert executes("x = eval('1')") == {"eval"}
    assert executes("np.load(f, allow_pickle=True)") == {"allow_pickle"}
    assert executes("jax.jit(f).lower(x).compile()") == set()


@pytest.mark.parametrize("path", SOURCES, ids=[str(p.relative_to(Path(lsac.__file__).parent)) for p in SOURCES])
def test_no_source_executes_data(path):
    assert executes(path.read_text()) == set()
