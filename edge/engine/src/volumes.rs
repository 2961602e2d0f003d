//! Lists the volumes that agents created.

use std::collections::HashMap;

use bollard::{errors::Error as DockerError, models, query_parameters as query};
use neptune_agent_core::domain::{observed_container::ContainerIdentity, volume::ObservedVolume};
use neptune_wire::NodeName;

use crate::docker::{Docker, labels_of};

impl Docker {
    /// The volumes with this node's labels; none if the engine does not list them.
    pub(crate) async fn volumes(&self, node: &NodeName) -> Vec<ObservedVolume> {
        let volumes = match self.labelled_volumes(labels_of(node)).await {
            Ok(volumes) => volumes,
            Err(error) => {
                tracing::debug!(%error, "the engine does not list volumes; none is removed now");
                return Vec::new();
            }
        };
        let observed = volumes.into_iter().filter_map(|volume| {
            let identity = ContainerIdentity::from_labels(&volume.labels, node)?;
            Some(ObservedVolume { name: volume.name, identity })
        });
        observed.collect()
    }

    /// All volumes with these labels.
    pub(crate) async fn labelled_volumes(
        &self,
        labels: Vec<String>,
    ) -> Result<Vec<models::Volume>, DockerError> {
        let filters = HashMap::from([("label".to_owned(), labels)]);
        let options = query::ListVolumesOptionsBuilder::new().filters(&filters).build();
        Ok(self.client()?.list_volumes(Some(options)).await?.volumes.unwrap_or_default())
    }
}
