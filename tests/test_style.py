"""The rules that a linter cannot know: who may read a clock, write a file, reach the network, draw a token."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import methods

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = sorted(path for package in ("bench", "methods") for path in (ROOT / package).rglob("*.py"))
BESIDE = sorted(path for folder in ("scripts", "tests", "conf") for path in (ROOT / folder).rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in PRODUCT}
ALL_TREES = TREES | {path: ast.parse(path.read_text()) for path in BESIDE}


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module imported, in full, and every name imported from one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the last part of its name: ``softmax`` for ``x.softmax(-1)`` and ``F.softmax(x)`` alike."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield node.func.attr, node
            elif isinstance(node.func, ast.Name):
                yield node.func.id, node


def words(tree: ast.AST) -> set[str]:
    """Every name and attribute in the code; comments and docstrings are not code."""
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return found | {part for name in imports(tree) for part in name.split(".")}


def in_bench() -> dict[Path, ast.Module]:
    return {path: tree for path, tree in TREES.items() if path.is_relative_to(ROOT / "bench")}


def offenders(bad: set[str], allowed: set[str]) -> list[str]:
    """The files that use one of these words and may not."""
    return [named(path) for path, tree in TREES.items() if bad & words(tree) and named(path) not in allowed]


def test_only_timing_reads_a_clock() -> None:
    clocks = {"perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "elapsed_time", "timeit"}
    assert offenders(clocks, {"bench/measure/clock.py"}) == []
    modules = {path: set(imports(tree)) & {"time", "datetime", "timeit"} for path, tree in TREES.items()}
    assert [named(path) for path, found in modules.items() if found] == ["bench/measure/clock.py"]


WRITERS = {"write_text", "write_bytes", "savefig", "save_file", "save", "savez", "tofile", "dump", "touch", "copy2"}


def writes(tree: ast.AST) -> Iterator[str]:
    """Calls that put something on the disk."""
    for name, call in calls(tree):
        if name in WRITERS:
            yield name
        strings = [node.value for node in [*call.args, *(one.value for one in call.keywords)]
                   if isinstance(node, ast.Constant) and isinstance(node.value, str)]  # fmt: skip
        if name in ("open", "fdopen") and any(re.fullmatch(r"[rbtU]*[wax+][bt+]*", mode) for mode in strings):
            yield f"open {strings}"
        if name in ("to_csv", "to_parquet", "to_latex", "to_json", "to_html", "to_markdown") and call.args:
            yield f"{name} to a file"


def test_only_records_writes_files_in_bench() -> None:
    found = {path: list(writes(tree)) for path, tree in in_bench().items()}
    assert {named(path.parent) for path, written in found.items() if written} == {"bench/records"}


def test_only_hub_touches_the_hub_only_loading_loads_models_and_only_tasks_data_sets() -> None:
    hub = {"hf_hub_download", "snapshot_download", "huggingface_hub", "HfApi", "urllib", "requests", "httpx", "httpx2"}
    assert offenders(hub, {"methods/loading/hub.py"}) == []
    assert offenders({"from_pretrained"}, {"methods/loading/model.py"}) == []
    assert offenders({"load_dataset", "load_dataset_builder", "datasets"}, {"bench/plan/questions.py"}) == []


def test_only_sampling_makes_distributions_and_draws_tokens() -> None:
    drawing = {"softmax", "log_softmax", "multinomial", "gumbel_softmax", "distributions", "Philox", "default_rng"}
    # Attention's weights are no distribution over tokens.
    allowed = {"methods/decode/draws.py", "methods/decode/sampling.py", "methods/runtime/attention.py"}
    assert offenders(drawing, allowed) == []


def test_no_code_of_strangers_is_run_and_nothing_is_unpickled() -> None:
    for path, tree in TREES.items():
        assert not {"dill", "joblib", "cloudpickle", "marshal", "shelve", "Unpickler"} & words(tree), named(path)
        assert not {"eval", "exec", "instantiate"} & {name for name, _ in calls(tree)} - allowed_eval(tree), named(path)
        assert not any(name.startswith("pickle.") for name in imports(tree)), named(path)
        for name, call in calls(tree):
            given = {one.arg: one.value for one in call.keywords}
            for argument, wanted in (("trust_remote_code", False), ("allow_pickle", False), ("weights_only", True)):
                if argument in given:
                    value = given[argument]
                    assert isinstance(value, ast.Constant), f"{named(path)}:{call.lineno} {argument} is not a literal"
                    assert value.value is wanted, f"{named(path)}:{call.lineno} {argument}"
            assert not ast.unparse(call.func).startswith("pickle."), f"{named(path)}:{call.lineno}"
            if name == "load" and ast.unparse(call.func) == "torch.load":
                assert "weights_only" in given, f"{named(path)}:{call.lineno}"
        assert "trust_remote_code=True" not in path.read_text()
        assert not re.search(r"['\"]trust_remote_code['\"]\s*:\s*True", path.read_text())


def allowed_eval(tree: ast.AST) -> set[str]:
    """``model.eval()`` is torch's switch to inference, not Python's evaluator."""
    methods_only = all(isinstance(call.func, ast.Attribute) for name, call in calls(tree) if name == "eval")
    return {"eval"} if methods_only else set()


def test_bench_knows_no_method_by_name_but_vanilla() -> None:
    """Strings that are exactly a method's name, and imports of its module; only the registry may have them."""
    known = {name: row.drafter.partition(":")[0] for name, row in methods._BUILT_IN.items() if name != "vanilla"}
    for path, tree in in_bench().items():
        strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not strings & set(known), named(path)
        assert not set(imports(tree)) & {*known.values(), "methods.vanilla"}, named(path)


def test_a_file_fits_in_a_head_and_says_what_it_is_for() -> None:
    wrong = []
    for path, tree in ALL_TREES.items():
        if (lines := len(path.read_text().splitlines())) > 400:
            wrong.append(f"{named(path)} has {lines} lines, more than 400")
        docstring = ast.get_docstring(tree) or ""
        if tree.body and not re.search(r"[.:!?]$", docstring.split("\n\n")[0]):
            wrong.append(f"{named(path)} does not open with a sentence that says what it is for")
    assert wrong == []


def test_no_test_imports_another() -> None:
    """What tests share lies in tests/support."""
    found = {(named(path), name) for path, tree in ALL_TREES.items() for name in imports(tree)}
    assert [
        pair for pair in sorted(found) if re.match(r"(tests\.)?(conftest|test_)|tests\.(?!support\b)", pair[1])
    ] == []


def test_nothing_changes_where_python_looks() -> None:
    """A program that edits sys.path runs other code elsewhere. (A fixture may, since pytest puts it back.)"""
    wrong = []
    for path, tree in ALL_TREES.items():
        changed = [node for name, node in calls(tree) if name == "addsitedir" or named_in(node.func, "sys.path.")]
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
                targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
                changed += [target for target in targets if named_in(target, "sys.path")]
        wrong += [f"{named(path)}:{node.lineno}" for node in changed]
    # The mutation bed leads a forked child to a copy of the project, and away from this one.
    assert [each for each in wrong if not each.startswith("tests/support/mutation_bed.py:")] == []


def named_in(node: ast.expr, name: str) -> bool:
    return ast.unparse(node).startswith(name)


def test_no_file_holds_a_path_of_somebody_s_machine() -> None:
    patterns = ("conf/**/*.yaml", "docs/*.md", "scripts/*.s*", "*.md", "*.toml", "*.cff", "Makefile")
    for path in [*ALL_TREES, *(path for pattern in patterns for path in ROOT.glob(pattern))]:
        assert not re.search(r"/(home|Users|root|mnt)/\w", path.read_text()), named(path)


def test_no_test_puts_its_own_function_into_torch() -> None:
    """Torch lists its constructors once a process: what stands in for one then breaks every model loaded later."""
    for path, tree in ALL_TREES.items():
        stand_ins = [call for name, call in calls(tree) if name in ("setattr", "delattr") and path in BESIDE]
        assert not any(re.match(r"['\"]?torch\b", ast.unparse(call.args[0])) for call in stand_ins), named(path)


def test_median_file_is_short() -> None:
    lengths = sorted(len(path.read_text().splitlines()) for path in PRODUCT)
    assert lengths[len(lengths) // 2] <= 150
