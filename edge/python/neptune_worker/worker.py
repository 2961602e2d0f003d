"""The worker of joint inference: environment, decisions, calls of the cloud worker, counters and reports."""

import _thread
import logging
import os
import queue
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

from neptune_worker import rules
from neptune_worker.cloud import Cloud
from neptune_worker.report import Metric
from neptune_worker.reporter import Reporter
from neptune_worker.server import Server
from neptune_worker.settings import Address, SettingError, Settings

_log = logging.getLogger("neptune_worker")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Answer:
    """The outcome of one sample."""

    edge: Any
    """The edge model's result."""
    cloud: Any
    """The cloud worker's result, or None."""
    result: Any
    """The result to use."""
    is_hard: bool
    source: str
    """"edge": the sample was easy; "cloud": the cloud worker answered; "fallback": it was hard, and not answered."""
    confidence: Optional[float]
    """From 0 to 1; None if the rule reads no signal, or could not judge it."""


class Worker:
    """A worker of joint inference. Use it as a context manager: on entry it connects and reports once per second.

    On exit it sends the last report, within four seconds. The status is `failed` after an exception, `running` after
    SIGTERM and `completed` otherwise. Without `MQTT_URL` reports are printed.
    """

    def __init__(self, environ: Optional[Mapping[str, str]] = None) -> None:
        """Read the environment. Raises SettingError with the name of an invalid variable."""
        self._settings = Settings(os.environ if environ is None else environ)
        self._stopping = threading.Event()
        self._requests: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reporter = Reporter(self._settings, self._requests.put)
        cloud = self._settings.cloud
        self._cloud = Cloud(cloud, self._settings.predict_path) if cloud is not None else None
        self._rule: Optional[rules.Rule] = None
        self._handlers: dict[int, Any] = {}
        self._reload: Optional[Callable[[str], None]] = None
        self._reloads: Optional[threading.Thread] = None

    def __enter__(self) -> "Worker":
        """Handle SIGTERM and SIGINT, if this is the main thread, and begin to report."""
        if threading.current_thread() is threading.main_thread():
            # The first process of a container has no default handlers.
            self._handlers = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        self._reporter.start()
        return self

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        """Send the last report."""
        is_failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
        status = "failed" if is_failed else "running" if self.stopping else "completed"
        self._stopping.set()
        self._reporter.finish(status)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @property
    def name(self) -> str:
        """The name of the worker, which is unique on its node."""
        return self._settings.name

    @property
    def model_path(self) -> str:
        """The path of the model, also after a reload. Raises SettingError without one."""
        path = self._reporter.models.path
        if path is None:
            raise SettingError("MODEL_URL is not set: the worker has no model")
        return path

    @property
    def dataset_path(self) -> str:
        """The path of the dataset. Raises SettingError without one."""
        if self._settings.dataset_path is None:
            raise SettingError("DATASET_URL is not set: the worker has no dataset")
        return self._settings.dataset_path

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of `workerSpec`, by their keys."""
        return dict(self._settings.parameters)

    @property
    def stopping(self) -> bool:
        """Whether SIGTERM or SIGINT arrived."""
        return self._stopping.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait, or until the worker is to stop. Returns whether it is to stop."""
        return self._stopping.wait(seconds)

    def infer(
        self,
        payload: Any,
        edge: Any,
        *,
        scores: Optional[rules.Scores] = None,
        boxes: Optional[rules.Boxes] = None,
        logprobs: Optional[Sequence[rules.Token]] = None,
        confidence: Optional[float] = None,
    ) -> Answer:
        """Decide about one sample, ask the cloud worker if it is hard, and count it.

        `payload` is what the cloud worker gets, as JSON. `edge` is the edge model's result. Of the four signals give
        the one that the rule of `HEM_NAME` reads, or a confidence from 0 to 1. A sample without a valid signal is easy.
        """
        signals = {"scores": scores, "boxes": boxes, "logprobs": logprobs, "confidence": confidence}
        judgement = self._judge(signals)
        cloud = self.ask_cloud(payload) if judgement.is_hard else None
        self.count(hard=judgement.is_hard, answered=cloud is not None)
        source = "cloud" if cloud is not None else "fallback" if judgement.is_hard else "edge"
        result = edge if cloud is None else cloud
        return Answer(edge, cloud, result, judgement.is_hard, source, judgement.confidence)

    def is_hard(self, **signal: Any) -> bool:
        """Decide about one sample by the rule of `HEM_NAME`. The signal is that of `infer`. Counts nothing."""
        return self._judge(signal).is_hard

    def ask_cloud(self, payload: Any) -> Any:
        """Return the cloud worker's result, or None: no address, no answer within 5 s, or a pause after failures."""
        return self._cloud.ask(payload) if self._cloud is not None else None

    def count(self, *, hard: bool, answered: bool = False) -> None:
        """Count one sample: whether it was hard, and whether the cloud worker answered it."""
        with self._reporter.lock:
            self._reporter.counters.count(hard, answered)

    def report_metrics(self, metrics: Mapping[str, Metric], model: Optional[str] = None) -> None:
        """Report metrics of the worker's model, or of the Model of this name. Raises ValueError for what is refused."""
        is_loading = threading.current_thread() is self._reloads
        with self._reporter.lock:
            self._reporter.models.add(metrics, model, is_loading)

    def on_reload(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the path of each new version of the model, in a thread of its own.

        The version is confirmed after the callback returns; metrics that it reports are those of the version. If it
        raises, the worker keeps the version that it has, and the agent restarts it after 60 s.
        """
        if self._reload is not None:
            raise RuntimeError("on_reload was already called")
        self._reload = callback
        self._reloads = threading.Thread(target=self._follow_model, name="neptune-reload", daemon=True)
        self._reloads.start()

    def serve(self, predict: Callable[[Any], Any], path: Optional[str] = None, *, threads: int = 4) -> None:
        """Serve as the cloud worker until SIGTERM: `POST path` with {"data": ...} is answered by {"result": ...}.

        `predict` gets the data and returns the result. It runs in at most `threads` threads at once. A ValueError is
        answered with status 400 and its text. The default of `path` is `/<service>/predict`.
        """
        address = self._settings.bind or Address("0.0.0.0", 5000)
        server = Server(address, path or self._settings.predict_path, predict, threads)
        server.start()
        self._stopping.wait()
        server.stop()

    def _judge(self, signals: dict[str, Any]) -> rules.Judgement:
        if self._rule is None:
            try:
                self._rule = rules.create(self._settings.rule, self._settings.rule_parameters)
            except ValueError as error:
                raise SettingError(f"HEM_NAME or HEM_PARAMETERS: {error}") from None
        given = {name: value for name, value in signals.items() if value is not None}
        if len(given) > 1:
            raise TypeError(f"give one signal, not {' and '.join(given)}")
        if not self._rule.reads:
            return self._rule.judge()
        if not given:
            return rules.Judgement(False, None, "scores or log-probabilities are missing")
        ((name, value),) = given.items()
        if name == "confidence":
            return self._rule.judge_confidence(value)
        if name != self._rule.reads:
            raise TypeError(f"the rule {self._settings.rule} reads {self._rule.reads}, not {name}")
        return self._rule.judge(value)

    def _stop(self, *_: Any) -> None:
        # Not here: the main thread may hold the lock of the event.
        _thread.start_new_thread(self._begin_to_stop, ())

    def _begin_to_stop(self) -> None:
        self._stopping.set()
        if self._cloud is not None:
            self._cloud.stop()

    def _follow_model(self) -> None:
        while not self.stopping:
            path = self._requests.get()
            # Of several versions only the last one is wanted.
            while not self._requests.empty():
                path = self._requests.get()
            self._load(path)

    def _load(self, path: str) -> None:
        if path != self._reporter.models.path and self._reload is not None:
            try:
                self._reload(path)
            except Exception:
                self._reporter.models.next = {}
                _log.exception("keeping the previous version of the model: %s cannot be loaded", path)
                return
        with self._reporter.lock:
            self._reporter.models.loaded(path)
        self._reporter.report_soon()
