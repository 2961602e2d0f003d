//! Looks at one service: observe, validate, plan, apply, status.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::{ObjectRef, Store};
use neptune_api::JointInferenceService;
use neptune_wire::{ObjectKey, Resource};

use crate::{
    cache::Caches,
    controllers::{
        joint_inference_service::{
            observe,
            plan::{keeps, plan},
            validate::validate,
            write_status::write_status,
        },
        runtime::{
            context::{Context, ControllerState},
            controller::Kind,
            execute::{WorkloadMessages, WorkloadOwner, execute},
        },
    },
    error::Error,
    kubernetes::nodes::is_agent_node,
    reason::{Finding, Reason},
};

impl WorkloadOwner for JointInferenceService {
    const MESSAGES: WorkloadMessages = WorkloadMessages {
        created: "CloudWorkerCreated",
        what: "cloud worker",
        rename: "spec.cloudWorker.name",
        shorten: "shorten its parameters and env",
        refused: Reason::CloudWorkerRefused,
    };
}

impl Kind for JointInferenceService {
    const RESOURCE: Resource = Resource::JointInferenceServices;

    fn store(caches: &Caches) -> &Store<Self> {
        &caches.joint_inference_services
    }

    fn controller_state(context: &Context) -> &ControllerState<Self> {
        context.services()
    }

    fn concerns(&self, node: &str) -> bool {
        self.spec.edge_worker.node_name == node || self.spec.cloud_worker.node_name == node
    }

    fn findings(&self, context: &Context) -> Vec<Finding> {
        validate(self, &observe::facts(self, context)).err().unwrap_or_default()
    }

    async fn reconcile(
        service: Arc<Self>,
        cached: Arc<Self>,
        key: ObjectKey,
        context: Arc<Context>,
    ) -> Result<Option<Duration>, Error> {
        let mut requeue_after = None;
        let findings = match validate(&service, &observe::facts(&service, &context)) {
            Ok(checked) => {
                let plan = plan(&service, &checked, context.fetch_image());
                execute(&*service, &key, plan, &mut requeue_after, &context).await?
            }
            Err(findings) => {
                context.publisher().keep(&key, &keeps(&service, &key));
                findings
            }
        };
        let later = write_status(&service, &cached, &key, &findings, &context).await?;
        Ok(requeue_after.into_iter().chain(later).min())
    }
}

/// The ports of the services that share an agent's node depend on each other.
pub fn enqueue_port_neighbours(service: &JointInferenceService, context: &Context) {
    let node = &service.spec.cloud_worker.node_name;
    let by_agent = context.caches().nodes.get(&ObjectRef::<Node>::new(node));
    if by_agent.as_deref().is_some_and(is_agent_node) {
        context.enqueue_where(|other: &JointInferenceService| {
            other.spec.cloud_worker.node_name == *node
        });
    }
}
