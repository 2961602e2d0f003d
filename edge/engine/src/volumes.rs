//! Lists the volumes of the node's workers.

use std::collections::HashMap;

use bollard::query_parameters as query;
use neptune_agent_core::domain::{observed_container::ContainerIdentity, volume::ObservedVolume};
use neptune_wire::NodeName;

use crate::docker::{Docker, labels_of};

impl Docker {
    /// The volumes with this node's labels; none if the engine does not list them.
    pub(crate) async fn volumes(&self, node: &NodeName) -> Vec<ObservedVolume> {
        let filters = HashMap::from([("label".to_owned(), labels_of(node))]);
        let options = query::ListVolumesOptionsBuilder::new().filters(&filters).build();
        let listed = async { self.client()?.list_volumes(Some(options)).await };
        let volumes = match listed.await {
            Ok(listed) => listed.volumes.unwrap_or_default(),
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
}
