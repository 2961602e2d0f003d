"""Tasks of a training."""

import json
import subprocess
import sys

import pytest
from conftest import LIBRARY
from neptune_worker import Round, SettingError

numpy = pytest.importorskip("numpy")


def base():
    return {"w": numpy.ones((2, 3), numpy.float32), "n": numpy.array([1, 2], numpy.int64)}


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "out").mkdir()
    numpy.savez(tmp_path / "base.npz", **base())
    return {
        "TASK": "train",
        "SEED": "7",
        "WEIGHTS_URL": str(tmp_path / "base.npz"),
        "DATASET_URL": "/datasets/d.csv",
        "OUTPUT_DIR": str(tmp_path / "out"),
    }


def result(environment):
    with open(environment["OUTPUT_DIR"] + "/result.json", encoding="utf-8") as file:
        return json.load(file)


def written(environment):
    with numpy.load(environment["OUTPUT_DIR"] + "/weights.npz") as file:
        return {name: file[name] for name in file.files}


def test_weights_are_written_in_the_types_of_the_base(environment):
    with Round(environment) as task:
        assert (task.task, task.seed, task.dataset_path) == ("train", 7, "/datasets/d.csv")
        weights = task.weights
        weights["w"] = weights["w"].astype(numpy.float64) * 0.5
        task.finish(weights, samples=429, loss=numpy.float32(0.5), metrics={"accuracy": 0.9}, steps=54)
    assert result(environment) == {"samples": 429, "steps": 54, "loss": 0.5, "metrics": {"accuracy": 0.9}}
    tensors = written(environment)
    assert (tensors["w"].dtype, tensors["n"].dtype) == (numpy.float32, numpy.int64)
    assert tensors["w"].tolist() == [[0.5] * 3] * 2


def test_initialize_has_no_weights_and_writes_its_own(environment):
    environment["TASK"] = "initialize"
    with Round(environment) as task:
        assert (task.weights, task.weights_path) == (None, None)
        task.finish(base(), samples=0)
    assert result(environment) == {"samples": 0}
    assert set(written(environment)) == {"w", "n"}


def test_evaluate_writes_the_result_only(environment, tmp_path):
    environment["TASK"] = "evaluate"
    with Round(environment) as task:
        task.finish(task.weights, samples=5, metrics={"accuracy": 1})
    assert result(environment) == {"samples": 5, "metrics": {"accuracy": 1.0}}
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"w": numpy.ones((3, 2))}, r"tensor 'w' has the shape \(3, 2\); the base has \(2, 3\)"),
        ({"w": numpy.full((2, 3), numpy.nan)}, "tensor 'w' has an element that is infinite"),
        ({"w": numpy.full((2, 3), 1e300)}, "tensor 'w' has an element that is infinite"),
        ({"w": numpy.full((2, 3), "a")}, "tensor 'w' has elements of type <U1"),
        ({"extra": numpy.ones(1)}, "tensor 'extra' is not in the base"),
        ({"n": None}, "tensor 'n' is missing"),
    ],
)
def test_refused_tensor_is_named_and_nothing_is_written(environment, tmp_path, change, problem):
    with Round(environment) as task:
        weights = {name: tensor for name, tensor in {**base(), **change}.items() if tensor is not None}
        with pytest.raises(ValueError, match=problem):
            task.finish(weights, samples=1)
        assert list((tmp_path / "out").iterdir()) == []
        task.finish(base(), samples=1)


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ({"samples": 0}, "samples is 0"),
        ({"samples": 1, "loss": float("inf")}, "loss is inf"),
        ({"samples": 1, "metrics": {"accuracy": float("nan")}}, "metric 'accuracy' is nan"),
    ],
)
def test_refused_number_is_named(environment, numbers, problem):
    task = Round(environment)
    with pytest.raises(ValueError, match=problem):
        task.finish(base(), **numbers)


def test_finish_twice_is_an_error_of_the_program(environment):
    task = Round(environment)
    task.finish(base(), samples=1)
    with pytest.raises(RuntimeError, match="finished already"):
        task.finish(base(), samples=1)


def test_file_of_another_library_is_copied(environment, tmp_path):
    (tmp_path / "new.safetensors").write_bytes(b"tensors")
    with Round(environment) as task:
        task.finish_file(str(tmp_path / "new.safetensors"), samples=3)
    assert (tmp_path / "out" / "weights.safetensors").read_bytes() == b"tensors"
    with pytest.raises(ValueError, match=r"needs a \.npz or \.safetensors file"):
        Round(environment).finish_file("a.pt", samples=3)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("TASK", "", "TASK is not set"),
        ("TASK", "sleep", "TASK is 'sleep'"),
        ("OUTPUT_DIR", "", "OUTPUT_DIR is not set"),
    ],
)
def test_invalid_variable_is_named(environment, name, value, problem):
    with pytest.raises(SettingError, match=problem):
        Round({**environment, name: value})


def test_program_without_finish_ends_with_exit_code_1_and_a_sentence(environment):
    program = "from neptune_worker import Round\nwith Round() as r:\n    pass\n"
    variables = {**environment, "PYTHONPATH": str(LIBRARY)}
    ended = subprocess.run([sys.executable, "-B", "-c", program], env=variables, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == "no output: the program ended its task train without finish or finish_file\n"


def test_round_imports_neither_numpy_nor_paho(environment):
    program = "import sys\nfrom neptune_worker import Round\nprint([m for m in ('numpy', 'paho') if m in sys.modules])"
    variables = {**environment, "PYTHONPATH": str(LIBRARY)}
    ended = subprocess.run([sys.executable, "-B", "-c", program], env=variables, capture_output=True, text=True)
    assert ended.stdout == "[]\n", ended.stderr
