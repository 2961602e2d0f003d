//! Looks at one service: observe, validate, plan, apply, status.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::{ObjectRef, Store};
use neptune_api::JointInferenceService;
use neptune_wire::{ObjectKey, Resource};

use super::{
    super::{
        carry_out::{Maker, Words, carry_out},
        context::{Context, Desk},
        kind::Kind,
        nodes::is_agent_node,
    },
    observe,
    plan::{keeps, plan},
    validate::validate,
    write::write_status,
};
use crate::{
    error::Error,
    reason::{Finding, Reason},
    stores::Stores,
};

impl Maker for JointInferenceService {
    const WORDS: Words = Words {
        created: "CloudWorkerCreated",
        what: "cloud worker",
        rename: "spec.cloudWorker.name",
        shorten: "shorten its parameters and env",
        refused: Reason::CloudWorkerRefused,
    };
}

impl Kind for JointInferenceService {
    const RESOURCE: Resource = Resource::JointInferenceServices;

    fn store(stores: &Stores) -> &Store<Self> {
        &stores.joint_inference_services
    }

    fn desk(context: &Context) -> &Desk<Self> {
        context.services()
    }

    fn concerns(&self, node: &str) -> bool {
        self.spec.edge_worker.node_name == node || self.spec.cloud_worker.node_name == node
    }

    fn findings(&self, context: &Context) -> Vec<Finding> {
        validate(self, &observe::facts(self, context)).err().unwrap_or_default()
    }

    async fn look(
        service: Arc<Self>,
        copy: Arc<Self>,
        key: ObjectKey,
        context: Arc<Context>,
    ) -> Result<Option<Duration>, Error> {
        let mut again = None;
        let findings = match validate(&service, &observe::facts(&service, &context)) {
            Ok(checked) => {
                let plan = plan(&service, &checked, context.fetch_image());
                carry_out(&*service, &key, plan, &mut again, &context).await?
            }
            Err(findings) => {
                context.downstream().keep(&key, &keeps(&service, &key));
                findings
            }
        };
        let later = write_status(&service, &copy, &key, &findings, &context).await?;
        Ok(again.into_iter().chain(later).min())
    }
}

/// The ports of the services that share an agent's node depend on each other.
pub fn wake_neighbours(service: &JointInferenceService, context: &Context) {
    let node = &service.spec.cloud_worker.node_name;
    let by_agent = context.stores().nodes.get(&ObjectRef::<Node>::new(node));
    if by_agent.as_deref().is_some_and(is_agent_node) {
        context
            .wake_where(|other: &JointInferenceService| other.spec.cloud_worker.node_name == *node);
    }
}
