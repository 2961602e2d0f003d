"""The hard-example rules: they decide from the edge model's output whether a sample goes to the cloud.

Pure. The comparisons are those of the Rust crate `neptune-cascade`; both read the same golden vectors. What cannot be
judged (an empty output, a value that is not finite or out of range) is `Unjudged` and not hard, so that a broken edge
model does not overload the cloud.
"""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Optional, Union

Boxes = Sequence[Sequence[float]]
Scores = Sequence[float]
Token = Union[float, Mapping[str, Any]]

# Log-probabilities above 0 by less than this are 0: servers round.
_ROUNDING = 1e-3


class Unjudged(ValueError):
    """A sample that has no confidence; the text is the reason."""


class Judgement(NamedTuple):
    """The decision about one sample."""

    is_hard: bool
    confidence: Optional[float]
    """From 0 to 1, or None without one."""
    unjudged: Optional[str] = None
    """Why the sample has no confidence, although the rule reads one."""


class Rule:
    """What all rules share: a confidence is computed from one signal, and a sample below the threshold is hard."""

    reads: ClassVar[str] = ""
    """The signal of `Worker.infer` that the rule reads: scores, boxes, logprobs, or none."""

    def limit(self) -> float:
        """Return the threshold, which is the first parameter: a sample with a lower confidence is hard."""
        return float(getattr(self, next(iter(self.__dict__))))

    def confidence(self, signal: Any) -> float:
        """Return the confidence of one sample, or raise `Unjudged`."""
        raise NotImplementedError

    def judge(self, signal: Any = None) -> Judgement:
        """Decide about one sample. An output that cannot be judged is not hard."""
        try:
            confidence = self.confidence(signal)
        except Unjudged as reason:
            return Judgement(False, None, str(reason))
        return Judgement(self._is_below(confidence, signal), confidence)

    def judge_confidence(self, confidence: float) -> Judgement:
        """Decide about one sample by a confidence from 0 to 1 that the program computed itself."""
        try:
            (value,) = _units([confidence])
        except Unjudged as reason:
            return Judgement(False, None, str(reason))
        return Judgement(value < self.limit(), value)

    def is_hard(self, signal: Any = None) -> bool:
        """Return whether the sample is hard."""
        return self.judge(signal).is_hard

    def _is_below(self, confidence: float, signal: Any) -> bool:
        return confidence < self.limit()


@dataclass(frozen=True)
class IBT(Rule):
    """Hard when the share of boxes with a score of at most `threshold_box` is at least 1 - `threshold_img`."""

    threshold_img: float = 0.5
    threshold_box: float = 0.5
    reads: ClassVar[str] = "boxes"

    def confidence(self, signal: Boxes) -> float:
        return 1.0 - self._low_share(signal)

    def _low_share(self, boxes: Boxes) -> float:
        scores = _box_scores(boxes)
        return sum(score <= self.threshold_box for score in scores) / len(scores)

    def _is_below(self, confidence: float, signal: Boxes) -> bool:
        # Not 1 - share < threshold: the original rule rounds in this order.
        return self._low_share(signal) >= 1.0 - self.threshold_img


@dataclass(frozen=True)
class Threshold(Rule):
    """Hard when the mean score of the boxes is below `threshold`."""

    threshold: float = 0.5
    reads: ClassVar[str] = "boxes"

    def confidence(self, signal: Boxes) -> float:
        scores = _box_scores(signal)
        return _sum(scores) / len(scores)


@dataclass(frozen=True)
class CrossEntropy(Rule):
    """Hard when one minus the normalised entropy of the class probabilities is below the threshold."""

    threshold_cross_entropy: float = 0.5
    reads: ClassVar[str] = "scores"

    def confidence(self, signal: Scores) -> float:
        values = _classes(signal)
        # p ln p is 0 at p = 0, its limit.
        return 1.0 + _sum([p * math.log(p) for p in values if p > 0.0]) / math.log(len(values))


@dataclass(frozen=True)
class MaxProbability(Rule):
    """Hard when the greatest class probability is below `threshold`."""

    threshold: float = 0.5
    reads: ClassVar[str] = "scores"

    def confidence(self, signal: Scores) -> float:
        return max(_classes(signal))


@dataclass(frozen=True)
class Margin(Rule):
    """Hard when the greatest class probability minus the second is below `threshold`."""

    threshold: float = 0.5
    reads: ClassVar[str] = "scores"

    def confidence(self, signal: Scores) -> float:
        first, second = sorted(_classes(signal), reverse=True)[:2]
        return first - second


@dataclass(frozen=True)
class LogProb(Rule):
    """Hard when the confidence of a language model's answer is below `threshold`.

    A token is its log-probability, or a mapping as in OpenAI's API with `logprob` and `top_logprobs`, a list of
    alternatives with `token` and `logprob`. `signal` is one of mean, min, quantile, margin and choice.
    """

    threshold: float = 0.5
    signal: str = "mean"
    quantile: float = 0.1
    labels: tuple[str, ...] = ()
    reads: ClassVar[str] = "logprobs"

    def __post_init__(self) -> None:
        if self.signal not in _TOKEN_SIGNALS:
            known = ", ".join(_TOKEN_SIGNALS)
            raise ValueError(f"parameter 'signal' of LogProb is {self.signal!r}; known are {known}")

    def confidence(self, signal: Sequence[Token]) -> float:
        tokens = list(signal)
        if not tokens:
            raise Unjudged("the output is empty")
        if self.signal == "margin":
            return _sum([_token_margin(token) for token in tokens]) / len(tokens)
        if self.signal == "choice":
            return _choice(_alternatives(tokens[0]), [label.strip().lower() for label in self.labels])
        values = [_logprob(token["logprob"] if isinstance(token, Mapping) else token) for token in tokens]
        if self.signal == "min":
            return math.exp(min(values))
        if self.signal == "quantile":
            # By nearest rank: of the sorted values the one at ceil(share n).
            rank = math.ceil(min(1.0, max(0.0, self.quantile)) * len(values))
            return math.exp(sorted(values)[max(0, rank - 1)])
        return math.exp(_sum(values) / len(values))


@dataclass(frozen=True)
class Random(Rule):
    """Hard for a random share of the samples."""

    random_ratio: float = 0.3
    generator: random.Random = field(default_factory=random.Random, compare=False, repr=False)

    def confidence(self, signal: Any = None) -> float:
        return self.generator.random()


@dataclass(frozen=True)
class EdgeOnly(Rule):
    """Never hard."""

    def judge(self, signal: Any = None) -> Judgement:
        return Judgement(False, None)


@dataclass(frozen=True)
class CloudOnly(Rule):
    """Always hard."""

    def judge(self, signal: Any = None) -> Judgement:
        return Judgement(True, None)


_TOKEN_SIGNALS = ("mean", "min", "quantile", "margin", "choice")

RULES: dict[str, type] = {
    rule.__name__: rule
    for rule in (IBT, Threshold, CrossEntropy, MaxProbability, Margin, LogProb, Random, EdgeOnly, CloudOnly)
}
"""The rules by their names in `HEM_NAME`."""


def create(name: str, parameters: str = "") -> Rule:
    """Create a rule from the values of `HEM_NAME` and `HEM_PARAMETERS`.

    Raises ValueError for an unknown name or parameter, or a value out of range; the text lists what is known.
    """
    if name not in RULES:
        raise ValueError(f"unknown hard example algorithm {name!r}; known are {', '.join(RULES)}")
    known = [entry.name for entry in fields(RULES[name]) if entry.name != "generator"]
    values: dict[str, Any] = {}
    for key, value in key_values(parameters):
        if key not in known:
            raise ValueError(f"{name} has no parameter {key!r}; it has {', '.join(known) or 'none'}")
        if key == "labels":
            values[key] = tuple(label.strip() for label in str(value).split(",") if label.strip())
        elif key == "signal":
            values[key] = str(value).strip()
        else:
            values[key] = _share(name, key, value)
    rule: Rule = RULES[name](**values)
    return rule


def key_values(text: str) -> list[tuple[str, Any]]:
    """Return the pairs of a JSON list of {"key", "value"}. An empty text and null have none."""
    try:
        entries = json.loads(text) if text.strip() else []
        return [(str(entry["key"]), entry["value"]) for entry in entries or []]
    except (ValueError, KeyError, TypeError) as error:
        example = '[{"key": "threshold", "value": "0.5"}]'
        raise ValueError(f"parameters must be a JSON list like {example}: {error!r}") from None


def _share(name: str, key: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"parameter {key!r} of {name} must be a number from 0 to 1, not {value!r}")
    return number


def _sum(values: Sequence[float]) -> float:
    """Add in order. Since Python 3.12 `sum` corrects its rounding, which Rust does not."""
    total = 0.0
    for value in values:
        total += value
    return total


def _units(values: Sequence[float]) -> list[float]:
    numbers = [float(value) for value in values]
    if not numbers:
        raise Unjudged("the output is empty")
    if not all(math.isfinite(number) for number in numbers):
        raise Unjudged("a value is infinite or not a number")
    if not all(0.0 <= number <= 1.0 for number in numbers):
        raise Unjudged("a value is out of range")
    return numbers


def _classes(scores: Scores) -> list[float]:
    values = _units(scores)
    if len(values) == 1:
        raise Unjudged("there is only one class")
    return values


def _box_scores(boxes: Boxes) -> list[float]:
    """Return the scores of boxes [xmin, ymin, xmax, ymax, score, label]; the label may be omitted."""
    if any(len(box) < 5 for box in boxes):
        raise Unjudged("a box has no score")
    return _units([box[4] for box in boxes])


def _logprob(value: float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise Unjudged("a value is infinite or not a number")
    if number > _ROUNDING:
        raise Unjudged("a value is out of range")
    return min(number, 0.0)


def _alternatives(token: Token) -> list[tuple[str, float]]:
    top = (token.get("top_logprobs") or []) if isinstance(token, Mapping) else []
    return [(entry["token"], entry["logprob"]) for entry in top]


def _token_margin(token: Token) -> float:
    top = _alternatives(token)
    if len(top) < 2:
        raise Unjudged("scores or log-probabilities are missing")
    values = sorted((_logprob(value) for _, value in top), reverse=True)
    return math.exp(values[0]) - math.exp(values[1])


def _choice(top: list[tuple[str, float]], labels: list[str]) -> float:
    """Return the probability of the best label when only the labels count."""
    if not labels:
        raise Unjudged("none of the labels is among the alternatives")
    if len(labels) == 1:
        raise Unjudged("there is only one class")
    if not top:
        raise Unjudged("scores or log-probabilities are missing")
    sums: dict[int, float] = {}
    least = 1.0
    for text, value in top:
        probability = math.exp(_logprob(value))
        least = min(least, probability)
        label = _label(text.strip().lower(), labels)
        if label is not None:
            sums[label] = sums.get(label, 0.0) + probability
    if not sums:
        raise Unjudged("none of the labels is among the alternatives")
    # A label that is not listed is at most as probable as the least alternative.
    total = _sum([sums.get(label, least) for label in range(len(labels))])
    return min(1.0, max(sums.values()) / total) if total > 0.0 else 1.0 / len(labels)


def _label(token: str, labels: list[str]) -> Optional[int]:
    """Return the label that a token begins. A token that begins several belongs to none, unless it is all of one."""
    if not token:
        return None
    if token in labels:
        return labels.index(token)
    begun = [number for number, label in enumerate(labels) if label.startswith(token)]
    return begun[0] if len(begun) == 1 else None
