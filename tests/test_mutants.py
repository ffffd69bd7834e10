"""benchmarks/mutants.py finds the errors that can be made in a file, and tells those that tests notice from others."""

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import mutants
import pytest
from mutant_kinds import fields_of, mutants_of

# Which errors are made


def changes(folder: Path, source: str) -> set[str]:
    """All mutants of some source, as `kind: before → after`."""
    path = folder / "source.py"
    path.write_text(source)
    found = mutants_of(path, "source.py", fields_of([path]))
    for mutant in found:
        compile(mutant.source(path.read_bytes()), "mutant", "exec")
    assert len({mutant.name for mutant in found}) == len(found), "two mutants have the same name"
    return {str(mutant).partition(" ")[2].replace(" #2", "") for mutant in found}


FUNCTION = "def f(a, b, x, y, config, state, key):\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return a + b", {"operator: a + b → a - b"}),
        ("return (a - b) * x", {"operator: (a - b) * x → (a - b) / x", "operator: a - b → a + b"}),
        ("return -a", {"sign dropped: -a → a"}),
        ("return a < b", {"comparison: a < b → a >= b"}),
        ("return a == b", {"comparison: a == b → a != b"}),
        ("return jnp.minimum(a, b)", {"function: jnp.minimum → jnp.maximum"}),
        ("return jnp.argmin(a)", {"function: jnp.argmin → jnp.argmax"}),
        ("return max(a, b)", {"function: max → min"}),
        ("return jnp.mean(a)", {"function: jnp.mean → jnp.sum"}),
        ("return jnp.std(a)", {"function: jnp.std → jnp.var"}),
        ("return jax.lax.stop_gradient(a)", {"call dropped: jax.lax.stop_gradient(a) → a"}),
        ("return a[0]", {"constant: 0 → 1"}),
        ("return a[1]", {"constant: 1 → 0"}),
        ("return f(a, 3.0)", {"constant: 3.0 → 6.0"}),
        ("return f(a, 0.9)", {"constant: 0.9 → 0.45"}),
        ("return f(a, True)", {"constant: True → False"}),
        ("return np.uint32(0xD35A2D97)", {"constant: 3545902487 → 3545902485"}),
        ("return polyak(a, b, x)", {"arguments exchanged: polyak(a, b, x) → polyak(b, a, x)"}),
        ("return jnp.where(a, b, x)", {"arguments exchanged: jnp.where(a, b, x) → jnp.where(a, x, b)"}),
        ("return x._replace(a=b)", {"field left: _replace(a=…) → a left as it was"}),
        ("x = g(x)", {"statement dropped: x = g(x) → pass"}),
        ("x += a", {"operator: x += a → x -= a", "statement dropped: x += a → pass"}),
        ("x, y = jax.random.split(key)", {"key reused: y of its own → y = x"}),
        ("return a if config.b else x", {"if True: if config.b → if True", "if False: if config.b → if False"}),
        (
            "if not config.b:\n        return a",
            {"if True: if not config.b → if True", "if False: if not config.b → if False"}
            | {"not dropped: not config.b → config.b"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # a set has another order in every process
)
def test_an_error_of_every_kind(line, expected, tmp_path):
    assert changes(tmp_path, f"{FUNCTION}    {line}\n") == expected


def test_names_are_confused_where_both_are_at_hand(tmp_path):
    one = "def f(y_q, y_z):\n    return g(y_q)\n"
    assert changes(tmp_path, one) == {"name: y_q → y_z"}
    assert changes(tmp_path, "def f(y_q):\n    return g(y_q)\n") == set()
    late = "def f(y_q):\n    a = g(y_q)\n    y_z = h()\n    return a, y_z\n"
    assert changes(tmp_path, late) == {"name: y_z → y_q"}, "before it is assigned, a name is no choice"
    both = "def f(y_q, y_z):\n    return g(y_q, y_z)\n"
    assert "arguments exchanged: g(y_q, y_z) → g(y_z, y_q)" in changes(tmp_path, both)
    unpacked = "def f(a):\n    y_q, y_z = g(a)\n"
    assert changes(tmp_path, unpacked) == {"targets exchanged: (y_q, y_z) → (y_z, y_q)"}


def test_fields_are_confused_where_a_class_has_both(tmp_path):
    use = "def f(state):\n    return state.target_actor\n"
    assert changes(tmp_path, use) == set()
    fields = "class State(NamedTuple):\n    actor: int\n    target_actor: int\n"
    assert changes(tmp_path, fields + use) == {"attribute: state.target_actor → state.actor"}


def test_words_annotations_errors_and_checks_are_left_alone(tmp_path):
    source = '''"""Adds 1 + 1."""
import a.b
Rate: TypeAlias = float | 1
class A:
    x: Annotated[int, Between(1, 1_000)]
    """at least 1"""
    def check(self):
        if self.x > 3:
            raise ValueError(f"{self.x + 1}")
def f(x: Literal[1]) -> Literal[1]:
    """Not 2."""
    assert x > 1, "1"
    raise ValueError(x + 1)
'''
    assert changes(tmp_path, source) == set()
    assert changes(tmp_path, "class A:\n    x: Literal[1] = 4\n") == {"constant: 4 → 8"}, "a default is a number"


def test_a_mutant_changes_one_place_also_behind_greek_letters(tmp_path):
    path = tmp_path / "source.py"
    path.write_text('def f(ω, a):\n    return "ω" + (ω - a)  # ω − a\n')
    (_, second) = mutants_of(path, "source.py", [])
    assert second.source(path.read_bytes()).decode() == 'def f(ω, a):\n    return "ω" + ((ω + a))  # ω − a\n'


# Processes

PROCESSES = """
import os, pathlib, sys, time
import mutants

root, note = map(pathlib.Path, sys.argv[1:])

def late(folder):
    note.write_text(str(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60")))
    time.sleep(60)

works = [(lambda folder: folder.name, 60), (late, 0.5), (lambda folder: 1 // 0, 60), (lambda folder: os.abort(), 60)]
found = dict(mutants.run_all(works, 2, root))
for number in range(4):
    print(found[number].result, found[number].problem[:12], found[number].problem[-20:].strip())
left = pathlib.Path("/proc", note.read_text(), "stat")
print(left.read_text().split()[2] if left.exists() else "gone")
"""


def test_a_process_that_is_late_or_breaks_down_has_no_result(tmp_path):
    root, note = tmp_path / "root", tmp_path / "note"
    root.mkdir()
    program = [sys.executable, "-c", PROCESSES, root, note]
    environment = os.environ | {"PYTHONPATH": str(Path(mutants.__file__).parent)}
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=50)
    good, late, raised, aborted, left = ended.stdout.splitlines()
    assert good.split() == ["process"]
    assert late.split() == ["None", "timeout", "timeout"]
    assert raised.startswith("None status 256:")
    assert raised.endswith("by zero")
    assert aborted.startswith("None status ")
    assert left in ("gone", "Z"), "what a process has started is stopped with it"
    assert not any(root.iterdir()), "folders are removed"


def test_a_run_that_is_killed_leaves_no_process_behind(tmp_path):
    code = "import mutants, os, pathlib, sys, time; root, note = map(pathlib.Path, sys.argv[1:])\n"
    code += "late = lambda folder: (note.write_text(str(os.getpid())), time.sleep(60))\n"
    code += "list(mutants.run_all([(late, 60)], 1, root))"
    environment = os.environ | {"PYTHONPATH": str(Path(mutants.__file__).parent)}
    note = tmp_path / "note"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path, note], env=environment) as parent:
        while not note.is_file() or not note.read_text():
            assert parent.poll() is None
            time.sleep(0.02)
        parent.kill()
    child, until = Path("/proc", note.read_text(), "stat"), time.monotonic() + 20
    while child.exists() and child.read_text().split()[2] != "Z":
        assert time.monotonic() < until, "it goes on"
        time.sleep(0.02)


def test_a_mutant_whose_tests_do_not_end_counts_as_noticed(tmp_path):
    path = tmp_path / "source.py"
    path.write_text("def f(a):\n    return -a\n")
    (mutant,) = mutants_of(path, "source.py", [])
    late = mutants.outcome_of_tests(mutant, mutants.Ended(None, "timeout", 9.0))
    broken = mutants.outcome_of_tests(mutant, mutants.Ended(None, "status 6: aborted", 1.0))
    failed = mutants.outcome_of_tests(mutant, mutants.Ended({"survived": False, "by": "t", "how": "a"}, "", 1.0))
    passed = mutants.outcome_of_tests(mutant, mutants.Ended({"survived": True, "by": "", "how": ""}, "", 1.0))
    assert [x.outcome for x in (late, broken, failed, passed)] == ["timeout", "error", "killed", "survived"]
    assert mutants.score([late, broken, failed, passed]) == (2, 4), "of a process that broke down nothing is known"
    same = mutants.outcome_of_numbers(mutant, mutants.Ended({"where": "", "by": 0.0, "golden": 0.0}, "", 1.0))
    assert mutants.score([late, same]) == (1, 1), "one that changes no number does not count"
    rounding = mutants.outcome_of_numbers(mutant, mutants.Ended({"where": "x", "by": 1e-7, "golden": 1e-7}, "", 1.0))
    assert (rounding.outcome, rounding.how, rounding.golden) == ("survived", "x: 1e-07", "no")
    unknown = mutants.outcome_of_numbers(mutant, mutants.Ended(None, "timeout", 1.0))
    assert (unknown.outcome, unknown.golden) == ("survived", "yes")


# What becomes of them

MODULE = """
def twice(x):
    return x * 2.0

def half(x):
    return x / 2.0

def same(x):
    return x * 1
"""
TESTS = """
import tiny

def test_twice():
    assert tiny.twice(3.0) == 6.0

def test_same():
    assert tiny.same(3) == 3
"""
NUMBERS = """
import tiny

def programs(algorithms):
    for function in (tiny.twice, tiny.half, tiny.same):
        yield function.__name__, lambda: function(5.0)
"""


def command(folder: Path, tests: str) -> subprocess.CompletedProcess:
    for name, text in (("tiny.py", MODULE), ("test_tiny.py", tests), ("tiny_numbers.py", NUMBERS)):
        (folder / name).write_text(text)
    words = [sys.executable, mutants.__file__, "--only", folder / "tiny.py", "--tests", folder / "test_tiny.py"]
    words += ["--numbers", "tiny_numbers", "--out", folder / "out", "--cache", folder / "cache"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return subprocess.run(words, env=environment, capture_output=True, text=True)


def test_killed_survived_and_equivalent_mutants_are_told_apart(tmp_path):
    ended = command(tmp_path, TESTS)
    assert ended.returncode == 0, ended.stderr
    with (tmp_path / "out" / "mutants.csv").open() as file:
        found = list(csv.DictReader(file))
    rows = {f"{row['mutant'].split(':')[1]} {row['before']} → {row['after']}": row for row in found}
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "3 x * 2.0 → x / 2.0": "killed",
        "3 2.0 → 4.0": "killed",
        "6 x / 2.0 → x * 2.0": "survived",
        "6 2.0 → 4.0": "survived",
        "9 x * 1 → x / 1": "no number changed",
        "9 1 → 0": "killed",
    }
    assert rows["3 x * 2.0 → x / 2.0"]["by"] == "test_tiny.py::test_twice"
    assert rows["6 x / 2.0 → x * 2.0"]["how"] == "half: 8e-01"
    assert "Noticed: 3 of 5 that change a number, 60.0%." in ended.stdout
    assert (tmp_path / "out" / "summary.md").read_text() in ended.stdout


def test_a_table_is_complete_at_any_time_and_is_taken_up_again(tmp_path):
    path = tmp_path / "source.py"
    path.write_text("def f(a, b):\n    return -a + b\n")
    found = mutants_of(path, "source.py", [])
    csv_file = tmp_path / "out" / "mutants.csv"
    table = mutants.Table(csv_file, found, resume=True)
    table.keep(mutants.Outcome(found[0], "killed", "test_a.py::test", "assert 1, 2", "", 1.5))
    table.keep(mutants.Outcome(found[1], "survived", seconds=2.0))
    again = mutants.Table(csv_file, found, resume=True)
    assert again.outcomes == table.outcomes
    assert [again.survived(mutant) for mutant in found] == [False, True], "the second one is still to be compared"
    again.keep(mutants.Outcome(found[1], "survived", "", "x: 1e-02", "no", 2.0))
    assert not mutants.Table(csv_file, found, resume=True).survived(found[1])
    assert not mutants.Table(csv_file, found, resume=False).outcomes
    other = [found[0]._replace(after="something else")]
    assert not mutants.Table(csv_file, other, resume=True).outcomes, "the source has changed since"


def test_a_run_whose_tests_fail_without_a_mutant_ends_at_once(tmp_path):
    ended = command(tmp_path, TESTS.replace("6.0", "7.0"))
    assert ended.returncode == 1
    assert "tests fail without any mutant" in ended.stderr
    assert "test_twice" in ended.stderr


@pytest.mark.slow
def test_tests_that_do_not_import_the_module_say_nothing_of_it(tmp_path):
    ended = command(tmp_path, "def test_nothing():\n    pass\n")
    assert ended.returncode == 1
    assert "the module was not loaded" in ended.stderr
