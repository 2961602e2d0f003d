//! The directories of a gateway, on the node and in its container.

use neptune_wire::ContentHash;

use crate::{
    desired::WantedWorker,
    domain::{
        gateway_files::GatewayDir,
        node_context::{GATEWAYS_DIR, NodeContext},
    },
};

/// Directory of the configuration file in the container.
pub const CONFIG_DIR: &str = "/etc/neptune-gateway";
/// Directory of the gateway's state in the container.
pub const STATE_DIR: &str = "/var/lib/neptune-gateway";
/// Directory of the secrets in the container.
pub const SECRETS_DIR: &str = "/etc/neptune-gateway-secrets";
/// Directory of captured samples in the container.
pub const CAPTURE_DIR: &str = "/var/lib/neptune-capture";

/// The directory of a gateway. A recreated object of the same name has another UID, and with it
/// another directory.
pub fn gateway_dir(wanted: &WantedWorker, context: &NodeContext) -> GatewayDir {
    let id = ContentHash::compute(&(&wanted.uid, &wanted.worker.name));
    GatewayDir(context.data_dir.join(GATEWAYS_DIR).join(&id.as_str()[..16]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::fixtures::{node_context, wanted_gateway};

    #[test]
    fn directory_is_one_of_the_object_and_worker() {
        let (wanted, context) = (wanted_gateway(), node_context());
        let dir = gateway_dir(&wanted, &context);
        assert_eq!(dir.0.parent().unwrap(), context.data_dir.join("gateways"));
        assert_eq!(dir.0.file_name().unwrap().len(), 16);
        let mut recreated = wanted.clone();
        recreated.uid = "another".into();
        assert_ne!(gateway_dir(&recreated, &context), dir);
        assert_eq!(gateway_dir(&wanted, &context), dir);
    }
}
