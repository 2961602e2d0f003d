//! Which nodes keep the edge worker when a controller without slices reads the status of a service
//! with slices. Its rules are a table here, so that the status is not changed without it.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use neptune_api::JointInferenceServiceStatus;

use super::{
    fixtures::{failed, selected},
    next::next_status,
};
use crate::{fleet::rows::Rows, reason::Reason};

/// The nodes on which a controller without slices supports an object.
const MAX_NODES: usize = 64;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("shop-{at:04}")).collect()
}

/// The status of a service on these nodes, whose rows are in slices. Each tenth worker failed.
fn status_on(nodes: &[String]) -> JointInferenceServiceStatus {
    let mut rows = Rows::default();
    let current = || nodes.iter().map(String::as_str);
    rows.place(current());
    for slice in rows.pending().collect::<Vec<_>>() {
        let write = rows.next_write(slice.index).unwrap();
        rows.written(&write, Some("1".to_owned()));
    }
    rows.set_states(current().map(|node| (node, "Running", None)));
    let mut inputs = selected(nodes);
    for edge in inputs.observed.edges.iter_mut().step_by(10) {
        edge.worker = failed(Reason::CrashLoopBackOff);
    }
    inputs.observed.counted = rows.counted(current());
    next_status(&JointInferenceServiceStatus::default(), &inputs)
}

/// The nodes on which the controller without slices leaves the worker.
fn kept(status: &JointInferenceServiceStatus, selected: &[String], is_valid: bool) -> usize {
    // Of a selector that matches more nodes, it makes the spec invalid.
    let is_valid = is_valid && selected.len() <= MAX_NODES;
    let kept: BTreeSet<&String> = if is_valid {
        // It plans the worker on the nodes that the status names.
        selected.iter().filter(|node| status.nodes.contains(node)).collect()
    } else {
        // What nodes have stays where the status has a row.
        status.edge_workers.iter().map(|row| &row.node).collect()
    };
    kept.len()
}

#[test]
fn controller_without_slices_keeps_the_workers_of_up_to_64_nodes() {
    for (count, is_valid, expected) in [
        (33, true, 33),
        (33, false, 33),
        (64, true, 64),
        (64, false, 64),
        // It keeps only those that the status lists, which are the failed ones here.
        (65, true, 7),
        (65, false, 7),
    ] {
        let nodes = names(count);
        let status = status_on(&nodes);
        assert!(status.slices.is_some() && status.reports.is_empty(), "{count}");
        assert_eq!(kept(&status, &nodes, is_valid), expected, "{count} {is_valid}");
    }
}

#[test]
fn status_names_no_node_that_lost_the_worker() {
    let mut rows = Rows::default();
    let nodes = names(40);
    let current = || nodes.iter().map(String::as_str);
    rows.place(current());
    assert_eq!(rows.counted(current()).nodes, Vec::<String>::new(), "no slice is stored");
    let write = rows.next_write(0).unwrap();
    rows.written(&write, Some("1".to_owned()));
    rows.set_states(current().map(|node| (node, "Running", None)));
    assert_eq!(rows.counted(current()).nodes, nodes);
    rows.set_states(current().skip(5).map(|node| (node, "Running", None)));
    assert_eq!(rows.counted(current().skip(5)).nodes, nodes[5..]);
}
