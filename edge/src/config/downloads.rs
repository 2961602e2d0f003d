//! Validates the options of downloads. Pure.

use neptune_agent_core::downloads::parse_rate;

use super::flags::{given, invalid};
use crate::{Error, cli::DownloadArgs};

/// The options of downloads.
pub struct DownloadLimits {
    /// The rate of all downloads; `None` without a limit.
    pub bytes_per_second: Option<u64>,
}

/// Validates the options of downloads.
///
/// # Errors
/// [`Error::Config`] with the flag and the remedy.
pub fn download_limits(args: &DownloadArgs) -> Result<DownloadLimits, Error> {
    let rate = given(args.download_rate.as_ref()).map(|text| {
        let remedy = "use a number of bytes of at least 64KiB, such as 2MiB, or omit it";
        parse_rate(text).map_err(|error| invalid("--download-rate", error, remedy))
    });
    Ok(DownloadLimits { bytes_per_second: rate.transpose()? })
}
