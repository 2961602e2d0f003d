"""The cloud worker: answers POST /<service>/predict {"data": frame} with {"result": boxes}."""

import detector
from neptune_worker import Worker


def main():
    """Serve until SIGTERM."""
    with Worker() as worker:
        model = detector.load(worker.model_path)
        nms_threshold = float(worker.parameters.get("nms_threshold", "0.6"))
        worker.serve(lambda frame: detector.detect(detector.checked(frame), model, nms_threshold))


if __name__ == "__main__":
    main()
