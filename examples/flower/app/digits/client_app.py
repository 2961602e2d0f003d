"""The ClientApp: trains with the data of its node."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    # The node configuration of the SuperNode, from the framework table.
    images, digits = task.load(context.node_config["dataset"])
    weights = message.content["arrays"].to_numpy_ndarrays()
    epochs, rate = context.run_config["epochs"], context.run_config["learning-rate"]
    weights = task.train(weights, images, digits, epochs, rate)
    loss, accuracy = task.evaluate(weights, images, digits)
    metrics = MetricRecord({"train_loss": loss, "train_accuracy": accuracy, "num-examples": len(images)})
    content = RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics})
    return Message(content=content, reply_to=message)
