"""The curves of cost: what an update needs at least is counted rightly, and a curve that ends ends no other."""

import csv
import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from commands import lsac

from lsac.agents import AGENTS
from lsac.cli import scaling
from lsac.cli.bench import products_of
from lsac.presets import preset
from lsac.train import device_memory
from lsac.types import EnvSpec

SPEC = EnvSpec(obs_shape=(3,), action_dim=1, gamma=0.99)
SMALL = ("--preset", "quickstart", "--env", "Pendulum-v1", "--rounds", 1, "--updates", 1)


def case(algorithm: str) -> scaling.Case:
    experiment = preset(algorithm, "quickstart", "Pendulum-v1")
    side = experiment.pixels
    spec = dataclasses.replace(SPEC, obs_shape=(0,), frame=(side, side, 3)) if side else SPEC
    return scaling.Case(experiment, spec, 1, 64)


def convolved(strides, dilation, images, kernel):
    axes = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(images, kernel, strides, [(0, 0)] * 2, dilation, dimension_numbers=axes)


@pytest.mark.parametrize(
    ("left", "right", "program", "count"),
    [
        ((3, 2), (2, 5), lambda a, b: a @ b, 2 * 3 * 2 * 5),
        ((2, 3), (2, 5), lambda a, b: a.T @ b, 2 * 3 * 2 * 5),
        ((4, 3, 2), (4, 2, 5), lambda a, b: a @ b, 4 * 2 * 3 * 2 * 5),
        ((4, 3, 2), (2, 5), lambda a, b: jnp.einsum("sbi,io->sbo", a, b), 4 * 2 * 3 * 2 * 5),
        ((7,), (7,), jnp.dot, 2 * 7),
        ((1, 6, 6, 2), (3, 3, 2, 5), partial(convolved, (1, 1), (1, 1)), 2 * (4 * 4 * 5) * (3 * 3 * 2)),
        ((4, 7, 7, 2), (3, 3, 2, 5), partial(convolved, (2, 2), (1, 1)), 4 * 2 * (3 * 3 * 5) * (3 * 3 * 2)),
        ((1, 4, 4, 2), (3, 3, 2, 5), partial(convolved, (1, 1), (2, 2)), 2 * (5 * 5 * 5) * (3 * 3 * 2) // 4),
    ],
)
def test_the_operations_of_a_product_are_two_per_pair_of_numbers(left, right, program, count):
    (product,) = products_of(jax.make_jaxpr(program)(jnp.ones(left), jnp.ones(right)).jaxpr)
    assert product.flops == count


def test_what_an_update_changes_is_read_and_written_once():
    def update(state, batch):
        weights, buffer, frozen, steps = state
        return (weights + batch, buffer.at[0].set(1.0), frozen, steps + 1), jnp.sum(batch)

    state = (jnp.ones((3, 5)), jnp.ones(100), jnp.ones(7), jnp.zeros((), jnp.int32))
    jaxpr = jax.make_jaxpr(update)(state, jnp.ones((3, 5))).jaxpr
    assert scaling.moved_bytes(jaxpr, [False, True, False, False]) == 2 * 4 * (3 * 5 + 1)
    assert scaling.moved_bytes(jaxpr, [False] * 4) == 2 * 4 * (3 * 5 + 1 + 100)


def test_buffers_are_told_from_weights():
    """Those of LSAC are D' with 10,000 transitions of 9 numbers and the displacements of their actions."""
    found = case("lsac")
    shapes = [x.shape for x, is_buffer in zip(scaling._state(found), scaling.buffers(found), strict=True) if is_buffer]
    assert shapes == [(10_000, 9), (10_000, 1)]
    assert not any(scaling.buffers(case("sac")))


def test_the_floor_is_the_longer_of_products_and_memory(monkeypatch):
    """SAC with one layer of 4: 26 weights in the actor and 2 × 25 in the critics, moments and targets beside them."""
    start = case("sac")
    agent = dataclasses.replace(start.experiment.agent, hidden=(4,), batch_size=8)
    start = start._replace(experiment=dataclasses.replace(start.experiment, agent=agent), seeds=2)
    numbers = (3 * 4 + 4) + (4 * 2 + 2), 2 * ((4 * 4 + 4) + (4 * 1 + 1))
    mib = 2 * 2 * 4 * (3 * numbers[0] + 4 * numbers[1] + 3 + 3) / 2**20  # log α with its moments, three counts of Adam
    monkeypatch.setattr(scaling, "product_rate", {"float32": 1e9}.__getitem__)
    monkeypatch.setattr(scaling, "memory_rate", lambda: 1e12)
    point = scaling.measured(start, "seeds", 2, 1, 2)
    assert point[:3] == ("seeds", 2, 2)
    assert point.mib == pytest.approx(mib)
    assert (point.floor_ms, point.bound) == (pytest.approx(1e3 * point.gflop), "products")
    assert point.updates_per_second == pytest.approx(2 * 1e3 / point.update_ms)
    monkeypatch.setattr(scaling, "memory_rate", lambda: 1e6)
    point = scaling.measured(start, "seeds", 2, 1, 2)
    assert (point.floor_ms, point.bound) == (pytest.approx(1e3 * point.mib * 2**20 / 1e6), "memory")


def test_the_rates_of_the_machine_are_those_of_a_large_product_and_copy(monkeypatch):
    monkeypatch.setattr(scaling, "LARGE", {"cpu": (100, 4_000)})
    monkeypatch.setattr(scaling, "timed", lambda work: (work(), 0.5))
    assert scaling.product_rate.__wrapped__("float32") == 2 * 100**3 / 0.5
    assert scaling.memory_rate.__wrapped__() == 2 * 4_000 / 0.5


def test_the_command_prints_writes_and_draws_every_point(tmp_path):
    out = tmp_path / "new" / "sac.csv"
    result = lsac("bench", "sac", "--scaling", *SMALL, "--axes", "batch=8,16", "--out", out)
    assert (result.code, result.err) == (0, "")
    first, head, *lines, written, drawn = result.out.splitlines()
    assert first.startswith("sac on Pendulum-v1: 3 observations, 1 action, 1 seed, 100,000 transitions; ")
    assert head.split() == ["update", "updates/s", "floor", "ratio"]
    assert [line.split()[:2] for line in lines] == [["batch", "8"], ["batch", "16"]]
    assert (written, drawn) == (str(out), str(out.with_suffix(".png")))
    rows = list(csv.DictReader(out.read_text().splitlines()))
    columns = ["algorithm", "env", "preset", "device", *scaling.Point._fields, "note"]
    assert [list(row) for row in rows] == [columns] * 2
    assert float(rows[1]["gflop"]) == pytest.approx(2 * float(rows[0]["gflop"]), rel=1e-4)
    assert rows[0]["mib"] == rows[1]["mib"]
    for row, line in zip(rows, lines, strict=True):
        assert float(line.split()[2]) == pytest.approx(float(row["update_ms"]), abs=1e-3)
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def pretended(monkeypatch):
    """Nothing is measured; what is beyond a hundred exceeds the device's memory."""

    def measured(case, axis, value, rounds, repeats):
        if value > 100:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nand much more")
        if value == 13:
            raise jax.errors.JaxRuntimeError("INTERNAL: something else")
        return scaling.Point(axis, value, case.seeds, 1.0, 1.0, 1.0, "memory", 1.0, 1.0)

    monkeypatch.setattr(scaling, "measured", measured)
    monkeypatch.setattr(scaling, "product_rate", lambda dtype: 1.0)
    monkeypatch.setattr(scaling, "memory_rate", lambda: 1.0)


def starts(out: str) -> list[str]:
    return [" ".join(line.split()[:2]) for line in out.splitlines()[2:]]


@pytest.mark.usefixtures("pretended")
def test_where_memory_ends_is_a_sentence_and_the_next_curve_begins(tmp_path):
    out = tmp_path / "sac.csv"
    axes = ("--axes", "batch=64,1024,4096", "seeds=1,2")
    result = lsac("bench", "sac", "--scaling", *SMALL, *axes, "--out", out)
    assert result.code == 0
    assert starts(result.out)[:4] == ["batch 64", "batch 1,024:", "seeds 1", "seeds 2"]
    sentence = "batch 1,024: Out of memory allocating 9 bytes: the curve ends here"
    assert sentence in result.out.splitlines()
    notes = {(row["axis"], row["value"]): row["note"] for row in csv.DictReader(out.read_text().splitlines())}
    assert notes == {("batch", "64"): "", ("batch", "1024"): sentence, ("seeds", "1"): "", ("seeds", "2"): ""}


@pytest.mark.usefixtures("pretended")
def test_what_does_not_fit_is_not_even_tried(monkeypatch):
    """A transition on Pendulum-v1 is 9 numbers and a flag, 37 bytes."""
    monkeypatch.setattr(device_memory, "available", lambda device: 2**30)
    result = lsac("bench", "sac", "--scaling", *SMALL, "--axes", "replay=64,1e8", "seeds=1")
    assert starts(result.out) == ["replay 64", "replay 100,000,000:", "seeds 1"]
    assert f"replay and agents need {37e8 / 2**30:.1f} GiB, but only 1.0 GiB are free on " in result.out


@pytest.mark.usefixtures("pretended")
def test_another_error_of_the_device_is_not_taken_for_the_end_of_memory():
    result = lsac("bench", "sac", "--scaling", *SMALL, "--axes", "seeds=13")
    assert result.code == 1
    assert "INTERNAL: something else" in result.err


@pytest.mark.parametrize(
    ("algorithm", "axes"),
    [
        ("lsac", list(scaling.AXES)),
        ("sac", ["seeds", "batch", "replay", "observation"]),
        ("ppo", ["seeds", "observation"]),
    ],
)
def test_an_algorithm_has_the_curves_of_its_sizes(algorithm, axes):
    experiment = preset(algorithm, "quickstart", "Pendulum-v1")
    assert scaling.axes_of(algorithm, (), experiment) == {name: scaling.AXES[name] for name in axes}


def test_an_agent_of_images_has_no_curve_over_the_size_of_a_vector_and_smaller_replays():
    experiment = preset("drqv2", "quickstart", "Pendulum-v1")
    found = scaling.axes_of("drqv2", (), experiment)
    assert list(found) == ["seeds", "batch", "replay"]
    assert found["replay"][-1] < scaling.AXES["replay"][-1]


@pytest.mark.parametrize("algorithm", AGENTS)
def test_every_axis_changes_what_it_says_and_nothing_else(algorithm):
    before = case(algorithm)
    for axis, values in scaling.axes_of(algorithm, (), before.experiment).items():
        after = scaling.varied(before, axis, values[-1])
        changed = [name for name in after._fields if getattr(after, name) != getattr(before, name)]
        assert changed == [{"seeds": "seeds", "replay": "rows", "observation": "spec"}.get(axis, "experiment")]
        sizes = [sum(math.prod(x.shape) for x in scaling._state(c)) for c in (before, after)]
        assert (sizes[0] < sizes[1]) == (axis in ("chains", "observation")), "of one seed's agent"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("sac", "td3", "--scaling"), "--scaling: draws the curves of one algorithm, not of sac and td3"),
        (("--scaling", "--algorithms"), "--scaling: draws the curves of one algorithm, leave out --algorithms"),
        (("sac", "--axes", "seeds"), "--axes: is an option of --scaling"),
        (("sac", "--out", "there.csv"), "--out: is an option of --scaling"),
        (("sac", "--scaling", "--out", "there"), "--out there: must end in .csv"),
        (
            ("sac", "--scaling", "--axes", "sedes"),
            "--axes sedes: must be seeds, chains, batch, replay or observation",
        ),
        (
            ("sac", "--scaling", "--axes", "chains"),
            "--axes chains: sac has no such size; it has seeds, batch, replay, observation",
        ),
        *[
            (
                ("sac", "--scaling", "--axes", f"seeds={values}"),
                f"--axes seeds={values}: the values must be whole numbers of at least 1, separated by commas",
            )
            for values in ("", "0", "1.5", "two", "1,,2", "inf")
        ],
    ],
)
def test_bad_input_is_one_sentence(args, sentence):
    result = lsac("bench", *args, *SMALL)
    assert (result.code, result.sentence) == (2, f"lsac: {sentence}")
