//! What a container needs of the agent that runs it, and what nodes lack of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use neptune_api::{ResourceRequirements, WorkerSpec};
use neptune_wire::{AgentFeature, ContainerProgram, NodeName, SecretVariable, too_few_devices};

use crate::{
    finding::Finding,
    kubernetes::{container_inputs::ContainerInputs, node_view::NodeSource, quantities},
    nodes::{offer::AgentOffer, sealing::SealKeyState},
    reason::Reason,
    worker::{
        config::references::{ConfigKind, ConfigPart, ConfigUse, uses},
        node_values::MissingLabel,
        probes::agent_probes,
        volumes::agent_mounts,
    },
};

/// What the agents of nodes offer, of those that have reported.
pub type NodeOffers = BTreeMap<NodeName, Arc<AgentOffer>>;

/// The nodes that do not get a container, and why. They keep what they have of its object.
pub type UnmetNeeds = BTreeMap<NodeName, Unmet>;

/// The maximum number of nodes in the answer to an apply.
const MAX_WARNINGS: usize = 3;

/// Why a node cannot get a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unmet {
    /// It lacks a label of which the container needs the value.
    Label(MissingLabel),
    /// Its agent has not reported, so what it offers is not known.
    NotReported,
    /// The API server did not answer, so what a Secret or `ConfigMap` has is not known.
    NotRead,
    /// The container cannot get a Secret or `ConfigMap`.
    Config(Finding),
    /// Its agent would ignore a part of the program.
    Feature(AgentFeature),
    /// It offers fewer devices than requested.
    Devices {
        /// The name of the resource, such as `nvidia.com/gpu`.
        resource: String,
        /// How many are requested.
        requested: u32,
        /// What its agent offers.
        offer: Arc<AgentOffer>,
    },
}

/// How well a node suits a container, from worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suitability {
    /// It lacks something that the container needs.
    Unsuited,
    /// It is not known what it offers.
    Unknown,
    /// It offers the devices, and some are in use or missing.
    Offered,
    /// It offers everything, and enough devices are free.
    Free,
}

/// The part of a worker's program that decides which node it is placed on, before the rest is resolved.
pub fn requested_by_worker(spec: &WorkerSpec) -> ContainerProgram {
    let working_dir = spec.working_dir.clone();
    let probes = agent_probes(spec);
    let requested = requested(spec.resources.as_ref(), spec.into());
    ContainerProgram { working_dir, probes, ..requested }
}

/// The part of a program with these limits and inputs that decides which node it is placed on.
pub fn requested(
    resources: Option<&ResourceRequirements>,
    inputs: ContainerInputs<'_>,
) -> ContainerProgram {
    let (_, devices) = quantities::limits("", resources, &mut Vec::new());
    let mounts = agent_mounts("", inputs, &mut Vec::new());
    // Credentials of a registry are used only if they are there.
    let needs = |it: &ConfigUse<'_>| {
        it.object.kind == ConfigKind::Secret && !matches!(it.part, ConfigPart::Credentials)
    };
    let variable = |it: ConfigUse<'_>| SecretVariable {
        name: String::new(),
        secret: it.object.name,
        key: String::new(),
    };
    let secret_env = uses(inputs).into_iter().filter(needs).map(variable).collect();
    ContainerProgram { devices, mounts, secret_env, ..ContainerProgram::default() }
}

/// What an agent has to support to run a program as a model server or a training: agents ran these
/// without the volumes and values of their programs at first.
pub fn features_of_server(
    program: &ContainerProgram,
    features: &BTreeSet<AgentFeature>,
) -> BTreeSet<AgentFeature> {
    let has_inputs = !program.mounts.is_empty() || features.contains(&AgentFeature::Sealed);
    let added = has_inputs.then_some(AgentFeature::ServerValues);
    features.iter().copied().chain(added).collect()
}

/// The nodes that lack something that the program of a training needs.
pub fn unmet_on<'a>(
    program: &ContainerProgram,
    nodes: impl IntoIterator<Item = &'a NodeName>,
    offers: &NodeOffers,
) -> UnmetNeeds {
    let features = features_of_server(program, &program.required_features());
    let lacking = |node: &NodeName| {
        Some((node.clone(), unmet_features(&features, program, offers.get(node))?))
    };
    nodes.into_iter().filter_map(lacking).collect()
}

/// What a node lacks of what a program needs; `None` if it can get its container. `offer` is what its
/// agent reported.
pub fn unmet(program: &ContainerProgram, offer: Option<&Arc<AgentOffer>>) -> Option<Unmet> {
    unmet_features(&program.required_features(), program, offer)
}

/// The same for a program of which more is known than its container: these features are those that it
/// needs with it.
pub fn unmet_features(
    features: &BTreeSet<AgentFeature>,
    program: &ContainerProgram,
    offer: Option<&Arc<AgentOffer>>,
) -> Option<Unmet> {
    if features.is_empty() {
        return None;
    }
    let Some(offer) = offer else { return Some(Unmet::NotReported) };
    if let Some(feature) = features.difference(&offer.supports).next() {
        return Some(Unmet::Feature(*feature));
    }
    let total = |resource: &str| offer.device(resource).map_or(0, |device| device.total);
    let mut requests = program.devices.iter();
    let (resource, requested) = requests.find(|(name, number)| total(name) < **number)?;
    let (resource, requested) = (resource.clone(), *requested);
    Some(Unmet::Devices { resource, requested, offer: Arc::clone(offer) })
}

/// How well a node suits a program.
pub fn suitability(program: &ContainerProgram, offer: Option<&Arc<AgentOffer>>) -> Suitability {
    match (unmet(program, offer), offer) {
        (Some(Unmet::NotReported | Unmet::NotRead), _) => Suitability::Unknown,
        (Some(_), _) => Suitability::Unsuited,
        (None, Some(offer)) => {
            let free = |resource: &str| offer.device(resource).map_or(0, |device| device.free);
            let is_free = program.devices.iter().all(|(name, number)| free(name) >= *number);
            if is_free { Suitability::Free } else { Suitability::Offered }
        }
        (None, None) => Suitability::Free,
    }
}

/// The first three different findings of nodes that lack something: for the answer to an apply.
pub fn warnings<'a>(
    unmet: impl Iterator<Item = (&'a NodeName, &'a Unmet)>,
    source: impl Fn(&NodeName) -> Option<NodeSource>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    for (node, unmet) in unmet {
        let message = unmet.finding(node, source(node)).map(|finding| finding.message);
        // A missing Secret is one problem on all nodes.
        warnings.extend(message.filter(|message| !warnings.contains(message)));
        if warnings.len() == MAX_WARNINGS {
            break;
        }
    }
    warnings
}

impl Unmet {
    /// Whether the node is known to lack something. Otherwise its agent has to report first.
    pub fn is_known(&self) -> bool {
        !matches!(self, Self::NotReported | Self::NotRead)
    }

    /// Why Secrets cannot be sealed for a node; `None` if they can.
    pub fn of_seal_key(node: &NodeName, state: Option<&SealKeyState>) -> Option<Self> {
        match state {
            Some(SealKeyState::Trusted(_)) => None,
            None => Some(Self::NotReported),
            // A key that will be recorded soon is no finding.
            Some(state) => Some(state.finding(node).map_or(Self::NotReported, Self::Config)),
        }
    }

    /// What is wrong on this node, and the remedy; `None` if the node has to report first. `source` is
    /// what can have a label.
    pub fn finding(&self, node: &NodeName, source: Option<NodeSource>) -> Option<Finding> {
        match self {
            Self::Label(missing) => Some(missing.finding(node, source)),
            Self::NotReported | Self::NotRead => None,
            Self::Config(finding) => Some(finding.clone()),
            Self::Feature(feature) => {
                let message = format!(
                    "the agent of node {node} does not support {}; upgrade it",
                    name(*feature)
                );
                Some(Finding::new(Reason::AgentTooOld, message))
            }
            Self::Devices { resource, requested, offer } => {
                let message = too_few_devices(node, resource, *requested, &offer.devices);
                Some(Finding::new(Reason::DeviceUnknown, message))
            }
        }
    }
}

/// The name of a feature in messages.
fn name(feature: AgentFeature) -> &'static str {
    match feature {
        AgentFeature::Devices => "devices",
        AgentFeature::Volumes => "volumes and workingDir",
        AgentFeature::Logs => "logs",
        AgentFeature::Probes => "probes",
        AgentFeature::Restart => "restarts",
        AgentFeature::Sealed => "Secrets and ConfigMaps",
        AgentFeature::ServerValues => {
            "volumes, Secrets and ConfigMaps of model servers and trainings"
        }
        AgentFeature::Unknown => "a part of the program",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::OfferedDevice;
    use serde_json::json;

    use super::*;

    fn requests(devices: &[(&str, u32)]) -> ContainerProgram {
        let devices = devices.iter().map(|(name, number)| ((*name).to_owned(), *number));
        ContainerProgram { devices: devices.collect(), ..ContainerProgram::default() }
    }

    fn offer(devices: &[(&str, u32, u32)]) -> Arc<AgentOffer> {
        let device = |(resource, total, free): &(&str, u32, u32)| OfferedDevice {
            resource: (*resource).to_owned(),
            total: *total,
            free: *free,
            missing: 0,
        };
        Arc::new(AgentOffer {
            supports: [AgentFeature::Devices].into(),
            devices: devices.iter().map(device).collect(),
            seal_key: None,
        })
    }

    const CAMERA: (&str, u32, u32) = ("neptune.io/camera", 1, 0);

    #[test]
    fn node_without_the_devices_is_named_with_what_it_offers() {
        let gpu = requests(&[("nvidia.com/gpu", 1)]);
        let node = "edge0".parse().unwrap();
        for (program, offer, reason, message) in [
            (
                &gpu,
                offer(&[CAMERA]),
                Reason::DeviceUnknown,
                "node edge0 offers no nvidia.com/gpu; it offers neptune.io/camera (1); correct resources.limits, or add the device with --allow-device of the agent",
            ),
            (
                &gpu,
                offer(&[]),
                Reason::DeviceUnknown,
                "node edge0 offers no nvidia.com/gpu; it offers no device; correct resources.limits, or add the device with --allow-device of the agent",
            ),
            (
                &requests(&[("neptune.io/camera", 2)]),
                offer(&[CAMERA]),
                Reason::DeviceUnknown,
                "node edge0 offers 1 neptune.io/camera, and 2 are requested",
            ),
            (
                &gpu,
                Arc::default(),
                Reason::AgentTooOld,
                "the agent of node edge0 does not support devices; upgrade it",
            ),
        ] {
            let finding = unmet(program, Some(&offer)).unwrap().finding(&node, None);
            assert_eq!(finding, Some(Finding::new(reason, message)));
        }
    }

    #[test]
    fn only_values_of_secrets_need_an_agent_that_opens_them() {
        let spec: WorkerSpec = serde_json::from_value(json!({
            "frameworkType": "any",
            "frameworkVersion": "1",
            "image": "a:1",
            "imagePullSecrets": [{"name": "registry"}],
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "token", "key": "b"}}},
            ],
        }))
        .unwrap();
        let variables = requested_by_worker(&spec).secret_env;
        let secrets: Vec<_> = variables.iter().map(|it| &*it.secret).collect();
        assert_eq!(secrets, ["token"]);
    }

    #[test]
    fn node_that_has_not_reported_gets_only_what_every_agent_runs() {
        assert_eq!(unmet(&requests(&[]), None), None);
        let unmet = unmet(&requests(&[("a/b", 1)]), None).unwrap();
        assert_eq!(unmet, Unmet::NotReported);
        assert_eq!(unmet.finding(&"edge0".parse().unwrap(), None), None);
    }

    #[test]
    fn nodes_are_ordered_by_offered_and_free_devices() {
        use Suitability::{Free, Offered, Unknown, Unsuited};

        let program = requests(&[("a/b", 1)]);
        let nodes =
            [Some(offer(&[])), None, Some(offer(&[("a/b", 2, 0)])), Some(offer(&[("a/b", 2, 1)]))];
        let all = nodes.each_ref().map(|offer| suitability(&program, offer.as_ref()));
        assert_eq!(all, [Unsuited, Unknown, Offered, Free]);
        assert!(all.is_sorted());
        assert_eq!(suitability(&requests(&[]), None), Free);
    }

    #[test]
    fn only_limits_other_than_cpu_and_memory_need_offers() {
        for (limits, expected) in [
            (json!({}), false),
            (json!({"limits": {"cpu": 1, "memory": "1Gi"}}), false),
            (json!({"limits": {"cpu": 1, "a.example/b": 1}}), true),
        ] {
            let resources: ResourceRequirements = serde_json::from_value(limits.clone()).unwrap();
            let inputs = ContainerInputs::default();
            let needed = requested(Some(&resources), inputs).required_features();
            assert_eq!(!needed.is_empty(), expected, "{limits}");
        }
        let nothing = requested(None, ContainerInputs::default());
        assert!(nothing.required_features().is_empty());
    }

    #[test]
    fn worker_with_a_volume_or_a_probe_needs_an_agent_that_supports_it() {
        let worker = |fields: serde_json::Value| -> WorkerSpec {
            let mut spec = json!({"frameworkType": "container", "image": "a:1"});
            spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            serde_json::from_value(spec).unwrap()
        };
        let plain = worker(json!({}));
        assert_eq!(requested_by_worker(&plain).required_features().len(), 0);
        let state = worker(json!({
            "volumes": [{"name": "state", "emptyDir": {}}],
            "volumeMounts": [{"name": "state", "mountPath": "/state"}],
        }));
        assert_eq!(requested_by_worker(&state).required_features().len(), 1);
        let node = "edge0".parse().unwrap();
        let unmet = unmet(&requested_by_worker(&state), Some(&offer(&[]))).unwrap();
        let message = "the agent of node edge0 does not support volumes and workingDir; upgrade it";
        let expected = Finding::new(Reason::AgentTooOld, message);
        assert_eq!(unmet.finding(&node, None), Some(expected));
        let probed = worker(json!({"livenessProbe": {"exec": {"command": ["true"]}}}));
        let unmet = super::unmet(&requested_by_worker(&probed), Some(&offer(&[]))).unwrap();
        let message = "the agent of node edge0 does not support probes; upgrade it";
        let expected = Finding::new(Reason::AgentTooOld, message);
        assert_eq!(unmet.finding(&node, None), Some(expected));
    }
}
