"""The programs of docs/python.md and of examples/, as a user runs them, and the wheel."""

import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import zipfile

import pytest
from conftest import LIBRARY, TIMEOUT, accepts, eventually, free_port

ROOT = LIBRARY.parents[1]
HELMET = ROOT / "examples/helmet-detection"
FEDERATED = ROOT / "examples/federated"
CAMERA = ROOT / "examples/camera"


def environment(**variables):
    packages = os.pathsep.join(filter(None, [str(LIBRARY), os.environ.get("PYTHONPATH")]))
    return {"PATH": os.environ["PATH"], "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1", **variables}


def run(*arguments, **variables):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


def first_worker():
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]


def test_first_worker_has_at_most_12_lines_and_runs_locally(tmp_path):
    program = first_worker()
    assert len(program.splitlines()) <= 12
    script = tmp_path / "worker.py"
    script.write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "neptune_worker", "run", str(script), "--hem", "CrossEntropy"]
    command += ["--param", "threshold_cross_entropy=1"]
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(command, env=environment(), cwd=tmp_path, stdout=log, stderr=log)
    output = eventually(lambda: re.findall(r"^\{.*\}$", (tmp_path / "log").read_text(), re.MULTILINE), "a report")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(TIMEOUT) == 0
    task = json.loads(output[0])["taskInfo"]
    # Without a cloud worker each hard sample is a fallback.
    assert task["inferenceNumber"] == task["fallbackNumber"] > 0
    assert "\nfallback " in "\n" + (tmp_path / "log").read_text()


def test_first_worker_counts_unchanged_with_a_broker_and_a_cloud_worker(start, mosquitto, cloud):
    reports = mosquitto.reports()
    start(first_worker(), MQTT_URL=mosquitto.url, HEM_NAME="CloudOnly", BIG_MODEL_URL=cloud.url)
    report = reports.until(lambda report: report["taskInfo"]["hardExampleNumber"] > 2, "answers of the cloud")
    assert report["taskInfo"]["fallbackNumber"] == 0


def test_command_runs_a_script_with_its_arguments_and_settings(tmp_path):
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n", encoding="utf-8")
    script = tmp_path / "worker.py"
    script.write_text(
        "import sys, beside\nfrom neptune_worker import Worker\nw = Worker()\n"
        "print(sys.argv[1:], beside.NAME, w.model_path, w.dataset_path, w.is_hard(boxes=[[0, 0, 1, 1, 0.4]]))\n",
        encoding="utf-8",
    )
    options = ["--model", "m.json", "--dataset", "d.csv", "--hem", "IBT", "--param", "threshold_img=0.6"]
    ended = run("-m", "neptune_worker", "run", *options, script, "--", "--mine", "1")
    assert ended.stdout == "['--mine', '1'] beside m.json d.csv True\n", ended.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["absent.py"], "absent.py is not a file"),
        (["a.py", "--param", "x"], "'x' is not KEY=VALUE"),
    ],
)
def test_invalid_arguments_end_with_exit_code_2(arguments, problem):
    ended = run("-m", "neptune_worker", "run", *arguments)
    assert ended.returncode == 2
    assert problem in ended.stderr


def test_glue_of_the_helmet_example_has_at_most_60_lines():
    files = [HELMET / "edge_inference.py", HELMET / "cloud_inference.py"]
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= 60
    assert len((FEDERATED / "train.py").read_text(encoding="utf-8").splitlines()) <= 75


def test_workers_of_the_helmet_example_answer_hard_frames_in_the_cloud(mosquitto, tmp_path):
    port, reports = free_port(), mosquitto.reports()
    shared = {"SERVICE_NAME": "helmet", "PARAMETERS": '[{"key": "nms_threshold", "value": "0.6"}]'}
    cloud = {"MODEL_URL": str(HELMET / "models/big.json"), "BIG_MODEL_BIND_PORT": str(port)}
    edge = {
        "MODEL_URL": str(HELMET / "models/small.json"),
        "MQTT_URL": mosquitto.url,
        "WORKER_NAME": "helmet-edge",
        "HEM_NAME": "IBT",
        "BIG_MODEL_URL": f"http://127.0.0.1:{port}",
    }
    with (tmp_path / "log").open("wb") as log:

        def process(script, variables):
            command = [sys.executable, str(HELMET / script)]
            return subprocess.Popen(command, env=environment(**shared, **variables), stdout=log, stderr=log)

        processes = [process("cloud_inference.py", cloud)]
        eventually(lambda: accepts(port), "the cloud worker to listen")
        processes.append(process("edge_inference.py", edge))
    report = reports.until(lambda report: report["taskInfo"]["hardExampleNumber"] > 0, "a hard frame")
    assert report["taskInfo"]["fallbackNumber"] == 0, (tmp_path / "log").read_text()
    for worker in processes:
        worker.send_signal(signal.SIGTERM)
    assert [worker.wait(TIMEOUT) for worker in processes] == [0, 0]


def test_workers_of_the_camera_example_count_frames_of_a_camera_that_comes_back(mosquitto, tmp_path):
    port, camera_port, reports = free_port(), free_port(), mosquitto.reports()
    shared = {"SERVICE_NAME": "camera", "PARAMETERS": '[{"key": "rate", "value": "50"}]'}
    cloud = {"MODEL_URL": str(CAMERA / "models/big.json"), "BIG_MODEL_BIND_PORT": str(port)}
    edge = {
        "MODEL_URL": str(CAMERA / "models/small.json"),
        "MQTT_URL": mosquitto.url,
        "WORKER_NAME": "camera-edge",
        "HEM_NAME": "MaxProbability",
        "HEM_PARAMETERS": '[{"key": "threshold", "value": "0.8"}]',
        "BIG_MODEL_URL": f"http://127.0.0.1:{port}",
        "CAMERA_HOST": f"127.0.0.1:{camera_port}",
    }
    with (tmp_path / "log").open("wb") as log:

        def process(script, *arguments, **variables):
            command = [sys.executable, str(CAMERA / script), *arguments]
            return subprocess.Popen(command, env=environment(**shared, **variables), stdout=log, stderr=log)

        camera = process("standin.py", str(camera_port))
        processes = [process("cloud_inference.py", **cloud)]
        eventually(lambda: accepts(port) and accepts(camera_port), "the cloud worker and the camera to listen")
        processes.append(process("edge_inference.py", **edge))
        report = reports.until(lambda report: report["taskInfo"]["hardExampleNumber"] > 0, "a hard frame")
        assert report["taskInfo"]["fallbackNumber"] == 0, (tmp_path / "log").read_text()
        camera.kill()
        camera.wait()
        text = "the camera 127.0.0.1:"
        eventually(lambda: text in (tmp_path / "log").read_text(), "the end of the camera")
        counted = report["taskInfo"]["inferenceNumber"]
        processes.append(process("standin.py", str(camera_port)))
        reports.until(lambda report: report["taskInfo"]["inferenceNumber"] > counted + 20, "frames of the next camera")
    for worker in processes[:2]:
        worker.send_signal(signal.SIGTERM)
    assert [worker.wait(TIMEOUT) for worker in processes[:2]] == [0, 0]
    processes[2].kill()
    processes[2].wait()


def test_frames_of_the_camera_example_are_those_of_a_stream_or_a_device(tmp_path):
    code = "import io, sys, camera; print([len(frame) for frame in %s])"
    stream = (
        b"--f\r\nContent-Length: 3\r\n\r\nabc\r\n--f\r\nX: y\r\ncontent-length: 2\r\n\r\nde\r\n"
        b"--f\r\nContent-Length: 9\r\n\r\ncut"
    )
    packages = {"PYTHONPATH": os.pathsep.join([str(CAMERA), str(LIBRARY)])}
    parts = run("-c", code % f"camera.parts(io.BytesIO({stream!r}))", **packages)
    assert parts.stdout == "[3, 2]\n", parts.stderr
    device = tmp_path / "device"
    device.write_bytes(bytes(5000))
    frames = run("-c", code % f"camera.frames({str(device)!r})", **packages)
    assert frames.stdout == "[4096, 904]\n", frames.stderr


def test_table_of_the_helmet_example_is_what_the_models_reach():
    ended = subprocess.run(
        [sys.executable, "-c", "import detector; detector.main(frames=20)"],
        cwd=HELMET,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )
    assert [line.split(":")[0] for line in ended.stdout.splitlines()] == ["edge only", "cloud only", "joint", "hard"]


def test_federated_example_learns_and_repeats_itself(tmp_path):
    numpy = pytest.importorskip("numpy")
    subprocess.run([sys.executable, FEDERATED / "split.py", tmp_path], check=True, capture_output=True)

    def task(name, base=None, seed="3"):
        output = pathlib.Path(tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}")
        output.mkdir()
        weights = {"WEIGHTS_URL": str(base / "weights.npz")} if base else {}
        threads = {"OPENBLAS_NUM_THREADS": "1", "DATASET_URL": str(tmp_path / "a.csv")}
        ended = run(FEDERATED / "train.py", TASK=name, SEED=seed, OUTPUT_DIR=str(output), **weights, **threads)
        assert ended.returncode == 0, ended.stderr
        return output

    first = task("initialize")
    trained, again = task("train", first), task("train", first)
    measured = task("evaluate", trained)
    results = [json.loads((folder / "result.json").read_text()) for folder in (trained, again, measured)]
    assert results[0] == results[1]
    assert results[2]["metrics"] == results[0]["metrics"]
    assert results[0]["metrics"]["accuracy"] > 0.85
    assert (trained / "weights.npz").read_bytes() == (again / "weights.npz").read_bytes()
    with numpy.load(trained / "weights.npz") as weights:
        assert {name: weights[name].dtype for name in weights} == dict.fromkeys(("w1", "b1", "w2", "b2"), numpy.float32)


def test_wheel_is_pure_and_reproducible(tmp_path):
    pytest.importorskip("hatchling")
    digests = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(command, cwd=LIBRARY, check=True, capture_output=True)
        (wheel,) = folder.iterdir()
        digests.append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert wheel.name.endswith("-py3-none-any.whl")
    assert digests[0] == digests[1]
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        (metadata,) = [file.read(name).decode() for name in names if name.endswith("/METADATA")]
    assert "neptune_worker/py.typed" in names
    assert not [name for name in names if "test" in name or "__pycache__" in name]
    assert [line for line in metadata.splitlines() if line.startswith("Requires-Dist")] == [
        "Requires-Dist: paho-mqtt<3,>=1.6",
        "Requires-Dist: numpy>=1.21; extra == 'numpy'",
    ]


def test_version_is_that_of_the_workspace():
    cargo = (ROOT / "Cargo.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.*)"', cargo, re.MULTILINE).group(1)
    code = "import neptune_worker; print(neptune_worker.__version__)"
    assert run("-c", code).stdout.strip() == version
