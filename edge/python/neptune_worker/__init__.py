"""Workers and training programs of Neptune, joint inference on edge nodes.

`Worker` is a worker of a JointInferenceService, at the edge or in the cloud; `Round` is one task of a TrainingModel;
`rules` has the hard-example rules. docs/python.md describes them.
"""

from neptune_worker import rules
from neptune_worker.settings import SettingError
from neptune_worker.training import Round
from neptune_worker.worker import Answer, Worker

__all__ = ["Answer", "Round", "SettingError", "Worker", "rules"]
__version__ = "0.2.0"
