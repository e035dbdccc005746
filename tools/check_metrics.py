#!/usr/bin/env python3
"""Holds a run's metrics.json against conditions; prints a line each and exits 1 unless all hold.

usage: check_metrics.py metrics.json 'max(data["train/token_mult_prob_error"]) < 1.05' ...

metrics.json is {"train/loss": {"1": 0.01, "2": 0.02}}: steps are 1-based strings. A condition is a comparison of
numbers, data["metric"]["step"], and
  min max mean median (data["metric"], start, end)      over the steps start <= step < end
  ratio_above(data["metric"], threshold, start, end)    share of the values >= threshold
joined by + - * / abs() and or not. start and end may be left out (then all steps count); negative ones count from
the end, -1 being the last step, and end 0 includes it: mean(x, -6, -1) takes the five steps before the last.
A condition fails when a series it names does not exist, is empty, or holds a value that is not a finite number.
"""

import ast
import difflib
import json
import math
import operator
import statistics
import sys


class CheckError(Exception):
    """A condition that cannot be evaluated; the message says why."""


COMPARISONS = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
REDUCTIONS = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
}


class Series:
    """One metric: a finite value for each of at least one step."""

    def __init__(self, name, values):
        self.name = name
        if not isinstance(values, dict) or not values:
            raise CheckError(f'"{name}" has no values')
        self.values = {}
        for step, value in values.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value):
                raise CheckError(f'"{name}" is {json.dumps(value)} at step {step}')
            if not step.isdecimal():
                raise CheckError(f'"{name}" has a value at "{step}", which is no step')
            self.values[int(step)] = value

    def at(self, step):
        if not isinstance(step, str) or not step.isdecimal() or int(step) not in self.values:
            raise CheckError(f'"{self.name}" has no step {step!r}')
        return self.values[int(step)]

    def between(self, start, end):
        """Values of the steps start <= step < end; all without a start."""
        if start is None:
            return list(self.values.values())
        after_last = max(self.values) + 1
        first = start + after_last if start < 0 else start
        last = end + after_last if end <= 0 else end
        chosen = [value for step, value in self.values.items() if first <= step < last]
        if not chosen:
            raise CheckError(f'"{self.name}" has no step from {first} to before {last}')
        return chosen


def named_series(tree, metrics):
    """Every series that the condition names, also where `and` or `or` would not look."""
    subscripts = [node for node in ast.walk(tree) if is_data_subscript(node)]
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "data"]
    if len(names) != len(subscripts):
        raise CheckError('data must be used as data["metric"]')
    series = {}
    for node in subscripts:
        name = node.slice.value
        if name not in metrics:
            nearest = difflib.get_close_matches(name, metrics, n=1, cutoff=0.0)
            hint = f'; the nearest is "{nearest[0]}"' if nearest else ""
            raise CheckError(f'there is no metric "{name}"{hint}')
        series[name] = Series(name, metrics[name])
    return series


def is_data_subscript(node):
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "data"
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    )


class Evaluator:
    """Walks the few kinds of node that a condition may hold; anything else is a CheckError."""

    def __init__(self, series):
        self.series = series
        self.compared = []  # values on the left of comparisons, for the report

    def condition(self, node):
        if isinstance(node, ast.BoolOp):
            results = [self.condition(value) for value in node.values]
            return all(results) if isinstance(node.op, ast.And) else any(results)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self.condition(node.operand)
        if isinstance(node, ast.Compare):
            return self.comparison(node)
        raise CheckError(f"not a comparison: {ast.unparse(node)}")

    def comparison(self, node):
        numbers = [self.number(operand) for operand in [node.left, *node.comparators]]
        is_constant = isinstance(node.left, ast.Constant)
        self.compared.append(numbers[1] if is_constant else numbers[0])
        for op in node.ops:
            if type(op) not in COMPARISONS:
                raise CheckError(f"not a comparison of numbers: {ast.unparse(node)}")
        return all(COMPARISONS[type(op)](a, b) for op, a, b in zip(node.ops, numbers, numbers[1:]))

    def number(self, node):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            value = self.number(node.operand)
            return -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            return ARITHMETIC[type(node.op)](self.number(node.left), self.number(node.right))
        if isinstance(node, ast.Subscript) and is_data_subscript(node.value):
            if isinstance(node.slice, ast.Constant):
                return self.series[node.value.slice.value].at(node.slice.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self.call(node)
        raise CheckError(f"not allowed here: {ast.unparse(node)}")

    def call(self, node):
        name, arguments = node.func.id, node.args
        if name == "abs" and len(arguments) == 1:
            return abs(self.number(arguments[0]))
        if name not in REDUCTIONS and name != "ratio_above":
            raise CheckError(f"no such function: {name}; allowed: min max mean median ratio_above abs")
        if not arguments or not is_data_subscript(arguments[0]):
            raise CheckError(f'{name} needs data["metric"] first: {ast.unparse(node)}')
        series = self.series[arguments[0].slice.value]
        numbers = [self.number(argument) for argument in arguments[1:]]
        if name != "ratio_above":
            return REDUCTIONS[name](series.between(*step_range(name, numbers)))
        if not numbers:
            raise CheckError("ratio_above needs a threshold")
        values = series.between(*step_range(name, numbers[1:]))
        return sum(value >= numbers[0] for value in values) / len(values)


def step_range(name, numbers):
    if len(numbers) > 2 or not all(isinstance(number, int) for number in numbers):
        raise CheckError(f"the range of {name} is one or two whole steps: start, end")
    if not numbers:
        return None, None
    return numbers[0], numbers[1] if len(numbers) > 1 else 0


def evaluate(metrics, condition):
    """(holds, what was found) of one condition."""
    try:
        tree = ast.parse(condition.strip(), mode="eval").body
        evaluator = Evaluator(named_series(tree, metrics))
        if not evaluator.series:
            raise CheckError("the condition names no metric")
        holds = evaluator.condition(tree)
        return holds, ", ".join(f"{value:.6g}" for value in evaluator.compared)
    except CheckError as error:
        return False, str(error)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return False, f"not a condition: {error}"
    except ArithmeticError as error:
        return False, str(error)


def main(arguments):
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    if len(arguments) < 2:
        print("usage: check_metrics.py metrics.json CONDITION...", file=sys.stderr)
        return 2
    path, conditions = arguments[0], arguments[1:]
    try:
        with open(path, encoding="utf-8") as file:
            metrics = json.load(file)
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    if not isinstance(metrics, dict):
        print(f"{path}: not an object of metrics", file=sys.stderr)
        return 1
    results = [(evaluate(metrics, condition), condition) for condition in conditions]
    for (holds, found), condition in results:
        print(f"{'PASS' if holds else 'FAIL'} {condition}    [{found}]")
    num_failed = sum(not holds for (holds, _), _ in results)
    print(f"{len(results) - num_failed} of {len(results)} conditions hold ({path})")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
