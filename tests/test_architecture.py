"""Imports point one way, and the README's tree is the tree."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Within labcore, a module imports only what stands above it here.
LAYERS = [
    "labcore.config",
    "labcore.events",
    "labcore.facts",
    "labcore.history",
    "labcore.least_squares",
    "labcore.datasets.errors",
    "labcore.datasets.table",
    "labcore.datasets.airfoil",
    "labcore.datasets.own",
    "labcore.datasets.idx",
    "labcore.datasets.fashion_mnist",
    "labcore.datasets.download",
    "labcore.datasets.cut_sample",
    "labcore.optimizers",
    "labcore.flags",
    "labcore.regression_models",
    "labcore.regression",
    "labcore.race",
    "labcore.fork",
    "labcore.retrace",
    "labcore.differences",
    "labcore.surface",
    "labcore.stack",
    "labcore.sweep",
    "labcore.fair_race",
    "labcore.links",
    "labcore.units",
    "labcore.wire",
    "labcore.checkpoints",
    "labcore.places",
    "labcore.worker",
    "labcore.processes",
    "labcore.launch",
    "labcore.splitting",
    "labcore.weighting",
    "labcore.schedules",
    "labcore.trees",
    "labcore.collectives",
    "labcore.costs",
    "labcore.trace",
    "labcore.process_allreduce",
    "labcore.models",
    "labcore.replicas",
    "labcore.bugs",
    "labcore.vectors",
    "labcore.evaluation",
    "labcore.meeting",
    "labcore.ddp",
    "labcore.data_parallel",
    "labcore.classification",
    "labcore.distributed",
    "labcore.rank_process",
    "labcore.step_record",
    "labcore.step_words",
    "labcore.training_step",
    "labcore.step_curves",
    "labcore.classification_history",
    "labcore.exports",
    "labcore.quoting",
    "labcore.rerun",
    "labcore.rerun_race",
    "labcore.reported",
    "labcore.network",
    "labcore.hardware",
    "labcore.uneven",
    "labcore.timed_steps",
    "labcore.calibration",
    "labcore.scaling_config",
    "labcore.scaling",
    "labcore.findings",
    "labcore.exercises",
    "labcore.seeds",
    "labcore.jobs",
    "labcore.charts",
    "labcore.classification_charts",
    "labcore.surface_charts",
    "labcore.sweep_charts",
    "labcore.collective_charts",
    "labcore.scaling_charts",
    "labcore.step_charts",
    "labcore.pictures",
    "labcore.report",
    "labcore.signals",
    "labcore.__main__",
]


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def sources(*folders: str) -> list[Path]:
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def imports(file: Path, *, lazy: bool = True) -> set[str]:
    """The modules that a file imports; without `lazy` only those it imports when it is loaded."""
    tree = ast.parse(file.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found = set()
    for node in ast.walk(tree):
        if not lazy and id(node) in inside:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found.add(node.module)
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if (ROOT / (name.replace(".", "/") + ".py")).exists():
                    found.add(name)
    return found


def packages(file: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(file)}


LABCORE = [file for file in sources("labcore") if file.name != "__init__.py"]
EVERYTHING = [*sources("labcore", "labui", "pages"), ROOT / "app.py"]


@pytest.mark.parametrize("file", sources("labcore"), ids=module_name)
def test_labcore_imports_neither_streamlit_nor_the_pages(file: Path) -> None:
    assert not packages(file) & {"streamlit", "labui", "pages", "app"}


@pytest.mark.parametrize("file", sources("labui"), ids=module_name)
def test_labui_does_not_import_pages(file: Path) -> None:
    assert not packages(file) & {"pages", "app"}


@pytest.mark.parametrize("file", [*sources("pages"), ROOT / "app.py"], ids=module_name)
def test_a_page_does_not_import_another_page(file: Path) -> None:
    assert not packages(file) & {"pages", "app"}


@pytest.mark.parametrize("file", LABCORE, ids=module_name)
def test_within_labcore_imports_point_upwards(file: Path) -> None:
    above = set(LAYERS[: LAYERS.index(module_name(file))])
    own = {name for name in imports(file) if name in LAYERS}
    assert own <= above


def test_every_module_of_labcore_has_its_layer() -> None:
    assert sorted(map(module_name, LABCORE)) == sorted(LAYERS)


def test_only_charts_import_altair() -> None:
    assert sorted(file.name for file in EVERYTHING if "altair" in packages(file)) == [
        "charts.py",
        "classification_charts.py",
        "collective_charts.py",
        "scaling_charts.py",
        "step_charts.py",
        "surface_charts.py",
        "sweep_charts.py",
    ]


@pytest.mark.parametrize("file", EVERYTHING, ids=module_name)
def test_torchvision_is_imported_only_where_it_is_called(file: Path) -> None:
    assert not any(name.startswith("torchvision") for name in imports(file, lazy=False))


def test_loading_the_core_loads_neither_torchvision_nor_streamlit() -> None:
    modules = [name for name in LAYERS if name != "labcore.__main__"]
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    run = [sys.executable, "-c", code]
    loaded = subprocess.run(run, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert not {"torchvision", "streamlit"} & set(loaded.split())


@pytest.mark.parametrize("file", [f for f in EVERYTHING if f.name == "__init__.py"], ids=str)
def test_packages_re_export_nothing(file: Path) -> None:
    assert not packages(file) & {"labcore", "labui", "pages"}


@pytest.mark.parametrize("page", [*sources("pages"), ROOT / "app.py"], ids=module_name)
def test_a_page_loads_torch_only_through_the_lab(page: Path) -> None:
    """It is `labcore` that says how torch's threads wait, which must come first."""
    assert "torch" not in imports(page, lazy=False)


def test_the_readme_tree_names_every_file() -> None:
    tree = re.search(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert tree
    named = set(re.findall(r"([\w.]+\.(?:py|toml|dat|md|txt))\b", tree.group(1)))
    modules = {file.name for file in sources("labcore", "labui", "pages")} - {"__init__.py"}
    own_tests = {f"test_{name}" for name in modules}
    others = {file.name for file in (ROOT / "tests").glob("*.py")} - own_tests
    assert modules | others <= named | {"test_cli.py", "__init__.py"}
