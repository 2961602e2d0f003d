"""Checks with KServe's clients, `InferenceRESTClient` and `InferenceGRPCClient`.

They run in a process of their own: KServe and tritonclient.grpc register the same names with protobuf.
"""

import asyncio

from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

from oip import ID, check_merged, same_body, same_messages, split
from results import same_outcome


def kserve_request(case, rows, binary):
    """A request of KServe's SDK."""
    tensor = InferInput(case.input, list(rows.shape), case.datatype)
    tensor.set_data_from_numpy(rows, binary_data=binary)
    outputs = [RequestedOutput(name, parameters={"binary_data": binary} if binary else None) for name in case.outputs]
    return InferRequest(model_name="small", request_id=ID, infer_inputs=[tensor], request_outputs=outputs)


def kserve_rest(address, call):
    """Runs `call` with a client of REST and the base URL."""

    async def run():
        client = InferenceRESTClient(RESTConfig(protocol="v2"))
        try:
            return await call(client, f"http://{address}")
        finally:
            await client.close()

    return asyncio.run(run())


def kserve_grpc(address, call):
    """Runs `call` with a client of gRPC."""

    async def run():
        async with InferenceGRPCClient(address) as client:
            return await call(client)

    return asyncio.run(run())


def check_kserve_rest(results, case, rows):
    """kserve.InferenceRESTClient."""
    rows, edge, cloud, hard = split(case, rows)
    for binary in (False, True) if case.binary else (False,):
        form = "binary" if binary else "JSON"

        def infer(to, rows):
            request = kserve_request(case, rows, binary)
            return kserve_rest(to, lambda client, url: client.infer(url, request, model_name="small"))

        with results.case(case.server, "kserve REST", f"{form}: easy rows, same bytes") as notes:
            size = same_body(lambda to: infer(to, rows[~hard]), case.edge[0], case.gateway[0])
            notes.append(f"{size} bytes")
        with results.case(case.server, "kserve REST", f"{form}: hard rows are the cloud's"):
            check_merged(case, AsNumpy(infer(case.gateway[0], rows)), edge, cloud, hard)
    calls = {
        "is_server_live": lambda client, url: client.is_server_live(url),
        "is_server_ready": lambda client, url: client.is_server_ready(url),
        "is_model_ready": lambda client, url: client.is_model_ready(url, "small"),
        "is_model_ready of an unknown model": lambda client, url: client.is_model_ready(url, "absent"),
    }
    for name, call in calls.items():
        with results.case(case.server, "kserve REST", f"{name}: as without the gateway") as notes:
            same_outcome(notes, lambda to, call=call: kserve_rest(to, call), case.edge[0], case.gateway[0])


def check_kserve_grpc(results, case, rows):
    """kserve.InferenceGRPCClient."""
    rows, edge, cloud, hard = split(case, rows)

    def infer(to, rows):
        request = kserve_request(case, rows, True)
        return kserve_grpc(to, lambda client: client.infer(request))

    with results.case(case.server, "kserve gRPC", "easy rows, same bytes") as notes:
        size = same_messages(lambda to: infer(to, rows[~hard]), case.edge[1], case.gateway[1])
        notes.append(f"{size} bytes")
    with results.case(case.server, "kserve gRPC", "hard rows are the cloud's"):
        check_merged(case, AsNumpy(infer(case.gateway[1], rows)), edge, cloud, hard)
    calls = {
        "is_server_live": lambda client: client.is_server_live(),
        "is_server_ready": lambda client: client.is_server_ready(),
        "is_model_ready": lambda client: client.is_model_ready("small"),
        "is_model_ready of an unknown model": lambda client: client.is_model_ready("absent"),
    }
    for name, call in calls.items():
        with results.case(case.server, "kserve gRPC", f"{name}: as without the gateway") as notes:
            same_outcome(notes, lambda to, call=call: kserve_grpc(to, call), case.edge[1], case.gateway[1])


class AsNumpy:
    """An answer of KServe's SDK with the accessor of Triton's."""

    def __init__(self, answer):
        self.outputs = {output.name: output.as_numpy() for output in answer.outputs}

    def as_numpy(self, name):
        """The output, with its type and shape."""
        return self.outputs[name]


def check(results, case, rows):
    """All checks of one model server."""
    check_kserve_rest(results, case, rows)
    if case.edge[1]:
        check_kserve_grpc(results, case, rows)
