//! Services that are chained by `cloudWorker.service`.

pub mod tiers;
pub mod total_upload;
