//! The CEL validation rules of a `TrainingModel`. See `rules.rs` of the crate.

use kube::core::Rule;

/// Requires a training program.
pub(crate) fn something_to_run() -> Rule {
    Rule::new("has(self.script) || (has(self.workerSpec.image) && self.workerSpec.image != '')")
        .message(
            "give script (url and sha256sum, or scriptDir) or workerSpec.image: there is nothing to run",
        )
}

pub(crate) fn one_script() -> Rule {
    Rule::new("!(has(self.url) && has(self.scriptDir))")
        .message("give script.url or script.scriptDir, not both")
}

pub(crate) fn script_given() -> Rule {
    Rule::new("has(self.url) || has(self.scriptDir)")
        .message("give script.url with script.sha256sum, or script.scriptDir")
}

pub(crate) fn script_digest() -> Rule {
    Rule::new("!has(self.url) || has(self.sha256sum)")
        .message("script.url needs script.sha256sum: code from a network is run only with a digest")
}

pub(crate) fn one_source_of_weights() -> Rule {
    Rule::new("!(has(self.url) && has(self.model))")
        .message("give initialWeights.url or initialWeights.model, not both")
}

pub(crate) fn weights_given() -> Rule {
    Rule::new("has(self.url) || has(self.model)")
        .message("give initialWeights.url with initialWeights.sha256sum, or initialWeights.model")
}

pub(crate) fn weights_digest() -> Rule {
    Rule::new("!has(self.url) || has(self.sha256sum)")
        .message("initialWeights.url needs initialWeights.sha256sum")
}

pub(crate) fn training_worker_placed() -> Rule {
    Rule::new("has(self.nodeName) != has(self.nodeSelector)")
        .message("give exactly one of nodeName and nodeSelector for each training worker")
}

pub(crate) fn dataset_selected() -> Rule {
    Rule::new("has(self.name) != has(self.matchLabels)")
        .message("give exactly one of dataset.name and dataset.matchLabels")
}

pub(crate) fn trim_leaves_something() -> Rule {
    Rule::new(
        "!has(self.strategy) || self.strategy != 'TrimmedMean' || !has(self.trim) || \
         double(self.trim) < 0.5",
    )
    .field_path(".trim")
    .message("must be less than 0.5: more leaves no update to aggregate")
}

pub(crate) fn worker_of_strategy() -> Rule {
    Rule::new("(has(self.strategy) && self.strategy == 'Worker') == has(self.worker)")
        .field_path(".worker")
        .message("aggregation.worker goes with strategy Worker, and only with it")
}

pub(crate) fn worker_in_the_cloud() -> Rule {
    Rule::new("!has(self.worker) || !has(self.nodeName)").field_path(".nodeName").message(
        "aggregation.nodeName does not go with strategy Worker: the server of an engine runs in the cloud",
    )
}

/// The number of workers is known if each entry has one node and one Dataset.
pub(crate) fn enough_training_workers() -> Rule {
    Rule::new(
        "!has(self.aggregation) || !has(self.aggregation.minWorkers) || \
         self.aggregation.minWorkers <= size(self.trainingWorkers) || \
         self.trainingWorkers.exists(w, has(w.nodeSelector) || has(w.dataset.matchLabels))",
    )
    .field_path(".aggregation.minWorkers")
    .message("must not be above the number of entries in spec.trainingWorkers")
}

pub(crate) fn growth_measured() -> Rule {
    Rule::new(
        "!has(self.schedule) || !has(self.schedule.type) || self.schedule.type != 'OnGrowth' || \
         (has(self.schedule.dataset) && has(self.schedule.newSamples) && \
         self.schedule.newSamples > 0)",
    )
    .field_path(".schedule")
    .message("OnGrowth needs schedule.dataset and newSamples")
}
