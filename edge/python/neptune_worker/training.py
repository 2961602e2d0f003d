"""A training program's round: task, weights and data from the environment, and its checked output."""

import json
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

from neptune_worker.report import finite
from neptune_worker.settings import SettingError

if TYPE_CHECKING:
    import numpy

    Weights = dict[str, numpy.ndarray[Any, Any]]

TASKS = ("initialize", "train", "evaluate")


class Round:
    """One task of a TrainingModel. Use it as a context manager, and call `finish` once before its end.

    `numpy` is needed for `weights` and `finish` only: the extra `neptune-worker[numpy]`.
    """

    def __init__(self, environ: Optional[Mapping[str, str]] = None) -> None:
        """Read the environment. Raises SettingError with the name of an invalid variable."""
        self._environ = os.environ if environ is None else environ
        self.task = self._required("TASK")
        """initialize, train or evaluate."""
        if self.task not in TASKS:
            raise SettingError(f"TASK is {self.task!r}: this version of neptune-worker knows {', '.join(TASKS)}")
        self.seed = int(self._environ.get("SEED") or "0")
        """Seed of random numbers; another one per worker and round."""
        self.output = pathlib.Path(self._required("OUTPUT_DIR"))
        """The directory to write to."""
        self._weights: Optional[Weights] = None
        self._base: dict[str, tuple[Any, Any]] = {}
        self._is_finished = False

    def __enter__(self) -> "Round":
        """Begin the task."""
        return self

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        """End the program with exit code 1 if it wrote no output."""
        if error is None and not self._is_finished:
            raise SystemExit(f"no output: the program ended its task {self.task} without finish or finish_file")

    @property
    def weights_path(self) -> Optional[str]:
        """The path of the weights to begin with, or None for initialize."""
        return None if self.task == "initialize" else self._required("WEIGHTS_URL")

    @property
    def weights(self) -> "Optional[Weights]":
        """The weights to begin with, or None for initialize. The arrays are the program's to change."""
        path = self.weights_path
        if path is None or self._weights is not None:
            return self._weights
        if not path.endswith(".npz"):
            raise SettingError(f"{path} is no .npz file: read weights_path with its own library, and call finish_file")
        numpy = _numpy()
        with numpy.load(path, allow_pickle=False) as file:
            self._weights = {name: file[name] for name in file.files}
        self._base = {name: (tensor.shape, tensor.dtype) for name, tensor in self._weights.items()}
        return self._weights

    @property
    def dataset_path(self) -> str:
        """The path of the dataset. Raises SettingError without one."""
        return self._required("DATASET_URL")

    def finish(
        self,
        weights: "Optional[Mapping[str, Any]]" = None,
        *,
        samples: int,
        loss: Optional[float] = None,
        metrics: Optional[Mapping[str, float]] = None,
        steps: Optional[int] = None,
    ) -> None:
        """Write weights and result. Raises ValueError with the name of the tensor or number that is refused.

        Names and shapes of tensors are those of `weights`; elements are converted to the types that these have.
        `samples` is the number of samples that were used, at least 1 for train. Weights are not written for evaluate.
        """
        result = self._result(samples=samples, loss=loss, metrics=metrics, steps=steps)
        if self.task != "evaluate":
            if weights is None:
                raise ValueError(f"finish needs the weights for task {self.task}")
            checked = self._checked(weights)
            _numpy().savez(self.output / "weights.npz", **checked)
        self._write(result)

    def finish_file(self, path: Optional[str] = None, **numbers: Any) -> None:
        """Copy a file of weights (.npz or .safetensors), whose tensors the agent checks, and write the result.

        The other arguments are those of `finish`.
        """
        result = self._result(**numbers)
        if self.task != "evaluate":
            suffix = pathlib.Path(path or "").suffix
            if path is None or suffix not in (".npz", ".safetensors"):
                raise ValueError(f"finish_file needs a .npz or .safetensors file for task {self.task}, not {path!r}")
            target = self.output / f"weights{suffix}"
            if pathlib.Path(path).resolve() != target.resolve():
                shutil.copyfile(path, target)
        self._write(result)

    def _checked(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors in the types of the base."""
        numpy = _numpy()
        tensors = {name: numpy.asarray(tensor) for name, tensor in weights.items()}
        base = self._base if self.weights is not None else {n: (t.shape, t.dtype) for n, t in tensors.items()}
        for name in sorted(tensors.keys() ^ base.keys()):
            raise ValueError(f"tensor {name!r} is {'missing' if name in base else 'not in the base'}")
        for name, (shape, kind) in base.items():
            tensor = tensors[name]
            if tensor.shape != shape:
                raise ValueError(f"tensor {name!r} has the shape {tensor.shape}; the base has {shape}")
            if tensor.dtype.kind not in "fiub":
                raise ValueError(f"tensor {name!r} has elements of type {tensor.dtype}, which are no numbers")
            with numpy.errstate(over="ignore"):
                tensors[name] = tensor.astype(kind)
            if not numpy.isfinite(tensors[name]).all():
                raise ValueError(f"tensor {name!r} has an element that is infinite or not a number")
        return tensors

    def _result(
        self,
        *,
        samples: int,
        loss: Optional[float] = None,
        metrics: Optional[Mapping[str, float]] = None,
        steps: Optional[int] = None,
    ) -> dict[str, Any]:
        if self._is_finished:
            raise RuntimeError("the round is finished already")
        if samples < (1 if self.task == "train" else 0):
            raise ValueError(f"samples is {samples}: a task {self.task} has used more")
        result: dict[str, Any] = {"samples": int(samples)}
        if steps is not None:
            result["steps"] = int(steps)
        if loss is not None:
            result["loss"] = finite("loss", loss)
        if metrics:
            result["metrics"] = {key: finite(f"metric {key!r}", value) for key, value in metrics.items()}
        return result

    def _write(self, result: dict[str, Any]) -> None:
        (self.output / "result.json").write_text(json.dumps(result), encoding="utf-8")
        self._is_finished = True

    def _required(self, name: str) -> str:
        value = self._environ.get(name)
        if not value:
            raise SettingError(f"{name} is not set: the agent sets it for a task, see docs/training-program.md")
        return value


def _numpy() -> Any:
    try:
        import numpy
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "numpy is missing: install neptune-worker[numpy], or use weights_path and finish_file", name="numpy"
        ) from error
    return numpy
