//! Looks at one service: observe, validate, plan, apply, status.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::{ObjectRef, Store};
use neptune_api::JointInferenceService;
use neptune_wire::{ObjectKey, Resource};

use super::{
    super::{
        apply::{self, REFUSED_RETRY, apply},
        context::{Context, Desk},
        kind::Kind,
        nodes::is_agent_node,
        notice::Notice,
        write::emit,
    },
    observe,
    plan::{Plan, keeps, plan},
    validate::validate,
    write::write_status,
};
use crate::{
    error::{Class, Error},
    reason::{Finding, Reason},
    stores::Stores,
};

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
                carry_out(&service, &key, plan, &mut again, &context).await?
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

/// Tells the nodes and the API server. Returns what stands in the way there, and in `again` when to
/// try once more.
async fn carry_out(
    service: &JointInferenceService,
    key: &ObjectKey,
    plan: Plan,
    again: &mut Option<Duration>,
    context: &Context,
) -> Result<Vec<Finding>, Error> {
    let too_large = context.downstream().set(key, plan.downstream);
    let mut findings: Vec<_> = too_large.as_deref().map(too_large_finding).into_iter().collect();
    let before = context.memory(service, |memory| memory.applied.clone());
    match apply(service, plan.objects.as_ref(), before.as_ref(), context).await {
        Ok(apply::Outcome::Done { applied, created }) => {
            context.memory(service, |memory| memory.applied = applied);
            if let Some(name) = created {
                let note = format!("Deployment and Service {name} are made");
                emit(service, Notice::normal("CloudWorkerCreated", note), context).await;
            }
        }
        Ok(apply::Outcome::NameTaken { object }) => {
            let message = format!(
                "{object} exists and belongs to somebody else; delete it, or rename spec.cloudWorker.name"
            );
            findings.push(Finding::new(Reason::NameTaken, message));
            *again = Some(REFUSED_RETRY);
        }
        Err(error) if error.class() == Class::Refused => {
            let message = format!("the API server refuses the cloud worker: {}", error.answer());
            findings.push(Finding::new(Reason::CloudWorkerRefused, message));
            *again = Some(REFUSED_RETRY);
        }
        Err(error) => return Err(error),
    }
    Ok(findings)
}

fn too_large_finding(why: &str) -> Finding {
    let remedy = "shorten its parameters and env";
    Finding::new(Reason::TaskTooLarge, format!("spec: {why}; {remedy}"))
}
