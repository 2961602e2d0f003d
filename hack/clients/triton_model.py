"""The model of Triton's backend for Python: a classifier of scikit-learn with the outputs `y_prob` and `y_pred`."""

import os
import sys

# The backend's Python ignores the environment.
sys.path += os.environ["PYTHONPATH"].split(":")

# pylint: disable=wrong-import-position,import-error
import joblib
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    """What the backend calls."""

    def initialize(self, args):
        """Loads the file beside this one."""
        self.model = joblib.load(f"{args['model_repository']}/{args['model_version']}/model.joblib")

    def execute(self, requests):
        """Answers each request."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """The outputs for the rows of one request."""
        scores = self.model.predict_proba(pb.get_input_tensor_by_name(request, "X").as_numpy())
        labels = scores.argmax(axis=1).astype(np.int64)
        return pb.InferenceResponse([pb.Tensor("y_pred", labels), pb.Tensor("y_prob", scores)])
