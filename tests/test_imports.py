"""The shape of the source: imports point one way, by folder, and no part of it grows too large."""

import ast
import graphlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

import lsac

SOURCE = Path(lsac.__file__).parent
PACKAGE = "lsac"

LAYERS = [
    {"types", "errors", "streams", "version", "options"},
    {"nn"},
    {"replay"},
    {"agents"},
    {"envs"},
    {"runs"},
    {"presets"},
    {"collect"},
    {"train"},
    {"analysis", "model"},
    {"analyses", "sweeps"},
    {"cli", "__main__"},
]
"""Folders and flat modules, lowest first. What stands in a layer may import lower layers, and the lowest its own."""
ONLY = {
    "envs": {"types", "errors", "options"},
    "analysis": {"runs", "replay", "types", "errors", "options", "version"},
}
"""Folders that may import less than all lower layers."""
EXCEPTIONS = {
    ("lsac", "lsac.model"): "the package offers the classes of the Python interface, and loads them when first used",
    ("lsac.__main__", "lsac.cli"): "`python -m lsac` is the command line",
}
"""Imports that the layers forbid, each with its reason."""
LAZY = {("lsac", "lsac.model")}
"""Exceptions that must stay inside a function, or below `if TYPE_CHECKING`."""
FLAT_MODULES = 8
FUNCTION_LINES = 60
CONSTRUCTOR_ARGUMENTS = 7
VAGUE = {"utils", "util", "common", "helpers", "misc"}


# reading the source


def modules(source):
    """Every module by its full name, parsed; a package is called by the name of its folder."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(source).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(), str(path))
    return found


def imports(parsed):
    """(importer, imported, whether it is imported when the module is) for all imports of the package's own modules."""
    for name, tree in parsed.items():
        at_once = set(_at_once(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name}: imports are written in full"
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [target if target in parsed else node.module for target in targets]
            else:
                continue
            for target in targets:
                if target.split(".")[0] == PACKAGE:
                    assert target in parsed, f"{name} imports {target}, which is not there"
                    yield name, target, node in at_once


def _at_once(node):
    """The statements that run when a module is imported."""
    for child in ast.iter_child_nodes(node):
        guarded = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        if not guarded and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from _at_once(child)


def folder(module):
    """The folder of a module, or its own name if it is flat."""
    return module.split(".")[1] if "." in module else module


def layer(module):
    found = [i for i, together in enumerate(LAYERS) if folder(module) in together]
    assert len(found) == 1 or module == PACKAGE, f"{module} stands in no layer"
    return found[0] if found else 0


def forbidden(parsed):
    """The imports that the layers do not allow, without exceptions."""
    return {(importer, target) for importer, target, _ in imports(parsed) if not allowed(importer, target)}


def allowed(importer, target):
    here, there = folder(importer), folder(target)
    if here == there:
        return True
    if here in ONLY:
        return there in ONLY[here]
    lowest = layer(importer) == layer(target) == 0
    return lowest or layer(target) < layer(importer)


def cycle(parsed):
    """Modules that import one another in a circle, or None."""
    graph = {name: set() for name in parsed}
    for importer, target, _ in imports(parsed):
        graph[importer].add(target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


def functions(parsed):
    """(module, function) for all functions, also those inside others."""
    for name, tree in parsed.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield name, node


def long_functions(parsed):
    lengths = {f"{name}.{node.name}": node.end_lineno - node.lineno + 1 for name, node in functions(parsed)}
    return {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES}


def wide_constructors(parsed):
    wide = {}
    for name, tree in parsed.items():
        for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            for node in cls.body:
                if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                    given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                    count = len(given) - 1 + bool(node.args.vararg) + bool(node.args.kwarg)
                    if count > CONSTRUCTOR_ARGUMENTS:
                        wide[f"{name}.{cls.name}"] = count
    return wide


@pytest.fixture(scope="module")
def parsed():
    found = modules(SOURCE)
    assert len(found) > 50
    return found


# the rules


def test_every_module_stands_in_a_layer(parsed):
    assert {folder(name) for name in parsed} - {PACKAGE} == set().union(*LAYERS)


def test_imports_point_to_lower_layers(parsed):
    assert forbidden(parsed) - EXCEPTIONS.keys() == set()


def test_every_exception_is_needed(parsed):
    made = {(importer, target) for importer, target, _ in imports(parsed)}
    assert EXCEPTIONS.keys() - made == set()


def test_imports_against_the_layers_wait_until_they_are_needed(parsed):
    assert {(importer, target) for importer, target, at_once in imports(parsed) if at_once} & LAZY == set()


def test_no_module_imports_itself_by_way_of_others(parsed):
    assert cycle(parsed) is None


def test_few_modules_stand_outside_the_folders():
    assert len(list(SOURCE.glob("*.py"))) <= FLAT_MODULES


def test_every_module_is_named_after_what_it_holds(parsed):
    assert {name for name in parsed if set(name.split(".")) & VAGUE} == set()


def test_functions_fit_on_a_page(parsed):
    assert long_functions(parsed) == {}


def test_constructors_take_few_arguments(parsed):
    assert wide_constructors(parsed) == {}


def declared():
    """The packages that are installed with this one, and the names of its extras."""
    project = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text())["project"]

    def names(requirements):
        return {re.match(r"[\w-]+", requirement)[0].replace("-", "_") for requirement in requirements}

    return names(project["dependencies"]), {k: names(v) for k, v in project["optional-dependencies"].items()}


def test_what_is_installed_is_what_is_imported(parsed):
    """By the package itself, not by its tests alone. Extras other than those of a GPU and of developers are used."""
    names, extras = declared()
    optional = set().union(*(extras[name] for name in extras.keys() - {"cuda12", "cuda13", "docs", "dev"}))
    nodes = [node for tree in parsed.values() for node in ast.walk(tree)]
    imported = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module.split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    assert imported - sys.stdlib_module_names - {PACKAGE} - optional == names
    assert optional - imported == set(), "an extra is there for something that uses it"


# the rules can be broken


def made_up(**sources):
    """Modules by name, dots written as two underscores, parsed."""
    return {name.replace("__", "."): ast.parse(text) for name, text in sources.items()}


@pytest.mark.parametrize(
    ("importer", "text", "found"),
    [
        ("nn__networks", "from lsac.agents import sac", "lsac.agents.sac"),
        ("nn__networks", "def f():\n    from lsac.agents import sac", "lsac.agents.sac"),
        ("nn__networks", "import lsac.agents.sac", "lsac.agents.sac"),
        ("envs__probes", "from lsac.nn import networks", "lsac.nn.networks"),
        ("analysis__load", "from lsac.train.loop import Loop", "lsac.train.loop"),
        ("analysis__load", "from lsac import model", "lsac.model"),
        ("train__loop", "from lsac import model", "lsac.model"),
        ("types", "from lsac.nn import networks", "lsac.nn.networks"),
        ("nn__networks", "from lsac.types import Key", None),
        ("train__loop", "from lsac.nn import networks", None),
        ("errors", "from lsac import types", None),
    ],
)
def test_an_import_that_points_upwards_is_found(importer, text, found):
    here = f"lsac__{importer}"
    others = (
        "types",
        "errors",
        "model",
        "nn__networks",
        "agents__sac",
        "train__loop",
        "envs__probes",
        "analysis__load",
    )
    sources = {"lsac": "", "lsac__agents": "", "lsac__nn": ""} | {f"lsac__{name}": "" for name in others}
    expected = {(here.replace("__", "."), found)} if found else set()
    assert forbidden(made_up(**sources | {here: text})) == expected


def test_an_import_inside_a_function_is_told_from_one_outside():
    text = "import typing\nif typing.TYPE_CHECKING:\n    from lsac import b\ndef f():\n    from lsac import b\n"
    assert [at_once for *_, at_once in imports(made_up(lsac="", lsac__a=text, lsac__b=""))] == [False, False]
    text = "try:\n    from lsac import b\nexcept ImportError:\n    pass\nclass C:\n    from lsac import b\n"
    assert [at_once for *_, at_once in imports(made_up(lsac="", lsac__a=text, lsac__b=""))] == [True, True]


def test_a_circle_of_imports_is_found():
    sources = {"lsac": "", "lsac__a": "from lsac import b", "lsac__b": "def f():\n    from lsac.c import x"}
    assert cycle(made_up(**sources, lsac__c="")) is None
    assert set(cycle(made_up(**sources, lsac__c="import lsac.a"))) == {"lsac.a", "lsac.b", "lsac.c"}


def test_long_functions_and_wide_constructors_are_found():
    body = "\n".join(["    x = 1"] * FUNCTION_LINES)
    assert long_functions(made_up(lsac=f"def short():\n{body[:-10]}")) == {}
    assert long_functions(made_up(lsac=f"def long():\n{body}")) == {"lsac.long": FUNCTION_LINES + 1}
    names = [f"a{i}" for i in range(CONSTRUCTOR_ARGUMENTS)]
    begin = "class C:\n    def __init__(self, "
    seven, eight = (begin + ", ".join(given) + "): ..." for given in (names, [*names, "*, b=1"]))
    assert wide_constructors(made_up(lsac=seven)) == {}
    assert wide_constructors(made_up(lsac=eight)) == {"lsac.C": CONSTRUCTOR_ARGUMENTS + 1}
