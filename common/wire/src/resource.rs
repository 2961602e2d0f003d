//! The resources that are sent downstream, by the plural name that topics and the API use.

use std::{fmt, str::FromStr};

/// A resource whose objects are sent to nodes. All but [`Resource::Peers`] are resources of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// The resource `jointinferenceservices` of the group `neptune.io`.
    JointInferenceServices,
    /// The resource `models` of the group `edgeai.io`.
    Models,
    /// The resource `datasets` of the group `edgeai.io`.
    Datasets,
    /// The resource `inferencemodels` of the group `sedna.io`.
    InferenceModels,
    /// The resource `trainingmodels` of the group `sedna.io`.
    TrainingModels,
    /// The [`PeerRoster`](crate::PeerRoster) of each node, which the controller computes. The API
    /// has no such resource.
    Peers,
}

/// The text is not the plural name of a resource that Neptune sends to nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not one of jointinferenceservices, models, datasets, inferencemodels, trainingmodels, peers"
)]
pub struct UnknownResource(String);

impl Resource {
    /// Every resource, in the order of their declaration.
    pub const ALL: [Resource; 6] = [
        Self::JointInferenceServices,
        Self::Models,
        Self::Datasets,
        Self::InferenceModels,
        Self::TrainingModels,
        Self::Peers,
    ];

    /// Returns the plural name, as in API paths.
    pub fn plural(self) -> &'static str {
        match self {
            Self::JointInferenceServices => "jointinferenceservices",
            Self::Models => "models",
            Self::Datasets => "datasets",
            Self::InferenceModels => "inferencemodels",
            Self::TrainingModels => "trainingmodels",
            Self::Peers => "peers",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.plural())
    }
}

impl FromStr for Resource {
    type Err = UnknownResource;
    fn from_str(text: &str) -> Result<Self, UnknownResource> {
        Self::ALL
            .into_iter()
            .find(|resource| resource.plural() == text)
            .ok_or_else(|| UnknownResource(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_round_trips() {
        for resource in Resource::ALL {
            assert_eq!(resource.to_string().parse(), Ok(resource));
        }
        assert!("pods".parse::<Resource>().is_err());
    }
}
