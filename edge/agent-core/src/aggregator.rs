//! Decides the container of an aggregator: program, mounts, limits and labels.

use std::{collections::HashMap, path::PathBuf};

use neptune_wire::{AgentInstance, ContainerProgram, KeyPin};

use crate::domain::{
    aggregator::WantedAggregator,
    container::{ContainerSpec, DirectoryMount},
    node_context::NodeContext,
    observed_container::MANAGED,
};

/// Label with the UID of the `TrainingModel` of an aggregator.
pub const AGGREGATOR: &str = "io.neptune.aggregator";
/// Label with the node. Not that of workers, whose plan would remove the container.
const NODE: &str = "io.neptune.aggregator-node";
const INSTANCE: &str = "io.neptune.aggregator-instance";
const OBJECT: &str = "io.neptune.aggregator-object";
/// Label with the hash of the container's specification. Another hash replaces the container.
const SPEC: &str = "io.neptune.aggregator-spec";
/// Label with the pin of the aggregator's key. Another key means that the files were lost while the
/// container ran.
const PIN: &str = "io.neptune.aggregator-pin";

/// The user of the program when the agent is root.
const NONROOT: u32 = 65_532;
/// The directory in the container on which the data directory of the aggregator is mounted.
const DATA_DIR: &str = "/data";

/// Identifies the container of an aggregator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregatorIdentity {
    pub node: String,
    pub instance: String,
    pub uid: String,
    spec: String,
    pin: String,
}

impl AggregatorIdentity {
    /// Parses the labels. `None` for another container.
    pub fn from_labels(labels: &HashMap<String, String>) -> Option<Self> {
        let label = |name: &str| labels.get(name).cloned();
        Some(Self {
            uid: label(AGGREGATOR)?,
            node: label(NODE)?,
            instance: label(INSTANCE)?,
            spec: label(SPEC)?,
            pin: label(PIN)?,
        })
    }

    /// Whether the agent of this node and data directory is responsible for it: it, or an earlier
    /// data directory or name of the node, created it.
    pub fn is_of(&self, context: &NodeContext, instance: &AgentInstance) -> bool {
        self.node == context.node.as_str() || self.instance == instance.0
    }

    /// Whether the present agent created it with this specification and key.
    pub fn is_current(
        &self,
        (spec, pin): (&ContainerSpec, &KeyPin),
        context: &NodeContext,
        instance: &AgentInstance,
    ) -> bool {
        self.node == context.node.as_str()
            && self.instance == instance.0
            && self.spec == spec.hash().to_string()
            && self.pin == pin.0
    }
}

/// The labels of the container.
pub fn labels(
    wanted: &WantedAggregator,
    (spec, pin): (&ContainerSpec, &KeyPin),
    context: &NodeContext,
    instance: &AgentInstance,
) -> HashMap<String, String> {
    let labels = [
        (MANAGED.0, MANAGED.1.to_owned()),
        (AGGREGATOR, wanted.uid.clone()),
        (NODE, context.node.to_string()),
        (INSTANCE, instance.0.clone()),
        (OBJECT, wanted.owner.to_string()),
        (SPEC, spec.hash().to_string()),
        (PIN, pin.0.clone()),
    ];
    labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The user of the program, which owns its files.
pub fn user(context: &NodeContext) -> u32 {
    if context.agent_user == 0 { NONROOT } else { context.agent_user }
}

/// The specification of the container, whose data is in this directory.
pub fn spec(wanted: &WantedAggregator, data: PathBuf, context: &NodeContext) -> ContainerSpec {
    let aggregator = &wanted.content;
    let args = ["--data-dir", DATA_DIR, "--listen", &format!("0.0.0.0:{}", aggregator.port)];
    let program = ContainerProgram {
        image: aggregator.image.clone(),
        command: vec!["neptune-aggregator".to_owned()],
        args: args.map(str::to_owned).into(),
        ..ContainerProgram::default()
    };
    ContainerSpec {
        directories: vec![DirectoryMount {
            source: data,
            target: DATA_DIR.to_owned(),
            writable: true,
        }],
        // It downloads first weights.
        dns: context.dns.clone(),
        network: context.container_network(Some(aggregator.port)),
        user: Some(user(context)),
        writable_root: false,
        ..ContainerSpec::new(&wanted.uid, program, &context.defaults)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures::{node_context, wanted_aggregator};

    #[test]
    fn container_has_no_rights_but_its_directory() {
        let context = NodeContext { agent_user: 0, ..node_context() };
        let spec = spec(&wanted_aggregator(), "/d/aggregators/uid-1".into(), &context);
        assert_eq!((spec.user, spec.writable_root), (Some(NONROOT), false));
        assert_eq!(spec.args, ["--data-dir", "/data", "--listen", "0.0.0.0:8418"]);
        assert!(spec.directories[0].writable && spec.directories.len() == 1);
        let own = NodeContext { agent_user: 1000, ..context };
        assert_eq!(user(&own), 1000);
    }

    #[test]
    fn labels_identify_the_specification_and_its_owner() {
        let (context, wanted) = (node_context(), wanted_aggregator());
        let instance = AgentInstance("a".to_owned());
        let first = spec(&wanted, "/d".into(), &context);
        let pin = KeyPin("sha256:00".to_owned());
        let labels = labels(&wanted, (&first, &pin), &context, &instance);
        let identity = AggregatorIdentity::from_labels(&labels).unwrap();
        assert_eq!(identity.uid, "uid-1");
        assert!(identity.is_current((&first, &pin), &context, &instance));
        let other_key = KeyPin("sha256:01".to_owned());
        assert!(!identity.is_current((&first, &other_key), &context, &instance));
        let mut other = wanted;
        other.content.port = 9000;
        let other = spec(&other, "/d".into(), &context);
        assert!(!identity.is_current((&other, &pin), &context, &instance));
        let later = AgentInstance("b".to_owned());
        assert!(!identity.is_current((&first, &pin), &context, &later));
        assert!(identity.is_of(&context, &later), "an earlier data directory of this node");
        assert_eq!(AggregatorIdentity::from_labels(&HashMap::new()), None);
    }
}
