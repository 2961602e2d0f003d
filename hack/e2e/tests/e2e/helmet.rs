//! The document's own sample, with Python scripts that the node has.

use std::process::Command;

use neptune_api::{ConditionType, JointInferenceServiceStatus};
use neptune_e2e::{Fleet, need_image, root, run, totals};

const NAME: &str = "helmet-detection-demo";
