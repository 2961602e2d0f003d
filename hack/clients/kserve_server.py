"""A model server made with KServe's SDK. It supports JSON and binary tensors over REST, and gRPC.

usage: kserve_server.py NAME JOBLIB_FILE REST_PORT GRPC_PORT
"""

import sys

import joblib
import numpy as np
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class Digits(Model):
    """A classifier of scikit-learn with the outputs `y_prob` and `y_pred`."""

    def __init__(self, name, file):
        super().__init__(name)
        self.model = joblib.load(file)
        self.ready = True

    def predict(self, request: InferRequest, headers=None, response_headers=None):
        """Answers with all outputs; the SDK gives them the form that the request asks for."""
        scores = self.model.predict_proba(request.inputs[0].as_numpy())
        outputs = []
        values = (("y_prob", scores, "FP64"), ("y_pred", scores.argmax(1).astype(np.int64), "INT64"))
        for name, value, datatype in values:
            output = InferOutput(name, list(value.shape), datatype)
            output.set_data_from_numpy(value, binary_data=False)
            outputs.append(output)
        return InferResponse(
            response_id=request.id or "1",
            model_name=self.name,
            infer_outputs=outputs,
            # Clients of gRPC that send raw contents get them, too.
            use_binary_outputs=request.from_grpc,
            requested_outputs=None if request.from_grpc else request.request_outputs,
        )


if __name__ == "__main__":
    name, file, rest, grpc = sys.argv[1:]
    server = ModelServer(http_port=int(rest), grpc_port=int(grpc), workers=1, enable_docs_url=False)
    server.start([Digits(name, file)])
