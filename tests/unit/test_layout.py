"""How the code is laid out: modules stay small, none imports itself through others, and each library's private
interfaces and the ledger's transactions are used where they belong."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import strandline
from strandline.ledger.engine import Ledger

SOURCES = Path(strandline.__file__).parent
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
OWN_MODULE = (
    "strandline.iceberg.session.spark_internals",
    "strandline.iceberg.pyiceberg.internals",
    "strandline.iceberg.spark.java",
)
OF_SPARK = {
    "_jsc", "_jdf", "_jsparkSession", "_gateway_client", "_origin", "_active_spark_context", "_gateway", "_jvm",
    "_instantiatedSession", "_activeSession",
}  # fmt: skip
TRANSACTIONS = ("read", "read_consistent", "query", "change", "write")


@cache
def _modules() -> dict[str, tuple[int, list[ast.AST]]]:
    """By dotted name: how many lines, and all that they say."""
    found = {}
    for path in SOURCES.rglob("*.py"):
        text = path.read_text("utf-8")
        name = ".".join(("strandline", *path.relative_to(SOURCES).with_suffix("").parts))
        found[name.removesuffix(".__init__")] = len(text.splitlines()), list(ast.walk(ast.parse(text)))
    return found


def test_no_file_is_longer_than_a_reader_can_keep_in_mind() -> None:
    long = {name: lines for name, (lines, _) in _modules().items() if lines > FILE_LINES_MAX}
    assert not long, f"more than {FILE_LINES_MAX} lines usually hold two ideas: give each its module"


def test_no_function_is_longer_than_a_screen() -> None:
    for name, (_, nodes) in _modules().items():
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                assert lines <= FUNCTION_LINES_MAX, f"{name}.{node.name} has {lines} lines: it usually holds two ideas"


def test_no_module_imports_itself_through_others() -> None:
    imports = {name: set(_imported(nodes)) - {name} for name, (_, nodes) in _modules().items()}
    while leaves := [name for name, needs in imports.items() if not needs & imports.keys()]:
        for name in leaves:
            del imports[name]
    in_cycle = {name: sorted(needs & imports.keys()) for name, needs in imports.items()}
    assert not in_cycle, "these import each other, or what does: give the shared part a module of its own"


def _imported(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in _modules() else str(node.module)


def test_a_name_of_a_class_or_type_is_given_once() -> None:
    """A reader who has met a `Verdict` should not meet another one. A leading underscore makes no other name."""
    places: dict[str, list[str]] = {}
    for path in SOURCES.rglob("*.py"):
        for name in _names_of_types(ast.parse(path.read_text("utf-8")).body):
            places.setdefault(name.lstrip("_"), []).append(str(path.relative_to(SOURCES)))
    twice = {name: at for name, at in places.items() if len(at) > 1}
    assert not twice, "call each by what it is"


def _names_of_types(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Classes, aliases and NewTypes of a module, also those that only the type checker sees."""
    for node in body:
        match node:
            case ast.ClassDef():
                yield node.name
            case ast.If():
                yield from _names_of_types([*node.body, *node.orelse])
            case ast.Assign(targets=[ast.Name(name)]) if re.fullmatch("_?[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*", name):
                made_by = node.value.func if isinstance(node.value, ast.Call) else None
                if not (isinstance(made_by, ast.Name) and made_by.id in ("TypeVar", "ParamSpec")):
                    yield name


def test_only_the_module_of_a_library_reaches_for_what_it_keeps_to_itself() -> None:
    spark, pyiceberg, java = OWN_MODULE
    for name, (_, nodes) in _modules().items():
        if name in OWN_MODULE:
            continue
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr == "apache":
                raise AssertionError(f"{name}:{node.lineno} names a Java class: that belongs in {java}")
            if isinstance(node, ast.Attribute) and node.attr in OF_SPARK:
                own = isinstance(node.value, ast.Name) and node.value.id == "self"
                assert own, f"{name}:{node.lineno} uses {node.attr} of Spark: that belongs in {spark}"
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("pyiceberg", "pyspark", "py4j")):
                private = [a.name for a in node.names if a.name.startswith("_")]
                assert not private, f"{name}:{node.lineno} imports {private}: that belongs in {spark} or {pyiceberg}"


def test_only_storage_renames_files() -> None:
    """`ruff` keeps `os.replace` and its kind in storage/; here are the methods of a path. One argument, not by name:
    that tells them from `str.replace`, which has two, and from `datetime.replace`, whose arguments have names. A
    witness has a `replace` too."""
    for name, (_, nodes) in _modules().items():
        for node in nodes if not name.startswith("strandline.storage.") else ():
            match node:
                case ast.Call(ast.Attribute(owner, "rename" | "replace" | "hardlink_to"), [_], []):
                    pass
                case ast.Call(ast.Attribute(owner, "rename" | "replace" | "hardlink_to"), [], [ast.keyword("target")]):
                    pass
                case _:
                    continue
            where = f"{name}:{node.lineno}"
            is_witness = ast.unparse(owner).rpartition(".")[2] == "witness"
            assert is_witness, f"{where} renames a file: strandline.storage.durable does that"


def test_every_way_to_a_transaction_of_the_ledger_is_known() -> None:
    own = [name for name, value in vars(Ledger).items() if callable(value) and not name.startswith("_")]
    others = {"exists", "revision", "create", "open", "upgrade_within", "backup", "close"}
    assert set(own) - {*TRANSACTIONS, *others} == set()


def test_the_command_line_opens_no_transaction() -> None:
    for name, (_, nodes) in _modules().items():
        for node in nodes if name.startswith("strandline.cli") else ():
            if isinstance(node, ast.Attribute) and node.attr in TRANSACTIONS:
                owner = getattr(node.value, "attr", getattr(node.value, "id", None))
                where = f"{name}:{node.lineno}"
                assert owner != "ledger", f"{where}: a command asks the lake or status/, which opens the transaction"


def test_no_test_changes_the_clock_of_the_whole_process() -> None:
    """The thread of another library would sleep by it too: Py4J's met an interrupt that was meant for a watch."""
    patched = re.compile(r'setattr\(\s*(?:[\w.]*\btime,|"(?:[\w.]*\.)?time\.)')
    for path in Path(__file__).parents[1].rglob("*.py"):
        found = patched.search(path.read_text("utf-8"))
        assert found is None, f"{path}: replace the name `time` in the module that is tested, not what it stands for"
