//! The `restart` command: requests the restart of workers with an annotation of their object, on
//! which the controller and the agents act.

use std::{collections::BTreeSet, io::Write as _};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use neptune_api::{EdgeNode, InferenceModel, JointInferenceService};
use neptune_cloud_kinds::{
    inference_model::target::nodes_of,
    worker::restart::{RESTARTED_ANNOTATION, Restart as Request, restart_time},
};
use neptune_wire::{NodeName, Role};
use serde_json::json;

use crate::{
    cli::{ObjectArgument, Restart, RestartedWorker},
    commands::{connect::connect, rolled_out::RolledOut},
    error::Error,
};

/// The name of the feature of agents that restart workers, in the status of an `EdgeNode`.
const FEATURE: &str = "restart";

/// Requests the restart of workers.
///
/// # Errors
/// No usable kubeconfig, no answer from the API server, no such object, or no such worker.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn restart(flags: Restart) -> Result<(), Error> {
    let (client, default) = connect(&flags.cluster).await?;
    let namespace = flags.namespace.clone().unwrap_or(default);
    let now = Timestamp::now();
    let (text, nodes) = match &flags.object {
        ObjectArgument::Service(name) => {
            request::<JointInferenceService>(&client, (&namespace, name), &flags, now).await?
        }
        ObjectArgument::InferenceModel(_) if flags.worker.is_some() => {
            return Err(Error::Restart("an InferenceModel has no edge or cloud worker".to_owned()));
        }
        ObjectArgument::InferenceModel(name) => {
            request::<InferenceModel>(&client, (&namespace, name), &flags, now).await?
        }
        ObjectArgument::TrainingModel(_)
        | ObjectArgument::Model(_)
        | ObjectArgument::Dataset(_) => unreachable!("the flags refuse other kinds"),
    };
    // A closed pipe is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    // Without the right to list EdgeNodes there is no warning.
    let known = Api::<EdgeNode>::all(client).list(&ListParams::default()).await;
    let known = known.map(|list| list.items).unwrap_or_default();
    if let Some(warning) = warning(&known, &nodes) {
        let _ = writeln!(std::io::stderr(), "{warning}");
    }
    Ok(())
}

/// A kind whose workers can be restarted.
trait Restarted: RolledOut {
    /// The nodes that may have its workers.
    fn nodes(&self) -> Vec<&str>;
}

impl Restarted for JointInferenceService {
    fn nodes(&self) -> Vec<&str> {
        let named = [&self.spec.edge_worker.node_name, &self.spec.cloud_worker.node_name];
        let placed = self.status.iter().flat_map(|status| &status.nodes);
        named.into_iter().flatten().chain(placed).map(String::as_str).collect()
    }
}

impl Restarted for InferenceModel {
    fn nodes(&self) -> Vec<&str> {
        self.status.iter().flat_map(nodes_of).collect()
    }
}

/// Annotates an object. Returns what to tell the user, and the nodes that are concerned.
async fn request<K: Restarted>(
    client: &Client,
    (namespace, name): (&str, &str),
    flags: &Restart,
    now: Timestamp,
) -> Result<(String, BTreeSet<String>), Error> {
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let step = format!("get {} {namespace}/{name}", K::kind(&()));
    let object = api.get(name).await.map_err(Error::api(step))?;
    let wanted = wanted(object.meta(), flags, now).map_err(Error::Restart)?;
    let patch = json!({"metadata": {"annotations": {RESTARTED_ANNOTATION: wanted.to_string()}}});
    let done = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    done.map_err(Error::api(format!("patch {} {namespace}/{name}", K::kind(&()))))?;
    let nodes = if wanted.nodes.is_empty() {
        object.nodes().into_iter().map(str::to_owned).collect()
    } else {
        wanted.nodes.iter().map(NodeName::to_string).collect()
    };
    let name = format!("{}/{}", K::SHORT, object.name_any());
    let has_waves = !object.spec()["rollout"].is_null() && wanted.nodes.is_empty();
    Ok((text(&name, &wanted, has_waves), nodes))
}

/// The next request. It is later than the present one, also if that came from a clock that is ahead.
fn wanted(metadata: &ObjectMeta, flags: &Restart, now: Timestamp) -> Result<Request, String> {
    const STEP: k8s_openapi::jiff::SignedDuration =
        k8s_openapi::jiff::SignedDuration::from_millis(1);
    let present = Request::requested(metadata).and_then(|it| it.at.as_str().parse().ok());
    let at = present
        .map_or(now, |present: Timestamp| present.checked_add(STEP).unwrap_or(present).max(now));
    let at = restart_time(at).ok_or("the clock of this machine is wrong; correct it")?;
    let worker = flags.worker.map(|worker| match worker {
        RestartedWorker::Edge => Role::Edge,
        RestartedWorker::Cloud => Role::Cloud,
    });
    Ok(Request { at, nodes: flags.node.iter().cloned().collect(), worker })
}

/// What to tell the user.
fn text(name: &str, wanted: &Request, has_waves: bool) -> String {
    let worker = match wanted.worker {
        None => "",
        Some(Role::Edge) => " of the edge worker",
        Some(Role::Cloud) => " of the cloud worker",
    };
    let nodes: Vec<_> = wanted.nodes.iter().map(NodeName::as_str).collect();
    let nodes = if nodes.is_empty() { String::new() } else { format!(" on {}", nodes.join(", ")) };
    let waves = if has_waves {
        format!("; its rollout takes the nodes in turn: kubectl neptune rollout status {name}")
    } else {
        String::new()
    };
    format!("{name}: restart{worker}{nodes} requested{waves}\n")
}

/// The warning about nodes whose agents ignore the request.
fn warning(known: &[EdgeNode], nodes: &BTreeSet<String>) -> Option<String> {
    let ignores = |node: &&EdgeNode| {
        let status = node.status.as_ref();
        let has_agent = status.is_some_and(|status| status.agent_version.is_some());
        let supports = status.is_some_and(|status| status.supports.iter().any(|it| it == FEATURE));
        has_agent && !supports && nodes.contains(&node.name_any())
    };
    let old: Vec<_> = known.iter().filter(ignores).map(kube::ResourceExt::name_any).collect();
    let names = old.join(", ");
    (!old.is_empty())
        .then(|| format!("warning: these agents restart nothing until they are upgraded: {names}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser as _;
    use neptune_api::{EdgeNodeSpec, EdgeNodeStatus};

    use super::*;
    use crate::cli::{Cli, Command};

    fn flags(arguments: &[&str]) -> Restart {
        let arguments = [&["neptune-cloud", "restart"][..], arguments].concat();
        match Cli::try_parse_from(arguments).unwrap().command {
            Command::Restart(flags) => flags,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn request_names_nodes_and_worker_and_is_later_than_the_present_one() {
        let now: Timestamp = "2026-11-24T06:00:00.5Z".parse().unwrap();
        let mut metadata = ObjectMeta::default();
        let flags = flags(&["digits", "edge", "--node", "edge1,edge0"]);
        let first = wanted(&metadata, &flags, now).unwrap();
        assert_eq!(first.to_string(), "2026-11-24T06:00:00.500Z edge0,edge1 worker=edge");
        let expected = "jis/digits: restart of the edge worker on edge0, edge1 requested\n";
        assert_eq!(text("jis/digits", &first, false), expected);
        metadata.annotations = Some([(RESTARTED_ANNOTATION.to_owned(), first.to_string())].into());
        let second = wanted(&metadata, &flags, now).unwrap();
        assert_eq!(second.at.as_str(), "2026-11-24T06:00:00.501Z", "in the same millisecond");
        let annotation = (RESTARTED_ANNOTATION.to_owned(), "2099-01-01T00:00:00Z".to_owned());
        metadata.annotations = Some([annotation].into());
        let next = wanted(&metadata, &flags, now).unwrap();
        assert_eq!(next.at.as_str(), "2099-01-01T00:00:00.001Z", "a clock was wrong");
    }

    #[test]
    fn warning_names_the_nodes_of_older_agents() {
        let node = |name: &str, version: Option<&str>, supports: &[&str]| {
            let mut node = EdgeNode::new(name, EdgeNodeSpec::default());
            node.status = Some(EdgeNodeStatus {
                agent_version: version.map(str::to_owned),
                supports: supports.iter().map(ToString::to_string).collect(),
                ..EdgeNodeStatus::default()
            });
            node
        };
        let known = [
            node("old", Some("0.1.0"), &["devices"]),
            node("new", Some("0.2.0"), &["logs", "restart"]),
            node("unseen", None, &[]),
            node("elsewhere", Some("0.1.0"), &[]),
        ];
        let nodes = ["old", "new", "unseen"].map(str::to_owned).into();
        let text = "warning: these agents restart nothing until they are upgraded: old";
        assert_eq!(warning(&known, &nodes).as_deref(), Some(text));
        assert_eq!(warning(&known, &["new".to_owned()].into()), None);
    }
}
