"""The counters of a worker and the message that reports them. Pure: the caller passes the time."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from neptune_worker.settings import Settings

Metric = Union[int, float, str]


def finite(what: str, value: float) -> float:
    """Return the number, or raise ValueError with its name if it is infinite or not a number."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}; it must be finite")
    return number


@dataclass
class Counters:
    """Numbers since the start of the process. They only grow."""

    inferred: int = 0
    hard: int = 0
    """Hard samples that the cloud worker answered."""
    fallbacks: int = 0
    """Hard samples that the cloud worker did not answer."""

    def count(self, hard: bool, answered: bool) -> None:
        """Count one sample."""
        self.inferred += 1
        self.hard += hard and answered
        self.fallbacks += hard and not answered


@dataclass
class Models:
    """What a worker found out about models: its own by its path, others by their names."""

    path: Optional[str]
    own: dict[str, Metric] = field(default_factory=dict)
    others: dict[str, dict[str, Metric]] = field(default_factory=dict)
    next: dict[str, Metric] = field(default_factory=dict)
    """Metrics of the version that is being loaded."""
    is_confirmed: bool = False
    """Whether the path is reported also without metrics, to confirm a reload."""

    def add(self, metrics: Mapping[str, Metric], model: Optional[str], is_next: bool = False) -> None:
        """Add metrics; `is_next` is for the version that is being loaded.

        A newer value of a key replaces the older one. Raises ValueError for one that is not finite.
        """
        for key, value in metrics.items():
            if not isinstance(value, str):
                finite(f"metric {key!r}", value)
        own = self.next if is_next else self.own
        known = own if model is None else self.others.setdefault(model, {})
        # Numbers of NumPy become those of Python.
        known.update((key, value if isinstance(value, (str, int)) else float(value)) for key, value in metrics.items())

    def loaded(self, path: str) -> None:
        """Note that the worker uses the version at this path. Metrics of another version end."""
        if path != self.path:
            self.path, self.own = path, self.next
        self.next, self.is_confirmed = {}, True

    def output(self) -> Optional[dict[str, Any]]:
        """Return the part `output` of the message, or None if there is nothing to report."""
        entries: list[dict[str, Any]] = []
        if self.own or self.is_confirmed:
            entries.append({"url": self.path, "metrics": dict(self.own)})
        entries += [{"name": name, "metrics": dict(metrics)} for name, metrics in self.others.items()]
        return {"models": entries} if entries else None


def message(
    settings: Settings, counters: Counters, models: Models, status: str, started: str, now: str
) -> dict[str, Any]:
    """Return the report. That of a cloud worker has no counters."""
    report: dict[str, Any] = {
        "name": settings.name,
        "namespace": settings.namespace,
        "ownerName": settings.service,
        "ownerKind": "jointinferenceservice",
        "kind": "inference",
        "status": status,
    }
    if settings.bind is None:
        report["taskInfo"] = {
            "inferenceNumber": counters.inferred,
            "hardExampleNumber": counters.hard,
            "fallbackNumber": counters.fallbacks,
            "uploadCloudRatio": counters.hard / counters.inferred if counters.inferred else 0.0,
            "startTime": started,
            "updateTime": now,
        }
    output = models.output()
    if output is not None:
        report["output"] = output
    return report
