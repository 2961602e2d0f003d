"""Checks the gateway's status while the cloud refuses every request, as each model server does it.

A gateway for REST and one for gRPC: they share the state of the cloud.
"""

from oip import triton_rest
from servers import get_json
from triton_checks import triton_grpc_infer

CALLS = 3


def check(results, case, rows):
    """The cloud has no model of the name that the gateway sends. `case.gateway`: the client, and the addresses."""
    kind, rest, grpc, status = case.gateway
    rows = case.array(rows[:1])
    client = f"tritonclient {kind}"
    with results.case(case.server, client, "model that the cloud lacks: named in the status") as notes:
        for _ in range(CALLS):
            if kind == "http":
                triton_rest(case, rest, "small", rows)
            else:
                triton_grpc_infer(case, grpc, "small", rows)
        found = get_json(status)
        notes += [f"{problem['reason']}: {problem['message']}" for problem in found["problems"]]
        assert found["cloud"] == "RequestsRefused", found["cloudText"]
        assert [problem["reason"] for problem in found["problems"]] == ["CloudRefusesRequests"]
