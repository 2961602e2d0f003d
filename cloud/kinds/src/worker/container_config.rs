//! What a container at an agent gets of its Secrets and `ConfigMap`s, or what is missing for that.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use neptune_wire::{AgentFeature, ContainerProgram, NodeName, SealKeyId};

use crate::{
    kubernetes::container_inputs::ContainerInputs,
    nodes::{offer::AgentOffer, sealing::SealKeyState},
    worker::{
        config::{
            objects::ConfigObjects,
            resolve::{ConfigObstacle, resolve},
            resolved::ResolvedConfig,
        },
        needs::{Unmet, unmet_features},
    },
};

/// What a container at an agent gets of its Secrets and `ConfigMap`s.
#[derive(Debug, Clone)]
pub enum ContainerConfig {
    /// It refers to none, or a Pod runs it, whose kubelet reads them.
    None,
    /// Everything that it refers to.
    Ready {
        /// The variables, files and credentials that it gets.
        config: Arc<ResolvedConfig>,
        /// What its agent has to support, with that.
        features: BTreeSet<AgentFeature>,
    },
    /// Nothing: its nodes keep what they have.
    Unmet(Unmet),
}

impl ContainerConfig {
    /// What a container with this program gets, as the objects were read.
    pub fn resolve(
        inputs: ContainerInputs<'_>,
        program: &ContainerProgram,
        objects: &ConfigObjects,
        namespace: &str,
    ) -> Self {
        match resolve(inputs, objects, namespace) {
            Ok(None) => Self::None,
            Ok(Some(config)) => {
                // Once, and not for each node.
                let mut program = program.clone();
                config.add_to(&mut program, None, &SealKeyId::default());
                let features = program.required_features();
                Self::Ready { config: Arc::new(config), features }
            }
            Err(ConfigObstacle::Unknown) => Self::Unmet(Unmet::NotRead),
            Err(ConfigObstacle::Finding(finding)) => Self::Unmet(Unmet::Config(finding)),
        }
    }

    /// What it gets, if it refers to something and gets it.
    pub fn ready(&self) -> Option<&ResolvedConfig> {
        match self {
            Self::Ready { config, .. } => Some(config),
            Self::None | Self::Unmet(_) => None,
        }
    }

    /// What the agent of its program has to support.
    pub fn required_features(&self, program: &ContainerProgram) -> Cow<'_, BTreeSet<AgentFeature>> {
        match self {
            Self::Ready { features, .. } => Cow::Borrowed(features),
            Self::None | Self::Unmet(_) => Cow::Owned(program.required_features()),
        }
    }

    /// What a node lacks of these features, of the devices of the program, and for its values; `None`
    /// if it can get the container.
    pub fn unmet(
        &self,
        features: &BTreeSet<AgentFeature>,
        program: &ContainerProgram,
        (node, offer, seal_key): (&NodeName, Option<&Arc<AgentOffer>>, Option<&SealKeyState>),
    ) -> Option<Unmet> {
        if let Self::Unmet(unmet) = self {
            return Some(unmet.clone());
        }
        unmet_features(features, program, offer).or_else(|| {
            let has_secrets = self.ready().is_some_and(|config| !config.secrets.is_empty());
            Unmet::of_seal_key(node, seal_key).filter(|_| has_secrets)
        })
    }
}
