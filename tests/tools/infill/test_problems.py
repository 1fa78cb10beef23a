"""Generated problems are correct, and the text behind the hole gives the missing step's result."""

import re
from itertools import islice

import pytest
from tools.infill.functions import functions
from tools.infill.problems import Problem, equations_of, first_sentence, held_out_problems, problems

SOME = list(islice(problems(3), 400))


def test_solutions_are_correct() -> None:
    for problem in SOME:
        number = int(re.findall(r"\d+", problem.opening)[0])
        for step in problem.steps:
            ((one, operator, other, result),) = equations_of(step)
            assert int(one) == number
            number = int(result)
            assert eval(f"{one} {operator} {other}") == number
        assert problem.ending.endswith(f"{number}.\n#### {number}")


def test_the_text_behind_the_hole_gives_the_result() -> None:
    for problem in SOME:
        ((_, _, _, result),) = equations_of(problem.steps[problem.missing])
        assert equations_of(problem.after)[0][0] == result


@pytest.mark.parametrize("is_given", [True, False])
def test_numbers_of_the_question(is_given: bool) -> None:
    """Each number that is not written as a word is in the question, except for the missing step's number."""
    for problem in (each for each in SOME if each.is_given == is_given):
        operands = [equations_of(step)[0][1:3] for step in problem.steps]
        asked = [
            operand
            for index, (operator, operand) in enumerate(operands)
            if operator in "+-" and (is_given or index != problem.missing)
        ]
        assert re.findall(r"\d+", problem.question)[1:] == asked


def test_a_step_is_judged_by_its_equation() -> None:
    problem = Problem("Question", " First, 3.", (" Adding 4 gives 3 + 4 = 7.", " Now 7 - 1 = 6."), " 6.", 0, True)
    assert problem.is_filled_by(" Then Tom has 3 + 4 = 7 cards.")
    assert not problem.is_filled_by(" Adding 4 gives 3 + 4 = 7")
    assert not problem.is_filled_by(" Adding 3 gives 4 + 3 = 7.")
    assert not problem.is_filled_by(" Adding 4 gives 3 + 4 = 7. Now 7 - 1 = 6.")
    assert not problem.has_result_in(" Adding 4 gives 3 + 4 = 6.")
    assert problem.has_result_in(" Adding 3 gives 4 + 3 = 7.")
    assert not problem.has_result_in(" Adding 3 gives 4 + 3 = 7")
    assert first_sentence(" Adding 4 gives 3 + 4 = 7. Now 7") == " Adding 4 gives 3 + 4 = 7."


def test_held_out_problems() -> None:
    found = held_out_problems(20, 1, is_given=False)
    assert len({each.question for each in found}) == 20
    assert all(each.is_held_out and not each.is_given for each in found)
    assert found == held_out_problems(20, 1, is_given=False)


def test_functions_do_what_their_names_say() -> None:
    values = list(range(-12, 13))
    conditions = {
        "even": lambda v, _: v % 2 == 0,
        "odd": lambda v, _: v % 2 == 1,
        "pos": lambda v, _: v > 0,
        "neg": lambda v, _: v < 0,
        "gt": lambda v, k: v > k,
        "lt": lambda v, k: v < k,
    }
    goals = {"count": len, "sum": sum, "keep": list}
    for lines in islice(functions(5), 100):
        namespace: dict[str, object] = {}
        exec("".join(lines), namespace)
        ((name, function),) = [(name, each) for name, each in namespace.items() if not name.startswith("__")]
        _, goal, condition = name.split("_")
        number = next(map(int, re.findall(r"\d", lines[1])), 0)
        kept = [value for value in values if conditions[condition](value, number)]
        assert function(values) == goals[goal](kept)  # type: ignore[operator]
