"""The bench counts every matrix product of an update, and says what it measured."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import lsac

from lsac.agents import AGENTS
from lsac.analysis.reference import paper_costs
from lsac.cli import bench
from lsac.cli.bench import products_of, run_products


def test_products_are_found_wherever_they_are():
    def program(a, b):
        c = jax.jit(lambda a: a @ b)(a)  # [3, 5]
        loop, _ = jax.lax.scan(lambda carry, _: (carry @ jnp.ones((5, 5)), None), c, length=4)
        return jax.vmap(lambda row: row @ b.T)(loop)

    found = list(products_of(jax.make_jaxpr(program)(jnp.ones((3, 2)), jnp.ones((2, 5))).jaxpr))
    shapes = [(product.left.shape, product.right.shape) for product in found]
    assert shapes == [((3, 2), (2, 5)), *[((3, 5), (5, 5))] * 4, ((3, 5), (5, 2))]


def test_running_the_products_multiplies_as_the_update_does():
    jaxpr = jax.make_jaxpr(lambda a, b: a.T @ (a @ b))(jnp.ones((3, 2)), jnp.ones((2, 5))).jaxpr
    products = list(products_of(jaxpr))
    rng = np.random.default_rng(0)
    operands = [tuple(jnp.asarray(rng.normal(size=x.shape), jnp.float32) for x in (p.left, p.right)) for p in products]
    first, second = run_products(products, operands)
    np.testing.assert_allclose(first, np.asarray(operands[0][0]) @ np.asarray(operands[0][1]), rtol=1e-5)
    assert second.shape == (2, 5)


def test_the_command_prints_time_ratio_and_size():
    """Pendulum, two layers of 128: 17,282 numbers of the actor and 2 × 17,281 of the critics, counted by hand."""
    result = lsac("bench", "sac", "--env", "Pendulum-v1", "--preset", "quickstart", "--rounds", 1, "--updates", 2)
    assert (result.code, result.err) == (0, "")
    first, head, line = result.out.splitlines()
    assert first.startswith("Pendulum-v1: 3 observations, 1 action; 1 seed on ")
    assert head.split() == ["update", "products", "ratio", "noise", "parameters", "agent"]
    name, update, _, products, _, ratio, noise, parameters, *_ = line.split()
    assert (name, noise, parameters) == ("sac", "–", "51,844")
    assert min(float(update), float(products)) > 0
    assert float(ratio) == pytest.approx(float(update) / float(products), rel=0.1)  # but for what is cut off in print


@pytest.mark.slow
def test_an_update_from_images_is_timed_with_its_convolutions():
    small = ("--preset", "quickstart", "--rounds", 1, "--updates", 1)
    result = lsac("bench", "drqv2", "dreamer", "--env", "lsac/SeenColour-v0", *small)
    assert (result.code, result.err) == (0, "")
    first, _, *lines = result.out.splitlines()
    assert first.startswith("lsac/SeenColour-v0: images of 24 × 24 × 3, 1 action; 1 seed on ")
    for name, line in zip(("drqv2", "dreamer"), lines, strict=True):
        words = line.split()
        assert words[0] == name
        assert float(words[3]) > 0


@pytest.mark.slow
def test_all_algorithms_stand_in_one_table_beside_the_paper(monkeypatch):
    monkeypatch.setattr(bench, "VECTORS", ("sac", "trpo"))
    small = ("--preset", "quickstart", "--rounds", 1, "--updates", 1)
    result = lsac("bench", "--algorithms", "--env", "HalfCheetah-v5", *small)
    assert (result.code, result.err) == (0, "")
    _, head, first, second = result.out.splitlines()
    columns = ["update", "critics", "steps", "per", "step", "parameters", "agent"]
    assert head.split() == [*columns, "update", "critics", "parameters"]
    assert first.split()[0] == "sac"
    assert first.split()[-6:] == ["781", "ms", "737", "ms", "0.177", "M"]
    assert second.split()[0] == "trpo"
    assert second.split()[5] == "320", "ten epochs of 32 minibatches for the critic"
    assert second.endswith("iB"), "the paper says nothing of it"


def test_the_papers_figures_are_of_six_tasks_and_algorithms():
    assert paper_costs("Humanoid")["dipo"] == (2410, 911, 7.041)
    assert set(paper_costs("Ant")) == {"lsac", "dsact", "dipo", "sac", "qsm", "redq"} <= set(AGENTS)
    assert paper_costs("Pendulum") == {}


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("sac", "--rounds", "0"), "lsac: --rounds 0: must be at least 1"),
        (("sca",), f"lsac: algorithm sca: must be one of {', '.join(AGENTS)}; did you mean sac?"),
        (("sac", "--algorithms"), "lsac: --algorithms: times all algorithms, leave out sac"),
        (
            ("sac", "--preset", "released"),
            "lsac: --preset released: sac has default, official, tuned, paper, quickstart",
        ),
    ],
)
def test_bad_input_is_one_sentence(args, sentence):
    result = lsac("bench", *args)
    assert (result.code, result.sentence) == (2, sentence)
