//! The pure steps of a `TrainingModel`.

use neptune_api::{TrainingModel, TrainingModelStatus};
use neptune_wire::ObjectKey;

use super::{
    events,
    observation::TrainingObservation,
    plan,
    resolved::{TrainingFacts, ValidTrainingModel},
    status, validate,
};
use crate::{
    finding::Finding,
    fleet::Retained,
    reason::Reason,
    steps::{ControllerMessages, ObjectEvent, ObjectPlan, StatusInputs, Steps, WorkloadMessages},
};

impl Steps for TrainingModel {
    type Facts = TrainingFacts;
    type Valid = ValidTrainingModel;
    type Placed = ValidTrainingModel;
    type Observation = TrainingObservation;
    type Memory = ();

    const MESSAGES: ControllerMessages = ControllerMessages {
        shorten: "use shorter parameters and variables, or fewer workers on a node",
        workload: Some(WorkloadMessages {
            created: "AggregatorCreated",
            what: "aggregator",
            rename: "the TrainingModel",
            refused: Reason::AggregatorRefused,
        }),
    };

    fn validate(&self, facts: &TrainingFacts) -> Result<ValidTrainingModel, Vec<Finding>> {
        validate::validate(self, facts)
    }

    fn plan(&self, valid: &ValidTrainingModel, fetch_image: &str) -> ObjectPlan {
        let generations = plan::generations(valid);
        ObjectPlan { generations, ..plan::plan(self, valid, fetch_image) }
    }

    fn retained(&self, key: &ObjectKey) -> Retained {
        plan::retained(self, key)
    }

    fn next_status(
        &self,
        previous: &TrainingModelStatus,
        inputs: &StatusInputs<TrainingObservation>,
    ) -> TrainingModelStatus {
        status::next(self, previous, inputs)
    }

    fn is_same_status(previous: &TrainingModelStatus, next: &TrainingModelStatus) -> bool {
        previous == next
    }

    fn observed_generation(status: &TrainingModelStatus) -> Option<i64> {
        status.observed_generation
    }

    fn events(previous: &TrainingModelStatus, next: &TrainingModelStatus) -> Vec<ObjectEvent> {
        events::events(previous, next)
    }
}
