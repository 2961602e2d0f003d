//! Validates the devices that the operator of the node offers.

use std::path::Path;

use neptune_agent_core::devices::source::DeviceOffer;

use super::flags::{absolute, invalid};
use crate::{
    Error,
    cli::DeviceArgs,
    devices::{
        scan::{MAX_NODES, NodeError, node_at},
        watch::DeviceSettings,
    },
};

const FLAG: &str = "--allow-device";

/// The devices of the flags. One that is not there now may come later.
///
/// # Errors
/// [`Error::Config`] with the flag and the remedy.
pub fn devices(args: &DeviceArgs) -> Result<DeviceSettings, Error> {
    absolute("--dev-root", std::slice::from_ref(&args.dev_root))?;
    // A variable that is set and empty offers none.
    let texts = args.allow_device.iter().filter(|text| !text.is_empty());
    let remedy =
        "use a value such as neptune.io/camera=/dev/video0 or nvidia.com/gpu=nvidia.com/gpu=0";
    let offers = texts.map(|text| text.parse().map_err(|error| invalid(FLAG, error, remedy)));
    let offers: Vec<DeviceOffer> = offers.collect::<Result<_, _>>()?;
    let paths: Vec<&str> = offers.iter().flat_map(DeviceOffer::paths).collect();
    if offers.len() > MAX_NODES || paths.len() > MAX_NODES {
        let problem = format!("more than {MAX_NODES} devices");
        return Err(invalid(FLAG, problem, "offer fewer devices on this node"));
    }
    for path in paths {
        check(&args.dev_root, path)?;
    }
    Ok(DeviceSettings { offers, root: args.dev_root.clone() })
}

fn check(root: &Path, path: &str) -> Result<(), Error> {
    match node_at(root, path) {
        Err(NodeError::Refused(why)) => {
            Err(invalid(FLAG, why, "name character devices, such as /dev/video0"))
        }
        // A pattern is not a path.
        Ok(_) | Err(NodeError::Absent) => Ok(()),
    }
}
