//! The nodes of a service, whether its rows are in its status or in slices.

use std::collections::HashSet;

use neptune_api::JointInferenceService;
use neptune_cloud_kinds::joint_inference_service::{
    facts::SlicedNodes, spec::placement::placed_nodes,
};

use crate::controllers::runtime::Context;

fn uid(service: &JointInferenceService) -> &str {
    service.metadata.uid.as_deref().unwrap_or_default()
}

/// The nodes of the slices; `None` if the rows are in the status.
pub fn sliced_nodes(service: &JointInferenceService, context: &Context) -> Option<SlicedNodes> {
    let mut fleet = context.fleet();
    let rows = fleet.known_rows(uid(service))?;
    let members = rows.members()?;
    let placed = rows.placed().iter().filter_map(|node| node.parse().ok()).collect();
    Some(SlicedNodes { members, placed })
}

/// The nodes that have the edge worker of a service whose labels select them.
pub fn nodes_with_worker(service: &JointInferenceService, context: &Context) -> Vec<String> {
    let mut fleet = context.fleet();
    match fleet.known_rows(uid(service)).filter(|rows| rows.is_sliced()) {
        Some(rows) => {
            // Until the slices have the nodes of an earlier status, it has them.
            let listed = placed_nodes(service).map(str::to_owned);
            let mut nodes: Vec<_> = rows.placed().into_iter().chain(listed).collect();
            let mut known = HashSet::new();
            nodes.retain(|node| known.insert(node.clone()));
            nodes
        }
        None => placed_nodes(service).map(str::to_owned).collect(),
    }
}
