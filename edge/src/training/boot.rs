//! In which boot of the machine the program of a task runs. The container engine stores at once that a
//! program exited with 0, and its files are on the disk only after their verification: an output that
//! cannot be used after a reboot may be what a power failure left of a good one.

use std::{fs, io};

use neptune_agent_core::domain::training::{TaskOutput, TaskProblem, VerifyProblem};
use neptune_transfer::durable::{self, Access, Survives};

use super::output::{Expected, TaskFiles};

/// Identifies this boot of the machine; empty where the kernel does not provide it.
pub fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

impl TaskFiles {
    /// Records the boot, before the program starts. Survives a power failure, because it is read after
    /// one.
    pub fn write_boot(&self, boot: &str) -> io::Result<()> {
        let path = self.dir.join("boot");
        durable::replace(&path, boot.as_bytes(), Access::OWNER, Survives::PowerLoss)
    }

    /// Runs [`TaskFiles::verify`] in this boot of the machine.
    ///
    /// # Errors
    /// An output that cannot be used is [`VerifyProblem::Lost`] if the program ran in another boot.
    pub fn verify_in(&self, boot: &str, expected: &Expected) -> Result<TaskOutput, VerifyProblem> {
        self.verify(expected).map_err(|error| match error {
            VerifyProblem::Refused(problem) if self.has_other_boot(boot) => {
                VerifyProblem::Lost(TaskProblem::new(
                    problem.reason,
                    format!(
                        "the machine restarted before the output was on its disk ({}); running the program again",
                        problem.message
                    ),
                ))
            }
            other => other,
        })
    }

    fn has_other_boot(&self, boot: &str) -> bool {
        fs::read_to_string(self.dir.join("boot")).is_ok_and(|content| content != boot)
    }
}
