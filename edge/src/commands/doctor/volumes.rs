//! Decides the findings about the directories that workers may mount as volumes. Pure.

use crate::commands::doctor::{
    data_directory::bytes,
    facts::{DiskFacts, VolumeDirFacts},
    report::Finding,
};

const CHECK: &str = "volumes";

/// Share of a file system that should be free: a tenth.
const FREE_SHARE: u64 = 10;

/// Whether a directory of `--allow-volume-dir` exists, and has free space.
pub fn volumes(VolumeDirFacts { path, disk }: &VolumeDirFacts) -> Finding {
    let path = path.display();
    match disk {
        Err(why) => Finding::error(
            CHECK,
            format!("{path} of --allow-volume-dir: {why}"),
            "create the directory, mount it into the Pod of the agent, or remove it from --allow-volume-dir",
        ),
        Ok(DiskFacts { free, size, .. }) => {
            let seen = format!("{path}: {} of {} free", bytes(*free), bytes(*size));
            if *free < *size / FREE_SHARE {
                Finding::warning(
                    CHECK,
                    seen,
                    "free disk space before workers cannot write any more",
                )
            } else {
                Finding::ok(CHECK, seen)
            }
        }
    }
}
