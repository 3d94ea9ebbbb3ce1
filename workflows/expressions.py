"""The subset of Argo's expression language that templates use, and the `depends` grammar. Nothing here calls `eval`.

expression := or ["?" expression ":" expression]
or         := and {("||" | "or") and}
and        := not {("&&" | "and") not}
not        := ("!" | "not") not | compare
compare    := sum [("==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not in") sum]
sum        := product {("+" | "-") product}
product    := unary {("*" | "/" | "%") unary}
unary      := "-" unary | atom
atom       := number | 'text' | true | false | nil | [list] | (expression) | function(arguments) | name
name       := word {"." word | "?." word | "['" word "']"}
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from workflows.errors import WorkflowError

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<text>'[^']*'|\"[^\"]*\")|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<op>\?\.|==|!=|<=|>=|&&|\|\||[-+*/%<>!?:.,()\[\]]))"
)
_DEPENDS_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z]+)?)|(?P<op>&&|\|\||[!()]))")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"asInt": int, "asFloat": float, "string": str, "int": int, "float": float}
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "nil": None}
RESULTS = ("Succeeded", "Failed", "Errored", "Skipped", "Omitted", "Daemoned", "AnySucceeded", "AllFailed")


class ExpressionError(WorkflowError):
    """An expression that can't be read or evaluated."""


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """Value of an expression over nested mappings, such as {"lastRetry": {"exitCode": "75"}}."""
    parser = _Parser(text, _tokens(text, _TOKEN), names)
    try:
        value = parser.expression()
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ExpressionError(f"expression {text!r}: {error}") from None
    parser.end()
    return value


def evaluate_depends(text: str, result: Callable[[str, str], bool]) -> bool:
    """A `depends` expression; `result(task, "Failed")` answers for one task. A bare name means that it ended well."""

    def term(word: str) -> bool:
        task, dot, what = word.partition(".")
        if not dot:
            return any(result(task, good) for good in ("Succeeded", "Skipped", "Daemoned"))
        if what not in RESULTS:
            raise ExpressionError(f"depends {text!r}: {what!r} is not one of {', '.join(RESULTS)}")
        return result(task, what)

    parser = _Parser(text, _tokens(text, _DEPENDS_TOKEN), {}, term)
    value = parser.either()
    parser.end()
    return bool(value)


def depends_tasks(text: str) -> list[str]:
    """Names of the tasks in a `depends` expression, in order, once each."""
    words = [token for kind, token in _tokens(text, _DEPENDS_TOKEN) if kind == "word"]
    return list(dict.fromkeys(word.partition(".")[0] for word in words))


def _tokens(text: str, pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    tokens, at, text = [], 0, text.rstrip()
    while at < len(text):
        match = pattern.match(text, at)
        if not match or match.lastgroup is None:
            raise ExpressionError(f"expression {text!r}: can't read {text[at : at + 20]!r}")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return tokens


class _Parser:
    """Recursive descent over the grammar above; evaluates while reading. `term` turns words into values in depends."""

    def __init__(
        self,
        text: str,
        tokens: list[tuple[str, str]],
        names: Mapping[str, Any],
        term: Callable[[str], bool] | None = None,
    ) -> None:
        self.text, self.tokens, self.names, self.term, self.at = text, tokens, names, term, 0

    def fail(self, why: str) -> ExpressionError:
        return ExpressionError(f"expression {self.text!r}: {why}")

    def peek(self) -> str:
        """The next operator or word; "" at the end and before a literal."""
        kind, token = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        return token if kind in ("op", "word") else ""

    def take(self, *wanted: str) -> str:
        token = self.peek()
        if token and token in wanted:
            self.at += 1
            return token
        return ""

    def expect(self, wanted: str) -> None:
        if not self.take(wanted):
            raise self.fail(f"expected {wanted!r}")

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise self.fail(f"can't read from {self.tokens[self.at][1]!r} on")

    def expression(self) -> Any:
        value = self.either()
        if self.take("?"):
            yes = self.expression()
            self.expect(":")
            no = self.expression()
            return yes if value else no
        return value

    def either(self) -> Any:
        value = self.both()
        while self.take("||", "or"):
            other = self.both()
            value = bool(value) or bool(other)
        return value

    def both(self) -> Any:
        value = self.negation()
        while self.take("&&", "and"):
            other = self.negation()
            value = bool(value) and bool(other)
        return value

    def negation(self) -> Any:
        if self.take("!", "not"):
            return not self.negation()
        if self.term:
            return self.depends_atom()
        return self.compare()

    def depends_atom(self) -> Any:
        if self.take("("):
            value = self.either()
            self.expect(")")
            return value
        if self.at >= len(self.tokens) or self.tokens[self.at][0] != "word" or not self.term:
            raise self.fail("a task's name is missing")
        self.at += 1
        return self.term(self.tokens[self.at - 1][1])

    def compare(self) -> Any:
        value = self.sum()
        if op := self.take(*_COMPARE):
            return _COMPARE[op](value, self.sum())
        if self.take("in"):
            return value in self.sum()
        if self.peek() == "not":
            self.at += 1
            self.expect("in")
            return value not in self.sum()
        return value

    def sum(self) -> Any:
        value = self.product()
        while op := self.take("+", "-"):
            value = _ARITHMETIC[op](value, self.product())
        return value

    def product(self) -> Any:
        value = self.unary()
        while op := self.take("*", "/", "%"):
            value = _ARITHMETIC[op](value, self.unary())
        return value

    def unary(self) -> Any:
        return -self.unary() if self.take("-") else self.atom()

    def atom(self) -> Any:
        if self.at >= len(self.tokens):
            raise self.fail("it ends too early")
        kind, token = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return float(token) if "." in token else int(token)
        if kind == "text":
            return token[1:-1]
        if token == "(":
            value = self.expression()
            self.expect(")")
            return value
        if token == "[":
            return self.arguments("]")
        if kind != "word":
            raise self.fail(f"{token!r} is out of place")
        return self.named(token)

    def arguments(self, close: str) -> list[Any]:
        values: list[Any] = []
        while not self.take(close):
            if values:
                self.expect(",")
            values.append(self.expression())
        return values

    def named(self, word: str) -> Any:
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        if self.take("("):
            if word not in _FUNCTIONS:
                raise self.fail(f"no function {word!r}; known: {', '.join(_FUNCTIONS)}")
            return _FUNCTIONS[word](*self.arguments(")"))
        # `lastRetry?.exitCode` is nil before the first retry, so an absent name may only be followed by "?."
        absent = word not in self.names
        if absent and self.peek() != "?.":
            raise self.fail(f"no value named {word!r}")
        return self.path(word, None if absent else self.names[word])

    def path(self, name: str, value: Any) -> Any:
        while step := self.take(".", "?.", "["):
            kind, token = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
            self.at += 1
            key = token[1:-1] if kind == "text" else token
            if step == "[":
                self.expect("]")
            name = f"{name}.{key}"
            if step == "?." and (value is None or key not in value):
                value = None
            elif not isinstance(value, Mapping) or key not in value:
                raise self.fail(f"no value named {name!r}")
            else:
                value = value[key]
        return value
