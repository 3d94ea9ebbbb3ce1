import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows.expressions import ExpressionError, depends_tasks, evaluate, evaluate_depends
from workflows.templates import RETRY_EXPRESSION, grown_memory

NAMES = {"lastRetry": {"exitCode": "137", "status": "Failed"}, "workflow": {"parameters": {"memory-mi": "100"}}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("2 - 1 - 1", 0),
        ("-1 in [1, -1]", True),
        ("3 not in [3]", False),
        ("!false && true || false", True),
        ("'a' == \"a\"", True),
        ("'5' == 5", False),
        ("asInt('12') >= 12", True),
        ("true ? 'yes' : 'no'", "yes"),
        ("false ? 1 : true ? 2 : 3", 2),
        ("lastRetry.exitCode", "137"),
        ("lastRetry?.exitCode in ['77', '137'] ? 2 : 1", 2),
        ("absent?.exitCode == nil", True),
        ("asInt(workflow.parameters['memory-mi'])", 100),
        ("[]", []),
    ],
)
def test_values(text: str, value: object) -> None:
    assert evaluate(text, NAMES) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lastRetry.exitcode", "no value named 'lastRetry.exitcode'"),
        ("retries > 1", "no value named 'retries'"),
        ("system('x')", "no function 'system'"),
        ("1 +", "ends too early"),
        ("(1", "expected ')'"),
        ("1 2", "can't read from '2'"),
        ("a ; b", "can't read ' ; b'"),
        ("asInt('x')", "invalid literal"),
        ("1 / 0", "division by zero"),
        ("'a' < 1", "not supported"),
    ],
)
def test_mistakes_are_named(text: str, says: str) -> None:
    with pytest.raises(ExpressionError, match="expression") as error:
        evaluate(text, NAMES)
    assert says in str(error.value)


_NUMBERS = st.integers(0, 20).map(str)
_ARITHMETIC = st.recursive(
    _NUMBERS,
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "<", "==", "!=", ">="]), inner).map(
        lambda parts: f"({' '.join(parts)})"
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=150)
@given(_ARITHMETIC)
def test_arithmetic_is_pythons(text: str) -> None:
    """Python's own parser and evaluator are the oracle."""
    assert evaluate(text, {}) == eval(compile(ast.parse(text, mode="eval"), "", "eval"), {})


_LOGIC = st.recursive(
    st.sampled_from(["a.Failed", "b.Succeeded", "c-x", "d_1.Omitted"]),
    lambda inner: st.one_of(
        inner.map(lambda x: f"!{x}"),
        st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=150)
@given(_LOGIC, st.sets(st.sampled_from(["a.Failed", "b.Succeeded", "c-x.Succeeded", "d_1.Omitted"])))
def test_depends_is_boolean_logic(text: str, true: set[str]) -> None:
    python = text.replace("&&", " and ").replace("||", " or ").replace("!", " not ")
    for name in ("a.Failed", "b.Succeeded", "d_1.Omitted"):
        python = python.replace(name, str(name in true))
    python = python.replace("c-x", str("c-x.Succeeded" in true))
    assert evaluate_depends(text, lambda task, what: f"{task}.{what}" in true) == eval(python.strip())


def test_depends_precedence_and_names() -> None:
    true = {"a.Succeeded"}
    answer = lambda task, what: f"{task}.{what}" in true  # noqa: E731
    assert evaluate_depends("a || b && b", answer)
    assert not evaluate_depends("(a || b) && b", answer)
    assert depends_tasks("a && (b-c.Failed || !a.Skipped)") == ["a", "b-c"]


@pytest.mark.parametrize("phase", ["Succeeded", "Skipped", "Daemoned"])
def test_a_bare_name_means_it_ended_well(phase: str) -> None:
    assert evaluate_depends("a", lambda task, what: what == phase)


@pytest.mark.parametrize(
    ("text", "says"), [("a.Fail", "'Fail' is not one of"), ("a &&", "missing"), ("a b", "can't read from 'b'")]
)
def test_depends_mistakes(text: str, says: str) -> None:
    with pytest.raises(ExpressionError) as error:
        evaluate_depends(text, lambda task, what: True)
    assert says in str(error.value)


@pytest.mark.parametrize("code", [75, 77, 137, 143, 134, 139, -1])
def test_interruptions_come_back(code: int) -> None:
    assert evaluate(RETRY_EXPRESSION, {"lastRetry": {"exitCode": str(code), "status": "Failed"}})


@pytest.mark.parametrize("code", [1, 2, 3, 76, 64, 127])
def test_mistakes_and_verdicts_do_not(code: int) -> None:
    assert not evaluate(RETRY_EXPRESSION, {"lastRetry": {"exitCode": str(code), "status": "Failed"}})
    assert evaluate(RETRY_EXPRESSION, {"lastRetry": {"exitCode": str(code), "status": "Error"}})


@pytest.mark.parametrize(("code", "mebibytes"), [("0", "100Mi"), ("75", "100Mi"), ("77", "200Mi"), ("137", "200Mi")])
def test_memory_grows_after_out_of_memory_only(code: str, mebibytes: str) -> None:
    from workflows.substitute import resolve

    scope = {**NAMES, "lastRetry": {"exitCode": code}}
    assert resolve(grown_memory("memory-mi"), scope) == mebibytes
    without = {"workflow": NAMES["workflow"]}
    assert resolve(grown_memory("memory-mi"), without) == "100Mi"
