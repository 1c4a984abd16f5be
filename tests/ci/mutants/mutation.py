"""The mutants of a module: found by operators, named by what they change, and a sample of them."""

import ast
import hashlib
import re
from collections import Counter
from functools import cache
from itertools import islice
from pathlib import Path

import parso
from attrs import frozen

from .operators import OWN

ROOT = Path(__file__).parents[3]
SEED = "rbim"

OPERATORS = [
    *("AddNot", "ExceptionReplacer", "NumberReplacer", "RemoveDecorator", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ReplaceFalseWithTrue", "ReplaceTrueWithFalse"),
    *("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub", "ZeroIterationForLoop"),
    *("ReplaceBinaryOperator_Add_Sub", "ReplaceBinaryOperator_Sub_Add", "ReplaceBinaryOperator_Mul_Div"),
    *("ReplaceBinaryOperator_Div_Mul", "ReplaceBinaryOperator_FloorDiv_Mul", "ReplaceBinaryOperator_Mod_FloorDiv"),
    *("ReplaceBinaryOperator_Pow_Mul", "ReplaceComparisonOperator_Eq_NotEq", "ReplaceComparisonOperator_NotEq_Eq"),
    *("ReplaceComparisonOperator_Lt_LtE", "ReplaceComparisonOperator_Lt_GtE", "ReplaceComparisonOperator_LtE_Lt"),
    *("ReplaceComparisonOperator_LtE_Gt", "ReplaceComparisonOperator_Gt_GtE", "ReplaceComparisonOperator_Gt_LtE"),
    *("ReplaceComparisonOperator_GtE_Gt", "ReplaceComparisonOperator_GtE_Lt", "ReplaceComparisonOperator_Is_IsNot"),
    "ReplaceComparisonOperator_IsNot_Is",
]
"""Of cosmic-ray's operators: for each sign the nearest other one and the opposite, not all others."""


@frozen
class Mutant:
    """One change of a module.

    ``key`` names it by its function, its line and its operator, so that other changes of the module leave it alone.
    ``digest`` is that of the function's text: a result is of this text only. ``lines`` is its statement, ``function`` is
    empty at the level of a module or a class.
    """

    path: str
    function: str
    operator: str
    occurrence: int
    line: int
    lines: tuple[int, int]
    key: str
    digest: str

    @property
    def module(self):
        return self.path.removesuffix(".py").replace("/", ".")

    @property
    def rank(self):
        """A random number of the mutant, the same in every run."""
        return hashlib.sha256(f"{SEED} {self.key}".encode()).hexdigest()

    def text(self):
        from cosmic_ray.mutating import mutate_code

        made = mutate_code(source(self.path), operator(self.operator), self.occurrence)
        assert made is not None, self.key
        return str(made)

    def change(self):
        before, after = source(self.path).splitlines(), self.text().splitlines()
        while before and after and before[0] == after[0]:
            before, after = before[1:], after[1:]
        while before and after and before[-1] == after[-1]:
            before, after = before[:-1], after[:-1]
        old, new = (re.sub(r"\s+", " ", " ".join(lines)).strip() for lines in (before, after))
        return f"{old} -> {new}"


@cache
def source(path):
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def operator(name):
    from cosmic_ray.plugins import get_operator

    if name in OWN:
        return OWN[name]()
    return get_operator(f"core/{name}")()


def mutants_of(path):
    """Return all mutants of a module, without those that by their kind change nothing: annotations, imports for types."""
    text = source(path)
    lines = text.splitlines()
    functions = _functions(text)
    named = Counter()
    counts = Counter()
    found = []
    for node in _nodes(parso.parse(text)):
        for name in (*OPERATORS, *OWN):
            for (line, _), _end in operator(name).mutation_positions(node):
                occurrence = counts[name]
                counts[name] += 1
                if _without_effect(node, name):
                    continue
                function, begin, end = functions.get(line, ("", 0, 0))
                own = lines[begin - 1 : end] if function else [lines[line - 1]]
                label = f"{path} {function or '(module)'} | {name.removeprefix('Replace')} | {lines[line - 1].strip()}"
                named[label] += 1
                found.append(
                    Mutant(
                        path=path,
                        function=function,
                        operator=name,
                        occurrence=occurrence,
                        line=line,
                        lines=_statement(node),
                        key=label if named[label] == 1 else f"{label} | {named[label]}",
                        digest=hashlib.sha256("\n".join(own).encode()).hexdigest()[:12],
                    )
                )
    return found


def sampled(mutants, most):
    """Return at most so many mutants, by their random numbers: others that come or go change nothing else of the sample."""
    return list(islice(filter(_compiles, sorted(mutants, key=lambda mutant: mutant.rank)), most))


def _compiles(mutant):
    """Whether the operator can make the change, and Python reads it: cosmic-ray does not know all of the syntax."""
    try:
        text = mutant.text()
        compile(text, mutant.path, "exec")
    except (SyntaxError, AttributeError):
        return False
    return text != source(mutant.path)


def _nodes(node):
    yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


def _functions(text):
    """For each line in a function: the outermost function's name with its class, its first line and its last one.

    The line of a ``def`` itself, its decorators and its defaults belong to the module: they run when it is imported.
    """
    lines = {}

    def look(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for line in range(child.body[0].lineno, (child.end_lineno or 0) + 1):
                    lines[line] = (prefix + child.name, child.lineno, child.end_lineno or 0)
            elif isinstance(child, ast.ClassDef):
                look(child, f"{prefix}{child.name}.")

    look(ast.parse(text), "")
    return lines


def _statement(node):
    """The lines of the statement around a node; of one with a body, only up to the node's end."""
    outer = node
    while outer.parent is not None and outer.type != "simple_stmt" and not outer.type.endswith("_stmt"):
        outer = outer.parent
    first = outer.start_pos[0] if outer.parent is not None else node.start_pos[0]
    last = outer.end_pos[0] if outer.type == "simple_stmt" else node.end_pos[0]
    if outer.type == "simple_stmt" and outer.end_pos[1] == 0:
        last -= 1  # the end of its line is the start of the next
    if node.type in {"for_stmt", "if_stmt", "while_stmt"}:  # the change is in the head, the body is long
        last = first
    return first, max(first, last)


def _without_effect(node, name):
    if name == "RemoveDecorator" and re.search(r"@(staticmethod|overload|final|abstractmethod)", node.get_code()):
        return True
    if "BinaryOperator" in name and node.parent.type not in {"arith_expr", "term", "power"}:
        return True  # a star of arguments, or a slash between parameters
    outer = node
    while outer.parent is not None:
        if outer.parent.type == "tfpdef" or outer.type in {"annassign", "import_from"}:
            return outer.type != "annassign" or not _assigned(outer, node)
        if outer.parent.type == "funcdef" and outer.parent.annotation is outer:
            return True
        outer = outer.parent
    if name == "NumberReplacer" and parso.tree.search_ancestor(node, "funcdef", "classdef", "lambdef") is None:
        return True  # a figure of a module, such as 300 seconds: one more or less is the same choice
    head = node.get_code().lstrip().splitlines()[0] if node.get_code().strip() else ""
    return "TYPE_CHECKING" in head


def _assigned(annotation, node):
    """Whether a node is the value of ``name: type = value``, and not its type."""
    if len(annotation.children) < 4:
        return False
    return bool(node.start_pos >= annotation.children[3].start_pos)
