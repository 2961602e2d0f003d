//! The volumes of workers, model servers and trainings: what their containers mount, which paths of the node they may have, and
//! which volumes of the engine are not used any more. Values and pure functions only.

pub mod host_path;
pub mod mounts;
pub mod unused;
