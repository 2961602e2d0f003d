//! Fixtures: two Secrets and two `ConfigMap`s that exist, and an agent that gets their values.

use std::{collections::BTreeMap, sync::Arc};

use neptune_wire::{AgentFeature, NodeName, SealPublicKey, SecretBytes, SecretValues};

use super::{
    objects::{ConfigObject, ConfigObjects, ReadObject},
    references::{CREDENTIALS, ConfigKind, ConfigName},
};
use crate::{
    nodes::{offer::AgentOffer, sealing::SealKeyState},
    worker::needs::NodeOffers,
};

/// The objects `one` and `two` of both kinds, which may leave the cluster.
pub fn objects() -> ConfigObjects {
    let mut objects = ConfigObjects::default();
    for name in ["one", "two"] {
        for kind in [ConfigKind::Secret, ConfigKind::ConfigMap] {
            let keys = ["one", "two", CREDENTIALS];
            let value = |key: &str| (key.to_owned(), SecretBytes::new(name.as_bytes().to_vec()));
            let object = ConfigObject {
                version: format!("{name}/1"),
                is_shared: true,
                values: keys.map(value).into(),
                binary: SecretValues::new(),
            };
            let name = ConfigName { kind, name: name.to_owned() };
            objects.read.insert(name, ReadObject::Present(object.into()));
        }
    }
    objects
}

/// The offer of the agent of a node that supports everything.
pub fn offers(node: &NodeName) -> NodeOffers {
    let supports = [AgentFeature::Volumes, AgentFeature::Sealed, AgentFeature::ServerValues].into();
    let offer = Arc::new(AgentOffer { supports, ..AgentOffer::default() });
    [(node.clone(), offer)].into()
}

/// The key of a node, which is trusted.
pub fn seal_keys(node: &NodeName) -> BTreeMap<NodeName, SealKeyState> {
    [(node.clone(), SealKeyState::Trusted(SealPublicKey::new([7; 32])))].into()
}
