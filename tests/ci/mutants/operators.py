"""Operators that cosmic-ray lacks: a statement that is left out, a lost result, and changes of SQL.

They look at code alone, as those of cosmic-ray: :func:`positions` of a node are the changes that are possible there.
"""

import re

import parso
from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import Keyword

SQL = re.compile(r"\b(SELECT|UPDATE|INSERT|DELETE|WHERE|ORDER BY|REPLACE INTO)\b")
SQL_CHANGES = [
    (re.compile(r"<="), "<"),
    (re.compile(r">="), ">"),
    (re.compile(r"(?<![<>=!\-])<(?![<>=])"), "<="),
    (re.compile(r"(?<![<>=!\-])>(?![<>=])"), ">="),
    (re.compile(r"\bAND\b"), "OR"),
    (re.compile(r"\bOR\b(?! (IGNORE|REPLACE|ABORT|FAIL|ROLLBACK))"), "AND"),
    (re.compile(r"\bIS NULL\b"), "IS NOT NULL"),
    (re.compile(r"\bIS NOT NULL\b"), "IS NULL"),
    (re.compile(r"\bNOT (?=IN|EXISTS)\b"), ""),
    (re.compile(r"\bDESC\b"), "ASC"),
    (re.compile(r"\bORDER BY (\w+)(?= (LIMIT|\))|$|\")"), r"ORDER BY \1 DESC"),
    (re.compile(r"\bmin\("), "max("),
    (re.compile(r"\bmax\("), "min("),
    (re.compile(r"\+ 1\b"), "+ 2"),
    (re.compile(r"\bOR (IGNORE|REPLACE)\b"), ""),
    (re.compile(r"\bUNION ALL\b"), "UNION"),
]


class DeleteStatement(Operator):
    """An operator that replaces a statement in a function by ``pass``."""

    def mutation_positions(self, node):
        if node.type == "simple_stmt" and _function(node) is not None and self._deletable(node.children[0]):
            yield node.start_pos, node.children[0].end_pos

    @staticmethod
    def _deletable(statement):
        """Leave out ``name = value``: without it, most functions fail at once with any test; and ``name: type`` alone."""
        named = statement.type == "expr_stmt" and statement.children[0].type == "name" and not _augmented(statement)
        bare = statement.type == "expr_stmt" and statement.children[1].type == "annassign" and "=" not in _leaves(statement)
        kinds = {"expr_stmt", "atom_expr", "power", "raise_stmt", "del_stmt"}
        return statement.type in kinds and not named and not bare and "yield" not in _leaves(statement)

    def mutate(self, node, index):  # noqa: ARG002  # there is one position
        first = node.children[0]
        node.children[0] = Keyword("pass", first.start_pos, prefix=first.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls):
        return (Example("def f():\n    g(1)\n", "def f():\n    pass\n"),)


class LoseResult(Operator):
    """An operator that returns None in place of a value."""

    def mutation_positions(self, node):
        if node.type == "return_stmt" and node.children[1].get_code().strip() != "None":
            yield node.start_pos, node.end_pos

    def mutate(self, node, index):  # noqa: ARG002  # there is one position
        node.children[1] = Keyword("None", node.children[1].start_pos, prefix=" ")
        return node

    @classmethod
    def examples(cls):
        return (Example("def f():\n    return 1\n", "def f():\n    return None\n"),)


class ReplaceSql(Operator):
    """An operator that changes a comparison, a junction, a function or an order in the text of an SQL statement."""

    def mutation_positions(self, node):
        if node.type in {"string", "fstring_string"} and not _documents(node) and SQL.search(node.value):
            for pattern, _ in SQL_CHANGES:
                for _match in pattern.finditer(node.value):
                    yield node.start_pos, node.end_pos

    def mutate(self, node, index):
        found = [(match, text) for pattern, text in SQL_CHANGES for match in pattern.finditer(node.value)]
        match, text = found[index]
        node.value = node.value[: match.start()] + match.expand(text) + node.value[match.end() :]
        return node

    @classmethod
    def examples(cls):
        return (Example('x = "SELECT 1 WHERE a <= b"', 'x = "SELECT 1 WHERE a < b"'),)


OWN = {"DeleteStatement": DeleteStatement, "LoseResult": LoseResult, "ReplaceSql": ReplaceSql}


def _function(node):
    return parso.tree.search_ancestor(node, "funcdef", "lambdef")


def _augmented(statement):
    sign = statement.children[1]
    return sign.type == "operator" and sign.value != "="


def _leaves(node):
    leaf, last, found = node.get_first_leaf(), node.get_last_leaf(), set()
    while leaf is not None:
        found.add(leaf.value)
        if leaf is last:
            break
        leaf = leaf.get_next_leaf()
    return found


def _documents(node):
    return node.parent is not None and node.parent.type in {"simple_stmt", "file_input"}
