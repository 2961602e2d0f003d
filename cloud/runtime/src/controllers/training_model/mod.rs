//! The `TrainingModel` controller: runs of rounds in which nodes train, an aggregator averages, and
//! the result becomes a Model.

mod facts;
mod observe;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use neptune_api::{TrainingModel, TrainingModelStatus};
use neptune_cloud_kinds::{
    finding::Finding,
    training_model::{
        observation::TrainingObservation,
        resolved::{TrainingFacts, ValidTrainingModel},
        validate,
    },
};
use neptune_wire::ObjectKey;

use super::runtime::{Context, Controller};

impl Controller for TrainingModel {
    fn facts(&self, context: &Context) -> TrainingFacts {
        facts::facts(self, context)
    }

    fn observe(
        &self,
        key: &ObjectKey,
        valid: Option<&ValidTrainingModel>,
        context: &Context,
        now: Timestamp,
    ) -> TrainingObservation {
        observe::observe(self, key, valid, context, now)
    }

    /// A run that starts or ends changes the tasks of its nodes. One that the aggregator has must not
    /// begin again.
    fn enqueue_by_status(&self, next: &TrainingModelStatus, context: &Context) {
        let runs = |status: &TrainingModelStatus| {
            let accepted = status.aggregator.as_ref().and_then(|aggregator| aggregator.run);
            (status.run, accepted, status.last_run.as_ref().map(|last| last.run))
        };
        if self.status.as_ref().map(runs) != Some(runs(next)) {
            context.enqueue(self);
        }
    }

    /// Enqueues the output Model, whose status has the metrics of its weights.
    fn enqueue_by_object(&self, _before: Option<&Self>, context: &Context) {
        let output = self.status.as_ref().and_then(|status| status.output.as_ref());
        let model = output.filter(|output| output.measured.is_some()).and_then(|output| {
            let namespace = self.metadata.namespace.as_deref()?;
            context.caches().get::<neptune_api::Model>(namespace, &output.model)
        });
        if let Some(key) =
            model.and_then(|model| neptune_cloud_kinds::kubernetes::identity::key(&*model))
        {
            context.enqueue_status::<neptune_api::Model>(&key);
        }
    }

    fn drive(&self, key: &ObjectKey, valid: Option<&ValidTrainingModel>, context: &Context) {
        let uid = self.metadata.uid.as_deref().unwrap_or_default();
        let Some(valid) = valid else { return context.aggregators().forget(uid) };
        let task = observe::aggregator_task(self, key, valid, context);
        let (namespace, name) = (self.namespace().unwrap_or_default(), self.name_any());
        let (notified, own) = (context.clone(), uid.to_owned());
        let notify = move || {
            let model = notified.caches().get::<Self>(&namespace, &name);
            match model.filter(|model| model.metadata.uid.as_deref() == Some(&*own)) {
                Some(model) => notified.enqueue(&*model),
                // It was deleted during a gap of the watch.
                None => notified.aggregators().forget(&own),
            }
        };
        context.aggregators().set(uid, task, context.client(), notify);
    }

    /// A run that has started hides findings from the status, and not from who changes the spec.
    fn findings(&self, context: &Context) -> Vec<Finding> {
        validate::check(self, &self.facts(context)).err().unwrap_or_default()
    }
}
