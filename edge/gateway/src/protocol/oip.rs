//! Open Inference Protocol, version 2, over REST: confidences, and batches split by row, as JSON and
//! as binary tensors.

mod answer;
mod request;
mod values;

use self::answer::described;
pub use self::{answer::Answer, request::Request};
use super::{error::MergeError, json::Object};

/// Why the outputs of two models cannot be mixed, from their metadata; `None` if they can, or if the
/// metadata do not show it. A dimension of -1 fits any other.
pub fn difference(edge: &Object<'_>, cloud: &Object<'_>) -> Option<MergeError> {
    let edge: Vec<Object<'_>> = edge.get("outputs")?;
    let cloud: Vec<Object<'_>> = cloud.get("outputs")?;
    let text = |output: &Object<'_>, name| output.get::<String>(name);
    let are_alike = |one: &Object<'_>, other: &Object<'_>| {
        let shapes = (one.get::<Vec<i64>>("shape"), other.get::<Vec<i64>>("shape"));
        let (Some(one_shape), Some(other_shape)) = shapes else { return true };
        let fit = |(a, b): (&i64, &i64)| a == b || *a < 0 || *b < 0;
        text(one, "name") == text(other, "name")
            && text(one, "datatype") == text(other, "datatype")
            && one_shape.len() == other_shape.len()
            && one_shape.iter().zip(&other_shape).skip(1).all(fit)
    };
    let is_found = |output| cloud.iter().any(|other| are_alike(output, other));
    if edge.len() == cloud.len() && edge.iter().all(is_found) {
        return None;
    }
    Some(MergeError::Outputs { edge: described(edge.iter()), cloud: described(cloud.iter()) })
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use self::tests::any_tensor;
