"""Checks with Triton's clients, `tritonclient.http` and `tritonclient.grpc`."""

import contextlib
import queue

import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from oip import ID, PINNED, check_merged, same_body, same_messages, sides, split, triton_rest
from results import same_outcome

STREAM_SECONDS = 20
# What both clients ask besides inference.
METADATA_CALLS = {
    "is_server_live": lambda client: client.is_server_live(),
    "is_server_ready": lambda client: client.is_server_ready(),
    "is_model_ready": lambda client: client.is_model_ready("small"),
    "get_server_metadata": lambda client: client.get_server_metadata(),
    "get_model_metadata": lambda client: client.get_model_metadata("small"),
    "metadata of an unknown model": lambda client: client.get_model_metadata("absent"),
    "get_model_repository_index": lambda client: client.get_model_repository_index(),
}


def triton_grpc_infer(case, address, model, rows, **options):
    """Infers over gRPC."""
    with triton_grpc.InferenceServerClient(address) as client:
        tensor = triton_grpc.InferInput(case.input, list(rows.shape), case.datatype)
        tensor.set_data_from_numpy(rows)
        outputs = [triton_grpc.InferRequestedOutput(name) for name in case.outputs]
        return client.infer(model, [tensor], outputs=outputs, request_id=ID, **options)


def triton_stream(case, address, rows):
    """Infers over ModelStreamInfer; the value is the first answer or error."""
    answers = queue.Queue()
    with triton_grpc.InferenceServerClient(address) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        try:
            tensor = triton_grpc.InferInput(case.input, list(rows.shape), case.datatype)
            tensor.set_data_from_numpy(rows)
            # If the server has ended the stream already, the callback gets the reason.
            with contextlib.suppress(InferenceServerException):
                client.async_stream_infer("small", [tensor], request_id=ID)
            result, error = answers.get(timeout=STREAM_SECONDS)
        except queue.Empty as silence:
            raise TimeoutError("no answer") from silence
        finally:
            client.stop_stream(cancel_requests=True)
    if error is not None:
        raise error
    return result.get_response().SerializeToString(deterministic=True)


def check_triton_rest(results, case, rows):
    """tritonclient.http."""
    rows, edge, cloud, hard = split(case, rows)
    for forms in [(a, b) for a in (False, True) for b in (False, True) if case.binary or not (a or b)]:
        name = "request {}, answer {}".format(*("binary" if form else "JSON" for form in forms))
        with results.case(case.server, "tritonclient http", f"{name}: easy rows, same bytes") as notes:
            infer = lambda to, forms=forms: triton_rest(case, to, "small", rows[~hard], forms)
            size = same_body(infer, case.edge[0], case.gateway[0])
            notes.append(f"{size} bytes")
        with results.case(case.server, "tritonclient http", f"{name}: hard rows are the cloud's") as notes:
            answer = triton_rest(case, case.gateway[0], "small", rows, forms)
            check_merged(case, answer, edge, cloud, hard)
            assert answer.get_response()["parameters"]["neptune_answered_by"] == sides(hard)
            notes.append(f"{hard.sum()} of {len(rows)} rows")
    with results.case(case.server, "tritonclient http", "pinned rows stay at the edge, same bytes"):
        same_body(lambda to: triton_rest(case, to, "small", rows, headers=PINNED), case.edge[0], case.gateway[0])
    with results.case(case.server, "tritonclient http", "async_infer, four at a time"):
        for answer in triton_rest(case, case.gateway[0], "small", rows, asynchronous=True):
            check_merged(case, answer, edge, cloud, hard)
    for name, call in METADATA_CALLS.items():
        with results.case(case.server, "tritonclient http", f"{name}: as without the gateway") as notes:
            ask = lambda to, call=call: call(triton_http.InferenceServerClient(to))
            same_outcome(notes, ask, case.edge[0], case.gateway[0])
    with results.case(case.server, "tritonclient http", "infer of an unknown model: as without the gateway") as notes:
        same_outcome(notes, lambda to: triton_rest(case, to, "absent", rows[:1]), case.edge[0], case.gateway[0])


def check_triton_grpc(results, case, rows):
    """tritonclient.grpc."""
    rows, edge, cloud, hard = split(case, rows)
    client = "tritonclient grpc"
    with results.case(case.server, client, "easy rows, same bytes") as notes:
        infer = lambda to: triton_grpc_infer(case, to, "small", rows[~hard])
        size = same_messages(infer, case.edge[1], case.gateway[1])
        notes.append(f"{size} bytes")
    with results.case(case.server, client, "hard rows are the cloud's") as notes:
        answer = triton_grpc_infer(case, case.gateway[1], "small", rows)
        theirs = triton_grpc_infer(case, case.cloud[1], "big", rows[hard])
        check_merged(case, answer, triton_grpc_infer(case, case.edge[1], "small", rows), theirs, hard)
        found = answer.get_response().parameters["neptune_answered_by"].string_param
        assert found == sides(hard), found
        notes.append(f"{hard.sum()} of {len(rows)} rows")
    for name, model, headers in (("header", "small", PINNED), ("model name", "small@edge", None)):
        with results.case(case.server, client, f"rows pinned by {name} stay at the edge"):
            answer = triton_grpc_infer(case, case.gateway[1], model, rows, headers=headers)
            check_merged(case, answer, edge, cloud, hard & False)
    with results.case(case.server, client, "compressed by gzip: passes to the edge"):
        answer = triton_grpc_infer(case, case.gateway[1], "small", rows, compression_algorithm="gzip")
        check_merged(case, answer, edge, cloud, hard & False)
    for name, call in METADATA_CALLS.items():
        with results.case(case.server, client, f"{name}: as without the gateway") as notes:
            ask = lambda to, call=call: call(triton_grpc.InferenceServerClient(to))
            same_outcome(notes, ask, case.edge[1], case.gateway[1])
    with results.case(case.server, client, "infer of an unknown model: as without the gateway") as notes:
        same_outcome(notes, lambda to: triton_grpc_infer(case, to, "absent", rows[:1]), case.edge[1], case.gateway[1])
    if case.streams:
        with results.case(case.server, client, "ModelStreamInfer: as without the gateway") as notes:
            same_outcome(notes, lambda to: triton_stream(case, to, rows[~hard]), case.edge[1], case.gateway[1])
    with results.case(case.server, client, "async_infer, four at a time"):
        answers = queue.Queue()
        with triton_grpc.InferenceServerClient(case.gateway[1]) as connection:
            tensor = triton_grpc.InferInput(case.input, list(rows.shape), case.datatype)
            tensor.set_data_from_numpy(rows)
            outputs = [triton_grpc.InferRequestedOutput(name) for name in case.outputs]
            collect = lambda result, error: answers.put((result, error))
            for _ in range(4):
                connection.async_infer("small", [tensor], collect, outputs=outputs)
            for _ in range(4):
                result, error = answers.get(timeout=20)
                assert error is None, error
                check_merged(case, result, edge, cloud, hard)


def check(results, case, rows):
    """All checks of one model server."""
    check_triton_rest(results, case, rows)
    if case.edge[1]:
        check_triton_grpc(results, case, rows)
