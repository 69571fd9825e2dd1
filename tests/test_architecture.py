"""The shape of the code base, checked on its syntax trees: imports point down, randomness is named, no pickle."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import veilset

SOURCE = Path(veilset.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

LAYERS: tuple[tuple[str, ...], ...] = (
    ("cli", "console", "__main__"),
    ("report", "api", "scoring", "dp_scores", "score_checks", "score_plan", "looks", "courses"),
    ("run", "reserved_plans", "goals", "sharing", "run_folder", "sketching", "synthesis", "merging"),
    ("model", "sketch_release", "classifier", "partition"),
    ("evaluate",),
    ("methods", "pixel_sets"),
    ("engines",),
    ("artifact", "score_release", "sketch_file", "nets", "data", "budget", "budget_prices", "card", "sketch_card"),
    ("privacy",),
    ("files", "randomness", "compilation"),
    ("errors", "version", "wording"),
)
"""From top to bottom. A module may import its own layer and any below; `veilset/__init__.py` gathers public names."""
RANK = {name: depth for depth, layer in enumerate(LAYERS) for name in layer}

RANDOM_CALLS = {
    "rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "rand_like", "randn_like",
    "randint_like", "poisson",
}  # fmt: skip
IN_PLACE_RANDOM = {
    "normal_",
    "uniform_",
    "random_",
    "bernoulli_",
    "exponential_",
    "cauchy_",
    "log_normal_",
    "geometric_",
}
RANDOM_HOMES = {SOURCE / "randomness.py", SOURCE / "privacy" / "noise.py"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def part_of(path: Path) -> str:
    """The top-level module or package a file belongs to."""
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(module: ast.Module) -> Iterator[str]:
    """Full names of everything imported, also inside functions."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong_imports(path: Path, module: ast.Module) -> list[str]:
    mine = part_of(path)
    wrong = []
    for name in imports(module):
        parts = name.split(".")
        # The package itself, of which other names are, gathers all layers: it lies above each of them.
        if parts[0] == "veilset" and RANK.get(".".join(parts[1:2]), -1) < RANK[mine]:
            wrong.append(name)
    return wrong


def dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""


def unnamed_randomness(module: ast.Module) -> list[str]:
    """Calls that draw from global state, or seed it."""
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("np.random", "numpy.random")):
            found.append(ast.unparse(node))
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"import {name}" for name in names if name in ("random", "numpy.random", "torch.random")]
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        last = name.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        named = any(keyword.arg == "generator" for keyword in node.keywords)
        seeds = last in ("manual_seed", "manual_seed_all", "seed_all")
        draws = (name.startswith("torch.") and last in RANDOM_CALLS) or last in IN_PLACE_RANDOM
        drops = "." in name and "dropout" in last.lower()  # a function of our own that takes a generator is fine
        if seeds or drops or (draws and not named):
            found.append(name or last)
    return found


def unsafe_loading(module: ast.Module) -> list[str]:
    found = [
        name for name in imports(module) if name.split(".")[0] in ("pickle", "cPickle", "dill", "joblib", "shelve")
    ]
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in ("torch.load", "torch.save", "torch.jit.load", "pickle.loads", "eval", "exec"):
                found.append(name)
            for keyword in node.keywords:
                if keyword.arg == "allow_pickle" and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    found.append(f"{name}(allow_pickle)")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_keeps_the_rules(path: Path) -> None:
    module = tree(path)
    assert unsafe_loading(module) == []
    assert [name for name in imports(module) if name.startswith("torchvision")] == []
    if path not in RANDOM_HOMES:
        assert unnamed_randomness(module) == []
    if path != SOURCE / "__init__.py":
        assert part_of(path) in RANK, "add the new module to LAYERS"
        assert wrong_imports(path, module) == []


def test_the_diagram_in_the_docs_is_what_is_checked() -> None:
    text = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
    diagram = text.split("## Imports point down")[1].split("```")[1]
    layers = " ".join(diagram.split()).split(" -> ")
    assert tuple(tuple(layer.split(", ")) for layer in layers) == LAYERS


def test_every_layer_is_of_parts_that_exist() -> None:
    assert set(RANK) == {part_of(path) for path in FILES} - {"__init__"}


def test_methods_never_import_each_other() -> None:
    for path in (SOURCE / "methods").glob("*.py"):
        others = {
            name
            for name in imports(tree(path))
            if name.startswith("veilset.methods.") and name.split(".")[2] not in ("base", "plan")
        }
        assert others == set(), path.name


def test_the_kernel_imports_no_network_method_or_interface() -> None:
    for path in (SOURCE / "privacy").glob("*.py"):
        mine = {".".join(name.split(".")[:2]) for name in imports(tree(path)) if name.startswith("veilset.")}
        assert mine <= {"veilset.privacy", "veilset.files", "veilset.compilation", "veilset.errors"}, path.name


def test_the_kernel_can_be_read_in_one_sitting() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in (SOURCE / "privacy").glob("*.py")}
    assert max(lengths.values()) <= 250, lengths
    assert sum(lengths.values()) <= 1500, lengths


def test_no_file_is_over_three_hundred_lines() -> None:
    long = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: length for name, length in long.items() if length > 300} == {}


def test_importing_the_package_draws_no_noise_and_prints_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", "import veilset"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


BARE_HOST = """
import sys

BLOCKED = (
    "dp_accounting typer rich sklearn jinja2 matplotlib cryptography fastapi uvicorn flwr prv_accountant autodp "
    "hypothesis pandas torchvision"
).split()
sys.modules.update(dict.fromkeys(BLOCKED))  # None there makes every import of the name fail
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import veilset
from contract.cases import make_images, tiny_plan
from veilset.methods.plan import Plan
from veilset.run import execute
from veilset.sketching import SketchGoal, execute_sketch
from veilset.synthesis import synthesize

def sketch_plan(images):
    return veilset.plan(images.spec, method="sketch", rounds=1, epsilon=1.0, declared_size=20, networks=2, width=4)

OPEN = {"steps": 2, "channels": 8, "latent_size": 2, "images_per_class": 2}
images = make_images()
plan = tiny_plan(images, "dp-merf")
model = execute(images, plan, Path(sys.argv[2]) / "run")
assert len(model.sample(5)) == 5
given = Plan.load(Path(sys.argv[2]) / "plan.json")
assert execute(images, given, Path(sys.argv[2]) / "second").claim.epsilon == given.epsilon_planned
sketch = execute_sketch(SketchGoal(), images, sketch_plan(images), Path(sys.argv[2]) / "sketch")
assert synthesize(Path(sys.argv[2]) / "sketch", Path(sys.argv[2]) / "made", options=OPEN).claim == sketch.claim
assert not any(sys.modules[name] for name in BLOCKED)
print(model.claim.epsilon, model.claim.cross_check)
"""


def test_a_bare_gpu_host_with_five_packages_can_plan_and_fit(tmp_path: Path) -> None:
    from contract.cases import make_images, tiny_plan

    (tmp_path / "plan.json").write_bytes(tiny_plan(make_images(), "dp-merf", epsilon=3.0).dumps())
    arguments = [str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", BARE_HOST, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    epsilon, cross_check = done.stdout.split()
    assert float(epsilon) == pytest.approx(5.0, rel=1e-6)
    assert cross_check == "None"


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ("privacy/x.py", "from veilset.nets.generators import ConvGenerator"),
        ("privacy/x.py", "def f():\n    import veilset.cli"),
        ("nets/x.py", "from veilset.methods import base"),
        ("engines/x.py", "from veilset.run import execute"),
        ("evaluate/x.py", "from veilset import run"),
        ("goals.py", "import veilset"),
        ("goals.py", "from veilset import __version__"),
    ],
)
def test_the_check_of_imports_notices_an_import_that_points_up(where: str, code: str) -> None:
    assert wrong_imports(SOURCE / where, ast.parse(code)) != []


@pytest.mark.parametrize(
    "code",
    [
        "torch.manual_seed(0)",
        "generator.manual_seed(0)",
        "torch.cuda.manual_seed_all(0)",
        "import random",
        "np.random.rand(3)",
        "numpy.random.default_rng(0)",
        "from numpy.random import default_rng",
        "torch.randn(3)",
        "torch.randperm(n, device=d)[:k]",
        "torch.rand_like(x)",
        "weight.normal_(0, 1)",
        "self.layer.weight.data.uniform_(-1, 1)",
        "nn.Dropout(0.5)",
        "F.dropout(x)",
        "torch.bernoulli(p)",
    ],
)
def test_the_check_of_randomness_notices_global_state(code: str) -> None:
    assert unnamed_randomness(ast.parse(code)) != []


@pytest.mark.parametrize("code", ["torch.randn(3, generator=g)", "weight.normal_(generator=g)", "noise.normal(3)"])
def test_the_check_of_randomness_lets_named_generators_pass(code: str) -> None:
    assert unnamed_randomness(ast.parse(code)) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
    ],
)
def test_the_check_of_loading_notices_pickle(code: str) -> None:
    assert unsafe_loading(ast.parse(code)) != []
