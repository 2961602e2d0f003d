"""A transformer made with KServe's SDK as its documentation shows. It clips pixels to the range of the samples.

usage: kserve_transformer.py [the arguments of KServe]
"""

import argparse

import numpy as np
from kserve import InferRequest, InferResponse, Model, ModelServer, model_server


class Clip(Model):
    """Calls the model server that the arguments name."""

    def __init__(self, name):
        super().__init__(name)
        self.ready = True

    def preprocess(self, payload: InferRequest, headers=None):
        """Changes the request before the model sees it."""
        for tensor in payload.inputs:
            tensor.set_data_from_numpy(np.clip(tensor.as_numpy(), 0, 16), binary_data=False)
        return payload

    def postprocess(self, result: InferResponse, headers=None, response_headers=None):
        """Changes the answer of the model."""
        result.parameters = {**(result.parameters or {}), "clipped": True}
        return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(parents=[model_server.parser])
    arguments, _ = parser.parse_known_args()
    ModelServer().start([Clip(arguments.model_name)])
