"""The rules decide like `common/cascade` on its golden vectors."""

import json
import math
import pathlib
import random

import pytest
from neptune_worker import rules

GOLDEN = pathlib.Path(__file__).parents[3] / "common/cascade/golden/rules.json"
VECTORS = json.loads(GOLDEN.read_text(encoding="utf-8"))


def parsed(value):
    """Numbers that JSON does not have are texts in the file."""
    if isinstance(value, list):
        return [parsed(entry) for entry in value]
    if isinstance(value, dict):
        return {key: entry if key == "token" else parsed(entry) for key, entry in value.items()}
    return float(value) if isinstance(value, str) else value


def created(vector):
    pairs = [{"key": key, "value": str(value)} for key, value in vector["parameters"].items()]
    return rules.create(vector["rule"], json.dumps(pairs))


class Fixed(random.Random):
    """Draws one number."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def random(self):
        return self.number


def test_all_vectors_are_decided_like_in_rust():
    assert len(VECTORS) == 500
    for number, vector in enumerate(VECTORS):
        rule, signal = created(vector), parsed(vector["input"])
        if vector["rule"] == "Random":
            rule = rules.Random(rule.random_ratio, generator=Fixed(signal))
        judgement = rule.judge(signal)
        context = f"vector {number}: {vector}, {judgement}"
        assert judgement.is_hard == vector["hard"], context
        assert judgement.unjudged == vector["unjudged"], context
        assert (judgement.confidence is None) == (vector["confidence"] is None), context
        if judgement.confidence is not None:
            assert math.isclose(judgement.confidence, vector["confidence"], rel_tol=0, abs_tol=1e-12), context


def test_absent_parameters_are_the_defaults():
    for text in ("", "  ", "[]", "null"):
        assert rules.create("IBT", text) == rules.IBT(0.5, 0.5)


def test_values_are_numbers_or_texts_and_the_last_one_counts():
    pairs = [("threshold_box", " 0.25 "), ("threshold_img", 1), ("threshold_img", "0.75")]
    text = json.dumps([{"key": key, "value": value} for key, value in pairs])
    assert rules.create("IBT", text) == rules.IBT(0.75, 0.25)


@pytest.mark.parametrize("value", ['"many"', '""', '"NaN"', '"inf"', "1.01", "-0.1", "null", "true", "[0.5]"])
def test_value_outside_0_to_1_is_refused_by_name(value):
    with pytest.raises(ValueError, match="parameter 'threshold_img' of IBT must be a number from 0 to 1"):
        rules.create("IBT", f'[{{"key":"threshold_img","value":{value}}}]')


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("ibt", "", "unknown hard example algorithm 'ibt'; known are IBT, Threshold"),
        (
            "IBT",
            '[{"key":"threshold","value":"1"}]',
            "no parameter 'threshold'; it has threshold_img, threshold_box",
        ),
        ("EdgeOnly", '[{"key":"x","value":"1"}]', "EdgeOnly has no parameter 'x'; it has none"),
        ("LogProb", '[{"key":"signal","value":"sum"}]', "parameter 'signal' of LogProb is 'sum'; known are mean"),
        ("IBT", "{", "must be a JSON list"),
        ("IBT", "3", "must be a JSON list"),
        ("IBT", '[{"key":"threshold_img"}]', "must be a JSON list"),
    ],
)
def test_unknown_names_and_malformed_lists_are_refused(name, text, problem):
    with pytest.raises(ValueError, match=problem):
        rules.create(name, text)


def test_confidence_of_the_program_is_compared_with_the_threshold():
    for rule in (rules.IBT(0.6), rules.Threshold(0.6), rules.CrossEntropy(0.6), rules.LogProb(0.6)):
        assert rule.judge_confidence(0.59).is_hard
        assert not rule.judge_confidence(0.6).is_hard
        assert rule.judge_confidence(math.nan) == rules.Judgement(False, None, "a value is infinite or not a number")


def test_random_selects_about_its_ratio():
    rule = rules.Random(0.3, generator=random.Random(7))
    assert 2800 <= sum(rule.is_hard() for _ in range(10_000)) <= 3200
    assert not any(rules.Random(0.0).is_hard() for _ in range(1000))
    assert all(rules.Random(1.0).is_hard() for _ in range(1000))


def test_arrays_of_numpy_are_judged():
    numpy = pytest.importorskip("numpy")
    assert rules.CrossEntropy().is_hard(numpy.full(4, 0.25))
    assert rules.IBT().is_hard(numpy.array([[0, 0, 8, 8, 0.4, 1]]))
    assert not rules.IBT().is_hard(numpy.zeros((0, 6)))
