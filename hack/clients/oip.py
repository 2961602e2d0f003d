"""What the checks of the Open Inference Protocol share."""

from dataclasses import dataclass

import numpy as np
import tritonclient.http as triton_http

from wire import Relay

# With an ID of the client, answers to the same request are the same.
ID = "1"
PINNED = {"x-neptune-route": "edge"}


@dataclass
class Case:
    """One model server, its counterpart in the cloud, and the gateway between the client and both."""

    server: str
    edge: tuple
    cloud: tuple
    gateway: tuple
    input: str
    datatype: str
    outputs: tuple
    threshold: float
    binary: bool
    streams: bool

    def array(self, rows):
        """The rows in the type of the model's input."""
        return np.ascontiguousarray(rows, dtype={"FP32": np.float32, "FP64": np.float64}[self.datatype])


def triton_rest(case, address, model, rows, forms=(False, False), headers=None, asynchronous=False):
    """Infers over REST; `forms` is whether the request and the answer are binary."""
    client = triton_http.InferenceServerClient(address)
    tensor = triton_http.InferInput(case.input, list(rows.shape), case.datatype)
    tensor.set_data_from_numpy(rows, binary_data=forms[0])
    # KServe refuses a JSON body without a type, and this client gives none.
    headers = {**(headers or {}), **({} if forms[0] else {"Content-Type": "application/json"})}
    outputs = [triton_http.InferRequestedOutput(name, binary_data=forms[1]) for name in case.outputs]
    try:
        if asynchronous:
            options = {"outputs": outputs, "headers": headers, "request_id": ID}
            calls = [client.async_infer(model, [tensor], **options) for _ in range(4)]
            return [call.get_result() for call in calls]
        return client.infer(model, [tensor], outputs=outputs, headers=headers, request_id=ID)
    finally:
        client.close()


def split(case, rows):
    """Asks both models directly: the rows, the edge's outputs, the cloud's of the hard rows, and which are hard."""
    rows = case.array(rows)
    edge = triton_rest(case, case.edge[0], "small", rows)
    scores = next(name for name in case.outputs if "prob" in name)
    hard = edge.as_numpy(scores).max(axis=1) < case.threshold
    assert 4 <= hard.sum() <= len(rows) - 4, f"{hard.sum()} of {len(rows)} rows are hard"
    # Only the hard rows, as the gateway does: the last bits of a result depend on the rows that are computed with it.
    cloud = triton_rest(case, case.cloud[0], "big", rows[hard])
    return rows, edge, cloud, hard


def check_merged(case, answer, edge, cloud, hard):
    """The hard rows are exactly the cloud's, and the others the edge's."""
    for name in case.outputs:
        expected, found = edge.as_numpy(name).copy(), answer.as_numpy(name)
        if hard.any():
            expected[hard] = cloud.as_numpy(name)
        assert found.dtype == expected.dtype and np.array_equal(found, expected), f"other rows in {name}"


def sides(hard):
    """The parameter of an answer with rows of both."""
    return ",".join("cloud" if row else "edge" for row in hard)


def same_body(call, direct, gateway):
    """The bytes of the answer's body with and without the gateway."""
    return same_bytes(call, direct, gateway, Relay.body)


def same_messages(call, direct, gateway):
    """The bytes of the answer's message with and without the gateway."""
    return same_bytes(call, direct, gateway, Relay.messages)


def same_bytes(call, direct, gateway, read):
    """Compares what `read` finds in the answers of both addresses. Returns its length."""
    found = []
    for address in (direct, gateway):
        relay = Relay(address)
        call(relay.address)
        found.append(read(relay))
    assert found[0] == found[1], f"direct {found[0][:200]}, gateway {found[1][:200]}"
    return len(found[0])
