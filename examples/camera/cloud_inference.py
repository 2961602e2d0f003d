"""The cloud worker: looks at a frame again. It stands for a model that needs more than an edge node has."""

import base64
import json
import pathlib

from neptune_worker import Worker


def main():
    """Serve until SIGTERM."""
    with Worker() as worker:
        settings = json.loads(pathlib.Path(worker.model_path).read_text(encoding="utf-8"))
        worker.serve(lambda picture: len(base64.b64decode(picture)) > settings["bytes"])


if __name__ == "__main__":
    main()
