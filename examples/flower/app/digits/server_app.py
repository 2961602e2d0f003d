"""The ServerApp: federated averaging, whose weights and rounds are saved in OUTPUT_DIR."""

import json
import os

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits import task

NAMES = ["w1", "b1", "w2", "b2"]
app = ServerApp()


class SavingFedAvg(FedAvg):
    """Saves the weights and the progress after each round."""

    def __init__(self, rounds: int, **options):
        super().__init__(**options)
        self.rounds, self.output = rounds, os.environ.get("OUTPUT_DIR", ".")

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is not None:
            np.savez(f"{self.output}/new.npz", **dict(zip(NAMES, arrays.to_numpy_ndarrays())))
            os.replace(f"{self.output}/new.npz", f"{self.output}/weights.npz")
            line = {
                "round": server_round,
                "rounds": self.rounds,
                "loss": metrics["train_loss"],
                "metrics": {"accuracy": metrics["train_accuracy"]},
                "participants": sum(not reply.has_error() for reply in replies),
            }
            with open(f"{self.output}/progress.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
        return arrays, metrics


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    rounds, clients = config["num-server-rounds"], config["num-clients"]
    weights = task.initial()
    # Of an earlier attempt, or of the spec.
    if path := os.environ.get("WEIGHTS_URL"):
        with np.load(path) as saved:
            weights = [saved[name] for name in NAMES]
    strategy = SavingFedAvg(
        rounds,
        fraction_evaluate=0.0,
        min_train_nodes=clients,
        min_available_nodes=clients,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(weights),
        num_rounds=rounds,
        train_config=ConfigRecord({}),
    )
