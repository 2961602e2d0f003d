"""Checks an unmodified transformer of KServe before a model server, with the arguments that Neptune gives it."""

import json
import statistics
import time
import urllib.request

from servers import get_json

REQUESTS = 200


def check(results, servers, rows):
    """Asks the transformer and the model server behind it."""
    server, transformer = servers.kserve_transformer("small")
    with results.case("kserve", "transformer", "its health check is answered"):
        assert get_json(f"http://{transformer}/v2/models/small/ready")["ready"]
    far = rows * 40 - 100
    with results.case("kserve", "transformer", "the model sees what the transformer made"):
        direct, answer = infer(server, far.clip(0, 16)), infer(transformer, far)
        assert answer["outputs"] == direct["outputs"], f"{answer} is not {direct}"
        assert answer["outputs"] != infer(server, far)["outputs"], "nothing was changed"
    with results.case("kserve", "transformer", "the client gets what the transformer made"):
        assert infer(transformer, rows)["parameters"]["clipped"] is True
        assert infer(transformer, rows)["model_name"] == "small"
    with results.case("kserve", "transformer", f"{REQUESTS} requests") as notes:
        for name, address in (("server", server), ("transformer", transformer)):
            seconds = [timed(address, rows[:1]) for _ in range(REQUESTS)]
            p50, p99 = statistics.median(seconds) * 1000, statistics.quantiles(seconds, n=100)[98] * 1000
            notes.append(f"{name} p50 {p50:.1f} ms, p99 {p99:.1f} ms")


def infer(address, rows):
    """The answer of the Open Inference Protocol."""
    tensor = {"name": "X", "shape": list(rows.shape), "datatype": "FP64", "data": rows.ravel().tolist()}
    body = json.dumps({"id": "1", "inputs": [tensor]}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}/v2/models/small/infer", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def timed(address, rows):
    """The seconds that one request takes."""
    begin = time.perf_counter()
    infer(address, rows)
    return time.perf_counter() - begin
