//! Waits for what a fleet reaches: statuses, containers, retained messages.

use std::fmt::Debug;

use kube::{
    Api, Resource,
    core::{NamespaceResourceScope, object::HasStatus},
    runtime::wait::{Condition, await_condition},
};
use neptune_api::{
    Dataset, DatasetStatus, InferenceModel, InferenceModelStatus, JisConditionType,
    JointInferenceService, JointInferenceServiceStatus,
};
use neptune_harness::{MqttClient, TIMEOUT, docker, eventually, eventually_async, eventually_some};
use neptune_wire::Counters;
use serde::de::DeserializeOwned;

use super::Fleet;

impl Fleet {
    /// Waits until a service's status matches, and returns it.
    pub async fn until(
        &self,
        name: &str,
        what: &str,
        matches: impl Fn(&JointInferenceServiceStatus) -> bool,
    ) -> JointInferenceServiceStatus {
        let condition = |service: Option<&JointInferenceService>| {
            service.and_then(|service| service.status.as_ref()).is_some_and(&matches)
        };
        let service = self.wait(name, what, condition).await;
        service.and_then(|service| service.status).expect("the condition saw a status")
    }

    /// Waits until a condition on a service holds.
    pub async fn wait(
        &self,
        name: &str,
        what: &str,
        condition: impl Condition<JointInferenceService>,
    ) -> Option<JointInferenceService> {
        let waiting = await_condition(self.services(), name, condition);
        let Ok(result) = tokio::time::timeout(TIMEOUT, waiting).await else {
            let seen = self.services().get_opt(name).await;
            panic!(
                "timed out waiting for {name}: {what}; the last version was: {seen:#?}\n{}",
                self.containers()
            );
        };
        result.unwrap()
    }

    /// Waits until an `InferenceModel`'s status matches, and returns it. `matches` sees every
    /// status on the way.
    pub async fn until_model(
        &self,
        name: &str,
        what: &str,
        matches: impl Fn(&InferenceModelStatus) -> bool,
    ) -> InferenceModelStatus {
        self.until_status::<InferenceModel>(name, what, matches).await
    }

    /// Waits until a Dataset's status matches, and returns it. `matches` sees every status on the
    /// way.
    pub async fn until_dataset(
        &self,
        name: &str,
        what: &str,
        matches: impl Fn(&DatasetStatus) -> bool,
    ) -> DatasetStatus {
        self.until_status::<Dataset>(name, what, matches).await
    }

    /// Waits until the status of an object matches, and returns it. `matches` sees every status on
    /// the way.
    pub async fn until_status<K>(
        &self,
        name: &str,
        what: &str,
        matches: impl Fn(&K::Status) -> bool,
    ) -> K::Status
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + HasStatus<Status: Clone>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let objects: Api<K> = Api::namespaced(self.cluster.client(), &self.namespace);
        let condition = |object: Option<&K>| object.and_then(K::status).is_some_and(&matches);
        let waiting = await_condition(objects.clone(), name, condition);
        let Ok(result) = tokio::time::timeout(TIMEOUT, waiting).await else {
            let seen = objects.get_opt(name).await;
            panic!(
                "timed out waiting for {name}: {what}; the last version was: {seen:#?}\n{}",
                self.containers()
            );
        };
        let status = result.unwrap().and_then(|object| object.status().cloned());
        status.expect("the condition saw a status")
    }

    /// Waits until a node runs exactly one container and it is not this one. Returns its ID.
    pub async fn replaced(&self, node: &str, before: &str) -> String {
        let what = format!("container {before} of {node} to be replaced");
        eventually_some(&what, async || match &docker::running_node_containers(node)[..] {
            [id] if id != before => Some(id.clone()),
            _ => None,
        })
        .await
    }

    /// Waits until the nodes have no containers.
    pub async fn no_containers(&self) {
        eventually("all containers to be removed", || {
            self.nodes.iter().all(|node| docker::node_containers(&node.name).is_empty())
        })
        .await;
    }

    /// Waits until the edge node's broker retains no message on this object.
    pub async fn nothing_retained(&self, name: &str) {
        let part = format!("/{name}/");
        eventually_async(&format!("no retained message on {name}"), async || {
            let retained = MqttClient::retained(self.broker.port(), "neptune/#").await;
            !retained.iter().any(|message| message.topic.contains(&part))
        })
        .await;
    }
}

/// Whether the newest condition is `Running`, or `Completed` once the edge worker reports that. While
/// a node is offline it is neither.
pub fn is_running(status: &JointInferenceServiceStatus) -> bool {
    let is = |type_| matches!(type_, JisConditionType::Running | JisConditionType::Completed);
    status.conditions.last().is_some_and(|last| is(last.type_) && last.status == "True")
}

/// The totals of a status.
///
/// # Panics
/// If a metric is not a number.
pub fn totals(status: &JointInferenceServiceStatus) -> Counters {
    let mut totals = Counters::default();
    for (name, number) in totals.numbers_mut() {
        let metric = status.metrics.iter().find(|metric| metric.key == name);
        *number = metric.map_or(0, |metric| metric.value.parse().unwrap());
    }
    totals
}
