//! Services that are chained by `cloudWorker.service`. Pure.

pub mod tiers;
pub mod total_upload;
