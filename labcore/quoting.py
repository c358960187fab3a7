"""Cuts definitions out of the lab's own source, with all that they need: for stand-alone scripts.

What is quoted is what runs, so the quotes cannot drift from the lab. Three things are left out, for
brevity: calls of functions named `_check…`, which only refuse arguments, all of a docstring but its
first line, and what only a type checker reads.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Set
from functools import cache
from importlib import import_module


class Quotes:
    """Quotes for one script, each definition once.

    Args:
        provided: names that the script defines itself; they are not followed.

    Attributes:
        imports: what the quotes import, none of it from the lab, as (module, name):
            `("torch", "nn")` for `from torch import nn`, `("", "math")` for `import math`.
    """

    def __init__(self, provided: Set[str]) -> None:
        self.imports: set[tuple[str, str]] = set()
        self._texts: list[str] = []
        self._provided = provided
        self._seen: set[tuple[str, str]] = set()

    def quote(self, function: Callable[..., object]) -> str:
        """A function or class, after what it needs; of both only what is not quoted yet."""
        already = len(self._texts)
        self._add(function.__module__, function.__name__)
        return "\n\n\n".join(self._texts[already:])

    def quote_class(self, kind: type, members: Set[str]) -> str:
        """A class with some of its members and those that they use, after the classes it extends.

        Those have the same members; decorators are left out.
        """
        already = len(self._texts)
        self._add_class(kind, members)
        return "\n\n\n".join(self._texts[already:])

    def quote_as(self, name: str, function: Callable[..., object]) -> str:
        """The same under another name, as for an entry of a registry, which may be a lambda."""
        if isinstance(function, type) or function.__name__ != "<lambda>":
            return f"{self.quote(function)}\n\n\n{name} = {function.__name__}"
        already = len(self._texts)
        text = _lambda_as(name, function.__module__, function.__code__.co_firstlineno)
        self._follow(function.__module__, text)
        return "\n\n\n".join([*self._texts[already:], text])

    def _add(self, module: str, name: str) -> None:
        if name in self._provided or (module, name) in self._seen:
            return
        self._seen.add((module, name))
        source, tree = _parsed(module)
        for statement in tree.body:
            if name not in _bound(statement):
                continue
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._follow_import(statement, name)
            else:
                self._seen |= {(module, each) for each in _bound(statement)}
                text = _quoted(source, statement)
                self._follow(module, text)
                self._texts.append(text)

    def _add_class(self, kind: type, members: Set[str]) -> None:
        module, name = kind.__module__, kind.__name__
        if name in self._provided or (module, name) in self._seen:
            return
        self._seen.add((module, name))
        bases = [base for base in kind.__bases__ if base is not object]
        for base in bases:
            self._add_class(base, members)
        source, tree = _parsed(module)
        [found] = [
            each for each in tree.body if isinstance(each, ast.ClassDef) and name == each.name
        ]
        named = ", ".join(base.__name__ for base in bases)
        text = "\n".join(
            [
                f"class {name}({named}):" if bases else f"class {name}:",
                _quoted(source, found.body[0]),
                *("\n" + _quoted(source, each) for each in _used(found, members)),
            ]
        )
        self._follow(module, text)
        self._texts.append(text)

    def _follow(self, module: str, text: str) -> None:
        """Add what a text from a module names."""
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name):
                self._add(module, node.id)

    def _follow_import(self, statement: ast.Import | ast.ImportFrom, name: str) -> None:
        [alias] = [each for each in statement.names if name == (each.asname or each.name)]
        module = (statement.module or "") if isinstance(statement, ast.ImportFrom) else ""
        if module.startswith("labcore."):
            self._add(module, alias.name)
        else:
            self.imports.add((module, ast.unparse(alias)))


def import_block(names: Set[tuple[str, str]]) -> str:
    """Import statements of what `Quotes.imports` names, the standard library's before others."""
    statements = {f"import {name}" for module, name in names if not module}
    for module in {module for module, _ in names if module}:
        imported = sorted(name for each, name in names if each == module)
        statements.add(f"from {module} import {', '.join(imported)}")
    groups: tuple[list[str], list[str]] = ([], [])
    for statement in sorted(statements, key=lambda each: (each.startswith("from"), each)):
        package = statement.split()[1].partition(".")[0]
        groups[package not in sys.stdlib_module_names].append(statement)
    return "\n\n".join("\n".join(group) for group in groups)


@cache
def _parsed(module: str) -> tuple[str, ast.Module]:
    source = inspect.getsource(import_module(module))
    return source, ast.parse(source)


def _used(found: ast.ClassDef, members: Set[str]) -> list[ast.stmt]:
    """The members of a class that have one of these names, and those that they reach by `self`.

    Fields are left out: who quotes a class without its decorators sets them in another way.
    """
    statements = [each for each in found.body[1:] if not isinstance(each, ast.AnnAssign)]
    wanted, known = set(members), set[str]()
    while known != wanted:
        known = set(wanted)
        kept = [each for each in statements if known & set(_bound(each))]
        nodes = [node for each in kept for node in ast.walk(each)]
        wanted |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return kept


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a statement at the top of a module defines."""
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=[ast.Tuple(elts=names)]):
            return [each.id for each in names if isinstance(each, ast.Name)]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [each.asname or each.name for each in aliases]
    return []


def _lambda_as(name: str, module: str, line: int) -> str:
    """The only lambda that begins on a line of a module, as a function with a name."""
    source, tree = _parsed(module)
    lambdas = [each for each in ast.walk(tree) if isinstance(each, ast.Lambda)]
    [found] = [each for each in lambdas if each.lineno == line]
    body = ast.get_source_segment(source, found.body)
    return f"def {name}({ast.unparse(found.args)}):\n    return {body}"


def _quoted(source: str, statement: ast.stmt) -> str:
    """The text of a statement without what quotes leave out."""
    lines = dict(enumerate(source.splitlines(), start=1))
    for node in ast.walk(statement):
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id=name))) if name.startswith("_check"):
                _replace(lines, node, [])
            case ast.Expr(value=ast.Constant(value=str() as docstring)) if "\n" in docstring:
                _replace(lines, node, [f'{" " * node.col_offset}"""{docstring.splitlines()[0]}"""'])
    decorators = getattr(statement, "decorator_list", [])
    start = min(each.lineno for each in [statement, *decorators])
    numbers = range(start, (statement.end_lineno or start) + 1)
    kept = (lines[number] for number in numbers if number in lines)
    return "\n".join(re.sub(r"\s+# type: ignore.*", "", line) for line in kept)


def _replace(lines: dict[int, str], node: ast.Expr, texts: list[str]) -> None:
    numbers = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    for number in numbers:
        del lines[number]
    lines |= dict(zip(numbers, texts, strict=False))
