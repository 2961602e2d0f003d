//! The answer of `infer`: its scores, and the rows of the cloud in the edge's answer.

use std::borrow::Cow;

use neptune_cascade::rows::{Element, Rows, RowsError, Selection};
use serde_json::value::RawValue;

use super::{
    request::{json_part, rows_of, set_size},
    values,
};
use crate::protocol::{
    error::MergeError,
    json::{self, Object},
    numbers,
    payload::Payload,
    row_text::{TensorRow, Values, part, shape},
    scores::Scores,
    tensor,
};

/// An answer: JSON, with binary outputs after it.
#[derive(Debug)]
pub struct Answer<'a> {
    object: Object<'a>,
    /// `None` if there are none, as in an error.
    outputs: Option<Vec<Output<'a>>>,
    is_binary: bool,
}

#[derive(Debug, Clone)]
struct Output<'a> {
    object: Object<'a>,
    /// `None` if its values are in the JSON.
    binary: Option<&'a [u8]>,
}

/// The data of a merged output.
enum Merged {
    Json(Box<RawValue>),
    Binary(Vec<u8>),
}

impl<'a> Answer<'a> {
    /// Reads an answer; `None` if it is not one, or its sizes do not add up.
    pub fn parse(payload: &'a Payload) -> Option<Self> {
        let object = Object::parse(payload.json()).ok()?;
        let is_binary = payload.is_binary();
        let listed = object
            .original("outputs")
            .and_then(|outputs| serde_json::from_str::<Vec<Object<'a>>>(outputs.get()).ok());
        let Some(listed) = listed else {
            return Some(Self { object, outputs: None, is_binary });
        };
        let mut rest = payload.tail();
        let mut outputs = Vec::with_capacity(listed.len());
        for object in listed {
            let parameters: Object<'_> = object.get("parameters").unwrap_or_default();
            let binary = match parameters.get::<usize>("binary_data_size") {
                None => None,
                Some(size) => {
                    let (slice, after) = rest.split_at_checked(size)?;
                    rest = after;
                    Some(slice)
                }
            };
            outputs.push(Output { object, binary });
        }
        rest.is_empty().then_some(Self { object, outputs: Some(outputs), is_binary })
    }

    /// Whether it has outputs.
    pub const fn has_outputs(&self) -> bool {
        self.outputs.is_some()
    }

    /// Returns the version of the model that answered, if the answer names it.
    pub fn version(&self) -> Option<String> {
        self.object.get::<String>("model_version").filter(|version| !version.is_empty())
    }

    /// The scores in the named output, or in the first that fits.
    pub fn scores(&self, output: Option<&str>, rows: usize) -> Scores {
        let selected = self.outputs().iter().find(|candidate| match output {
            Some(name) => candidate.text("name") == name,
            None => tensor::fits(&candidate.text("datatype"), &candidate.shape()),
        });
        let scores = selected.and_then(|output| {
            tensor::scores(&output.numbers()?, &output.object.get::<Vec<i64>>("shape")?, rows)
        });
        scores.unwrap_or_else(|| Scores::missing(rows))
    }

    /// The answer without the output that only the gateway asked for; `None` without outputs.
    pub fn stripped(&self, added: &str) -> Option<Payload> {
        let kept = self.outputs.as_ref()?.iter().filter(|output| output.text("name") != added);
        let outputs = kept
            .map(|output| (output.object.clone(), Cow::from(output.binary.unwrap_or_default())))
            .collect();
        Some(self.with(outputs, None))
    }

    /// The edge's answer with the selected rows of the cloud's, and who answered each row.
    ///
    /// # Errors
    /// The outputs cannot be mixed.
    pub fn merge(
        &self,
        cloud: &Self,
        selection: &Selection,
        answered_by: &str,
        added: Option<&str>,
    ) -> Result<Payload, MergeError> {
        let edge_outputs = self.outputs.as_ref().ok_or(MergeError::Unreadable("edge"))?;
        let cloud_outputs = cloud.outputs.as_ref().ok_or(MergeError::Unreadable("cloud"))?;
        let differ = || MergeError::Outputs {
            edge: described(edge_outputs.iter().map(|output| &output.object)),
            cloud: described(cloud_outputs.iter().map(|output| &output.object)),
        };
        if edge_outputs.len() != cloud_outputs.len() {
            return Err(differ());
        }
        let mut outputs = Vec::with_capacity(edge_outputs.len());
        for output in edge_outputs {
            let name = output.text("name");
            let other = cloud_outputs.iter().find(|other| other.text("name") == name);
            let other = other.ok_or_else(differ)?;
            let merged = output.merge(other, selection).ok_or_else(differ)??;
            if added == Some(&*name) {
                continue;
            }
            let mut object = output.object.clone();
            outputs.push(match merged {
                Merged::Json(data) => {
                    object.set("data", data);
                    (object, Cow::default())
                }
                Merged::Binary(data) => {
                    set_size(&mut object, data.len());
                    (object, Cow::from(data))
                }
            });
        }
        Ok(self.with(outputs, Some(answered_by)))
    }

    /// The outputs of one row, or of all. An output with another number of rows is whole.
    pub fn tensors(&self, row: Option<usize>, rows: usize) -> Vec<TensorRow<'_>> {
        let tensor = |output: &'_ Output<'a>| {
            let dimensions = output.shape();
            let row =
                row.filter(|_| dimensions.first().is_some_and(|n| usize::try_from(*n) == Ok(rows)));
            let datatype = output.text("datatype");
            let values = match output.binary {
                Some(data) => {
                    let element = Element::from_datatype(&datatype);
                    let rows = element.and_then(|it| Rows::binary(data, &dimensions, it).ok());
                    Values::Binary(part(data, rows.as_ref(), row).into())
                }
                None => Values::Json(json_part(&output.object, &dimensions, row)),
            };
            TensorRow {
                name: output.text("name").into(),
                datatype: datatype.into(),
                shape: shape(&dimensions, row),
                values,
            }
        };
        self.outputs().iter().map(tensor).collect()
    }

    fn outputs(&self) -> &[Output<'a>] {
        self.outputs.as_deref().unwrap_or_default()
    }

    /// This answer with other outputs, each with its binary data.
    fn with(
        &self,
        outputs: Vec<(Object<'_>, Cow<'_, [u8]>)>,
        answered_by: Option<&str>,
    ) -> Payload {
        let (objects, pieces): (Vec<_>, Vec<_>) = outputs.into_iter().unzip();
        let mut object = self.object.clone();
        object.put("outputs", &objects);
        if let Some(answered_by) = answered_by {
            let mut parameters: Object<'_> = self.object.get("parameters").unwrap_or_default();
            parameters.put("neptune_answered_by", answered_by);
            object.put("parameters", &parameters);
        }
        Payload::assembled(object.to_vec(), pieces.iter().map(|piece| &**piece), self.is_binary)
    }
}

impl Output<'_> {
    fn text(&self, name: &str) -> String {
        self.object.get(name).unwrap_or_default()
    }

    fn shape(&self) -> Vec<i64> {
        self.object.get("shape").unwrap_or_default()
    }

    fn numbers(&self) -> Option<Vec<f64>> {
        match self.binary {
            Some(data) => tensor::numbers(&self.text("datatype"), data),
            None => numbers::flat(self.object.raw("data")?),
        }
    }

    /// Merges the data in the form of the edge. `None` if the outputs have different types or
    /// dimensions.
    fn merge(
        &self,
        cloud: &Output<'_>,
        selection: &Selection,
    ) -> Option<Result<Merged, RowsError>> {
        let datatype = self.text("datatype");
        if datatype != cloud.text("datatype") {
            return None;
        }
        let edge_shape: Vec<i64> = self.object.get("shape")?;
        let cloud_shape: Vec<i64> = cloud.object.get("shape")?;
        if edge_shape.get(1..)? != cloud_shape.get(1..)? {
            return None;
        }
        let shapes = [&*edge_shape, &*cloud_shape];
        match (self.binary, cloud.binary) {
            (Some(edge), Some(cloud)) => merge_binary(edge, cloud, &datatype, shapes, selection),
            (Some(edge), None) => {
                let cloud = values::encoded(&datatype, cloud.object.raw("data")?)?;
                merge_binary(edge, &cloud, &datatype, shapes, selection)
            }
            (None, Some(cloud)) => {
                let cloud = values::decoded(&datatype, cloud)?;
                let cloud: Vec<&RawValue> = cloud.iter().map(|value| &**value).collect();
                let edge = numbers::leaves(self.object.raw("data")?);
                Some(merge_lists(&edge, &cloud, shapes, selection))
            }
            (None, None) => {
                let (edge, cloud) = (self.object.raw("data")?, cloud.object.raw("data")?);
                let mut lists = [numbers::elements(edge)?, numbers::elements(cloud)?];
                let is_nested = |list: &[&RawValue]| {
                    list.first().is_some_and(|value| value.get().starts_with('['))
                };
                if is_nested(&lists[0]) != is_nested(&lists[1]) {
                    lists = [numbers::leaves(edge), numbers::leaves(cloud)];
                }
                Some(merge_lists(&lists[0], &lists[1], shapes, selection))
            }
        }
    }
}

fn merge_lists(
    edge: &[&RawValue],
    cloud: &[&RawValue],
    [edge_shape, cloud_shape]: [&[i64]; 2],
    selection: &Selection,
) -> Result<Merged, RowsError> {
    let edge_rows = rows_of(edge.len(), edge_shape)?;
    let cloud_rows = rows_of(cloud.len(), cloud_shape)?;
    Ok(Merged::Json(json::list(edge_rows.merge(edge, selection, &cloud_rows, cloud)?)))
}

/// `None` if the type is unknown.
fn merge_binary(
    edge: &[u8],
    cloud: &[u8],
    datatype: &str,
    [edge_shape, cloud_shape]: [&[i64]; 2],
    selection: &Selection,
) -> Option<Result<Merged, RowsError>> {
    let element = Element::from_datatype(datatype)?;
    let merged = || {
        let edge_rows = Rows::binary(edge, edge_shape, element)?;
        let cloud_rows = Rows::binary(cloud, cloud_shape, element)?;
        edge_rows.merge(edge, selection, &cloud_rows, cloud)
    };
    Some(merged().map(Merged::Binary))
}

/// Such as `probabilities FP32 [-1,10]`.
pub(super) fn described<'a, 'b: 'a>(outputs: impl Iterator<Item = &'a Object<'b>>) -> String {
    let describe = |output: &Object<'_>| {
        let text = |name| output.get::<String>(name).unwrap_or_default();
        let shape: Vec<i64> = output.get("shape").unwrap_or_default();
        tensor::described(&text("name"), &text("datatype"), &shape)
    };
    outputs.map(describe).collect::<Vec<_>>().join(" and ")
}
